"""The answer about a round: it adds up, its parts agree with the modules behind, and its verdict follows from the numbers."""

import json
from dataclasses import replace

import pytest

from cost_model import passes
from cost_model.decide import KEEP, LEAST_GAIN, NO_GAIN, RESIDENT, SWITCH, VERDICTS
from cost_model.drafter_memory import DrafterMemory, memory_of
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import load_head
from cost_model.phases import ESTIMATED, given, target_demand
from cost_model.predict import predict
from cost_model.round import round_gain
from cost_model.serving import MODELLED, PHASES, RoundRequest, ask_round, shapes_of
from cost_model.substitutes import Alternatives
from cost_model.targets import load_drafter, load_target
from cost_model.workload import Workload
from tests.cost_model.walk_examples import exact_fit, series_key, study_h200

GPU, DRAFTER = study_h200(), load_drafter("dspark-qwen3-8b")
TARGET, HEAD = shapes_of(DRAFTER)
TIMES = {"verify": given(6000.0, (5800.0, 6300.0)), "backbone": given(800.0), "base_logits": given(200.0)}
BASE = RoundRequest(DRAFTER, TARGET, HEAD, Workload(1, 7, l2_state="serving"), 2048, 4.0, (3.5, 4.5), TIMES)


@pytest.fixture(scope="module")
def answer():
    """A round whose times are known."""
    return ask_round(GPU, BASE)


def test_phases_and_head_add_up_to_the_round(answer):
    rest = sum(phase.time_us for phase in answer.phases.values())
    assert tuple(answer.phases) == PHASES and answer.round.rest_us == pytest.approx(rest) == 7000
    for each in answer.outcomes:
        assert each.gain.round_us_after == pytest.approx(rest + each.option.call_us)
        assert each.gain.head_share_after == pytest.approx(each.option.call_us / (rest + each.option.call_us))
        assert each.gain.tokens_per_s_after == pytest.approx(4.0 / each.gain.round_us_after * 1e6)


def test_the_outcomes_are_the_paths_that_the_decision_names(answer):
    decision = answer.decision
    assert [each.way for each in answer.outcomes] == ["engine's path", "engine's fastest path", "best fused walk"]
    assert [each.option for each in answer.outcomes] == [decision.taken, decision.fastest, decision.best]
    assert answer.outcomes[0].gain.gain == answer.outcomes[0].gain.gain_low == answer.outcomes[0].gain.gain_high == 0
    assert answer.outcomes[2].gain.gain == pytest.approx(decision.gain_over_taken.gain)
    assert decision.best.call_us == pytest.approx(predict(GPU, HEAD, BASE.workload, "resident").call_us())
    assert decision.verdict == RESIDENT and any("verify takes over" in reason for reason in decision.reasons)


def test_at_each_break_even_the_gain_is_what_it_says(answer):
    even, fastest, best = answer.break_even, answer.decision.fastest, answer.decision.best
    at_verify = replace(answer.round, verify_us=even.verify_us, verify_interval_us=None)
    assert round_gain(at_verify, fastest.call_us, best.call_us).gain == pytest.approx(LEAST_GAIN)
    before, after = (answer.round.rest_us + option.call_us for option in (fastest, best))
    assert even.accepted_length / after == pytest.approx(4.0 / before)
    assert fastest.entry_us + even.steps * fastest.step_us > best.entry_us + even.steps * best.step_us
    assert 1.0 < even.plain_length < 2.0  # a round is a verify and a sixth; verify is one pass of the target


def test_memory_adds_up_and_is_that_of_the_shapes(answer):
    held = answer.memory
    parts = (held.target_bytes, held.target_kv_bytes, held.drafter_bytes, held.drafter_context_bytes, held.boundary_bytes, held.matrix_bytes, held.table_bytes, held.own_bytes,
             held.fused_bytes)  # fmt: skip
    assert held.total_bytes == sum(parts) and held.boundary_bytes == 0
    assert held.target_kv_bytes == 2048 * 36 * 4096 and held.drafter_context_bytes == 2048 * 5 * 4096
    assert (held.matrix_bytes, held.table_bytes, held.own_bytes) == (2 * 151_936 * 256, 2 * 151_936 * 256, 0) and held.fused_bytes == answer.decision.extra_memory_bytes > 0


def test_a_domino_heads_memory_is_its_matrix_and_its_gru_and_no_token_table():
    """The GRU has 3 x 1,024 x (4,096 + 1,024) weights, 31.5 MB; the projector makes 256 elements of hidden vector and state."""
    drafter = load_drafter("domino-qwen3-8b")
    asked = RoundRequest(drafter, *shapes_of(drafter), Workload(1, 15, l2_state="serving"), 2048, 4.0)
    held = ask_round(GPU, asked).memory
    assert (held.matrix_bytes, held.table_bytes) == (2 * 151_936 * 256, 0)
    assert held.own_bytes == 2 * (3 * 1024 * (4096 + 1024) + 256 * (4096 + 1024))


