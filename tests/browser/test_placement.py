"""Notebook 03 in JupyterLab: a click on a point of the placement panel takes that placement, a bad one is refused where it was typed."""

from __future__ import annotations

import pytest

from tests.browser.devtools import Browser
from tests.browser.lab import control, folded, run_notebook

NOTEBOOK = "03_placement.ipynb"
PANEL_PLOT = "[...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')].find(each => each.layout?.title?.text?.includes('Registers or shared'))"
PLACEMENT = control("Placement")


def chosen(page: Browser) -> list[float]:
    """Where the ring is that marks the chosen placement: register tiles, microseconds."""
    return page.run(f"(() => {{ const ring = ({PANEL_PLOT}).data.find(each => each.name === 'chosen'); return [ring.x[0], ring.y[0]]; }})()")


@pytest.fixture(scope="module")
def page(lab, browser: Browser) -> Browser:
    """The notebook, run from top to bottom."""
    run_notebook(browser, lab(NOTEBOOK), NOTEBOOK)
    browser.wait_for(f"({PANEL_PLOT})?.querySelectorAll('.scatterlayer .trace .point').length > 3", "the points of the panel")
    return browser


def test_a_click_on_a_point_takes_its_placement(page: Browser) -> None:
    before = chosen(page)
    other = page.run(
        f"(() => {{ const points = ({PANEL_PLOT}).data.find(each => each.name === 'predicted');"
        f" const place = [...points.x].findIndex(x => x !== {before[0]}); return [place, points.x[place]]; }})()"
    )
    page.click(f"({PANEL_PLOT}).querySelectorAll('.scatterlayer .trace')[0].querySelectorAll('.point')[{other[0]}]")
    page.wait_for(f"{PLACEMENT}.value !== 'planned'", "the placement in its field")
    page.wait_for(f"({PANEL_PLOT}).data.find(each => each.name === 'chosen').x[0] === {other[1]}", "the ring on the clicked point")


def test_a_bad_placement_is_refused_at_its_field_and_the_figure_stays(page: Browser) -> None:
    before = chosen(page)
    page.run(f"{PLACEMENT}.focus(), {PLACEMENT}.select()")
    page.type("8,41,32,0,0\n")
    page.wait_for("document.querySelector('[role=alert]')?.textContent.includes('multiple of warps')", "the refusal")
    assert chosen(page) == before


def test_the_state_is_told_as_a_command(page: Browser) -> None:
    page.click(folded("Save and reload"))
    page.wait_for("document.body.textContent.includes('wts-lab predict --gpu h200-sxm --vocab 248320')", "the command")
