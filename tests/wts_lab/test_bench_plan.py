"""Cases, groups, the order of bursts, and plans: what a measurement will do, before any GPU is touched."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.placement import Placement
from wts_lab.bench import WalkCase, comparison_cases
from wts_lab.bench_plan import RunPlan, burst_sizes, engine_case, group_cases, order_bursts, resident_case, stepwise_case, streaming_case

SMALL, LARGE = Head.markov(512, 32), Head.markov(1024, 32)
GATED = Head("gated", "gated", 512, 512, 512, 32, hidden_size=64)
DOMINO = Head("domino", "domino", 512, 512, 512, 32, hidden_size=64, gru_size=16, candidate_pool=100)
STEPWISE = {"implementation": "torch-stepwise", "mode": "stepwise", "precision": "bf16"}
ENGINE = {**STEPWISE, "implementation": "sglang-0.5.23"}


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
        ({"exchange": "atomic"}, "choose one of spread-lines, dense-lines"),
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


def test_labels_name_mode_precision_and_shape():
    sampled = resident_case(GATED, batch=8, temperature=1.0, logits_kept=True)
    assert sampled.label == "resident int8x2, V 512, rank 32, gated gated, batch 8, temperature 1, logits kept"
    assert resident_case(SMALL, rounding="none", variant="w8").label == "resident int8x2, V 512, rank 32, rounding none, w8"
    assert resident_case(SMALL, probe="exchange", variant="exchange").label == "resident int8x2, V 512, rank 32, exchange"
    assert engine_case(SMALL, "MarkovGreedyStep").label == "sglang-0.5.23 MarkovGreedyStep, V 512, rank 32"
    assert streaming_case(SMALL, "bf16").label == "streaming bf16, V 512, rank 32"
    assert stepwise_case(LARGE).label == "stepwise torch, V 1,024, rank 32"
