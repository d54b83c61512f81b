"""Measuring in one process on the simulated GPU of conftest.py. What is timed, dropped and kept is real; only the device is not."""

from __future__ import annotations

from threading import Event

import pytest

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.measurement import read_walk
from wts_lab.bench import PointSamples, WrongKernel, comparison_cases, stream_points
from wts_lab.bench_plan import engine_case, resident_case, stepwise_case
from wts_lab.nvml import ClockReading

SMALL = Head.markov(512, 32)
GATED = Head("gated", "gated", 512, 512, 512, 32, hidden_size=64)
DOMINO = Head("domino", "domino", 512, 512, 512, 32, hidden_size=64, gru_size=16, candidate_pool=100)
COSTS = {"resident": (12.0, 2.5), "streaming": (11.0, 6.5), "graph": (5.0, 30.0)}


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
