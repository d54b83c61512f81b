"""Tuning on the simulated GPU of conftest.py: what is tried, in which rounds, what wins, and that a stopped run goes on. Candidates,
rounds, records, fits and verdicts are real; only the device and the compiler are not."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model import placement as planner
from cost_model.errors import BadInput
from cost_model.fit import StepFit
from cost_model.gpu import load_gpu
from cost_model.head import Head, load_head
from cost_model.measurement import read_walk
from cost_model.placement import Placement, PlanError
from wts_lab import environment, tune
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed, work
from wts_lab.tune import Machine, TuneResult, run_tune
from wts_lab.tune_plan import ALIKE, FASTER, INCONCLUSIVE, LONGER_CALL, PLANNED, SCREENED_OUT, SLOWER, TuneRequest, candidates, compare
from wts_lab.walk_plan import plan_walk, walk_spec

pytest.importorskip("scipy", reason="fits need scipy")
pytest.importorskip("pyarrow", reason="rounds are Parquet records")

H200 = load_gpu("h200-sxm")
HEAD = Head.markov(151_936, 256)
MACHINE = Machine(H200, "h200-sxm", "NVIDIA H200", 132, "sm_90", "c0ffee")
REQUEST = TuneRequest(HEAD, warps=(8, 12), limit=8, exchanges=("near-lines", "dense-lines"), processes=2, repeats=10)
PLANNERS = candidates(H200, REQUEST)[0].name
QUICK = 2.0


@pytest.fixture(autouse=True)
def provenance(monkeypatch):
    """What records say of their making, fixed: a commit made while a test runs would begin another run."""
    monkeypatch.setattr(environment, "snapshot", lambda: {"git_commit": "c0ffee", "git_dirty": False})


# --- what is tried --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("h200-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm")), st.integers(1, 300_000), st.sampled_from((32, 64, 256, 512)),
    st.sampled_from((("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16"))),
    st.lists(st.sampled_from((2, 4, 8, 12, 16)), min_size=1, max_size=4), st.integers(1, 40),
)  # fmt: skip
def test_every_candidate_fits_and_the_planners_choice_comes_first(gpu_id, vocab_size, rank, way, warps, limit):
    gpu, head, (mode, precision) = load_gpu(gpu_id), Head.markov(vocab_size, rank), way
    request = TuneRequest(head, mode, precision, warps=tuple(warps), limit=limit)
    blocks = min(gpu.sm_count, -(-vocab_size // 16))
    try:
        chosen = planner.plan(gpu, head, precision, mode, grid_blocks=blocks)
    except PlanError:
        with pytest.raises(PlanError):
            candidates(gpu, request)
        return
    trials = candidates(gpu, request)
    placements = [trial.case.placement for trial in trials]
    assert placements[0] == chosen and [trial.planned for trial in trials] == [True] + [False] * (len(trials) - 1)
    assert len(set(placements)) == len(placements) <= limit
    assert len({trial.name for trial in trials}) == len(trials)
    for placement in placements:
        assert planner.capacity_problem(placement, gpu, rank, precision) is None
        assert placement.tiles * blocks * 16 >= vocab_size
        assert mode == "resident" or placement.residency == 0
    assert {placement.warps for placement in placements[1:]} <= set(warps)
    predicted = [trial.predicted_step_us for trial in trials[1:] if trial.predicted_step_us is not None]
    assert predicted == sorted(predicted)


def test_all_that_fits_is_tried_where_the_limit_allows():
    trials = candidates(H200, replace(REQUEST, warps=(8, 12), limit=10_000))
    fitting = [one for warps in (8, 12) for one in planner.enumerate_placements(H200, HEAD, "int8x2", "resident", warps=warps)]
    assert sorted(map(repr, (trial.case.placement for trial in trials))) == sorted(map(repr, fitting))


def test_a_walk_that_the_model_cannot_predict_is_tried_by_turns_of_the_warps(monkeypatch):
    from cost_model import predict

    def refuse(*arguments, **options):
        raise BadInput("not modelled")

    monkeypatch.setattr(predict, "predict", refuse)
    trials = candidates(H200, replace(REQUEST, warps=(4, 8, 12), limit=7))
    assert [trial.case.placement.warps for trial in trials] == [8, 4, 12, 4, 8, 12, 4]
    assert {trial.predicted_step_us for trial in trials} == {None}


@pytest.mark.parametrize(("name", "batch", "rows"), [("domino-qwen3-4b", 4, 1), ("domino-qwen3-4b", 1, 1), ("dspark-qwen3-4b", 3, 4)])
def test_every_candidate_is_counted_for_the_kernel_that_its_walk_builds(name, batch, rows):
    head = load_head(name)
    for trial in candidates(H200, replace(REQUEST, head=head, batch=batch)):
        spec = plan_walk(H200, head, mode="resident", max_batch=batch, placement=trial.case.placement).spec
        assert spec == walk_spec(trial.case.placement, trial.kernel, head.rank, "int8x2") and spec.rows == rows


def test_a_domino_head_is_not_tuned_to_sample():
    with pytest.raises(BadInput, match="domino heads walk greedily, so leave it at 0"):
        replace(REQUEST, head=load_head("domino-qwen3-4b"), temperature=1.0)


def test_a_row_tells_what_planner_and_model_expect():
    row = candidates(H200, REQUEST)[0].row(None)
    claim = planner.registers_claim(Placement(8, 40, 32, 0, 0), 256, "int8x2")
    assert (row["warps"], row["register_tiles"], row["shared_tiles"], row["exchange"]) == (8, 40, 32, "near-lines")
    assert row["predicted_registers_per_thread"] == claim.registers_per_thread
    assert row["shared_bytes"] == planner.shared_bytes(Placement(8, 40, 32, 0, 0), 256, "int8x2")
    assert (row["registers_per_thread"], row["step_us"], row["call_us"], row["verdict"]) == (None, None, None, "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "stepwise"}, "choose one of resident, streaming"),
        ({"limit": 0}, "limit is 0"),
        ({"warps": ()}, "no number of warps"),
        ({"warps": (33,)}, "warps is 33"),
        ({"exchanges": ("atomic",)}, "choose one of near-lines, spread-lines, dense-lines"),
        ({"steps": (1, 16)}, "steps are 1, 16; a step cost needs at least 3"),
        ({"steps": (1, 1, 7)}, "must not repeat"),
        ({"l2_state": "hot"}, "warm, cold, serving"),
        ({"processes": 0}, "processes is 0"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_a_request_that_cannot_be_is_refused(fields, message):
    with pytest.raises(BadInput, match=message):
        TuneRequest(HEAD, **fields)


def test_a_walk_that_cannot_be_measured_is_refused_before_anything_is_built():
    with pytest.raises(BadInput, match="batch is 0"):
        candidates(H200, replace(REQUEST, batch=0))


# --- who wins -------------------------------------------------------------------------------------------------------------


def fitted(step_us: float | None, spread_us: float = 0.0, entry_us: float = 10.0, repeatability_us: float = 0.0) -> StepFit:
    """A fit with an interval of `spread_us` on each side; None for a series that lost its samples."""
    if step_us is None:
        return StepFit(None, None, None, None, None, None, None, False, None, None, 3, 0, 30, (), {}, "inconclusive", "all were throttled")
    return StepFit(step_us, step_us - spread_us, step_us + spread_us, entry_us, entry_us, entry_us, repeatability_us, False, 1.0, 1.0, 3, 90, 0,
                   (1, 7, 16), {}, "ok")  # fmt: skip


@pytest.mark.parametrize(
    ("fit", "verdict"),
    [
        (fitted(2.0), FASTER),
        (fitted(3.0), SLOWER),
        (fitted(2.5), ALIKE),
        (fitted(2.49, spread_us=0.02), ALIKE),
        (fitted(2.4, repeatability_us=0.15), ALIKE),
        (fitted(2.4, entry_us=11.7), LONGER_CALL),
        (fitted(2.4, entry_us=11.6), FASTER),
        (fitted(None), INCONCLUSIVE),
    ],
)
def test_a_candidate_is_judged_beside_the_planners_choice(fit, verdict):
    assert compare(fit, fitted(2.5)) == verdict


@given(st.floats(0.5, 5), st.floats(0.5, 5), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_nothing_wins_by_less_than_both_repeat(step_us, planned_us, spread_us, planned_spread_us, noise_us, planned_noise_us):
    fit, planned = fitted(step_us, spread_us, repeatability_us=noise_us), fitted(planned_us, planned_spread_us, repeatability_us=planned_noise_us)
    margin_us = planned_us - step_us
    assert (compare(fit, planned) == FASTER) == (margin_us > max(noise_us, planned_noise_us) and step_us + spread_us < planned_us - planned_spread_us)
    assert (compare(fit, planned) == ALIKE) == (compare(planned, fit) == ALIKE)


def result_of(*fits: StepFit) -> TuneResult:
    """A result whose final fits are these, the planner's choice first."""
    trials = candidates(H200, replace(REQUEST, limit=len(fits)))
    return TuneResult(REQUEST, MACHINE, tuple(replace(trial, fit=fit, record="r") for trial, fit in zip(trials, fits, strict=True)), ())


