"""The quickstart panel through its handles: controls to figure, figure to labels, Run, Cancel, errors, and records."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.gpu import load_gpu
from cost_model.measurement import read_walk
from cost_model.predict import predict
from cost_model.units import format_us
from tests.synthetic_records import GPU_NAME, synthetic_rows, write_synthetic
from wts_lab import study
from wts_lab.build import BuildCancelled
from wts_lab.ui import live, live_figure, panels
from wts_lab.ui.fields import describe
from wts_lab.ui.requests import PanelRequest
from wts_lab.ui.tables import run_table

DEVICE = study.Device("NVIDIA H200", 132, 150_109_945_856, (9, 0))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one synthetic record of V 151,936."""
    return write_synthetic(tmp_path_factory.mktemp("records"))


@pytest.fixture
def handles(records: Path) -> panels.Handles:
    """The handles of a panel that replays the synthetic record at once."""
    return panels.quickstart_panel(records=records, is_live=False, pace_s=0)[1]


def trace(handles: panels.Handles, name: str):
    """The call figure's trace of that name."""
    return next((each for each in handles.figures["call time"].figure.data if each.name == name), None)


def test_every_field_has_a_control_with_its_caption_and_help(handles: panels.Handles) -> None:
    for name, spec in describe(PanelRequest).items():
        control = handles.controls[name]
        assert control.description == spec.caption
        assert spec.help in control.tooltip and spec.allowed in control.tooltip
        assert control.value == getattr(handles.request, name)
    assert [handles.controls[name].max for name in ("rank", "batch", "steps", "temperature")] == [512, 32, 32, 2.0]
    assert handles.controls["rank"].step == 32


def test_a_refused_value_is_said_at_its_field_and_all_else_stays(handles: panels.Handles) -> None:
    before, request = list(trace(handles, "resident int8x2, predicted").y), handles.request
    handles.controls["vocab_size"].value = 2_000_000
    note = handles.form.notes["vocab_size"]
    assert "2000000" in note.value and "whole numbers from 1 to 1048576" in note.value and note.layout.display is None
    assert handles.request == request and list(trace(handles, "resident int8x2, predicted").y) == before
    handles.controls["batch"].value = 2
    assert note.value == "" and note.layout.display == "none"
    assert handles.controls["vocab_size"].value == handles.request.vocab_size == 151_936 and handles.request.batch == 2


def test_a_control_edits_the_request_and_the_figure(handles: panels.Handles) -> None:
    handles.controls["steps"].value = 12
    assert handles.request.steps == 12
    line = trace(handles, "resident int8x2, predicted")
    request = handles.request
    expected = predict(request.load_gpu(), request.load_head(), request.workload(), "resident")
    resident_us = line.y[-1]
    assert line.x[-1] == 12 and resident_us == pytest.approx(expected.call_us(12))
    handles.controls["mode"].value = "streaming"
    assert trace(handles, "resident int8x2, predicted") is None
    assert trace(handles, "streaming int8x2, predicted").y[-1] > resident_us


def test_couplings_reach_the_controls(handles: panels.Handles) -> None:
    handles.controls["head"].value = "dspark-kimi-k3.1-r512"
    assert (handles.controls["vocab_size"].value, handles.controls["rank"].value) == (163_840, 512)
    assert handles.controls["vocab_size"].disabled and handles.controls["rank"].disabled
    handles.controls["mode"].value = "stepwise"
    assert tuple(handles.controls["precision"].options) == ("bf16",) and handles.request.precision == "bf16"
    assert "Where the matrix sits: stepwise torch" in handles.figures["memory tiers"].figure.layout.title.text


def test_the_panel_takes_up_a_saved_request(records: Path) -> None:
    request = PanelRequest(gpu="b200-sxm", vocab_size=248_320, mode="streaming", precision="bf16", l2_state="cold", steps=8)
    _, handles = panels.quickstart_panel(PanelRequest.from_json(request.to_json()), records=records)
    assert {name: control.value for name, control in handles.controls.items()} == {
        name: getattr(request, name) for name in handles.controls
    }
    assert handles.request == request


