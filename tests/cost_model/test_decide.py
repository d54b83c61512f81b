"""Every verdict, with its reasons; memory, break-even and fingerprint as part of the answer."""

import json
from dataclasses import replace

import pytest

from cost_model.decide import INCONCLUSIVE, KEEP, NO_GAIN, RESIDENT, STREAMING, SWITCH, VERDICTS, decide, extra_memory_bytes
from cost_model.errors import BadInput
from cost_model.gpu import AnotherGpu, load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.round import Round, break_even_rest_us
from cost_model.units import format_percent, format_us
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, exact_fit, series_key, study_h200

GPU = study_h200()
WORK = Workload()


def fits(resident=(2.5, 12), streaming=(6.5, 4), greedy=(41, 8), sample=(29.4, 6), half_us=0.02):
    """Return fits of (step, entry) for the ways that are not None."""
    made = []
    ways = (("resident", "wts", None, resident), ("streaming", "wts", None, streaming),
            ("stepwise", "sglang-0.5.23", "greedy", greedy), ("stepwise", "sglang-0.5.23", "sample", sample))
    for mode, implementation, variant, line in ways:
        if line is not None:
            precision = "bf16" if mode == "stepwise" else "int8x2"
            placement = (40, 32, 0, 0) if mode == "resident" else (0, 0, 72, 24) if mode == "streaming" else None
            made.append((series_key(mode, precision, implementation, variant, placement=placement), exact_fit(*line, half_us=half_us)))
    return made


ENGINE = [predict(GPU, QWEN, replace(WORK, precision="bf16"), "stepwise")]


def verdict(*arguments, **named):
    return decide(GPU, QWEN, WORK, *arguments, **named)


def test_deploy_resident_when_it_is_clearly_fastest():
    decision = verdict([], fits())
    assert decision.verdict == RESIDENT and decision.best.mode == "resident" and decision.saving_us == pytest.approx(29.4 * 16 + 6 - 52)
    assert decision.settings.placement.register_tiles == 40 and decision.settings.mode == "resident" and decision.settings.source == "measured here"
    assert any("residency saves" in reason for reason in decision.reasons) and any("MiB more device memory" in reason for reason in decision.reasons)


def test_deploy_streaming_when_the_shard_load_eats_the_gain():
    decision = verdict([], fits(resident=(2.5, 80)))
    assert decision.verdict == STREAMING and decision.settings.mode == "streaming" and "not faster" in decision.reasons[1]


def test_deploy_streaming_when_the_two_cannot_be_told_apart():
    decision = verdict([], fits(resident=(6.45, 4.5), half_us=0.2))
    assert decision.verdict == STREAMING and "not distinguishable" in decision.reasons[0]


def test_keep_the_engine_when_a_resident_step_is_not_below_the_graphed_one():
    decision = verdict([], fits(resident=(29.4, 4), streaming=None, greedy=None))
    assert decision.verdict == KEEP and "not below" in decision.reasons[0]
    assert decision.settings.mode == "stepwise" and decision.settings.placement is None and decision.extra_memory_bytes == 0


def test_switch_the_engine_when_only_its_other_path_is_faster():
    decision = verdict(ENGINE, fits(resident=(35, 12), streaming=(36, 4)))
    assert decision.verdict == SWITCH and decision.fastest.variant == "sample" and decision.taken.variant == "greedy"
    assert "sample" in decision.settings.engine_path


def test_a_path_that_a_record_names_by_its_kernel_is_the_path_of_the_catalogue():
    named = [(replace(key, variant={"greedy": "MarkovGreedyStep", "sample": "MarkovSampleStep"}.get(key.variant)), fit) for key, fit in fits()]
    predictions = [predict(GPU, QWEN, replace(WORK, precision="bf16"), "stepwise", variant=name) for name in ("greedy", "sample")]
    decision, plain = verdict(predictions, named), verdict(predictions, fits())
    assert decision.options == plain.options and decision.reasons == plain.reasons
    assert [(option.variant, option.measured) for option in decision.options if option.is_engine] == [("sample", True), ("greedy", True)]


