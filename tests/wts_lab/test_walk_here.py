"""Walks on this machine: measured where there is a GPU, replayed where there is none, predicted where nothing was recorded; the label says which."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")

from cost_model.head import Head  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from tests.synthetic_records import GPU_ID, LINES_US, synthetic_rows, write_synthetic  # noqa: E402
from wts_lab import bench, walk_here as module  # noqa: E402
from wts_lab.study import Device  # noqa: E402
from wts_lab.walk_here import PROCESSES, STEPS, walk_here  # noqa: E402

HEAD = Head.markov(151_936, 256)
STEP_US = LINES_US["wts", "resident", "resident", "int8x2"][1]


def test_without_a_gpu_recorded_walks_are_replayed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(module, "capable_device", lambda: None)
    found = walk_here(HEAD, [Workload(), Workload(batch=4)], records=write_synthetic(tmp_path / "records"))
    assert found.label == "replayed: NVIDIA H200, recorded 2026-01-31"
    assert found.walks[0].fit.step_us == pytest.approx(STEP_US, rel=0.01) and not found.walks[1].is_measured


def test_where_nothing_was_recorded_walks_are_predicted(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(module, "capable_device", lambda: None)
    found = walk_here(HEAD, [Workload()], replay="b200-sxm", records=tmp_path)
    assert found.label.startswith("predicted only") and found.walks[0].prediction.gpu_id == "b200-sxm" and not found.walks[0].is_measured


def test_on_a_gpu_the_walks_are_measured_and_their_own_record_is_shown(monkeypatch, tmp_path) -> None:
    from cost_model.measurement import write_walk

    asked = {}

    def measured(cases, *, out, case_name, gpu, **options):
        asked.update(options, cases=cases, case_name=case_name)
        return write_walk(out / gpu / f"2026-01-31-{case_name}.parquet", synthetic_rows(ways=(("wts", "resident", "resident", "int8x2"),), l2_states=("warm",)))

    monkeypatch.setattr(module, "capable_device", lambda: Device("NVIDIA H200", 132, 150_754_820_096, (9, 0)))
    monkeypatch.setattr(bench, "measure", measured)
    found = walk_here(HEAD, [Workload(), Workload(batch=4, temperature=1.0, logits_kept=True, l2_state="serving")], out=tmp_path)
    assert found.label == "measured here: NVIDIA H200" and found.walks[0].fit.step_us == pytest.approx(STEP_US, rel=0.01)
    assert [(case.batch, case.temperature, case.logits_kept, case.mode, case.precision) for case in asked["cases"]] == [
        (1, 0.0, False, "resident", "int8x2"), (4, 1.0, True, "resident", "int8x2")]
    assert (asked["steps"], asked["processes"], asked["l2_states"], asked["case_name"]) == (STEPS, PROCESSES, ("warm", "serving"), "walks-here")
    assert (tmp_path / "records" / GPU_ID / "2026-01-31-walks-here.parquet").exists()
