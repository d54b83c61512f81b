"""The panel on a real GPU: its button launches the kernel and points arrive, its record holds what was timed, cancel leaves all sound."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.measurement import read_walk  # noqa: E402
from wts_lab.study import capable_device  # noqa: E402
from wts_lab.ui.panels import Handles, quickstart_panel  # noqa: E402
from wts_lab.ui.requests import PanelRequest  # noqa: E402

REQUEST = PanelRequest(vocab_size=20_000, rank=64, steps=7)
POINTS = 2 * len(REQUEST.walk_lengths())
TIMEOUT_S = 300
CANCEL_S = 20
"""A cancel ends a burst or a compiler, not a sweep or a build."""


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Wait for something that the run's thread does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {TIMEOUT_S} s"
        time.sleep(0.02)


def points_shown(handles: Handles, way: str) -> int:
    """How many measured points of a way the panel's figure has."""
    trace = next(each for each in handles.figures["call time"].figure.data if each.name == f"{way}, measured")
    return len(trace.x or ())


def cancel(handles: Handles) -> str:
    """Press Cancel; returns how the run ended."""
    began = time.monotonic()
    handles.cancel_button.click()
    status = handles.wait(TIMEOUT_S).status
    assert time.monotonic() - began < CANCEL_S
    return status


def check_sound(handles: Handles) -> None:
    """Press Run again: every point comes, and the kernel's tokens are the twin's."""
    assert not handles.run_button.disabled and handles.cancel_button.disabled
    handles.run_button.click()
    outcome = handles.wait(TIMEOUT_S)
    assert (outcome.status, outcome.error, len(outcome.rows)) == ("done", None, POINTS), handles.message.value
    frame = read_walk(handles.record_path)
    assert (frame.loc[frame["mode"] == "resident", "tokens_match"] == 1.0).all() and len(frame) == POINTS


def test_the_button_launches_the_kernel_and_points_arrive_one_by_one(tmp_path: Path) -> None:
    _, handles = quickstart_panel(REQUEST, is_live=True, out=tmp_path, repeats=20)
    arrived: list[tuple[int, int, bool]] = []
    ways = ("resident int8x2", "stepwise torch")
    handles.progress.observe(lambda change: arrived.append((change["new"], sum(points_shown(handles, way) for way in ways), handles.run.is_running)), names="value")
    handles.run_button.click()
    outcome = handles.wait(TIMEOUT_S)
    assert (outcome.status, outcome.error) == ("done", None), handles.message.value
    assert arrived == [(count, count, True) for count in range(1, POINTS + 1)]
    frame = read_walk(handles.record_path)
    assert set(frame["gpu_name"]) == {capable_device().name}
    assert set(zip(frame["mode"], frame["steps"])) == {(mode, steps) for mode in ("resident", "stepwise") for steps in REQUEST.walk_lengths()}
    assert (frame[frame["mode"] == "resident"]["tokens_match"] == 1.0).all()
    assert all(len(samples) for samples in frame["samples_us"])
    resident = handles.comparisons[0]
    assert resident.fit.usable and resident.fit.step_us >= resident.prediction.floor_step_us
    assert "registers a thread" in handles.log.value and "measured here" in handles.status.value


def test_cancel_in_a_sweep_writes_nothing_and_the_next_run_is_sound(tmp_path: Path) -> None:
    _, handles = quickstart_panel(REQUEST, is_live=True, out=tmp_path, repeats=2000)
    handles.run_button.click()
    wait_until(lambda: handles.progress.value >= 1, "the first point")
    assert cancel(handles) == "cancelled"
    assert 1 <= len(handles.run.outcome.rows) < POINTS and list(tmp_path.rglob("*")) == []
    check_sound(handles)


def test_cancel_in_a_build_keeps_nothing_of_it_and_the_next_run_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("WTS_LAB_CACHE", str(cache))
    _, handles = quickstart_panel(REQUEST, is_live=True, out=tmp_path / "records", repeats=20)
    handles.run_button.click()
    wait_until(lambda: any(cache.glob("*/build.ninja")), "the build's start")
    time.sleep(1.0)  # the compiler is at work, which it is for many seconds
    assert not list(cache.glob("*/build.json"))
    assert cancel(handles) == "cancelled"
    assert handles.run.outcome.rows == () and not list(cache.glob("*/build.json")) and not (tmp_path / "records").exists()
    check_sound(handles)
    assert list(cache.glob("*/build.json")) and not list(cache.glob("*/*.part"))
