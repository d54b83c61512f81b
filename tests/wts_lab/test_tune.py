"""Tuning on a simulated GPU: three rounds and their records, what fails on the way, and kernels built side by side."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.measurement import read_walk
from cost_model.placement import Placement
from wts_lab import environment, tune
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed, work
from wts_lab.tune import Machine, run_tune
from wts_lab.tune_plan import ALIKE, FASTER, INCONCLUSIVE, PLANNED, SCREENED_OUT, SLOWER, TuneRequest, candidates

pytest.importorskip("scipy", reason="fits need scipy")
pytest.importorskip("pyarrow", reason="rounds are Parquet records")

H200 = load_gpu("h200-sxm")
HEAD = Head.markov(151_936, 256)
MACHINE = Machine(H200, "h200-sxm", "NVIDIA H200", 132, "sm_90", "c0ffee")
REQUEST = TuneRequest(HEAD, warps=(8, 12), limit=8, exchanges=("spread-lines", "dense-lines"), processes=2, repeats=10)
PLANNERS = candidates(H200, REQUEST)[0].name
QUICK = 2.0


@pytest.fixture(autouse=True)
def provenance(monkeypatch):
    """What records say of their making, fixed: a commit made while a test runs would begin another run."""
    monkeypatch.setattr(environment, "snapshot", lambda: {"git_commit": "c0ffee", "git_dirty": False})


class Workers:
    """Runs each measuring process here on a fresh simulated bench. A candidate in `broken` ends its process with an error; before
    part number `stop_before` the user interrupts."""

    def __init__(self, bench_class, costs, *, broken=(), stop_before=None, throttled=()) -> None:
        self.bench_class, self.costs, self.broken = bench_class, costs, set(broken)
        self.stop_before, self.throttled = stop_before, throttled
        self.measured: list[tuple[int, tuple[str, ...]]] = []
        self.started = 0

    def __call__(self, plan_file, process_index, progress, cancel) -> None:
        self.started += 1
        bench = self.bench_class(self.costs, self.throttled)
        prepare = bench.prepare

        def counting(cases, steps, seed):
            if len(self.measured) == self.stop_before:
                raise KeyboardInterrupt
            names = tuple(case.variant for case in cases)
            if self.broken & set(names):
                raise WorkerFailed("measuring process 0 ended with status 1; it said:\nWrongKernel: only 0.5 of the tokens equal\nGoodbye")
            self.measured.append((process_index, names))
            return prepare(cases, steps, seed)

        bench.prepare = counting
        work(plan_file, process_index, bench=bench, say=lambda line: None, cancel=cancel)


def build_all(cases):
    """A compiler that builds everything; registers tell the placement apart."""
    return [SimpleNamespace(registers_per_thread=100 + case.placement.register_tiles, spill_bytes=4 * (case.placement.warps == 12)) for case in cases]


def tuned_run(simulated, out, costs, request=REQUEST, machine=MACHINE, build=build_all, **options):
    workers = Workers(simulated.Bench, {PLANNERS: (12.0, 2.5), **costs}, **options)
    return workers, lambda: run_tune(request, machine, out=out, progress=False, build=build, run_worker=workers)


def test_three_rounds_find_the_fastest_and_record_every_sample(simulated, tmp_path):
    names = [trial.name for trial in candidates(H200, REQUEST)]
    workers, run = tuned_run(simulated, tmp_path, {names[5]: (12.0, QUICK)})
    result = run()
    assert result.winner.name == names[5]
    assert [path.name.split("-")[4] for path in result.records] == ["placements", "exchanges", "final"]
    placements, exchanges, final = map(read_walk, result.records)
    assert set(placements["variant"]) == set(names)
    best = [names[5], PLANNERS]
    assert set(exchanges["variant"]) == {PLANNERS} | {name.replace("spread-lines", "dense-lines") for name in best}
    assert {names[5], PLANNERS} <= set(final["variant"]) and len(set(final["variant"])) == 3  # a quarter of ten, the planner's choice among them
    assert (set(placements["process_index"]), set(final["process_index"])) == ({0}, {0, 1})
    assert [len(samples) for samples in placements["samples_us"]] == [2] * len(placements)
    assert [len(samples) for samples in final["samples_us"]] == [10] * len(final)
    winner = result.winner
    assert (winner.fit.step_us, winner.fit.entry_us, winner.record) == (pytest.approx(QUICK), pytest.approx(12.0), result.records[-1].stem)
    assert (result.planned.fit.step_us, result.planned.registers_per_thread) == (pytest.approx(2.5), 140)
    verdicts = {row["verdict"] for row in result.rows}
    assert verdicts == {FASTER, PLANNED, SLOWER, SCREENED_OUT}


def test_an_exchange_wins_where_it_is_faster(simulated, tmp_path):
    name = PLANNERS.replace("spread-lines", "dense-lines")
    _, run = tuned_run(simulated, tmp_path, {name: (12.0, QUICK)})
    result = run()
    assert result.winner.name == name
    assert result.tuned().walk_options() == {"placement": Placement(8, 40, 32, 0, 0), "exchange": "dense-lines"}


def test_equal_costs_leave_the_planner_its_choice(simulated, tmp_path):
    names = [trial.name for trial in candidates(H200, REQUEST)]
    result = tuned_run(simulated, tmp_path, {name: (12.0, 2.5) for name in names})[1]()
    assert result.winner is result.planned
    assert {row["verdict"] for row in result.rows} <= {PLANNED, ALIKE, SLOWER, SCREENED_OUT}


def test_one_candidate_is_tuned_too(simulated, tmp_path):
    request = replace(REQUEST, limit=1, exchanges=())
    result = tuned_run(simulated, tmp_path, {}, request)[1]()
    assert [trial.name for trial in result.trials] == [PLANNERS] and result.winner is result.planned


@pytest.mark.parametrize("stop_before", range(4))
def test_an_interrupted_run_goes_on_where_it_stopped(simulated, tmp_path, stop_before):
    first, run = tuned_run(simulated, tmp_path / "stopped", {}, stop_before=stop_before)
    with pytest.raises(MeasurementInterrupted, match="same command again"):
        run()
    second, again = tuned_run(simulated, tmp_path / "stopped", {})
    whole, straight = tuned_run(simulated, tmp_path / "whole", {})
    names = [trial.name for trial in again().trials]
    assert names == [trial.name for trial in straight().trials]
    assert len(whole.measured) == 4  # one process a screening, two for the final round
    assert first.measured + second.measured == whole.measured


def test_a_finished_run_is_read_not_repeated(simulated, tmp_path):
    before = tuned_run(simulated, tmp_path, {})[1]()
    workers, again = tuned_run(simulated, tmp_path, {})
    after = again()
    assert workers.started == 0
    assert after.records == before.records and after.winner.name == before.winner.name


@pytest.mark.parametrize("change", [{"kernel_hash": "decade"}, {"gpu_name": "NVIDIA H200 NVL"}])
def test_records_of_other_kernels_or_another_device_are_not_taken_up(simulated, tmp_path, change):
    tuned_run(simulated, tmp_path, {})[1]()
    workers, again = tuned_run(simulated, tmp_path, {}, machine=replace(MACHINE, **change))
    again()
    assert len(workers.measured) == 4


def test_what_does_not_build_is_recorded_and_left_out(simulated, tmp_path):
    names = [trial.name for trial in candidates(H200, REQUEST)]

    def build(cases):
        error = RuntimeError("ninja failed in x:\nwalk.cuh(3): error: too many tiles\nninja: build stopped")
        return [error if case.variant == names[2] else built for case, built in zip(cases, build_all(cases), strict=True)]

    result = tuned_run(simulated, tmp_path, {}, build=build)[1]()
    assert result.trials[2].name == names[2]
    failed = result.trials[2].row(result.planned.fit)
    assert failed["verdict"] == "not built: walk.cuh(3): error: too many tiles"
    assert failed["step_us"] is None and failed["registers_per_thread"] is None
    assert all(names[2] not in set(read_walk(path)["variant"]) for path in result.records)


def test_spills_are_recorded_and_no_reason_to_leave_out(simulated, tmp_path):
    result = tuned_run(simulated, tmp_path, {})[1]()
    spilled = [row for row in result.rows if row["warps"] == 12]
    assert spilled and all(row["spill_bytes"] == 4 and row["screened_step_us"] is not None for row in spilled)


def test_a_planners_choice_that_does_not_build_ends_the_run(simulated, tmp_path):
    workers, run = tuned_run(simulated, tmp_path, {}, build=lambda cases: [RuntimeError("no CUDA compiler found") for _ in cases])
    with pytest.raises(RuntimeError, match="no CUDA compiler"):
        run()
    assert workers.started == 0


def test_candidates_that_cannot_run_are_found_and_the_others_measured(simulated, tmp_path):
    names = [trial.name for trial in candidates(H200, REQUEST)]
    workers, run = tuned_run(simulated, tmp_path, {names[6]: (12.0, QUICK)}, broken=(names[3], names[4]))
    result = run()
    assert result.winner.name == names[6]
    told = {trial.name: trial.problem for trial in result.trials if trial.problem}
    assert told == dict.fromkeys((names[3], names[4]), "not run: WrongKernel: only 0.5 of the tokens equal")
    screened = {trial.name for trial in result.trials if trial.screened is not None}
    assert screened >= set(names) - {names[3], names[4]}


def test_a_general_failure_is_known_after_a_few_tries(simulated, tmp_path):
    names = [trial.name for trial in candidates(H200, REQUEST)]
    workers, run = tuned_run(simulated, tmp_path, {}, broken=names)
    with pytest.raises(WorkerFailed, match="WrongKernel"):
        run()
    assert workers.started == 4  # 8, 4, 2, 1 candidates


def test_a_throttled_gpu_keeps_nothing(simulated, tmp_path):
    result = tuned_run(simulated, tmp_path, {}, throttled=range(100_000))[1]()
    assert result.winner is None
    assert {row["verdict"] for row in result.rows} <= {INCONCLUSIVE, SCREENED_OUT}


def test_progress_reaches_the_caller(simulated, tmp_path):
    seen = []
    workers = Workers(simulated.Bench, {})

    def worker(plan_file, process_index, progress, cancel):
        progress(1, 2, "half")
        workers(plan_file, process_index, progress, cancel)

    run_tune(REQUEST, MACHINE, out=tmp_path, progress=lambda *told: seen.append(told), build=build_all, run_worker=worker)
    assert len(seen) == 4 and all(label.endswith("half") for _, _, label in seen)


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for the compiler: builds take a moment, and some fail."""
    pytest.importorskip("torch", reason="a specification is made beside the walk, which imports torch")
    from wts_lab import bench_gpu, build

    seen = SimpleNamespace(running=0, most=0, stopped=0, fails=lambda placement: False, takes_s=0.02)

    def build_walk(placement, arch, *, cancel):
        seen.running += 1
        seen.most = max(seen.most, seen.running)
        end = time.monotonic() + seen.takes_s
        while time.monotonic() < end:
            if cancel.is_set():
                seen.stopped += 1
                raise build.BuildCancelled("stopped")
            time.sleep(0.005)
        seen.running -= 1
        if seen.fails(placement):
            raise build.BuildError(f"ptxas refuses {placement}")
        return SimpleNamespace(registers_per_thread=placement.register_tiles, spill_bytes=0, arch=arch)

    monkeypatch.setattr(bench_gpu, "walk_spec", lambda case, gpu: case.placement)
    monkeypatch.setattr(build, "build_walk", build_walk)
    monkeypatch.setattr(tune.os, "cpu_count", lambda: 3)
    return seen