def test_the_fastest_of_those_that_are_faster_wins():
    result = result_of(fitted(2.5), fitted(2.3), fitted(2.2, entry_us=20.0), fitted(2.25), fitted(2.0, spread_us=0.6))
    assert result.winner is result.trials[3]
    assert [row["verdict"] for row in result.rows] == [ALIKE, LONGER_CALL, FASTER, FASTER, PLANNED]
    assert [row["kept"] for row in result.rows] == [False, False, True, False, False]
    tuned = result.tuned()
    assert (tuned.placement, tuned.step_us, tuned.planned_step_us) == (result.trials[3].case.placement, 2.25, 2.5)
    assert tuned.verdict == "faster than the planner's choice"
    assert (tuned.valid_for.gpu_name, tuned.valid_for.sm_count, tuned.valid_for.kernel_hash) == ("NVIDIA H200", 132, "c0ffee")


def test_the_planners_choice_stays_where_nothing_is_distinguishably_faster():
    result = result_of(fitted(2.5), fitted(2.45, spread_us=0.1), fitted(2.9))
    assert result.winner is result.planned
    tuned = result.tuned()
    assert (tuned.placement, tuned.exchange) == (Placement(8, 40, 32, 0, 0), "near-lines")
    assert tuned.verdict == "no candidate is distinguishably faster than the planner's choice"


def test_nothing_is_kept_where_the_planners_choice_lost_its_samples():
    result = result_of(fitted(None), fitted(2.0))
    assert result.winner is None
    assert {row["verdict"] for row in result.rows} == {INCONCLUSIVE}
    with pytest.raises(BadInput, match="no winner to keep: all were throttled"):
        result.tuned()


# --- rounds ---------------------------------------------------------------------------------------------------------------


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
    assert set(exchanges["variant"]) == {PLANNERS} | {name.replace("near-lines", "dense-lines") for name in best}
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
    name = PLANNERS.replace("near-lines", "dense-lines")
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


# --- what fails -----------------------------------------------------------------------------------------------------------


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


# --- building -------------------------------------------------------------------------------------------------------------


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
