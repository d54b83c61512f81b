"""What the browser tests say to JupyterLab and to the panels: JavaScript for controls, buttons, figures and notebooks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.browser.devtools import Browser

START_S = 180
"""A kernel or a notebook on two shared cores."""

DOCUMENT = "[...jupyterapp.shell.widgets('main')].find(each => each.content?.widgets && each.sessionContext)"
"""JavaScript for JupyterLab's notebook widget."""

COUNTS = f"({DOCUMENT}).content.widgets.filter(cell => cell.model.type === 'code').map(cell => cell.model.executionCount)"
"""JavaScript for the execution counts of all code cells."""

ERRORS = (
    f"({DOCUMENT}).content.widgets.flatMap(cell => cell.model.type === 'code' ? cell.model.outputs.toJSON() : [])"
    ".filter(output => output.output_type === 'error').map(output => output.evalue)"
)
"""JavaScript for what failed cells say."""


STEP_SLIDER = (
    "[...document.querySelectorAll('.widget-inline-hbox')].find(box => box.querySelector('label')?.textContent.startsWith('Walk length'))"
    ".querySelector('[role=slider], .noUi-handle')"
)
"""JavaScript for what the keys move of the slider for steps."""


def plot(title: str, within: str = "document") -> str:
    """JavaScript for the figure whose title holds these words."""
    return f"[...{within}.querySelectorAll('.js-plotly-plot')].find(each => each.layout?.title?.text?.includes({title!r}))"


def button(caption: str) -> str:
    """JavaScript for the button of that caption."""
    return f"[...document.querySelectorAll('button.jupyter-button')].find(each => each.textContent.trim() === {caption!r})"


def folded(title: str) -> str:
    """JavaScript for the heading of that title, which unfolds what is under it."""
    return f"[...document.querySelectorAll('[class*=Collapse-header]')].find(each => each.textContent.includes({title!r}))"


def control(label: str, tag: str = "input") -> str:
    """JavaScript for the input element of a panel control, found by its label."""
    return (
        "[...document.querySelectorAll('.jupyter-widgets.widget-inline-hbox')]"
        f".find(box => box.querySelector('label')?.textContent.trim() === {label!r})?.querySelector({tag!r})"
    )


def choose(label: str, value: str) -> str:
    """JavaScript that chooses a value of the drop-down list of that label."""
    return f"(() => {{ const box = {control(label, 'select')}; box.value = {value!r}; box.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"


def write_notebook(folder: Path, name: str, *sources: str) -> None:
    """A notebook of code cells for the tests."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [
        {"cell_type": "code", "id": f"cell-{place}", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for place, source in enumerate(sources)
    ]
    (folder / name).write_text(json.dumps({"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))


def open_notebook(browser: Browser, address: str, name: str) -> None:
    """Open a notebook and wait until its kernel takes orders."""
    browser.open(address)
    browser.wait_for(f"window.jupyterapp !== undefined && ({DOCUMENT})?.context?.path === {name!r}", "opening the notebook", START_S)
    browser.wait_for(f"({DOCUMENT})?.sessionContext?.session?.kernel?.status === 'idle'", "the kernel's start", START_S)
    browser.click("document.querySelector('.jp-Notebook .jp-Cell')")
    browser.wait_for("jupyterapp.commands.isEnabled('notebook:run-all-cells')", "the notebook taking commands", START_S)


def run_notebook(browser: Browser, address: str, name: str, timeout_s: float = 300) -> None:
    """Open a notebook and run all its cells; fails with what they say where one does."""
    open_notebook(browser, address, name)
    browser.run("void jupyterapp.commands.execute('notebook:run-all-cells')")
    browser.wait_for(f"({COUNTS}).every(count => count) || ({ERRORS}).length", "running every cell", timeout_s)
    assert browser.run(ERRORS) == []