def test_what_cannot_be_predicted_is_said_and_the_last_figure_stays(
    handles: panels.Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trace(handles, "resident int8x2, predicted").y
    monkeypatch.setattr(
        panels.compare, "predicted_comparisons", lambda *_: (_ for _ in ()).throw(study.NoDevice("a reason and its mend"))
    )
    handles.controls["steps"].value = 5
    assert "a reason and its mend" in handles.message.value
    assert list(trace(handles, "resident int8x2, predicted").y) == list(before)


def test_run_replays_points_then_fits_and_says_where_they_come_from(handles: panels.Handles) -> None:
    handles.run_button.click()
    outcome = handles.wait(60)
    assert (outcome.status, len(outcome.rows)) == ("done", 42)
    assert list(trace(handles, "resident int8x2, measured").x) == [1, 2, 4, 7, 11, 15, 16]
    resident = next(each for each in handles.comparisons if each.label == "resident int8x2")
    assert resident.fit.step_us == pytest.approx(2.5, rel=0.02)
    assert trace(handles, "resident int8x2, fit").y[-1] == pytest.approx(resident.fit.line_us(16))
    label = f"replayed: {GPU_NAME}, recorded 2026-01-31"
    assert label in handles.status.value and label in handles.figures["call time"].figure.layout.title.text
    assert "resident int8x2" in handles.summary.value and "2.5" in handles.summary.value
    assert handles.record_path is None
    assert not handles.run_button.disabled and handles.cancel_button.disabled and handles.progress.value == 42


def test_a_changed_control_takes_old_points_away(handles: panels.Handles) -> None:
    handles.run_button.click()
    handles.wait(60)
    handles.controls["vocab_size"].value = 129_280
    assert list(trace(handles, "resident int8x2, measured").x or []) == [] and handles.summary.value == ""
    assert ">predicted<" in handles.figures["call time"].figure.layout.title.text


def test_cancel_ends_a_run_and_the_next_one_is_sound(records: Path) -> None:
    _, handles = panels.quickstart_panel(records=records, is_live=False, pace_s=0.05)
    handles.run_button.click()
    assert handles.run_button.disabled and handles.controls["mode"].disabled
    handles.cancel_button.click()
    outcome = handles.wait(30)
    assert outcome.status == "cancelled" and len(outcome.rows) < 42
    assert "Cancelled" in handles.status.value and not handles.run_button.disabled and not handles.controls["mode"].disabled
    handles.run_button.click()
    assert handles.wait(60).status == "done"


def test_nothing_recorded_is_said_with_what_there_is(handles: panels.Handles) -> None:
    handles.controls["vocab_size"].value = 129_280
    handles.run_button.click()
    assert "129,280" in handles.message.value and "151,936, 256" in handles.message.value
    with pytest.raises(RuntimeError, match="no run was started: .*129,280"):
        handles.wait(1)
    handles.controls["vocab_size"].value = 151_936
    handles.run_button.click()
    assert handles.wait(60).status == "done" and handles.message.value == ""


def test_a_live_run_without_a_gpu_says_what_is_missing(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: None)
    _, handles = panels.quickstart_panel(records=records, is_live=True)
    handles.run_button.click()
    assert "compute capability 8.0" in handles.message.value and "wts-lab doctor" in handles.message.value
    assert not handles.run_button.disabled


def test_another_gpu_than_the_one_here_is_replayed_or_refused(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: study.Device("NVIDIA B200", 148, 191_000_000_000, (10, 0)))
    monkeypatch.setattr(study, "recognise", lambda device: load_gpu("b200-sxm"))
    assert panels.quickstart_panel(records=records)[1].request.gpu == "b200-sxm"
    for is_live, said in ((None, "its recorded run is replayed"), (True, "choose b200-sxm")):
        _, handles = panels.quickstart_panel(PanelRequest(gpu="h200-sxm"), records=records, is_live=is_live, pace_s=0)
        handles.run_button.click()
        if is_live is None:
            assert handles.wait(60).status == "done"
        assert said in handles.log.value + handles.message.value


def test_a_request_without_a_prediction_is_not_run(handles: panels.Handles) -> None:
    handles.controls["gpu"].value = "h20"  # the catalogue does not know its clock
    assert "boost_clock_mhz" in handles.message.value
    handles.run_button.click()
    assert handles.run is None and "boost_clock_mhz" in handles.message.value
    with pytest.raises(RuntimeError, match="no run was started: .*boost_clock_mhz"):
        handles.wait(1)
    handles.controls["gpu"].value = "h200-sxm"
    handles.run_button.click()
    assert handles.wait(60).status == "done"


def test_a_second_run_starts_from_the_prediction_again(handles: panels.Handles) -> None:
    for _ in range(2):
        handles.run_button.click()
        assert handles.wait(60).status == "done"
    counts = {each.label: sum(point.samples for point in each.points) for each in handles.comparisons}
    assert counts["resident int8x2"] == 7 * 3 * 15


def fake_launch(rows: list[dict], fails_after: int | None = None):
    """Stands for `live.launch`: yields rows as if kernels had run, and may fail part of the way."""

    def source(request, device, *, repeats):
        def pull(cancel: threading.Event, log: live.Log):
            log("Building resident int8x2.")
            for number, row in enumerate(rows):
                if number == fails_after:
                    raise RuntimeError("ninja is missing; pip install ninja")
                yield row

        return live.RowSource(f"measured here: {device.name}", len(rows), pull, is_live=True)

    return source


@pytest.fixture
def live_rows() -> list[dict]:
    """Rows of one process of the resident walk and the reference."""
    return synthetic_rows(
        l2_states=("warm",),
        processes=1,
        ways=[("wts", "resident", "resident", "int8x2"), ("torch-stepwise", "graph", "stepwise", "bf16")],
    )


def test_a_live_run_leaves_a_record_of_exactly_its_rows(
    tmp_path: Path, live_rows: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: DEVICE)
    monkeypatch.setattr(live, "launch", fake_launch(live_rows))
    _, handles = panels.quickstart_panel(out=tmp_path)
    for expected in ("panel", "panel-2"):
        handles.run_button.click()
        assert handles.wait(60).status == "done"
        assert handles.record_path.parent == tmp_path / "h200-sxm" and handles.record_path.stem.endswith(expected)
        assert len(read_walk(handles.record_path)) == len(live_rows) == 14
    assert "Building resident int8x2." in handles.log.value and str(handles.record_path) in handles.log.value
    assert "measured here: NVIDIA H200" in handles.status.value


def test_a_failed_run_shows_the_error_writes_nothing_and_can_be_repeated(
    tmp_path: Path, live_rows: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: DEVICE)
    monkeypatch.setattr(live, "launch", fake_launch(live_rows, fails_after=3))
    _, handles = panels.quickstart_panel(out=tmp_path)
    handles.run_button.click()
    assert handles.wait(60).status == "failed"
    assert "pip install ninja" in handles.message.value and not handles.run_button.disabled
    assert list(tmp_path.rglob("*")) == [] and handles.record_path is None
    monkeypatch.setattr(live, "launch", fake_launch(live_rows))
    handles.run_button.click()
    assert handles.wait(60).status == "done" and handles.message.value == ""


@pytest.mark.parametrize(("error", "status"), [(BuildCancelled("the build was cancelled"), "cancelled"), (RuntimeError("tokens are wrong"), "failed")])
def test_an_error_after_cancel_is_told_unless_it_is_the_cancel_itself(error: Exception, status: str) -> None:
    def rows(cancel: threading.Event, log: live.Log):
        yield from ()
        raise error

    ended = []
    run = live.BackgroundRun(live.RowSource("rows of a test", 2, rows, is_live=True), on_row=lambda row, count: None, on_log=print, on_end=ended.append)
    run.cancel()
    run.start()
    assert run.wait(10).status == status and ended == [run.outcome] and run.outcome.error is error


def test_a_live_run_whose_record_could_not_be_written_does_not_start(
    tmp_path: Path, live_rows: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: DEVICE)
    monkeypatch.setattr(live, "launch", fake_launch(live_rows))
    (tmp_path / "file").write_text("")
    _, handles = panels.quickstart_panel(out=tmp_path / "file" / "records")
    handles.run_button.click()
    assert handles.run is None and not handles.run_button.disabled
    assert "is no folder; give another place" in handles.refusal and handles.refusal in handles.message.value


def test_waiting_needs_a_run_and_has_a_limit(records: Path) -> None:
    _, handles = panels.quickstart_panel(records=records, is_live=False, pace_s=0.2)
    with pytest.raises(RuntimeError, match="press run_button"):
        handles.wait(1)
    handles.run_button.click()
    with pytest.raises(TimeoutError, match="cancel it"):
        handles.wait(0.05)
    handles.cancel_button.click()
    handles.wait(30)


def test_without_anywidget_figures_are_static_and_say_why(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_figure, "probe_figure_widget", lambda: "ImportError: no anywidget")
    _, handles = panels.quickstart_panel(records=records, is_live=False, pace_s=0)
    assert "no anywidget" in handles.figures["call time"].note.value and "Install anywidget" in handles.figures["call time"].note.value
    handles.run_button.click()
    assert handles.wait(60).status == "done"
    shown = handles.figures["call time"].output.outputs[0]["data"]["application/vnd.plotly.v1+json"]
    measured = next(each for each in shown["data"] if each["name"] == "resident int8x2, measured")
    assert len(measured["y"]) == 7


def test_source_text_is_escaped(handles: panels.Handles) -> None:
    handles.form.say("<script>alert(1)</script>", is_error=True)
    assert "<script>" not in handles.message.value and "&lt;script&gt;" in handles.message.value


def test_after_a_run_the_table_has_residuals_clocks_throttling_and_checked_tokens(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"sm_clock_mhz_before": 1980.0, "sm_clock_mhz_after": 1965.0, "throttle_reasons": "sw_power_cap", "samples_dropped": 5, "tokens_match": 1.0}
    rows = [{**row, **told, "tokens_agree_reference": 0.975} for row in synthetic_rows(l2_states=("warm",)) if row["mode"] == "resident"]
    monkeypatch.setattr(live, "replay", lambda *_, **__: live.RowSource("rows of a test", len(rows), lambda cancel, log: iter(rows), is_live=False))
    _, handles = panels.quickstart_panel(records=records, is_live=False)
    handles.run_button.click()
    assert handles.wait(60).status == "done"
    table = run_table(handles.comparisons, rows).loc["resident int8x2"]
    fit = handles.comparisons[0].fit
    apart = {steps: abs(median - fit.line_us(steps)) for steps, median in fit.medians_us.items()}
    assert table["largest residual"].endswith(f"at {max(apart, key=apart.get)} steps") and format_us(max(apart.values())) in table["largest residual"]
    assert format_us(fit.step_us) in table["step (95 % interval)"] and format_us(fit.entry_us) in table["entry (95 % interval)"]
    assert (table["tokens as the twin's"], table["as in bf16"], table["clock"]) == ("100 %", "97.5 %", "1,965 to 1,980 MHz")
    assert table["throttling"] == f"sw power cap; {5 * len(rows):,} of {20 * len(rows):,} samples dropped"
    assert all(text in handles.summary.value for text in table)


@pytest.mark.parametrize(
    ("count", "first_s", "words"),
    [(0, None, "0 of 14 points, 30 s"), (1, 20.0, "1 of 14 points, 30 s"), (3, 20.0, "3 of 14 points, 30 s, about 55 s left"), (14, 20.0, "14 of 14 points, 30 s")],
)
def test_progress_tells_elapsed_and_remaining_time(count: int, first_s: float | None, words: str) -> None:
    assert live.progress_words(count, 14, 30.0, first_s) == words


def test_the_clock_ticks_before_the_first_point_and_not_after_the_end(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK_S", 0.01)
    told, go_on = [], threading.Event()

    def rows(cancel: threading.Event, log: live.Log):
        log("Building resident int8x2.")
        assert go_on.wait(30)
        yield from ()

    monkeypatch.setattr(live, "replay", lambda *_, **__: live.RowSource("a slow build", 14, rows, is_live=False))
    _, handles = panels.quickstart_panel(records=records, is_live=False)
    handles.status.observe(lambda change: (told.append(change["new"]), go_on.set() if "Building" in change["new"] else None), names="value")
    handles.run_button.click()
    assert handles.wait(60).status == "done"
    assert "Building resident int8x2. 0 of 14 points, 0 s" in told and told[-1].startswith("Done:")