def test_an_overlapped_round_holds_a_draft_for_each_boundary_and_doubts_what_is_hidden():
    overlapped = ask_round(GPU, replace(BASE, schedule="overlapped"))
    assert overlapped.memory.boundary_bytes == 8 * (7 * 4096 + 7 * 151_936) * 2
    assert overlapped.round.rest_us == 6000 and overlapped.round.rest_interval_us == (5800, 6300 + 1000)
    assert any("assumed" in note for note in overlapped.notes)
    known = ask_round(GPU, replace(BASE, schedule="overlapped", hidden_share=0.5))
    assert known.round.rest_us == 6000 + 500 and not any("assumed" in note for note in known.notes)
    assert overlapped.outcomes[0].gain.head_share_after > known.outcomes[0].gain.head_share_after


def test_phases_that_nobody_timed_are_estimated_and_say_so(monkeypatch):
    monkeypatch.setattr(passes, "load_rates", lambda gpu: None)
    answer = ask_round(GPU, replace(BASE, times={"verify": given(6000.0)}))
    assert [answer.phases[name].basis == ESTIMATED for name in PHASES] == [False, True, True]
    assert answer.notes[0].startswith("backbone, base logits: estimated from a roofline")
    wide, narrow = (each.round.rest_interval_us for each in (answer, ask_round(GPU, BASE)))
    assert wide[1] - wide[0] > narrow[1] - narrow[0]


def test_phases_are_modelled_where_rounds_were_recorded(monkeypatch):
    rates = passes.PassRates(2.0, 0.8, 0.6, 0.3, 0.05)
    monkeypatch.setattr(passes, "load_rates", lambda gpu: rates)
    answer = ask_round(GPU, replace(BASE, times={"verify": given(6000.0)}))
    assert [answer.phases[name].basis for name in PHASES] == ["given", MODELLED, MODELLED] and "modelled on rounds" in answer.notes[0]
    backbone = answer.phases["backbone"]
    assert backbone.time_us == passes.pass_us(GPU, passes.backbone_work(TARGET, DRAFTER, memory_of(DRAFTER, TARGET), 1, 2048, 7), rates)
    assert backbone.time_us_high == pytest.approx(backbone.time_us * (1 + 1.96 * 0.05)) and backbone.time_us_low < backbone.time_us
    overlapped = ask_round(GPU, replace(BASE, times={}, schedule="overlapped"))  # nobody recorded one
    assert {phase.basis for phase in overlapped.phases.values()} == {ESTIMATED}


def test_a_modelled_phase_is_not_below_its_roofline(monkeypatch):
    monkeypatch.setattr(passes, "load_rates", lambda gpu: passes.PassRates(2.0, 0.8, 0.6, 0.3, 0.9))
    answer = ask_round(GPU, replace(BASE, times={}))
    verify = answer.phases["verify"]
    assert verify.time_us_low == target_demand(TARGET, 1, 2048, 8).roofline_us(GPU) < verify.time_us


def test_a_round_of_nothing_but_a_head_is_all_head():
    answer = ask_round(GPU, replace(BASE, times={name: given(0.0) for name in PHASES}))
    assert [each.gain.head_share_after for each in answer.outcomes] == [1.0, 1.0, 1.0]
    assert answer.break_even.plain_length is None and answer.outcomes[2].gain.gain == pytest.approx(answer.decision.taken.call_us / answer.decision.best.call_us - 1)


def test_another_memory_changes_what_is_held_and_what_a_draft_takes():
    asked = replace(BASE, times={}, context_tokens=100_000, workload=replace(BASE.workload, batch=8))
    separate = ask_round(GPU, asked)
    window = ask_round(GPU, replace(asked, memory=DrafterMemory("window", 4096, 3, 2, 500_000, window_tokens=2048)))
    reused = ask_round(GPU, replace(asked, memory=DrafterMemory("target-kv", 4096, 3, 2, 500_000)))
    held = [each.memory.drafter_context_bytes for each in (separate, window, reused)]
    assert held == [8 * 100_000 * 5 * 4096, 8 * (2048 * 3 * 4096 + 1_000_000), 8 * 1_000_000]
    assert window.phases["backbone"].time_us < reused.phases["backbone"].time_us < separate.phases["backbone"].time_us


def test_more_than_the_gpu_has_is_said():
    asked = replace(BASE, times={}, context_tokens=1_000_000, workload=replace(BASE.workload, batch=32))
    assert any("does not fit" in note for note in ask_round(GPU, asked).notes)
    assert not any("does not fit" in note for note in ask_round(GPU, BASE).notes)


