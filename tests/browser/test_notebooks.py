"""Every notebook in JupyterLab itself: opened, run from top to bottom, and its first picture drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.devtools import Browser
from tests.browser.lab import DOCUMENT, run_notebook
from tests.browser.servers import REPOSITORY
from wts_lab.report import find_browser

NOTEBOOKS = sorted(path.name for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
PICTURES = ("application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json")

SHOWN = (
    f"({DOCUMENT}).content.widgets.map(cell => cell.model.type === 'code' ? "
    "cell.model.outputs.toJSON().flatMap(output => Object.keys(output.data ?? {})) : [])"
)
"""JavaScript for the kinds of output that each cell shows."""


@pytest.fixture
def fresh_browser() -> Iterator[Browser]:
    """A browser of its own for each notebook: one that leaves an unsaved notebook asks whether it may."""
    with Browser(find_browser()) as started:
        yield started


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_draws_its_picture(name: str, lab, fresh_browser: Browser) -> None:
    run_notebook(fresh_browser, lab(name), name)
    shown = fresh_browser.run(SHOWN)
    pictured = [place for place, kinds in enumerate(shown) if set(kinds) & set(PICTURES)]
    assert pictured and any("text/html" in kinds for kinds in shown), "a story ends in a picture and a table"
    fresh_browser.run(f"void ({DOCUMENT}).content.scrollToItem({pictured[0]})")
    fresh_browser.wait_for("document.querySelector('.js-plotly-plot .main-svg') !== null", "the first picture")
    fresh_browser.run(f"void ({DOCUMENT}).sessionContext.shutdown()")
