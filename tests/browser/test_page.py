"""The page that `wts-lab app` serves: its cell has run before the browser listens, and still every figure is drawn and follows a slider."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("voila", reason="the page needs Voila")

from tests.browser.devtools import Browser
from tests.browser.lab import START_S, STEP_SLIDER, plot
from tests.browser.servers import lab_page


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory):
    """The page, its server ended afterwards."""
    with lab_page(tmp_path_factory.mktemp("page")) as address:
        browser.open(address)
        yield browser


def test_the_page_shows_its_figures_and_follows_a_slider(page: Browser, tmp_path: Path) -> None:
    page.wait_for(f"({plot('complete call')})?.layout.xaxis.range?.[1] > 16", "the call figure's sixteen steps", START_S)
    page.wait_for("document.querySelectorAll('.js-plotly-plot .main-svg:first-child').length === 6", "the explorer's six figures", START_S)
    page.run(f"{STEP_SLIDER}.focus()")
    page.press("ArrowLeft", 37)
    page.wait_for(f"({plot('walk in time')}).data[0].x.length === 16", "an entry and fifteen steps", START_S)
    page.screenshot(tmp_path / "page.png")


def test_a_tab_opens_on_the_walk_of_the_one_before(page: Browser) -> None:
    page.click("[...document.querySelectorAll('.lm-TabBar-tab')].find(each => each.textContent.trim() === 'Decide')")
    page.wait_for(f"({plot('faster head')})?.data?.length === 4", "the decision", START_S)
    shown = "[...document.querySelectorAll('.widget-readout')].filter(each => each.offsetParent).map(each => each.textContent)"
    assert "15" in page.run(shown)
