"""A user's path through JupyterLab: open the notebook, run it, change a control, read the figure, press Run, see points."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = "01_quickstart.ipynb"
DOCUMENT = "[...jupyterapp.shell.widgets('main')].find(each => each.content?.widgets && each.sessionContext)"
"""JavaScript for JupyterLab's notebook widget."""

COUNTS = f"({DOCUMENT}).content.widgets.filter(cell => cell.model.type === 'code').map(cell => cell.model.executionCount)"
"""JavaScript for the execution counts of all code cells."""

PANEL_FIGURE = "document.querySelector('.jupyter-widgets .js-plotly-plot')"
"""The first figure inside the panel: call time over steps."""


def control(label: str, tag: str) -> str:
    """JavaScript for the input element of a panel control, found by its label."""
    return (
        "[...document.querySelectorAll('.jupyter-widgets.widget-inline-hbox')]"
        f".find(box => box.querySelector('label')?.textContent.trim() === {label!r})"
        f".querySelector({tag!r})"
    )


def trace(name: str) -> str:
    """JavaScript for the panel figure's trace of that name, or undefined."""
    return f"({PANEL_FIGURE}?.data ?? []).find(trace => trace.name === {name!r})"


def points_of(name: str) -> str:
    """JavaScript for the number of points of a trace; plotly may hold them in a typed array."""
    return f"(({trace(name)})?.x?.length ?? 0)"


def button(caption: str) -> str:
    """JavaScript for the panel's button of that caption."""
    return f"[...document.querySelectorAll('button.jupyter-button')].find(each => each.textContent.trim() === {caption!r})"


@pytest.fixture(scope="module")
def page(lab, browser):
    """The quickstart notebook, opened and run from top to bottom in the browser."""
    browser.open(lab(NOTEBOOK))
    browser.wait_for(
        "window.jupyterapp !== undefined && document.querySelector('.jp-Notebook') !== null", "opening the notebook", 120
    )
    browser.wait_for(f"({DOCUMENT})?.sessionContext?.session?.kernel?.status === 'idle'", "the kernel's start", 120)
    browser.click("document.querySelector('.jp-Notebook .jp-MarkdownCell')")
    browser.wait_for("jupyterapp.commands.isEnabled('notebook:run-all-cells')", "the notebook taking commands")
    browser.run("void jupyterapp.commands.execute('notebook:run-all-cells')")
    browser.wait_for(f"({COUNTS}).every(count => count)", "running every cell", 240)
    return browser


def test_no_cell_fails_and_the_panel_shows_a_figure(page) -> None:
    outputs = f"({DOCUMENT}).content.widgets.flatMap(cell => cell.model.type === 'code' ? cell.model.outputs.toJSON() : [])"
    assert page.run(f"({outputs}).filter(output => output.output_type === 'error').map(output => output.evalue)") == []
    page.wait_for(f"({PANEL_FIGURE}?.data?.length ?? 0) >= 8", "the panel's figure")
    assert page.run(f"({PANEL_FIGURE}).layout.yaxis.title.text") == "time of a complete call [µs], log scale"


def test_a_changed_control_changes_the_figure(page) -> None:
    before = page.run(f"Math.max(...{trace('resident int8x2, predicted')}.x)")
    select = control("Mode", "select")
    page.run(
        f"(() => {{ const box = {select}; box.value = 'streaming'; box.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )
    page.wait_for(f"{trace('streaming int8x2, predicted')} !== undefined", "the streaming prediction")
    assert page.run(f"{trace('resident int8x2, predicted')}") is None
    assert before == 16
    page.run(
        f"(() => {{ const box = {select}; box.value = 'resident'; box.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )
    page.wait_for(f"{trace('resident int8x2, predicted')} !== undefined", "the resident prediction again")
    assert page.run(f"{points_of('resident int8x2, measured')}") == 0


def test_the_run_button_streams_points_and_fits_them(page, tmp_path: Path) -> None:
    page.click(button("Run"))
    page.wait_for(f"{points_of('resident int8x2, measured')} > 0", "the first measured point")
    page.wait_for(f"{points_of('resident int8x2, fit')} > 0", "the fit", 120)
    assert page.run(points_of("resident int8x2, measured")) >= 3
    page.wait_for("document.body.textContent.includes('replayed:')", "the label that says what was replayed")
    assert page.run(f"{button('Run')}.disabled") is False
    page.screenshot(tmp_path / "panel.png")


def test_cancel_ends_a_replay_and_the_button_works_again(page) -> None:
    page.click(button("Run"))
    page.wait_for(f"!{button('Cancel')}.disabled && {points_of('resident int8x2, fit')} === 0", "the first point of the new run")
    page.click(button("Cancel"))
    page.wait_for("document.body.textContent.includes('Cancelled:')", "the end of the run")
    assert page.run(f"{button('Run')}.disabled") is False and page.run(points_of("resident int8x2, fit")) == 0
