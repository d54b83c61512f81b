"""How benchmark commands end, and that what cannot be recorded is refused before a device is looked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")
pytest.importorskip("torch", reason="some benchmarks import it")

from benchmarks import accuracy, engine_kernels, model_tables, notebooks, panel_speed, phases, predict_speed, run, stress, sweep, touched  # noqa: E402
from benchmarks import round as rounds  # noqa: E402
from benchmarks.status import ending_with_status  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from wts_lab import study, sweep_pools  # noqa: E402
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed  # noqa: E402
from wts_lab.build import BuildCancelled  # noqa: E402
from wts_lab.sweep import SweepIncomplete, SweepInterrupted  # noqa: E402

PROGRAMS = {
    "run": (run.main, "walks"), "run probes": (run.main, "probes"), "run phases": (run.main, "phases"), "round": (rounds.main,), "stress": (stress.main,),
    "phases": (phases.main,), "engine_kernels": (engine_kernels.main,), "sweep": (sweep.main, "grid-greedy"), "accuracy": (accuracy.main,),
    "notebooks": (notebooks.main,), "model_tables": (model_tables.main,), "predict_speed": (predict_speed.main,), "panel_speed": (panel_speed.main,),
    "touched": (touched.main,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    """Let a test fail where a device is looked for, or a notebook or head run."""
    for place, name in ((study, "capable_device"), (sweep_pools, "local_devices"), (notebooks, "execute")):
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.setattr(model_tables, "tables", lambda: pytest.fail("the work began"))
    monkeypatch.setattr("wts_lab.accuracy_run.measure_head", lambda *_, **__: pytest.fail("the work began"))


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (BadInput("no"), 2, "error: no"), (OSError(28, "no room"), 2, "error: a file of this command: no room; check that the path is right, may be used, and has room"),
        (WorkerFailed("no"), 1, "error: no"), (SweepIncomplete("no"), 1, "error: no"), (MeasurementInterrupted("no"), 130, "interrupted: no"),
        (SweepInterrupted("no"), 130, "interrupted: no"), (BuildCancelled("no"), 130, "interrupted: no"),
        (KeyboardInterrupt(), 130, "interrupted: what is told as recorded is kept"),
    ],
)  # fmt: skip
def test_an_error_is_a_line_and_a_status(error, status, told, capsys):
    @ending_with_status
    def main(arguments=None):
        raise error

    assert main([]) == status
    assert capsys.readouterr().err == told + "\n"


@pytest.mark.parametrize("fault", [ZeroDivisionError("no"), RuntimeError("of another library")])
def test_a_fault_keeps_its_traceback_and_a_result_its_status(fault):
    @ending_with_status
    def main(arguments=None):
        if arguments is None:
            raise fault
        return arguments

    assert main(1) == 1
    with pytest.raises(type(fault)):
        main()


def test_a_reader_that_leaves_ends_a_program_quietly(repository):
    writes = "from benchmarks.status import ending_with_status\n@ending_with_status\ndef main(_=None):\n    print('x' * 100_000)\n    return 0\nraise SystemExit(main())"
    program = subprocess.Popen([sys.executable, "-c", writes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repository)
    program.stdout.close()
    assert program.stderr.read() == "" and program.wait(60) == 1


@pytest.mark.parametrize("program", [name for name in PROGRAMS if name not in ("model_tables", "predict_speed", "panel_speed", "touched")])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(program, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    main, *words = PROGRAMS[program]
    assert main([*words, "--out", str(tmp_path / "file" / "runs")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"cannot be written, because {tmp_path / 'file'} is no folder" in said


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("run", ("--processes", "0"), "processes is 0; it must be at least 1"), ("run phases", ("--repeats", "0"), "repeats is 0"),
        ("run", ("--record", "My run"), "use small letters, digits, points and hyphens"), ("phases", ("--repeats", "0"), "repeats is 0"),
        ("round", ("--repeats", "0"), "repeats is 0"), ("round", ("--record", "My run"), "use small letters"), ("round", ("--only", "c3"), "known are c1"),
        ("engine_kernels", ("--repeats", "0"), "repeats is 0"), ("stress", ("--seconds", "nan"), "--seconds is nan; give a number above 0"),
        ("stress", ("--seconds", "0"), "--seconds is 0; give a number above 0"), ("sweep", ("--repeats", "0"), "repeats is 0"),
        ("sweep", ("--groups-per-job", "0"), "--groups-per-job is 0"), ("accuracy", ("--document", "README.md"), "README.md must have the lines"),
        ("notebooks", ("--only", "99"), "no notebook begins with '99'"), ("model_tables", ("--document", "README.md"), "<!-- parameters -->"),
        ("predict_speed", ("--threads", "0"), "--threads is 0; it must be at least 1"), ("panel_speed", ("--openings", "0"), "--openings is 0"),
        ("touched", ("--only", "nothing"), "no record with walks of ours has nothing; there are h200-sxm/"), ("touched", ("nowhere.parquet",), "no such file"),
    ],
)  # fmt: skip
def test_words_that_mean_nothing_are_refused_before_the_work(program, words, said, capsys, monkeypatch, repository):
    monkeypatch.chdir(repository)
    main, *first = PROGRAMS[program]
    assert main([*first, *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told


@pytest.mark.parametrize("program", [accuracy, model_tables])
def test_a_document_that_is_not_there_is_no_traceback(program, capsys):
    assert program.main(["--document", "nowhere.md"]) == 2
    assert "nowhere.md" in capsys.readouterr().err
