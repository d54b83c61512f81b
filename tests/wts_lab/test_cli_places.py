"""Outputs that cannot be written are refused before the work: by every command that writes, and before a record is read or a GPU looked for."""

from __future__ import annotations

import pytest

pytest.importorskip("typer.testing")
pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from tests.command_line import SHAPE, refused, run  # noqa: E402
from wts_lab import study, sweep_pools  # noqa: E402

COMMANDS = {
    "study": ("--replay", "--records", "nowhere"), "measure": SHAPE, "sweep": (*SHAPE, "--dry-run"), "tune": SHAPE,
    "fit": ("nowhere.parquet",), "calibrate": ("nowhere.parquet",), "decide": ("nowhere.parquet", "--gpu", "h200-sxm", *SHAPE),
    "round": ("nowhere.parquet", "--gpu", "h200-sxm", "--drafter", "dspark-qwen3-8b", "--accepted-length", "4"), "rounds": ("nowhere.parquet",),
    "step-table": ("nowhere.parquet", "--head", "dspark-qwen3-8b"), "accuracy": ("--checkpoint", "nowhere.safetensors"),
}  # fmt: skip
"""Words with which a command would work for long, or fail over a record that is not there."""

FOLDERS = ("study", "measure", "sweep", "tune", "fit", "accuracy")
"""Those whose --out is a folder."""


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    """Let a test fail where a device is looked for."""
    monkeypatch.setattr(study, "capable_device", lambda: pytest.fail("a device was looked for"))
    monkeypatch.setattr(sweep_pools, "open_pool", lambda *_: pytest.fail("a device was looked for"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_below_a_file_is_refused_before_the_work(command, tmp_path):
    if command == "accuracy":
        pytest.importorskip("torch", reason="says first that torch is missing")
    (tmp_path / "file").write_text("kept")
    out = tmp_path / "file" / ("out" if command in FOLDERS else "out.json")
    said = refused(command, *COMMANDS[command], "--out", str(out))
    assert f"{out}" in said and f"cannot be written, because {tmp_path / 'file'} is no folder; give another place" in said
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in FOLDERS])
def test_a_folder_in_place_of_a_file_is_refused_before_the_work(command, tmp_path):
    (tmp_path / "out.json").mkdir()
    assert f"{tmp_path / 'out.json'}: is a folder; give the name of a file" in refused(command, *COMMANDS[command], "--out", str(tmp_path / "out.json"))


@pytest.mark.parametrize("option", ["--table", "--keep", "--settings"])
def test_everything_that_tuning_writes_is_looked_at(option, tmp_path):
    (tmp_path / "file").write_text("")
    assert "is no folder" in refused("tune", *SHAPE, "--out", str(tmp_path), option, str(tmp_path / "file" / "out"))


def test_a_dry_run_of_a_sweep_makes_nothing(tmp_path):
    assert run("sweep", *SHAPE, "--dry-run", "--out", str(tmp_path / "new")).exit_code == 0
    assert list(tmp_path.iterdir()) == []