# --- verdicts follow the numbers ------------------------------------------------------------------------------------------


def fits(resident: tuple[float, float], sample: tuple[float, float], greedy: tuple[float, float] = (60.0, 5.0), half_us: float = 0.02):
    """Measured series of (step, entry): a resident walk, slower streaming ones, and the engine's two paths."""
    fused = [("resident", "int8x2", resident), ("streaming", "int8x2", (resident[0] + 10, 5.0)), ("streaming", "bf16", (resident[0] + 20, 5.0))]
    engine = [("greedy", greedy), ("sample", sample)]
    return [
        *((series_key(mode, precision, l2_state="serving", placement=(40, 32, 0, 0), head=HEAD), exact_fit(*line, half_us=half_us)) for mode, precision, line in fused),
        *((series_key("stepwise", "bf16", "sglang-0.5.23", variant, "serving", HEAD), exact_fit(*line, half_us=half_us)) for variant, line in engine),
    ]


@pytest.mark.parametrize("series, verdict", [
    (fits((2.0, 10.0), (30.0, 5.0)), RESIDENT),
    (fits((28.0, 4.0), (28.5, 3.0), greedy=(28.6, 3.0), half_us=0.6), NO_GAIN),
    (fits((31.0, 4.0), (30.1, 3.0), greedy=(30.0, 3.0)), KEEP),
    (fits((31.0, 4.0), (30.0, 3.0), greedy=(60.0, 3.0)), SWITCH),
])
def test_each_verdict_has_numbers_that_lead_to_it(series, verdict):
    answer = ask_round(GPU, BASE, series, source="replayed")
    assert answer.decision.verdict == verdict
    over_fastest = round_gain(answer.round, answer.decision.fastest.call_us, answer.decision.best.call_us,
                              answer.decision.fastest.interval_us, answer.decision.best.interval_us)
    assert over_fastest.material == (verdict == RESIDENT)


def test_measured_calls_reach_the_outcomes_and_the_substitutes():
    answer = ask_round(GPU, BASE, fits((2.0, 10.0), (30.0, 5.0), greedy=(30.0, 5.0)), source="replayed")
    assert answer.outcomes[-1].option.call_us == pytest.approx(24.0) and answer.outcomes[0].option.call_us == pytest.approx(215.0)
    rows = {row.name: row for row in answer.substitutes}
    assert rows["resident int8x2"].basis == "measured" and rows["resident int8x2"].gain == pytest.approx((7000 + 215) / (7000 + 24) - 1)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "b200-sxm", "rtx-4090"])
@pytest.mark.parametrize("name", ["dspark-qwen3-4b", "domino-qwen3-8b"])
def test_every_gpu_and_drafter_gets_an_answer_in_plain_values(gpu, name):
    drafter = load_drafter(name)
    target, head = shapes_of(drafter)
    answer = ask_round(load_gpu(gpu), RoundRequest(drafter, target, head, Workload(2, drafter.steps, l2_state="serving"), 1000, 4.0,
                                                   alternatives=Alternatives(draft_vocab_size=32_000)))
    plain = json.loads(json.dumps(answer.as_dict(), allow_nan=False))
    assert plain["decision"]["verdict"] in VERDICTS and plain["memory"]["total_bytes"] == answer.memory.total_bytes
    assert all(low["gain"]["gain_low"] <= low["gain"]["gain"] <= low["gain"]["gain_high"] for low in plain["outcomes"])


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change, word", [
    ({"accepted_length": 9.0, "accepted_length_interval": None}, "at most 8"), ({"accepted_length_interval": (3.0, 8.5)}, "at most 8"),
    ({"target": load_target("qwen3-4b")}, "drafts for qwen3-8b, not for qwen3-4b"), ({"head": load_head("dspark-gemma4-12b")}, "made for this target"),
    ({"times": {"prefill": given(1.0)}}, "prefill"), ({"hidden_share": 0.5}, "nothing is hidden"), ({"context_tokens": -1}, "context_tokens is -1"),
    ({"context_tokens": 10**14}, "context_tokens is 100,000,000,000,000; it must be from 0 to 134,217,728"),
    ({"times": {}, "alternatives": Alternatives(ranks=2, collective_us=3.0)}, "roofline is that of one GPU"),
])
def test_impossible_requests_are_refused(change, word):
    with pytest.raises(BadInput, match=word):
        replace(BASE, **change)


def test_a_drafter_without_a_head_needs_one():
    flash = load_drafter("dflash-qwen3-8b")
    with pytest.raises(BadInput, match="no serial head"):
        shapes_of(flash)
    assert shapes_of(flash, HEAD) == (TARGET, HEAD)
