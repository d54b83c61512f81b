"""Measuring in one process and into a record, on the simulated GPU of conftest.py. What is planned, timed, dropped, kept,
resumed and merged is real; only the device is not."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from random import Random
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.measurement import RecordError, read_walk
from cost_model.placement import Placement
from wts_lab import bench_run, environment
from wts_lab.bench import PointSamples, WalkCase, WrongKernel, comparison_cases, measure, measure_probes, stream_points
from wts_lab.bench_plan import (
    RunPlan, burst_sizes, engine_case, group_cases, order_bursts, resident_case, stepwise_case, streaming_case,
)
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed, run_subprocess, work
from wts_lab.nvml import ClockReading

SMALL, LARGE = Head.markov(512, 32), Head.markov(1024, 32)
GATED = Head("gated", "gated", 512, 512, 512, 32, hidden_size=64)
DOMINO = Head("domino", "domino", 512, 512, 512, 32, hidden_size=64, gru_size=16, candidate_pool=100)
STEPWISE = {"implementation": "torch-stepwise", "mode": "stepwise", "precision": "bf16"}
ENGINE = {**STEPWISE, "implementation": "sglang-0.5.23"}
COSTS = {"resident": (12.0, 2.5), "streaming": (11.0, 6.5), "graph": (5.0, 30.0)}


# --- cases and plans ------------------------------------------------------------------------------------------------------


def test_the_comparison_has_the_four_walks_that_split_the_gain():
    cases = comparison_cases(SMALL)
    assert [(case.implementation, case.mode, case.precision, case.rounding) for case in cases] == [
        ("wts", "resident", "int8x2", "once"), ("wts", "streaming", "int8x2", "once"), ("wts", "streaming", "bf16", "once"),
        ("torch-stepwise", "stepwise", "bf16", "twice"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"implementation": "sglang"}, "choose one of wts, torch-stepwise"),
        ({"implementation": "vllm"}, "choose one of wts, torch-stepwise, sglang-0.5.23"),
        ({"mode": "stepwise"}, "wts cannot run stepwise; torch-stepwise and sglang-0.5.23 do"),
        ({"implementation": "torch-stepwise"}, "torch-stepwise cannot run resident; it runs stepwise"),
        (STEPWISE | {"precision": "int8x2"}, "torch-stepwise walks in bf16"),
        (STEPWISE | {"probe": "exchange"}, "no placement, exchange or probe"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 33}, "from 1 to 32"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": float("nan")}, "finite number of at least 0"),
        ({"temperature": 1.0, "rounding": "none"}, "choose rounding once or twice"),
        ({"exchange": "atomic"}, "choose one of near-lines, spread-lines, dense-lines"),
        ({"rounding": "thrice"}, "rounding is 'thrice'"),
        ({"probe": "phases"}, "choose one of none, fixed_latent, exchange, state"),
        ({"head": GATED, "precision": "bf16"}, "bf16 walk of a gated head has no exact twin"),
        ({"head": DOMINO, "temperature": 1.0}, "domino heads walk greedily"),
        ({"head": DOMINO, "logits_kept": True}, "no logits of the whole vocabulary"),
        (ENGINE, "MarkovGreedyStep, MarkovSampleStep"),
        (ENGINE | {"variant": "MarkovGreedyStep"}, "MarkovGreedyStep rounds none, not once"),
        (ENGINE | {"variant": "MarkovGreedyStep", "rounding": "none", "logits_kept": True}, "choose MarkovSampleStep"),
        (ENGINE | {"variant": "MarkovSampleStep", "rounding": "twice", "head": GATED}, "only the walks of markov heads"),
    ],
)
def test_a_case_that_cannot_be_measured_is_refused_with_the_mend(fields, message):
    values = {"implementation": "wts", "variant": "v", "mode": "resident", "precision": "int8x2", "head": SMALL}
    with pytest.raises(BadInput, match=message):
        WalkCase(**{**values, **fields})


def test_cases_survive_the_way_to_json_and_back():
    placement = Placement(8, 40, 32, 0, 0)
    cases = (
        *comparison_cases(SMALL), WalkCase("wts", "tuned", "resident", "int8x2", LARGE, placement=placement, exchange="dense-lines"),
        *comparison_cases(GATED, batch=8, temperature=1.0, logits_kept=True), resident_case(DOMINO, probe="state"),
        engine_case(SMALL, "MarkovSampleStep", batch=4, temperature=0.7),
    )  # fmt: skip
    for case in cases:
        assert WalkCase.from_dict(json.loads(json.dumps(case.as_dict()))) == case


def test_cases_of_one_head_form_a_group_in_the_order_given():
    small, large = comparison_cases(SMALL), comparison_cases(LARGE)
    mixed = [case for pair in zip(small, large) for case in pair]
    assert group_cases(mixed) == (small, large)


def test_a_head_without_a_bf16_twin_is_compared_in_three_walks():
    cases = comparison_cases(GATED, batch=4)
    assert [(case.mode, case.precision) for case in cases] == [("resident", "int8x2"), ("streaming", "int8x2"), ("stepwise", "bf16")]
    assert {case.batch for case in cases} == {4}


def test_engine_paths_round_as_the_engine_does_and_run_beside_ours():
    greedy, sample = engine_case(SMALL, "MarkovGreedyStep"), engine_case(SMALL, "MarkovSampleStep")
    assert (greedy.rounding, sample.rounding, greedy.mode, greedy.precision) == ("none", "twice", "stepwise", "bf16")
    assert group_cases([resident_case(SMALL), greedy, sample]) == ((resident_case(SMALL), greedy, sample),)


def test_batches_and_temperatures_are_groups_of_their_own():
    cases = [resident_case(SMALL, batch=batch, temperature=temperature) for batch in (1, 8) for temperature in (0.0, 1.0)]
    assert group_cases(cases) == tuple((case,) for case in cases)


def test_a_domino_block_has_one_position_more_than_steps():
    assert resident_case(DOMINO).positions(7) == 8
    assert resident_case(GATED).positions(7) == resident_case(SMALL).positions(7) == 7


def test_words_pick_a_case_out_of_a_grid():
    case = resident_case(DOMINO, batch=8, probe="state")
    assert {"domino", "v512", "r32", "h64", "pool100", "b8", "t0", "wts", "resident", "int8x2", "once", "state"} == case.words
    assert "t0.7" in engine_case(SMALL, "MarkovSampleStep", temperature=0.7).words


def test_a_case_given_twice_is_refused():
    with pytest.raises(BadInput, match="given twice"):
        group_cases([resident_case(SMALL), resident_case(SMALL)])


@given(st.integers(1, 300), st.integers(1, 20))
def test_bursts_share_all_repeats_evenly(repeats, rounds):
    sizes = burst_sizes(repeats, rounds)
    assert sum(sizes) == repeats
    assert len(sizes) == min(rounds, repeats)
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


@given(st.integers(1, 4), st.sets(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 50), st.integers(1, 6), st.integers(0, 99))
def test_every_round_visits_every_point_once_and_totals_are_kept(cases, steps, repeats, rounds, seed):
    states = ("warm", "cold")
    bursts = list(order_bursts(cases, sorted(steps), states, repeats, rounds, Random(seed)))
    points = cases * len(steps) * len(states)
    samples, last = Counter(), Counter()
    for point, size, is_last in bursts:
        samples[point] += size
        last[point] += is_last
    assert set(samples.values()) == {repeats} and set(last.values()) == {1}
    for start in range(0, len(bursts), points):
        assert len({point for point, _, _ in bursts[start : start + points]}) == points


def test_walk_lengths_come_in_random_order_and_rounds_differ():
    bursts = [point for point, _, _ in order_bursts(2, range(1, 17), ("warm",), 4, 2, Random(3))]
    first, second = bursts[:32], bursts[32:]
    assert first != sorted(first, key=lambda point: (point.case, point.steps))
    assert first != second


def test_a_plan_is_known_by_everything_but_its_command():
    def plan(**changes):
        values = dict(kind="walks", cases=comparison_cases(SMALL), steps=(1, 7), l2_states=("warm",), repeats=5, rounds=2, processes=3,
                      seed=0, gpu_id="h200-sxm", provenance={"git_commit": "abc", "command": "one"})  # fmt: skip
        return RunPlan(**{**values, **changes})

    assert plan().fingerprint == plan(provenance={"git_commit": "abc", "command": "two"}).fingerprint
    assert plan().fingerprint == plan(engine_root="/somewhere").fingerprint
    others = [plan(provenance={"git_commit": "abd"}), plan(repeats=6), plan(steps=(1, 8)), plan(gpu_id="a"), plan(cases=comparison_cases(LARGE))]
    assert len({plan().fingerprint, *(other.fingerprint for other in others)}) == 6
    assert RunPlan.from_dict(json.loads(json.dumps(plan().as_dict()))) == plan()
    assert len({plan().seed_of(process, group) for process in range(3) for group in range(3)}) == 9


def test_a_plan_of_another_version_is_refused():
    with pytest.raises(BadInput, match="version 99"):
        RunPlan.from_dict({"version": 99})


# --- one process ----------------------------------------------------------------------------------------------------------


def run(bench, cases=comparison_cases(SMALL), steps=(1, 7, 16), l2_states=("warm",), **options):
    return list(stream_points(cases, steps, l2_states, bench=bench, provenance=bench.provenance, **options))


def test_every_point_gets_its_row_with_the_true_times(simulated):
    rows = run(simulated.Bench(COSTS), l2_states=("warm", "cold"), repeats=12)
    assert len(rows) == 4 * 3 * 2
    for row in rows:
        entry, step = COSTS[row["variant"]]
        expected = entry + step * row["steps"] + (5.0 if row["l2_state"] == "cold" else 0.0)
        assert row["samples_us"] == pytest.approx([expected] * 12)
        assert (row["samples_dropped"], row["repeats"], row["tokens_match"], row["tokens_agree_reference"]) == (0, 12, 1.0, 0.875)
        assert (row["sm_clock_mhz_before"], row["sm_clock_mhz_after"], row["throttle_reasons"]) == (1980.0, 1980.0, "none")
        assert (row["probe"], row["gpu_name"], row["grid_blocks"], row["spill_bytes"]) == ("none", "Simulated", 132, 0)
    assert len({row["run_id"] for row in rows}) == 1


def test_all_kernels_are_built_and_all_cases_of_a_group_checked_before_anything_is_timed(simulated):
    bench = simulated.Bench(COSTS)
    run(bench, repeats=2)
    assert len(bench.built) == 4
    kinds = [kind for kind, _ in bench.log]
    assert kinds[:9] == ["prepare"] + ["check"] * 4 + ["settle"] * 4
    assert set(kinds[9:]) == {"call"}


def test_cases_are_interleaved(simulated):
    bench = simulated.Bench(COSTS)
    run(bench, repeats=8, rounds=4)
    timed = [what[:2] for kind, what in bench.log if kind == "call"]
    runs = sum(before != after for before, after in zip(timed, timed[1:]))
    assert runs > 4 * 4  # a case after the other would change three times


def test_a_wrong_kernel_is_never_timed(simulated):
    bench = simulated.Bench(COSTS, match=0.999)
    with pytest.raises(WrongKernel, match="resident int8x2, V 512, rank 32: only 0.999000 of the tokens equal the twin's"):
        run(bench)
    assert "call" not in [kind for kind, _ in bench.log]
    assert bench.released == 1


def test_wrong_kept_logits_are_a_wrong_kernel(simulated):
    bench = simulated.Bench(COSTS, logits=0.99)
    with pytest.raises(WrongKernel, match="only 0.990000 of the kept logits equal the twin's"):
        run(bench, cases=[resident_case(SMALL, temperature=1.0, logits_kept=True)])
    assert "call" not in [kind for kind, _ in bench.log]


def test_an_engine_may_differ_in_some_steps_but_not_in_most(simulated):
    engine = engine_case(SMALL, "MarkovGreedyStep")
    (row,) = run(simulated.Bench(match=None), cases=[engine], steps=(4,), repeats=2)
    assert (row["implementation"], row["variant"], row["tokens_match"], row["tokens_agree_reference"]) == ("sglang-0.5.23", "MarkovGreedyStep", None, 0.875)
    with pytest.raises(WrongKernel, match="in only 0.400 of the steps"):
        run(simulated.Bench(match=None, agree=0.4), cases=[engine])


def test_rows_say_what_was_walked(simulated):
    cases = [resident_case(GATED, batch=8, temperature=1.0, logits_kept=True), resident_case(DOMINO, probe="exchange")]
    gated, domino = run(simulated.Bench(match=None), cases=cases, steps=(7,), repeats=2)
    names = ("head_kind", "hidden_size", "gru_size", "candidate_pool", "batch", "temperature", "logits_kept", "probe", "steps")
    assert [gated[name] for name in names] == ["gated", 64, None, None, 8, 1.0, True, "none", 7]
    assert [domino[name] for name in names] == ["domino", 64, 16, 100, 1, 0.0, False, "walk_exchange", 7]


def test_a_walk_that_changes_its_tokens_while_timed_is_an_error(simulated):
    with pytest.raises(WrongKernel, match="those of before the timing"):
        run(simulated.Bench(COSTS, stays=0.5))


def test_a_case_without_a_twin_keeps_its_share_unknown(simulated):
    rows = run(simulated.Bench(COSTS, match=None), cases=[stepwise_case(SMALL)], repeats=1)
    assert {row["tokens_match"] for row in rows} == {None}


def test_samples_taken_while_throttled_are_dropped_and_counted(simulated):
    bench = simulated.Bench(COSTS, throttled=(3,))  # read after the third burst, which is also before the fourth
    rows = run(bench, cases=[resident_case(SMALL)], repeats=12, rounds=3)
    assert sum(row["samples_dropped"] for row in rows) == 2 * 4
    for row in rows:
        assert len(row["samples_us"]) + row["samples_dropped"] == 12
        assert row["throttle_reasons"] == ("sw_thermal_slowdown" if row["samples_dropped"] else "none")


def test_a_point_of_which_nothing_is_left_keeps_its_row(simulated, tmp_path):
    from cost_model.measurement import write_walk

    rows = run(simulated.Bench(COSTS, throttled=range(10_000)), cases=[resident_case(SMALL)], repeats=5)
    assert [(row["samples_us"], row["samples_dropped"]) for row in rows] == [([], 5)] * 3
    frame = read_walk(write_walk(tmp_path / "row.parquet", rows))
    assert list(frame["samples_dropped"]) == [5, 5, 5]


def test_clocks_that_the_driver_does_not_tell_are_null_not_zero():
    gathered = PointSamples()
    gathered.add([1.0], ClockReading(None, None), ClockReading(None, None))
    facts = gathered.facts()
    assert (facts["sm_clock_mhz_before"], facts["sm_clock_mhz_after"], facts["throttle_reasons"]) == (None, None, None)
    assert facts["samples_us"] == [1.0]


def test_cancelling_ends_without_an_error_between_bursts(simulated):
    cancel, seen = Event(), []

    def progress(done, total, label):
        seen.append((done, total))
        if done == 5:
            cancel.set()

    rows = run(simulated.Bench(COSTS), repeats=4, rounds=1, cancel=cancel, progress=progress)
    assert seen == [(number, 12) for number in range(1, 6)]
    assert len(rows) == 5


def test_with_one_round_rows_arrive_as_points_finish(simulated):
    bench = simulated.Bench(COSTS)
    iterator = stream_points([resident_case(SMALL)], (1, 7), ("warm",), repeats=3, rounds=1, bench=bench, provenance={})
    next(iterator)
    assert len({what for kind, what in bench.log if kind == "call"}) == 1


@pytest.mark.parametrize(
    ("steps", "states", "repeats", "message"),
    [((), ("warm",), 1, "nothing to measure"), ((1,), ("hot",), 1, "warm, cold, serving"), ((0,), ("warm",), 1, "steps is 0"),
     ((1, 1), ("warm",), 1, "must not repeat"), ((1,), ("warm",), 0, "repeats is 0")],
)  # fmt: skip
def test_points_that_cannot_be_are_refused(simulated, steps, states, repeats, message):
    with pytest.raises(BadInput, match=message):
        run(simulated.Bench(), steps=steps, l2_states=states, repeats=repeats)


# --- recorded runs --------------------------------------------------------------------------------------------------------


class Workers:
    """Runs each process of a plan here, on a fresh simulated bench; can stop or fail before a part."""

    def __init__(self, bench_class, fail_before: int | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.bench_class, self.fail_before, self.error = bench_class, fail_before, error
        self.measured: list[tuple[int, int]] = []

    def __call__(self, plan_file, process_index, progress, cancel) -> None:
        bench = self.bench_class(COSTS)
        prepare = bench.prepare

        def counting(cases, steps, seed):
            if self.fail_before is not None and len(self.measured) == self.fail_before:
                raise self.error("lost the GPU")
            self.measured.append((process_index, cases[0].head.vocab_size))
            return prepare(cases, steps, seed)

        bench.prepare = counting

        def say(line):
            done, total, label = line.removeprefix(bench_run.PROGRESS_PREFIX).split(" ", 2)
            progress(int(done), int(total), label)

        work(plan_file, process_index, bench=bench, say=say, cancel=cancel)


CASES = (*comparison_cases(SMALL), *comparison_cases(LARGE))
REQUEST = dict(steps=(1, 7, 16), l2_states=("warm", "serving"), processes=3, repeats=6, rounds=2, case_name="grid", gpu="h200-sxm",
               commit="c0ffee", git_dirty=False, progress=False)  # fmt: skip


def test_a_record_holds_every_point_of_every_process(simulated, tmp_path):
    path = measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))
    assert path.parent == tmp_path / "h200-sxm" and path.name.endswith("-grid.parquet")
    frame = read_walk(path)
    assert len(frame) == 3 * len(CASES) * 3 * 2
    assert not frame.duplicated(["process_index", "vocab_size", "variant", "precision", "steps", "l2_state"]).any()
    assert set(frame["run_id"]) == {frame["run_id"][0]}
    assert set(frame["git_commit"]) == {"c0ffee"} and not frame["git_dirty"].any()
    resident = frame[(frame["variant"] == "resident") & (frame["steps"] == 16) & (frame["l2_state"] == "warm")]
    assert statistics.median(sample for samples in resident["samples_us"] for sample in samples) == pytest.approx(12 + 16 * 2.5)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "parts are removed once merged"


def test_the_fit_of_a_record_gives_back_the_costs_of_the_simulated_walks(simulated, tmp_path):
    pytest.importorskip("scipy", reason="fits need scipy")
    from cost_model.fit import fit_frame

    fits = fit_frame(read_walk(measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))))
    assert len(fits) == len(CASES) * 2
    for key, fit in fits:
        entry, step = COSTS[key.variant]
        flushed = 5.0 if key.l2_state == "serving" else 0.0
        assert (fit.step_us, fit.entry_us) == pytest.approx((step, entry + flushed))
        assert fit.processes == 3 and fit.samples == 3 * 3 * 6 and fit.status == "ok"


def test_processes_draw_other_inputs_and_orders(simulated, tmp_path):
    seeds = []

    def spy(plan_file, process_index, progress, cancel):
        bench = simulated.Bench(COSTS)
        work(plan_file, process_index, bench=bench, say=lambda line: None)
        seeds.extend(seed for kind, seed in bench.log if kind == "prepare")

    measure(CASES, **REQUEST, out=tmp_path, run_worker=spy)
    assert len(set(seeds)) == 6


def test_a_failed_run_keeps_its_parts_and_the_same_call_goes_on(simulated, tmp_path):
    first = Workers(simulated.Bench, fail_before=3)
    with pytest.raises(RuntimeError, match="lost the GPU"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=first)
    assert not list(tmp_path.glob("h200-sxm/*.parquet")), "no record before all parts are there"
    second = Workers(simulated.Bench)
    frame = read_walk(measure(CASES, **REQUEST, out=tmp_path, run_worker=second))
    assert first.measured + second.measured == [(process, size) for process in range(3) for size in (512, 1024)]
    assert len(frame) == 3 * len(CASES) * 3 * 2
    assert len(set(frame["run_id"])) == 1, "both halves belong to one run"


def test_a_run_of_another_commit_does_not_take_up_old_parts(simulated, tmp_path):
    with pytest.raises(RuntimeError):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench, fail_before=5))
    again = Workers(simulated.Bench)
    measure(CASES, **{**REQUEST, "commit": "decade"}, out=tmp_path, run_worker=again)
    assert len(again.measured) == 6


def test_a_run_goes_on_where_the_engine_lies_elsewhere_and_no_row_says_where(simulated, tmp_path, monkeypatch):
    cases, roots = [*comparison_cases(SMALL), engine_case(SMALL, "MarkovGreedyStep"), *comparison_cases(LARGE)], []
    monkeypatch.setattr(environment, "command_line", lambda: f"python measure.py --sglang-root {tmp_path / 'here'} --out runs")

    class RootedWorkers(Workers):
        def __call__(self, plan_file, *others):
            roots.append(json.loads(plan_file.read_text())["plan"]["engine_root"])
            super().__call__(plan_file, *others)

    with pytest.raises(RuntimeError, match="lost the GPU"):
        measure(cases, **REQUEST, out=tmp_path, run_worker=RootedWorkers(simulated.Bench, fail_before=3), engine_root=tmp_path / "here")
    path = measure(cases, **REQUEST, out=tmp_path, run_worker=RootedWorkers(simulated.Bench), engine_root=tmp_path / "there")
    assert roots == [str(tmp_path / "here")] * 2 + [str(tmp_path / "there")] * 2
    frame = read_walk(path)
    assert len(frame) == 3 * 9 * 3 * 2
    assert set(frame["command"]) == {"python measure.py --out runs"}


@pytest.mark.parametrize("written", ["--sglang-root /a/b --out x", "--out x --sglang-root=/a/b", "--out x --sglang-root '/a b'", "--out x --sglang-root"])
def test_the_engines_folder_is_cut_from_a_command(written):
    assert bench_run._without_engine_root(f"python -m benchmarks.run engine {written}") == "python -m benchmarks.run engine --out x"


def test_an_interruption_says_what_is_kept_and_how_to_go_on(simulated, tmp_path):
    workers = Workers(simulated.Bench, fail_before=4, error=KeyboardInterrupt)
    with pytest.raises(MeasurementInterrupted, match="4 of 6 parts finished.*same command again"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=workers)
    assert len(list(tmp_path.rglob(".process-*.parquet"))) == 4


def test_cancelling_a_run_leaves_only_whole_parts(simulated, tmp_path):
    cancel = Event()

    def progress(done, total, label):
        if done >= total // 2 - 1:
            cancel.set()

    with pytest.raises(MeasurementInterrupted, match="of 6 parts finished"):
        measure(CASES, **{**REQUEST, "progress": progress}, out=tmp_path, cancel=cancel, run_worker=Workers(simulated.Bench))
    parts = list(tmp_path.rglob(".process-*.parquet"))
    assert 0 < len(parts) < 6
    assert all(len(read_walk(part)) == 4 * 3 * 2 for part in parts)


def test_progress_grows_to_the_total_and_counts_finished_parts(simulated, tmp_path):
    seen = []
    with pytest.raises(RuntimeError):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench, fail_before=3))
    request = {**REQUEST, "progress": lambda done, total, label: seen.append((done, total))}
    measure(CASES, **request, out=tmp_path, run_worker=Workers(simulated.Bench))
    total = 3 * len(CASES) * 3 * 2 * 2
    assert {one for _, one in seen} == {total}
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[0] == total // 2 + 1 and counts[-1] == total


def test_a_record_that_exists_stops_the_run_before_it_measures(simulated, tmp_path):
    measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))
    idle = Workers(simulated.Bench)
    with pytest.raises(RecordError, match="exists"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=idle)
    assert idle.measured == []


def test_a_worker_that_does_nothing_is_noticed(tmp_path):
    with pytest.raises(WorkerFailed, match="left parts \\[0, 1\\] unmeasured"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=lambda *arguments: None)


def test_a_wrong_kernel_leaves_no_part(simulated, tmp_path):
    def wrong(plan_file, process_index, progress, cancel):
        work(plan_file, process_index, bench=simulated.Bench(COSTS, match=0.5), say=lambda line: None)

    with pytest.raises(WrongKernel):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=wrong)
    assert not list(tmp_path.rglob("*.parquet"))


def test_probes_run_through_the_same_parts(simulated, tmp_path, monkeypatch):
    from cost_model.measurement import walk_row
    from wts_lab import probes

    def three_rows(*, process_index, run_id, provenance, progress, repeats, **_):
        progress(1, 1, "exchange")
        return [walk_row(**provenance, run_id=run_id, process_index=process_index, recorded_at_utc="2026-01-31T12:00:00Z", probe="exchange",
                         implementation="wts", samples_us=[0.8] * repeats)]  # fmt: skip

    monkeypatch.setattr(probes, "run_probes", three_rows)
    path = measure_probes(processes=2, repeats=4, out=tmp_path, gpu="h200-sxm", commit="c0ffee", progress=False,
                          run_worker=Workers(simulated.Bench))  # fmt: skip
    frame = read_walk(path)
    assert list(frame["process_index"]) == [0, 1]
    assert path.name.endswith("-probes.parquet")


def test_a_real_worker_process_that_fails_is_quoted(tmp_path, monkeypatch):
    """The true subprocess: without a CUDA device (this test hides any) the worker must end with its reason."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(WorkerFailed, match="(?s)status 1.*(no CUDA device is visible to torch|No module named 'torch')"):
        measure([resident_case(SMALL)], **{**REQUEST, "processes": 1}, out=tmp_path, run_worker=run_subprocess)


