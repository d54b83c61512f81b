"""A study that measures: the four ways and their record, and what is refused where there is no GPU or another one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.errors import BadInput
from cost_model.gpu import require_same_gpu
from cost_model.measurement import record_path, write_walk
from tests.synthetic_records import synthetic_rows
from wts_lab import study
from wts_lab.study import Device, NoDevice, StudyRequest, run_study


def test_live_without_a_gpu_is_refused_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: None)
    with pytest.raises(NoDevice, match="wts-lab doctor"):
        run_study(StudyRequest(live=True))


def test_live_on_another_gpu_than_the_one_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: Device("NVIDIA H200", 132, 150_109_945_856, (9, 0)))
    with pytest.raises(NoDevice, match="the GPU here is h200-sxm"):
        run_study(StudyRequest(gpu="b200-sxm", live=True))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch):
    """Stands for a machine with an H200: `measure` writes synthetic rows as its record."""
    calls = []

    def measure(cases, *, out, case_name, gpu, **options):
        from datetime import datetime, timezone

        calls.append((cases, case_name, options))
        return write_walk(record_path(out, gpu, datetime.now(timezone.utc), case_name), synthetic_rows())

    monkeypatch.setattr(study, "capable_device", lambda: Device("NVIDIA H200", 132, 150_109_945_856, (9, 0)))
    monkeypatch.setattr("wts_lab.bench.measure", measure)
    return calls


def test_a_live_study_measures_the_four_ways_and_keeps_its_record(tmp_path: Path, measuring) -> None:
    first = run_study(StudyRequest(out=tmp_path), progress=False)
    second = run_study(StudyRequest(out=tmp_path, processes=2), progress=False)
    assert (first.kind, first.source) == ("measured", "measured here: NVIDIA H200")
    assert first.record.is_file() and first.record != second.record
    cases, name, options = measuring[0]
    assert {(case.mode, case.precision) for case in cases} == {
        ("resident", "int8x2"),
        ("streaming", "int8x2"),
        ("streaming", "bf16"),
        ("stepwise", "bf16"),
    }
    assert (
        (name, measuring[1][1]) == ("study", "study-2")
        and options["steps"] == (1, 2, 4, 7, 11, 15, 16)
        and measuring[1][2]["processes"] == 2
    )
    assert first.decision.settings.fingerprint.kernel_hash and first.decision.settings.source == "measured here"


def test_an_unknown_gpu_is_measured_but_marked_unverified() -> None:
    gpu = study.recognise(Device("NVIDIA X999", 77, 10**10, (9, 0)))
    assert gpu.id.startswith("unverified-") and gpu.sm_count == 77 and not gpu.has("l2_bytes")
    require_same_gpu(gpu, "NVIDIA X999", 77)  # its own records are its own


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"steps": (1, 16)}, "at least three walk lengths"),
        ({"steps": (0, 1, 2)}, "steps"),
        ({"l2_states": ("hot",)}, "l2_state"),
        ({"processes": 0}, "processes"),
        ({"repeats": -1}, "repeats"),
    ],
)
def test_a_bad_request_is_refused(wrong: dict, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        StudyRequest(**wrong)