def cramped(bytes_of_a_block):
    """An RTX 4090 whose blocks have so much shared memory."""
    gpu = load_gpu("rtx-4090", calibrated=False)
    return gpu.with_figures({"smem_bytes_per_block_optin": replace(gpu.figures["smem_bytes_per_block_optin"], value=bytes_of_a_block)})


def test_a_walk_that_has_no_place_leaves_the_engine_its_path():
    """Latents of 32 rows of rank 512 alone take more than the block has."""
    head, work, gpu = Head.markov(262_144, 512), Workload(batch=32), cramped(32_768)
    decision = decide(gpu, head, work, [predict(gpu, head, replace(work, precision="bf16"), "stepwise")])
    assert decision.verdict == KEEP and decision.settings.mode == "stepwise" and decision.settings.precision is None
    assert "no fused walk of this shape has a place on rtx-4090: no resident placement" in decision.reasons[0] and "bytes of shared memory are needed" in decision.reasons[0]


def test_a_walk_that_fewer_warps_make_room_for_is_not_decided_against():
    head, work, gpu = Head.markov(262_144, 512), Workload(batch=32), cramped(101_376)
    decision = decide(gpu, head, work, [predict(gpu, head, replace(work, precision="bf16"), "stepwise")])
    assert decision.verdict == INCONCLUSIVE and "8 warps" in decision.reasons[0] and "`wts-lab tune --warps 6` measures it" in decision.reasons[1]


def test_no_material_gain_when_the_end_to_end_interval_holds_zero():
    decision = verdict([], fits(resident=(28.8, 6), streaming=None, greedy=None, half_us=2), round=Round(300_000, 5_000, 3.5))
    assert decision.verdict == NO_GAIN and "includes 0" in decision.reasons[0]
    assert decision.gain.gain_low <= 0 <= decision.gain.gain_high


def test_a_small_but_certain_gain_is_material():
    assert verdict([], fits(), round=Round(300_000, 5_000, 3.5)).verdict == RESIDENT


def test_uncertain_backbone_does_not_turn_a_gain_into_a_loss():
    decision = verdict([], fits(), round=Round(9000, 1500, 4, verify_interval_us=(6000, 12_000)))
    assert decision.verdict == RESIDENT and 0 < decision.gain.gain_low < decision.gain.gain < decision.gain.gain_high
    assert any("of the draft round" in reason for reason in decision.reasons)


def test_no_material_gain_when_measured_calls_overlap():
    decision = verdict([], fits(resident=(29.0, 6), streaming=None, greedy=None, half_us=2))
    assert decision.verdict == NO_GAIN and "overlap" in decision.reasons[0]


@pytest.mark.parametrize("name", ["resident", "greedy"])
def test_inconclusive_when_a_series_lost_its_samples(name):
    decision = verdict([], _replaced(name, "inconclusive"))
    assert decision.verdict == INCONCLUSIVE and "throttling" in decision.reasons[0]
    assert not any("inf" in reason.split() for reason in decision.reasons), "what was lost has no break-even"


def _replaced(name, status):
    """Return fits in which one series has another status."""
    index = {"resident": 0, "greedy": 2}[name]
    made = fits()
    made[index] = (made[index][0], exact_fit(2.5, 12, status=status))
    return made


def test_inconclusive_when_something_is_missing():
    assert verdict([], []).verdict == INCONCLUSIVE
    assert "fused" in verdict(ENGINE, []).reasons[0] and "engine" in verdict([], fits(greedy=None, sample=None)).reasons[0]


