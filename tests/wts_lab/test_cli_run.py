"""The commands that may use a GPU, study and calibrate, where there is none; and records that no command takes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer.testing")

from cost_model.errors import BadInput  # noqa: E402
from tests.command_line import SHAPE, refused, run, whole_record  # noqa: E402


@pytest.mark.parametrize("command", ["fit", "calibrate"])
def test_a_foreign_or_truncated_record_is_refused(command, tmp_path):
    pytest.importorskip("pyarrow")
    foreign, truncated, empty = (tmp_path / name for name in ("foreign.parquet", "truncated.parquet", "empty.parquet"))
    foreign.write_text("a,b\n1,2\n")
    truncated.write_bytes(whole_record(tmp_path).read_bytes()[:-20])
    empty.write_bytes(b"")
    for file in (foreign, truncated, empty, tmp_path / "missing.parquet"):
        assert file.name in refused(command, str(file))


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "other.parquet"
    parquet.write_table(pyarrow.table({"price": [1.0]}), file)
    assert "other.parquet" in refused("fit", str(file))


def test_a_folder_without_records_is_refused(tmp_path):
    assert "no walk record" in refused("fit", str(tmp_path))


@pytest.mark.parametrize(("command", "gpu"), [("decide", "rtx-4090"), ("decide", "h100-sxm"), ("calibrate", "h200-nvl"), ("calibrate", "h100-sxm")])
def test_records_of_another_gpu_are_refused_naming_both(command, gpu, tmp_path):
    record = whole_record(tmp_path)
    shape = SHAPE if command == "decide" else ()
    out = tmp_path / "out.file"
    line = refused(command, "--gpu", gpu, *shape, str(record), "--out", str(out))
    assert "NVIDIA H200" in line and gpu in line and not out.exists()


def test_calibrate_makes_calibration_and_engine_table_from_the_shipped_records(tmp_path):
    pytest.importorskip("pyarrow")
    from cost_model.gpu import load_gpu, read_calibration
    from cost_model.paths import data_root

    records = data_root() / "measurements" / "h200-sxm"
    if not records.is_dir():
        pytest.skip("no records of an H200 ship")
    out = tmp_path / "h200-sxm.toml"
    result = run("calibrate", str(records), "--gpu", "h200-sxm", "--out", str(out), "--engines", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert {row["mode"] for row in answer["errors"]} == {"stepwise", "streaming", "resident"}
    assert answer["calibration"] == str(out) and answer["engine"] == str(tmp_path / "torch-stepwise.toml")
    assert 'name = "torch-stepwise"' in (tmp_path / "torch-stepwise.toml").read_text()
    shown = run("calibrate", str(records), "--gpu", "h200-sxm", "--out", str(out)).stderr
    assert str(data_root() / "gpus" / "calibrated" / "h200-sxm.toml") in shown, "where the file must go to be used"
    assert read_calibration(out, load_gpu("h200-sxm", calibrated=False)).has("stream_efficiency")


@pytest.mark.parametrize("slow", ["wts_lab.cli_run._model_errors", "cost_model.engine_fit.tabulate_engine"])
def test_an_interrupted_calibration_writes_nothing_as_it_says(slow, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from cost_model.paths import data_root

    records = data_root() / "measurements" / "h200-sxm"
    if not records.is_dir():
        pytest.skip("no records of an H200 ship")
    monkeypatch.setattr("wts_lab.cli_run._model_errors", lambda gpu, frame: [])
    monkeypatch.setattr(slow, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run("calibrate", str(records), "--gpu", "h200-sxm", "--out", str(tmp_path / "h200-sxm.toml"), "--engines", str(tmp_path))
    assert result.exit_code == 130 and "interrupted: no calibration was written" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_live_run_without_a_gpu_is_refused():
    from wts_lab.study import capable_device

    if capable_device() is not None:
        pytest.skip("there is a GPU here")
    assert "wts-lab doctor" in refused("measure", *SHAPE)
    assert "wts-lab doctor" in refused("calibrate")
    result = run("study", "--live", "--out", "nowhere")
    assert result.exit_code == 2 and "wts-lab doctor" in result.stderr


@pytest.mark.parametrize("words", [("--live", "--replay"), ("--replay", "--live")])
def test_a_study_that_is_to_measure_and_to_replay_is_refused(words):
    assert "--live and --replay were both given; a study measures or replays" in refused("study", *words)


@pytest.mark.parametrize(("words", "live"), [((), None), (("--live",), True), (("--replay",), False)])
def test_what_a_study_may_do_is_handed_on(words, live, monkeypatch, tmp_path):
    asked = []

    def stop(request, **_):
        asked.append(request.live)
        raise BadInput("enough is known")

    monkeypatch.setattr("wts_lab.study.run_study", stop)
    refused("study", *words, "--out", str(tmp_path))
    assert asked == [live]
