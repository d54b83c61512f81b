"""Walks along an axis: recorded ones come with their own fit and prediction, others with a prediction alone; goals are judged by intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.placement import plan  # noqa: E402
from cost_model.predict import predict  # noqa: E402
from cost_model.serving import RoundRequest, ask_round, shapes_of  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from tests.synthetic_probes import write_probes  # noqa: E402
from tests.synthetic_records import LINES_US, write_synthetic  # noqa: E402
from wts_lab.goals import GOALS, Goal, reached  # noqa: E402
from wts_lab.head_shares import ENGINE_WAY, RESIDENT_WAY, VERIFY, drafters_with_heads, head_shares  # noqa: E402
from wts_lab.head_steps import PARTS, REST, head_step  # noqa: E402
from wts_lab.recorded_probes import PART_PROBES, dissect  # noqa: E402
from wts_lab.walked import notes_of, slope_us, walked  # noqa: E402

GPU = load_gpu("h200-sxm")
HEAD = Head.markov(151_936, 256)
RNN = Head("rnn-test", "rnn", 151_936, 151_936, 151_936, 256, 2560)
ENTRY_US, STEP_US = LINES_US["wts", "resident", "resident", "int8x2"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A folder with synthetic walks of one greedy row, V 151,936."""
    return write_synthetic(tmp_path_factory.mktemp("walked"))


def test_a_recorded_walk_has_its_fit_and_the_prediction_of_its_own_placement(records) -> None:
    found = walked(GPU, HEAD, Workload(), "resident", records=records)
    assert found.is_measured and found.fit.step_us == pytest.approx(STEP_US, rel=0.01)
    step, call = found.measured_us(None), found.measured_us(16)
    assert step == (found.fit.step_us, found.fit.step_us_low, found.fit.step_us_high)
    assert call[0] == pytest.approx(ENTRY_US + 16 * STEP_US, rel=0.01) and call[1] <= call[0] <= call[2]
    assert found.measured_us(32) is None, "nothing beyond the walks that were timed counts as measured"
    assert found.prediction.placement == plan(GPU, HEAD, "int8x2", "resident")
    assert found.error == pytest.approx(found.prediction.step_us / found.fit.step_us - 1)
    assert found.holds == (found.prediction.step_us_low <= found.fit.step_us <= found.prediction.step_us_high)
    assert found.note == "" and notes_of([found]) == ()


@pytest.mark.parametrize("asked", [
    {"batch": 2}, {"temperature": 1.0, "logits_kept": True}, {"rounding": "twice"}, {"l2_state": "serving", "batch": 4},
])
def test_a_walk_that_was_not_recorded_is_predicted_and_says_so(records, asked) -> None:
    workload = Workload(**asked)
    found = walked(GPU, HEAD, workload, "resident", records=records)
    assert not found.is_measured and found.measured_us(None) is None and found.error is None and found.holds is None
    assert found.prediction == predict(GPU, HEAD, workload, "resident")
    assert found.predicted_us(16) == pytest.approx((found.prediction.call_us(16), found.prediction.entry_us_low + 16 * found.prediction.step_us_low,
                                                    found.prediction.entry_us_high + 16 * found.prediction.step_us_high))
    assert notes_of([found]) == (f"resident int8x2, V 151,936, batch {workload.batch}, {'sampled' if workload.temperature else 'greedy'}: not recorded",)


def test_what_the_model_refuses_is_neither_predicted_nor_invented(records) -> None:
    domino = Head("domino-test", "domino", 151_936, 151_936, 151_936, 256, 2560, 1024)
    found = walked(GPU, domino, Workload(temperature=1.0), "resident", records=records)
    assert found.prediction is None and found.predicted_us(None) is None and "draft greedily" in found.note


def test_the_engines_published_calls_stand_where_none_were_recorded(records) -> None:
    for head, first, last, steps in ((HEAD, 49.14, 658.66, 15), (RNN, 58.1, 754.8, 14)):
        found = walked(GPU, head, Workload(precision="bf16"), "stepwise", records=records)
        assert not found.is_measured and len(found.points) == 3
        assert found.published_step_us == pytest.approx((last - first) / steps, rel=0.01)
    assert walked(GPU, replace(RNN, hidden_size=4096), Workload(precision="bf16"), "stepwise", records=records).points == ()
    assert slope_us(found.points[:1]) is None


# --- goals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "at_most_us", "verdict"), [
    (None, STEP_US * 1.1, "reached"), (None, STEP_US * 0.9, "missed"), (16, (ENTRY_US + 16 * STEP_US) * 1.1, "reached"), (16, 20.0, "missed"),
])
def test_a_goal_is_judged_by_the_measured_interval(records, steps, at_most_us, verdict) -> None:
    (found,) = reached(GPU, [Goal("test", HEAD, Workload(), "resident", at_most_us, steps)], records=records)
    assert found.verdict == verdict
    value, low, high = found.measured_us
    (within,) = reached(GPU, [Goal("test", HEAD, Workload(), "resident", (low + high) / 2, steps)], records=records)
    assert within.verdict == ("at the goal" if low < high else "reached") and low <= value <= high