def test_inconclusive_when_only_wide_predictions_overlap():
    """An uncalibrated A10 whose bands overlap must be measured, not decided."""
    chip, head = load_gpu("a10"), Head.markov(151_936, 256)
    ways = [predict(chip, head, replace(WORK, precision="bf16"), "stepwise", variant="sample"), predict(chip, head, WORK, "resident")]
    step = ways[0].step_us
    decision = decide(chip, head, WORK, [ways[0], replace(ways[1], step_us=0.97 * step, step_us_low=0.6 * step, step_us_high=1.4 * step)])
    assert decision.verdict == INCONCLUSIVE and "measure" in decision.reasons[0]


def test_every_verdict_has_a_test():
    assert set(VERDICTS) == {RESIDENT, STREAMING, KEEP, SWITCH, NO_GAIN, INCONCLUSIVE}


def test_predictions_fill_what_was_not_measured_and_say_so():
    ways = [*ENGINE, predict(GPU, QWEN, WORK, "resident"), predict(GPU, QWEN, WORK, "streaming")]
    decision = verdict(ways)
    assert decision.verdict == RESIDENT and not decision.best.measured and any("predicted, not measured" in reason for reason in decision.reasons)
    measured = verdict(ways, fits(greedy=None, sample=None))
    assert measured.best.measured and not measured.taken.measured


def test_other_shapes_and_states_do_not_take_part():
    others = [(replace(key, l2_state="cold"), fit) for key, fit in fits()] + [(replace(key, vocab_size=7), fit) for key, fit in fits()]
    assert verdict([], others).options == ()


def test_series_and_predictions_of_another_gpu_are_refused():
    ada = load_gpu("rtx-4090")
    with pytest.raises(AnotherGpu, match="'NVIDIA H200'.*not on rtx-4090"):
        decide(ada, QWEN, WORK, [], fits())
    with pytest.raises(AnotherGpu, match="66 multiprocessors"):
        verdict([], [(replace(key, gpu_sm_count=66), fit) for key, fit in fits()])
    with pytest.raises(BadInput, match="of h200-sxm cannot decide about rtx-4090"):
        decide(ada, QWEN, WORK, ENGINE)


def test_of_two_placements_the_faster_counts():
    slower = (series_key("resident", placement=(8, 16, 48, 24)), exact_fit(4.0, 9))
    decision = verdict([], [slower, *fits()])
    assert decision.settings.placement.register_tiles == 40 and len([option for option in decision.options if option.mode == "resident"]) == 1


def test_experimental_exchanges_take_no_part_however_fast():
    (key, _), *others = fits()
    trial = [(replace(key, exchange=name), exact_fit(1.5, 9)) for name in ("slots-x2", "slots-x33")]
    decision = verdict([], [*trial, (replace(key, exchange="slots-x1"), exact_fit(2.5, 12)), *others])
    assert decision.best.call_us == pytest.approx(12 + 16 * 2.5) and len(decision.options) == 4
    assert verdict([], [*trial, *others]).best.mode == "streaming"


def test_a_call_is_the_same_time_here_as_in_the_fit():
    (key, fit), *others = fits()
    bent = replace(fit, medians_us={1: 14.0, 7: 30.0, 16: 51.5})
    decision = verdict([], [(key, bent), *others])
    assert decision.best.call_us == bent.call_us(16) == 51.5 and bent.line_us(16) == pytest.approx(52.0)


def test_curved_series_is_named():
    assert any("curved" in reason for reason in verdict([], _replaced("resident", "curved")).reasons)


def test_without_an_engine_the_torch_reference_is_the_baseline():
    torch = (series_key("stepwise", "bf16", "torch-stepwise", "graph"), exact_fit(33, 6))
    decision = verdict([], [*fits(greedy=None, sample=None), torch])
    assert decision.verdict == RESIDENT and decision.fastest.implementation == "torch-stepwise"
    with_engine = verdict([], [*fits(), torch])
    assert with_engine.fastest.implementation == "sglang-0.5.23"


