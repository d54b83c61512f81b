"""A user's path through JupyterLab: open the notebook, run it, change a control, read the figure, press Run, see points."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.lab import ERRORS, button, choose, run_notebook

NOTEBOOK = "01_quickstart.ipynb"
PANEL_FIGURE = "document.querySelector('.jupyter-widgets .js-plotly-plot')"
"""The first figure inside the panel: call time over steps."""


def trace(name: str) -> str:
    """JavaScript for the panel figure's trace of that name, or undefined."""
    return f"({PANEL_FIGURE}?.data ?? []).find(trace => trace.name === {name!r})"


def points_of(name: str) -> str:
    """JavaScript for the number of points of a trace; plotly may hold them in a typed array."""
    return f"(({trace(name)})?.x?.length ?? 0)"


@pytest.fixture(scope="module")
def page(lab, browser):
    """The quickstart notebook, opened and run from top to bottom in the browser."""
    run_notebook(browser, lab(NOTEBOOK), NOTEBOOK)
    return browser


def test_no_cell_fails_and_the_panel_shows_a_figure(page) -> None:
    assert page.run(ERRORS) == []
    page.wait_for(f"({PANEL_FIGURE}?.data?.length ?? 0) >= 8", "the panel's figure")
    assert page.run(f"({PANEL_FIGURE}).layout.yaxis.title.text") == "time of a complete call [µs], log scale"


def test_a_changed_control_changes_the_figure(page) -> None:
    before = page.run(f"Math.max(...{trace('resident int8x2, predicted')}.x)")
    page.run(choose("Mode", "streaming"))
    page.wait_for(f"{trace('streaming int8x2, predicted')} !== undefined", "the streaming prediction")
    assert page.run(f"{trace('resident int8x2, predicted')}") is None
    assert before == 16
    page.run(choose("Mode", "resident"))
    page.wait_for(f"{trace('resident int8x2, predicted')} !== undefined", "the resident prediction again")
    assert page.run(f"{points_of('resident int8x2, measured')}") == 0


def test_the_run_button_streams_points_and_fits_them(page, tmp_path: Path) -> None:
    page.click(button("Run"))
    page.wait_for(f"{points_of('resident int8x2, measured')} > 0", "the first measured point")
    page.wait_for(f"{points_of('resident int8x2, fit')} > 0", "the fit", 120)
    assert page.run(points_of("resident int8x2, measured")) >= 3
    page.wait_for("document.body.textContent.includes('replayed:')", "the label that says what was replayed")
    for told in ("largest residual", "tokens as the twin's", "samples dropped", "MHz"):
        page.wait_for(f"document.body.textContent.includes({told!r})", f"the table of the run with {told}")
    assert page.run(f"{button('Run')}.disabled") is False
    page.screenshot(tmp_path / "panel.png")


def test_cancel_ends_a_replay_and_the_button_works_again(page) -> None:
    page.click(button("Run"))
    page.wait_for(f"!{button('Cancel')}.disabled && {points_of('resident int8x2, fit')} === 0", "the first point of the new run")
    page.click(button("Cancel"))
    page.wait_for("document.body.textContent.includes('Cancelled:')", "the end of the run")
    assert page.run(f"{button('Run')}.disabled") is False and page.run(points_of("resident int8x2, fit")) == 0
