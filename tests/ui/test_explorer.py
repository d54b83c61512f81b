"""The explorer through its handles: every figure follows the controls, pins, refusals, exports, states, speed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from ipywidgets.widgets import widget

from benchmarks.panel_speed import OPEN_S, OPENING
from wts_lab import explore
from wts_lab.ui.explorer import FIGURES, ExplorerHandles, explored, explorer_panel
from wts_lab.ui.live_figure import LiveFigure
from wts_lab.ui.requests import ExplorerRequest, PanelRequest

ANSWER_S = 0.1
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def handles(tmp_path: Path) -> ExplorerHandles:
    """The handles of a fresh explorer."""
    return explorer_panel(out=tmp_path)[1]


def trace(handles: ExplorerHandles, figure: str, name: str):
    """A figure's trace of that name."""
    return next((each for each in handles.figures[figure].figure.data if each.name == name), None)


def test_every_figure_shows_the_answer(handles: ExplorerHandles) -> None:
    prediction = handles.exploration.chosen.prediction
    assert trace(handles, "call time", "resident int8x2, predicted").y[-1] == pytest.approx(prediction.call_us())
    assert sum(trace(handles, "timeline", "call").x) == pytest.approx(prediction.call_us())
    assert trace(handles, "gain", "step").y[-1] == pytest.approx(prediction.step_us)
    projection = trace(handles, "roofline", "resident int8x2")
    assert projection.x[0] == pytest.approx(4.0)
    assert "resident int8x2" in handles.figures["memory tiers"].figure.layout.title.text
    assert trace(handles, "step terms", "exchange") is not None
    assert set(handles.figures) == set(FIGURES)


def test_axes_of_all_figures_have_titles_with_units(handles: ExplorerHandles) -> None:
    titles = {
        name: [axis.title.text for axis in (*holder.figure.select_xaxes(), *holder.figure.select_yaxes()) if axis.title.text]
        for name, holder in handles.figures.items()
    }
    assert titles["gain"] == ["time of one step [µs]"] and titles["timeline"] == ["time [µs]"]
    assert titles["roofline"] == ["operations for each byte", "operations a second"]
    assert titles["call time"] == ["walk length [steps]", "time of a complete call [µs], log scale"]


@pytest.mark.parametrize("field, value", [("batch", 4), ("steps", 5), ("rank", 128), ("l2_state", "serving"), ("gpu", "b200-sxm")])
def test_a_control_moves_every_time(handles: ExplorerHandles, field: str, value: object) -> None:
    before = handles.exploration.chosen.prediction.call_us()
    handles.controls[field].value = value
    expected = explored(handles.request.shown).chosen.prediction
    assert getattr(handles.request, field) == value and expected.call_us() != before
    assert sum(trace(handles, "timeline", "call").x) == pytest.approx(expected.call_us())
    assert trace(handles, "gain", "step").y[-1] == pytest.approx(expected.step_us)


def test_two_configurations_are_pinned_and_compared(handles: ExplorerHandles) -> None:
    first = handles.request.shown
    handles.pin_button.click()
    handles.controls["batch"].value = 8
    handles.pin_button.click()
    handles.controls["gpu"].value = "b200-sxm"
    assert handles.request.pinned == (first, first.with_values(batch=8)) and handles.pin_button.disabled
    assert trace(handles, "call time", "A: resident int8x2").y[-1] == pytest.approx(explored(first).chosen.prediction.call_us())
    assert trace(handles, "call time", "B: resident int8x2").y[-1] > trace(handles, "call time", "A: resident int8x2").y[-1]
    assert "batch 8" in handles.table.value and "B200" in handles.table.value
    handles.unpin_button.click()
    assert trace(handles, "call time", "A: resident int8x2") is None and handles.unpin_button.disabled


def test_what_cannot_be_predicted_is_said_and_every_figure_stays(handles: ExplorerHandles) -> None:
    before = {name: holder.figure.to_json() for name, holder in handles.figures.items()}
    handles.controls["gpu"].value = "h20"  # the catalogue does not know its clock
    assert "boost_clock_mhz" in handles.form.message.value
    assert {name: holder.figure.to_json() for name, holder in handles.figures.items()} == before
    handles.controls["gpu"].value = "h200-sxm"
    assert handles.form.message.value == ""


