"""The explorer in JupyterLab: a slider moved by keys, a figure that follows, pictures and a state that can be taken away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.browser.lab import START_S, STEP_SLIDER, button, folded, plot, run_notebook, write_notebook

SOURCE = "from wts_lab.ui.explorer import explorer_panel\npanel, handles = explorer_panel()\npanel"
NOTEBOOK = "explorer.ipynb"


def wait_for_file(folder: Path, suffix: str, timeout_s: float = 30.0) -> Path:
    """The file of that suffix that a browser saves into a folder."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = [path for path in folder.iterdir() if path.suffix == suffix and path.stat().st_size]
        if found:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"no {suffix} file came within {timeout_s} s")


@pytest.fixture(scope="module")
def page(lab, lab_root: Path, browser: Browser) -> Browser:
    """The explorer, opened in a notebook of its own."""
    write_notebook(lab_root, NOTEBOOK, SOURCE)
    run_notebook(browser, lab(NOTEBOOK), NOTEBOOK)
    browser.wait_for("document.querySelectorAll('.js-plotly-plot').length === 6", "the explorer's six figures", START_S)
    return browser


def test_a_slider_moved_by_keys_changes_every_figure_in_place(page) -> None:
    outline = f"({plot('matrix sits')}).data[0].x?.length"
    assert page.run(outline) == 2
    page.wait_for(f"({plot('complete call')})?.layout.xaxis.range?.[1] > 16", "the first figure")
    page.run(f"{STEP_SLIDER}.focus()")
    for _ in range(4):
        page.press("ArrowLeft", 37)
    page.wait_for(f"({plot('complete call')}).layout.xaxis.range[1] < 13", "the call figure's twelve steps")
    page.wait_for(f"({plot('walk in time')}).data[0].x.length === 13", "an entry and twelve steps")
    assert page.run(outline) == 2, "what did not change stays drawn"


def test_figures_are_as_wide_as_their_column(page) -> None:
    apart = "[...document.querySelectorAll('.js-plotly-plot')].map(each => Math.abs(each._fullLayout.width - each.closest('.wts-figure').clientWidth))"
    page.wait_for(f"({apart}).every(gap => gap < 2)", "every figure filling its column")


def test_pictures_of_a_figure_are_downloaded(page, tmp_path: Path) -> None:
    page.download_into(tmp_path)
    page.click(folded("Export a figure"))
    for caption, suffix, begins in (("PNG", ".png", b"\x89PNG"), ("SVG", ".svg", b"<svg")):
        page.wait_for(f"{button(caption)} !== undefined", "the picture buttons")
        page.click(button(caption))
        assert wait_for_file(tmp_path, suffix).read_bytes().startswith(begins)


def test_the_state_is_saved_as_a_file_that_python_reads(page, lab_root: Path) -> None:
    from wts_lab.ui.requests import ExplorerRequest

    page.click(folded("Save and reload"))
    page.wait_for(f"{button('Save')} !== undefined", "the save button")
    page.click(button("Save"))
    page.wait_for("document.body.textContent.includes('Wrote out/explorer.json')", "the file")
    assert ExplorerRequest.load(lab_root / "out" / "explorer.json") == ExplorerRequest(steps=12)
    page.screenshot(lab_root / "explorer.png")