def test_a_worker_is_stopped_when_the_run_is_cancelled(tmp_path, monkeypatch):
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('progress 1 10 busy', flush=True)\nwhile True:\n    print('x', flush=True); time.sleep(0.05)\n")
    started = []
    real = bench_run.subprocess.Popen

    def popen(command, **options):
        started.append(real([sys.executable, str(script)], **options))
        return started[0]

    monkeypatch.setattr(bench_run.subprocess, "Popen", popen)
    cancel, seen = Event(), []

    def progress(*arguments):
        seen.append(arguments)
        cancel.set()

    run_subprocess(tmp_path / "plan.json", 0, progress, cancel)
    assert seen == [(1, 10, "busy")]
    assert started[0].poll() is not None


def test_labels_name_mode_precision_and_shape():
    sampled = resident_case(GATED, batch=8, temperature=1.0, logits_kept=True)
    assert sampled.label == "resident int8x2, V 512, rank 32, gated gated, batch 8, temperature 1, logits kept"
    assert resident_case(SMALL, rounding="none", variant="w8").label == "resident int8x2, V 512, rank 32, rounding none, w8"
    assert resident_case(SMALL, probe="exchange", variant="exchange").label == "resident int8x2, V 512, rank 32, exchange"
    assert engine_case(SMALL, "MarkovGreedyStep").label == "sglang-0.5.23 MarkovGreedyStep, V 512, rank 32"
    assert streaming_case(SMALL, "bf16").label == "streaming bf16, V 512, rank 32"
    assert stepwise_case(LARGE).label == "stepwise torch, V 1,024, rank 32"