def test_the_state_is_saved_and_reloaded_whole(handles: ExplorerHandles, tmp_path: Path) -> None:
    handles.controls["batch"].value = 4
    handles.pin_button.click()
    handles.controls["mode"].value = "streaming"
    kept = handles.request
    handles.state.save_button.click()
    _, other = explorer_panel(out=tmp_path)
    other.state.load_button.click()
    assert other.request == kept == ExplorerRequest.load(tmp_path / "explorer.json")
    assert other.controls["mode"].value == "streaming" and other.controls["batch"].value == 4
    assert kept.command() in other.state.told.value


def test_a_foreign_state_is_refused_and_the_panel_stays(handles: ExplorerHandles, tmp_path: Path) -> None:
    (tmp_path / "explorer.json").write_text('{"rank": 100}')
    before = handles.request
    handles.state.load_button.click()
    assert "multiples of 32" in handles.state.status.value and handles.request == before


def test_a_figure_is_written_as_a_page_of_its_own(handles: ExplorerHandles, tmp_path: Path) -> None:
    handles.export.choice.value = "gain"
    assert handles.export.pictures.file_name == "gain"
    handles.export.html_button.click()
    text = (tmp_path / "figures" / "gain.html").read_text()
    assert "Where a step" in text and "plotly.js v" in text
    handles.export.folder.value = str(tmp_path / "figures" / "gain.html")
    assert handles.export.write_html() is None and "cannot be written" in handles.export.status.value
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["gain.html"]


def test_a_figure_that_fails_on_its_way_leaves_the_old_page(handles: ExplorerHandles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles.export.choice.value = "gain"
    page = handles.export.write_html()
    before = page.read_text()

    def half(path: Path, **_: object) -> None:
        path.write_text("<html>")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(handles.figures["gain"].figure), "write_html", lambda self, path, **options: half(path, **options))
    assert handles.export.write_html() is None and "No space left" in handles.export.status.value
    assert page.read_text() == before and [path.name for path in page.parent.iterdir()] == ["gain.html"]


def test_figures_that_stay_the_same_are_not_sent_again(handles: ExplorerHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(LiveFigure, "_send", lambda self, shown, spec: sent.append(self))
    handles.controls["mode"].value = "streaming"
    kept = [name for name, holder in handles.figures.items() if holder not in sent]
    assert kept == ["call time", "step terms", "gain", "roofline"]


def test_an_answer_takes_less_than_a_tenth_of_a_second(handles: ExplorerHandles) -> None:
    took_s = []
    for steps in (15, 14, 13, 12, 11):
        begin = time.process_time()
        handles.controls["steps"].value = steps
        took_s.append(time.process_time() - begin)
    assert sorted(took_s)[2] < ANSWER_S


def test_opening_takes_less_than_three_seconds_of_a_new_kernel() -> None:
    told = subprocess.run([sys.executable, "-c", OPENING], capture_output=True, text=True, check=True, timeout=120, cwd=REPOSITORY).stdout
    assert float(told.split()[1]) < OPEN_S  # of the processor: others may use this machine, too


def test_a_page_gets_plotly_once() -> None:
    _, handles = explorer_panel()
    figures = [holder.figure for holder in handles.figures.values()]
    assert max(len(figure._esm) for figure in figures) < 5_000
    bundles = [each for each in widget._instances.values() if type(each).__name__ == "PlotlyBundle"]
    assert len(bundles) == 1 and len(bundles[0].script) > 1_000_000


def test_nothing_is_predicted_again_for_what_does_not_depend_on_it(handles: ExplorerHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "predicted_comparisons", lambda *_: pytest.fail("computed again"))
    handles.controls["mode"].value = "stepwise"
    handles.pin_button.click()
    assert handles.request.pinned == (PanelRequest(mode="stepwise", precision="bf16"),)
