"""Notebook 05 in JupyterLab: another round changes verdict, plot and tables; what cannot be is refused; settings and report are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.browser.lab import button, choose, control, folded, run_notebook

NOTEBOOK = "05_round_and_decision.ipynb"
PANEL_PLOT = "[...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')].find(each => each.layout?.title?.text?.includes('faster head'))"
MARKED = f"({PANEL_PLOT}).data.find(each => each.name === 'your round').x[0]"
VERIFY, LENGTH = control("Verify [µs]"), control("Accepted length [tokens]")


def fill(page: Browser, field: str, text: str) -> None:
    """Type into a field and press Enter."""
    page.run(f"{field}.focus(), {field}.select()")
    page.type(f"{text}\n")


@pytest.fixture(scope="module")
def page(lab, browser: Browser) -> Browser:
    """The notebook, run from top to bottom."""
    run_notebook(browser, lab(NOTEBOOK), NOTEBOOK)
    browser.wait_for(f"({PANEL_PLOT})?.data?.length === 4", "the break-even plot")
    return browser


def test_a_round_moves_the_marker_and_the_gain(page: Browser) -> None:
    page.wait_for(f"{MARKED} === 7000", "the notebook's round")
    fill(page, VERIFY, "50000")
    page.wait_for(f"{MARKED} === 52000", "the new round")
    assert "50.0 ms" in page.run("document.querySelector('.jupyter-widgets [role=status]').textContent")


def test_a_length_beyond_the_walk_is_refused_at_its_field(page: Browser) -> None:
    fill(page, LENGTH, "40")
    page.wait_for("document.querySelector('[role=alert]')?.textContent.includes('numbers from 1 to 33')", "the refusal")
    assert page.run(MARKED) == 52000
    fill(page, LENGTH, "4")
    page.wait_for("document.querySelector('[role=alert]') === null", "the refusal's end")


def test_a_drafter_brings_its_phases_and_substitutes_stand_side_by_side(page: Browser) -> None:
    page.run(choose("Drafter", "dspark-qwen3-8b"))
    page.wait_for("document.body.textContent.includes('Device memory and the draft')", "the drafter's tables")
    for told in ("top-2,048 pruning, engine", "draft vocabulary of 32,000, resident int8x2", "all, as the schedule joins them"):
        assert page.run(f"document.body.textContent.includes({told!r})"), told


def test_settings_and_report_are_written(page: Browser, lab_root: Path) -> None:
    page.click(folded("Settings, report and tables"))
    page.wait_for(f"{button('Write')} !== undefined", "the button")
    page.click(button("Write"))
    page.wait_for("document.body.textContent.includes('Wrote out/settings.json')", "the files")
    assert "**Verdict:" in (lab_root / "out" / "decision.md").read_text()
