"""The explorer in JupyterLab: a slider moved by keys, a figure that follows, pictures and a state that can be taken away."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.browser.test_quickstart import DOCUMENT
from wts_lab.report import find_browser

SOURCE = "from wts_lab.ui.explorer import explorer_panel\npanel, handles = explorer_panel()\npanel"
NOTEBOOK = "explorer.ipynb"
STEP_SLIDER = (
    "[...document.querySelectorAll('.widget-inline-hbox')].find(box => box.querySelector('label')?.textContent.startsWith('Walk length'))"
    ".querySelector('[role=slider], .noUi-handle')"
)


def plot(title: str) -> str:
    """JavaScript for the figure whose title holds these words."""
    return f"[...document.querySelectorAll('.js-plotly-plot')].find(each => each.layout.title.text.includes({title!r}))"


def button(caption: str) -> str:
    """JavaScript for the button of that caption."""
    return f"[...document.querySelectorAll('button.jupyter-button')].find(each => each.textContent.trim() === {caption!r})"


def folded(title: str) -> str:
    """JavaScript for the heading of that title, which unfolds what is under it."""
    return f"[...document.querySelectorAll('[class*=Collapse-header]')].find(each => each.textContent.includes({title!r}))"


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
def page(lab, lab_root: Path):
    """The explorer, opened in a notebook and a browser of its own: one that leaves an unsaved notebook asks whether it may."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cell = {"cell_type": "code", "id": "one", "metadata": {}, "execution_count": None, "outputs": [], "source": SOURCE}
    (lab_root / NOTEBOOK).write_text(json.dumps({"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))
    with Browser(find_browser()) as browser:
        browser.open(lab(NOTEBOOK))
        browser.wait_for(f"window.jupyterapp !== undefined && ({DOCUMENT})?.context?.path === {NOTEBOOK!r}", "opening the notebook", 120)
        browser.wait_for(f"({DOCUMENT})?.sessionContext?.session?.kernel?.status === 'idle'", "the kernel's start", 120)
        browser.run("void jupyterapp.commands.execute('notebook:run-all-cells')")
        browser.wait_for("document.querySelectorAll('.js-plotly-plot').length === 6", "the explorer's six figures", 120)
        yield browser


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