def test_goals_name_walks_that_can_be_predicted_and_unrecorded_ones_say_so(records) -> None:
    found = reached(GPU, records=records)
    assert [each.goal for each in found] == list(GOALS) and all(each.walk.prediction is not None for each in found)
    recorded = [each.goal.what for each in found if each.verdict != "not recorded"]
    assert recorded == ["greedy, batch 1, call of 16 steps", "greedy, batch 1, streaming"]


# --- parts of a step -----------------------------------------------------------------------------------------------------


def test_a_step_is_taken_apart_into_what_was_recorded_of_it(tmp_path) -> None:
    phases = {"products": 0.7, "epilogue": 0.2, "publish": 0.3, "exchange": 0.6, "latent": 0.9}
    write_probes(tmp_path, RNN, {name: 9.0 for name in phases}, {}, "older", "2026-01-30T12:00:00+00:00")
    write_probes(tmp_path, RNN, phases, {"fixed_latent": 2.0, "walk_state": 1.5})
    found = dissect(GPU, RNN, Workload(), records=tmp_path)
    assert found.phases_us == pytest.approx(phases) and list(found.phases_us) == list(phases)
    assert {name: fit.step_us for name, fit in found.parts.items()} == pytest.approx({PART_PROBES["fixed_latent"]: 2.0, PART_PROBES["walk_state"]: 1.5})
    assert found.label.startswith("NVIDIA H200, recorded 2026-01-31")
    other = dissect(GPU, replace(RNN, hidden_size=4096), Workload(), records=tmp_path)
    assert (other.phases_us, other.parts, other.label) == ({}, {}, "")


def test_parts_of_a_head_sum_to_what_they_are_parts_of(tmp_path) -> None:
    phases = {"products": 0.7, "epilogue": 0.2, "publish": 0.3, "exchange": 0.6, "latent": 0.9, "a phase to come": 0.1}
    write_probes(tmp_path, RNN, phases, {})
    found = head_step(GPU, "RNN", RNN, Workload(), records=tmp_path)
    assert sum(found.measured_parts_us.values()) == pytest.approx(2.8) and found.measured_parts_us["agreement"] == pytest.approx(0.9)
    assert found.measured_parts_us[REST] == pytest.approx(0.1)
    assert sum(found.predicted_parts_us.values()) == pytest.approx(found.walk.prediction.step_us)
    assert set(found.predicted_parts_us) <= set(PARTS) and found.predicted_parts_us["latent and state"] > 0
    assert found.speedup == pytest.approx(found.engine.published_step_us / found.walk.prediction.step_us)


@pytest.mark.parametrize("kind", ["markov", "gated", "rnn", "domino"])
def test_of_every_heads_terms_only_the_residual_is_not_told_apart(kind) -> None:
    from wts_lab.head_steps import TERM_PARTS

    head = HEAD if kind == "markov" else Head(kind, kind, 151_936, 151_936, 151_936, 256, 2560, 1024 if kind == "domino" else None)
    named = {name for batch in (1, 32) for name in predict(GPU, head, Workload(batch=batch), "resident").terms["step"]}
    assert named - set(TERM_PARTS) <= {"overhead", "tile_rest"}


# --- shares --------------------------------------------------------------------------------------------------------------


def test_phases_beside_a_head_are_those_that_the_round_s_answer_takes() -> None:
    drafter = next(drafter for drafter in drafters_with_heads() if drafter.name == "dspark-qwen3-8b")
    share = head_shares(GPU, [drafter], concurrency=4, context_tokens=8192)[0]
    target, head = shapes_of(drafter)
    answer = ask_round(GPU, RoundRequest(drafter, target, head, Workload(4, drafter.steps, l2_state="serving"), 8192, 4.0))
    assert dict(share.phases) == {name.replace("_", " "): phase for name, phase in answer.phases.items()}


def test_shares_are_those_of_the_phases_beside_the_head(records) -> None:
    drafters = drafters_with_heads()
    assert len(drafters) >= 4 and all(drafter.head for drafter in drafters)
    found = head_shares(GPU, drafters, records=records)
    assert [(each.drafter, each.way) for each in found] == [(drafter.name, way) for drafter in drafters for way in (ENGINE_WAY, RESIDENT_WAY)]
    for each in found:
        rest = sum(phase.time_us for phase in each.phases.values())
        draft = rest - each.phases[VERIFY].time_us
        assert each.round_us == pytest.approx(rest + each.head_us[0])
        for (share, low, high), beside in ((each.of_round, rest), (each.of_draft, draft)):
            assert share == pytest.approx(each.head_us[0] / (each.head_us[0] + beside)) and 0 < low <= share <= high < 1
    basis = {(each.drafter, each.way): each.basis for each in found}
    assert basis["dspark-qwen3-8b", RESIDENT_WAY] == "measured" and basis["domino-qwen3-8b", RESIDENT_WAY] == "predicted"
