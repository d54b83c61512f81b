"""How benchmark commands end, and that what cannot be recorded is refused before a device is looked for."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")
pytest.importorskip("torch", reason="some benchmarks import it")

from benchmarks import accuracy, engine_kernels, notebooks, phases, run, stress, sweep  # noqa: E402
from benchmarks import round as rounds  # noqa: E402
from benchmarks.status import ending_with_status  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from wts_lab import study, sweep_pools  # noqa: E402
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed  # noqa: E402
from wts_lab.sweep import SweepIncomplete, SweepInterrupted  # noqa: E402

PROGRAMS = {
    "run": (run.main, "walks"), "run probes": (run.main, "probes"), "run phases": (run.main, "phases"), "round": (rounds.main,), "stress": (stress.main,),
    "phases": (phases.main,), "engine_kernels": (engine_kernels.main,), "sweep": (sweep.main, "grid-greedy"), "accuracy": (accuracy.main,),
    "notebooks": (notebooks.main,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    """Let a test fail where a device is looked for, or a notebook or head run."""
    for place, name in ((study, "capable_device"), (sweep_pools, "local_devices"), (notebooks, "execute")):
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.setattr("wts_lab.accuracy_run.measure_head", lambda *_, **__: pytest.fail("the work began"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("no"), 2), (OSError("no"), 2), (WorkerFailed("no"), 1), (SweepIncomplete("no"), 1), (RuntimeError("no"), 1),
        (MeasurementInterrupted("no"), 130), (SweepInterrupted("no"), 130),
    ],
)  # fmt: skip
def test_an_error_is_a_line_and_a_status(error, status, capsys):
    @ending_with_status
    def main(arguments=None):
        raise error

    assert main([]) == status
    assert capsys.readouterr().err == "no\n"


def test_an_interrupt_and_a_result_have_their_status_and_a_fault_its_traceback(capsys):
    @ending_with_status
    def main(arguments=None):
        if arguments == "stop":
            raise KeyboardInterrupt
        return 1 // arguments

    assert (main(1), main("stop")) == (1, 130) and capsys.readouterr().err == "interrupted\n"
    with pytest.raises(ZeroDivisionError):
        main(0)


@pytest.mark.parametrize("program", PROGRAMS)
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
        ("notebooks", ("--only", "99"), "no notebook begins with '99'"),
    ],
)  # fmt: skip
def test_words_that_mean_nothing_are_refused_before_the_work(program, words, said, capsys, monkeypatch, repository):
    monkeypatch.chdir(repository)
    main, *first = PROGRAMS[program]
    assert main([*first, *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told


def test_a_document_that_is_not_there_is_no_traceback(capsys):
    assert accuracy.main(["--document", "nowhere.md"]) == 2
    assert "nowhere.md" in capsys.readouterr().err
