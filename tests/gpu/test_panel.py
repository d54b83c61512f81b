"""The panel on a real GPU: its button launches the kernel, its record holds what was timed, cancel leaves all sound."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.measurement import read_walk  # noqa: E402
from wts_lab.study import capable_device  # noqa: E402
from wts_lab.ui.panels import quickstart_panel  # noqa: E402
from wts_lab.ui.requests import PanelRequest  # noqa: E402

REQUEST = PanelRequest(vocab_size=20_000, rank=64, steps=7)
TIMEOUT_S = 300


def test_the_button_launches_the_kernel_and_its_record_is_kept(tmp_path: Path) -> None:
    _, handles = quickstart_panel(REQUEST, is_live=True, out=tmp_path, repeats=20)
    handles.run_button.click()
    outcome = handles.wait(TIMEOUT_S)
    assert (outcome.status, outcome.error) == ("done", None), handles.message.value
    frame = read_walk(handles.record_path)
    assert set(frame["gpu_name"]) == {capable_device().name}
    assert set(zip(frame["mode"], frame["steps"])) == {
        (mode, steps) for mode in ("resident", "stepwise") for steps in REQUEST.walk_lengths()
    }
    assert (frame[frame["mode"] == "resident"]["tokens_match"] == 1.0).all()
    assert all(len(samples) for samples in frame["samples_us"])
    resident = handles.comparisons[0]
    assert resident.fit.usable and resident.fit.step_us >= resident.prediction.floor_step_us
    assert "registers a thread" in handles.log.value and "measured here" in handles.status.value


def test_cancel_in_a_sweep_writes_nothing_and_the_next_run_is_sound(tmp_path: Path) -> None:
    _, handles = quickstart_panel(REQUEST, is_live=True, out=tmp_path, repeats=2000)
    handles.run_button.click()
    deadline = time.monotonic() + TIMEOUT_S
    while handles.progress.value < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    handles.cancel_button.click()
    assert handles.wait(TIMEOUT_S).status == "cancelled"
    assert list(tmp_path.rglob("*.parquet")) == []
    handles.run_button.click()
    assert handles.wait(TIMEOUT_S).status == "done" and handles.record_path.is_file()
