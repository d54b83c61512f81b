"""The files of a study: equal rows, settings that load back, nothing stale, and whole or not at all."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.settings import SettingsMismatch, load_settings
from tests.synthetic_records import GPU_ID, GPU_NAME
from tests.synthetic_study import records, result  # noqa: F401  (fixtures)
from wts_lab import outputs, study
from wts_lab.outputs import write_outputs
from wts_lab.study import StudyRequest, run_study

HEAD = Head.markov(151_936, 256)


def test_outputs_hold_the_same_rows_and_settings_that_load_back(result: study.StudyResult, tmp_path: Path) -> None:
    import pandas

    written = write_outputs(result, tmp_path)
    names = {path.name for path in written}
    assert {"step_costs.csv", "step_costs.parquet", "step_costs.md", "settings.json", "settings-markov-129280-r256.json"} <= names
    frame = pandas.read_parquet(tmp_path / "step_costs.parquet")
    with (tmp_path / "step_costs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(frame) == len(rows) == len(result.rows) == 2 * 3 * 6
    page = (tmp_path / "step_costs.md").read_text()
    assert page.startswith(f"# Step costs on {result.gpu.name}, replayed: {GPU_NAME}, recorded 2026-01-31")
    assert page.count("\n| ") == len(rows) + 1 and "Experiments" not in page
    settings = load_settings(tmp_path / "settings.json", load_gpu(GPU_ID), HEAD)
    assert settings.mode == "resident" and settings.verdict == "deploy resident" and settings.placement is not None
    with pytest.raises(SettingsMismatch, match="b200-sxm"):
        load_settings(tmp_path / "settings.json", load_gpu("b200-sxm"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_an_earlier_study_left_does_not_stay_beside_the_new_answer(
    result: study.StudyResult, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_outputs(result, tmp_path)
    (tmp_path / "settings-mine.json").write_text('{"form": "something else"}')
    assert (tmp_path / "settings-markov-129280-r256.json").is_file()
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    write_outputs(run_study(StudyRequest(records=records, live=False, heads=(HEAD,))), tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step_costs.csv", "step_costs.parquet", "step_costs.md", "settings.json", "settings-mine.json"}


def test_without_plotly_all_but_the_report_is_written_and_said(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    written = write_outputs(result, tmp_path)
    assert not (tmp_path / "report.html").exists() and (tmp_path / "settings.json").is_file()
    assert "plotly is not installed" in written.left_out[0]


def test_a_file_that_fails_leaves_the_old_one_alone(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr("wts_lab.report.render_report", lambda _: (_ for _ in ()).throw(RuntimeError("drawing failed")))
    with pytest.raises(RuntimeError):
        write_outputs(result, tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"


def test_an_interrupt_while_the_report_is_drawn_leaves_the_folder_as_it_was(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.json").write_text("old")
    monkeypatch.setattr("wts_lab.report.render_report", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_outputs(result, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"settings.json": "old"}