def test_memory_of_the_latent_table_is_part_of_the_answer():
    assert extra_memory_bytes(QWEN, "resident", "int8x2") == 9496 * 4096 + 9496 * 16 * 4 + 151_936 * 528
    assert extra_memory_bytes(QWEN, "streaming", "bf16") == 9496 * 8192 + 151_936 * 512
    assert extra_memory_bytes(QWEN, "stepwise", "bf16") == 0


def test_reasons_state_the_break_even_when_no_round_is_given():
    assert any("no round was given" in reason and "falls below" in reason for reason in verdict([], fits()).reasons)


def test_every_comparison_names_its_baseline_and_its_basis():
    decision = verdict([predict(GPU, QWEN, replace(WORK, precision="bf16"), "stepwise", variant=name) for name in ("greedy", "sample")],
                       fits(greedy=None, sample=None))
    first, residency, taken, rest = decision.reasons[:4]
    assert "resident int8x2 takes 52.0 µs (measured) a call; the engine's fastest path, sglang-0.5.23 MarkovSampleStep (sample), takes" in first
    assert first.endswith("(predicted)") and residency.endswith("over streaming int8x2 (measured)")
    assert "takes sglang-0.5.23 MarkovGreedyStep (greedy)" in taken and "its sample path is meant for other workloads, but runs this one too" in taken
    assert "over the engine's fastest path (sample) falls below 1.00 %" in rest and "over the path it takes (greedy)" in rest
    assert f"over {format_us(break_even_rest_us(decision.fastest.call_us, 52.0, 0.01))};" in rest
    predicted = [reason for reason in decision.reasons if "predicted, not measured" in reason]
    assert len(predicted) == 1 and "times of sglang-0.5.23" in predicted[0] and "warm L2" in predicted[0]


def test_the_end_to_end_gain_is_over_the_fastest_path_with_the_other_beside_it():
    decision = verdict(ENGINE, fits(), round=Round(9000, 1500, 4))
    fastest, taken = ((10_500 + before_us) / (10_500 + 52) - 1 for before_us in (29.4 * 16 + 6, 41 * 16 + 8))
    assert decision.gain.gain == pytest.approx(fastest) and decision.gain_over_taken.gain == pytest.approx(taken)
    told = next(reason for reason in decision.reasons if "end to end" in reason)
    assert f"{format_percent(fastest)} (" in told and f"{format_percent(taken)} over the path it takes (greedy)" in told


def test_one_path_that_is_both_is_named_once():
    reasons = verdict([], fits(greedy=None)).reasons
    assert not any("it takes" in reason or "engine takes" in reason for reason in reasons)


def test_a_call_beyond_what_was_measured_is_called_extrapolated():
    decision = decide(GPU, QWEN, Workload(steps=100), [], fits())
    assert "262 µs (extrapolated)" in decision.reasons[0] and any("not measured at this walk length" in reason for reason in decision.reasons)


@pytest.mark.parametrize("source", ["measured here", "replayed"])
def test_settings_say_where_they_come_from(source):
    assert verdict([], fits(), source=source).settings.source == source
    ways = [*ENGINE, predict(GPU, QWEN, WORK, "resident")]
    assert verdict(ways, source=source).settings.source == "predicted" and verdict([], []).settings.source == "none"
    with pytest.raises(BadInput, match="source is 'guessed'"):
        verdict([], fits(), source="guessed")


def test_as_dict_is_json_and_carries_the_fingerprint():
    environment = {"gpu_name": "NVIDIA H200", "driver_version": "580", "cuda_version": "13.0", "kernel_hash": "abc"}
    plain = json.loads(json.dumps(verdict([], fits(), environment=environment).as_dict()))
    assert plain["settings"]["fingerprint"]["kernel_hash"] == "abc" and plain["settings"]["fingerprint"]["sm_count"] == 132
    assert plain["verdict"] == RESIDENT and plain["best"]["mode"] == "resident"