def test_builds_run_side_by_side_and_answer_in_order(compiler):
    compiler.fails = lambda placement: placement.warps == 12
    cases = [trial.case for trial in candidates(H200, replace(REQUEST, limit=12))]
    built = tune.build_cases(cases, MACHINE, progress=False)
    assert compiler.most == 3
    for case, record in zip(cases, built, strict=True):
        if case.placement.warps == 12:
            assert str(record) == f"ptxas refuses {case.placement}"
        else:
            assert (record.registers_per_thread, record.arch) == (case.placement.register_tiles, "sm_90")


def test_a_cancelled_build_stops_what_runs_and_starts_nothing_more(compiler):
    from wts_lab.build import BuildCancelled

    compiler.takes_s, cancel = 60.0, Event()
    cancel.set()
    cases = [trial.case for trial in candidates(H200, REQUEST)]
    begun = time.monotonic()
    with pytest.raises(BuildCancelled, match="same command again"):
        tune.build_cases(cases, MACHINE, progress=False, cancel=cancel)
    assert time.monotonic() - begun < 10 and compiler.stopped == 3


def test_one_line_of_an_error_is_the_telling_one():
    assert tune._one_line(RuntimeError("a\nb: error: c\nd")) == "b: error: c"
    assert tune._one_line(RuntimeError("a\nlast")) == "last"
    assert tune._one_line(RuntimeError()) == "RuntimeError"
