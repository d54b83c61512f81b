"""What the command line shows, and how it ends: results, errors, interruptions and full disks."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer.testing")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from tests.command_line import SHAPE, run, run_process, whole_record  # noqa: E402
from wts_lab import cli_output  # noqa: E402


# --- interruption and faults ----------------------------------------------------------------------------------------------


def status_of(error: BaseException) -> int:
    """Exit status that an error inside a command leads to."""
    with pytest.raises(cli_output.typer.Exit) as raised, cli_output.user_errors("parts are kept in x"):
        raise error
    return raised.value.exit_code


def test_an_interrupt_says_what_was_kept(capsys):
    assert status_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "wts-lab: interrupted: parts are kept in x\n"


def test_an_interrupt_during_the_imports_is_no_traceback(monkeypatch):
    from types import SimpleNamespace

    from wts_lab import __main__ as program

    monkeypatch.setitem(sys.modules, "wts_lab.cli", SimpleNamespace(main=lambda: (_ for _ in ()).throw(KeyboardInterrupt)))
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 130


def test_a_measurement_that_was_stopped_says_how_to_go_on(capsys):
    from wts_lab.bench_run import MeasurementInterrupted

    assert status_of(MeasurementInterrupted("2 of 3 parts kept; give the same command again")) == 130
    assert "same command again" in capsys.readouterr().err


def test_a_failed_build_has_status_1_and_the_compilers_words(capsys):
    from wts_lab.build import BuildError

    assert status_of(BuildError("ninja failed:\nerror: no such instruction")) == 1
    assert "no such instruction" in capsys.readouterr().err


def test_bad_input_over_several_lines_becomes_one(capsys):
    assert status_of(BadInput("one\n  two")) == 2
    assert capsys.readouterr().err == "wts-lab: error: one two\n"


def test_a_missing_folder_is_named(tmp_path, capsys):
    try:
        (tmp_path / "no" / "file").read_text()
    except OSError as error:
        assert status_of(error) == 2
    assert "no/file" in capsys.readouterr().err


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
"""What a write into an open file raises on a full disk: it names no file."""


def test_a_full_disk_is_one_line_that_names_the_output(capsys, tmp_path):
    with pytest.raises(cli_output.typer.Exit) as raised, cli_output.user_errors(out=tmp_path):
        raise FULL
    said = capsys.readouterr().err
    assert raised.value.exit_code == 2 and said.count("\n") == 1 and str(tmp_path) in said and "No space left" in said


@pytest.mark.parametrize("command", ["decide", "study", "fit", "calibrate"])
def test_every_command_that_writes_refuses_a_full_disk(command, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    from cost_model import files
    from cost_model.paths import data_root

    def full(*_, **__):
        raise FULL

    record = whole_record(tmp_path)
    monkeypatch.setattr(files, "write_whole", full)
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "replace", full)
    out, probes = tmp_path / "out", sorted((data_root() / "measurements" / "h200-sxm").glob("*-probes.parquet"))
    if command == "calibrate" and not probes:
        pytest.skip("no record of an H200's probes ships")
    words = {
        "decide": ("--gpu", "h200-sxm", *SHAPE), "fit": (str(record),),
        "study": ("--replay", "--vocab", "151936"), "calibrate": (str(probes[-1]) if probes else "",),
    }[command]
    result = run(command, *words, "--out", str(out))
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert "No space left" in line and str(out) in line and "Traceback" not in result.stderr


def test_a_reader_that_leaves_is_no_error_of_the_input():
    with pytest.raises(BrokenPipeError), cli_output.user_errors():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), cli_output.user_errors():
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError), cli_output.user_errors():
        raise RuntimeError("not one of ours")


def test_a_terminal_without_unicode_gets_its_table():
    done = run_process("predict", "--gpu", "h200-sxm", *SHAPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "Traceback" not in done.stderr


# --- results ------------------------------------------------------------------------------------------------------------


def test_plain_values_of_results():
    numpy = pytest.importorskip("numpy")
    assert cli_output.plain({1: (numpy.float64(0.5), Path("a"), Placement(1, 1, 0, 0, 0))}) == {
        "1": [0.5, "a", Placement(1, 1, 0, 0, 0).as_dict()]
    }


def test_a_narrow_terminal_folds_cells_and_cuts_no_name(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(cli_output, "PIPED_WIDTH", 80)
    times = ("38.3 µs", "38.2 to 38.5 µs", "38.2 µs", "35.0 to 41.5 µs", "4.01 µs", "617 µs")
    cli_output.print_table("Times", ("way", "step", "interval", "predicted", "interval", "entry", "call of 16 steps"), [("sglang-0.5.23 greedy", *times)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("sglang-0.5.23", "greedy", "38.3", "617")) and "…" not in shown


def test_json_refuses_what_json_cannot_hold():
    with pytest.raises(ValueError):
        cli_output.print_json({"step_us": float("nan")})
