"""What tuning tries, and how it judges: candidates in order, requests that cannot be, and the verdict on each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model import placement as planner
from cost_model.errors import BadInput
from cost_model.fit import StepFit
from cost_model.gpu import load_gpu
from cost_model.head import Head, load_head
from cost_model.placement import Placement, PlanError
from wts_lab.tune import Machine, TuneResult
from wts_lab.tune_plan import ALIKE, FASTER, INCONCLUSIVE, LONGER_CALL, PLANNED, SLOWER, TuneRequest, candidates, compare
from wts_lab.walk_plan import plan_walk, walk_spec

pytest.importorskip("scipy", reason="fits need scipy")
pytest.importorskip("pyarrow", reason="rounds are Parquet records")

H200 = load_gpu("h200-sxm")
HEAD = Head.markov(151_936, 256)
MACHINE = Machine(H200, "h200-sxm", "NVIDIA H200", 132, "sm_90", "c0ffee")
REQUEST = TuneRequest(HEAD, warps=(8, 12), limit=8, exchanges=("spread-lines", "dense-lines"), processes=2, repeats=10)


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
    assert (row["warps"], row["register_tiles"], row["shared_tiles"], row["exchange"]) == (8, 40, 32, "spread-lines")
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
        ({"exchanges": ("atomic",)}, "choose one of spread-lines, dense-lines"),
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
    assert (tuned.placement, tuned.exchange) == (Placement(8, 40, 32, 0, 0), "spread-lines")
    assert tuned.verdict == "no candidate is distinguishably faster than the planner's choice"


def test_nothing_is_kept_where_the_planners_choice_lost_its_samples():
    result = result_of(fitted(None), fitted(2.0))
    assert result.winner is None
    assert {row["verdict"] for row in result.rows} == {INCONCLUSIVE}
    with pytest.raises(BadInput, match="no winner to keep: all were throttled"):
        result.tuned()
