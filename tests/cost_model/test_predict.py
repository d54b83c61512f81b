"""Predictions: conservation laws first, then published and recorded truth, then what is refused."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.gpu import MissingFact, load_gpu
from cost_model.head import Head
from cost_model.parameters import RESIDUALS, resolve
from cost_model.placement import Placement, PlanError, plan
from cost_model.predict import predict
from cost_model.published import load_published_times
from cost_model.workload import L2_STATES, Workload
from tests.cost_model.walk_examples import QWEN, study_h200

MODES = [("stepwise", "bf16"), ("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2")]
GPUS = {name: load_gpu(name, calibrated=False) for name in ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm", "b300-sxm")}
STUDY = study_h200()


def predicted(gpu, head, mode, precision, **workload):
    return predict(gpu, head, Workload(precision=precision, **workload), mode)


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(1, 400_000), rank=st.sampled_from([32, 128, 256, 512]), gpu=st.sampled_from(sorted(GPUS)), mode=st.sampled_from(MODES),
       state=st.sampled_from(L2_STATES), batch=st.sampled_from([1, 4]))
def test_exposed_terms_sum_to_the_totals_and_the_floor_is_below(vocab, rank, gpu, mode, state, batch):
    try:
        prediction = predicted(GPUS[gpu], Head.markov(vocab, rank), *mode, l2_state=state, batch=batch)
    except PlanError:
        return
    for part, total in (("entry", prediction.entry_us), ("step", prediction.step_us)):
        assert sum(term.exposed_us for term in prediction.terms[part].values()) == pytest.approx(total, rel=1e-12)
        assert all(term.exposed_us >= 0 and term.hidden_us >= 0 and term.resource for term in prediction.terms[part].values())
    assert 0 < prediction.floor_step_us <= prediction.step_us_low <= prediction.step_us <= prediction.step_us_high
    assert 0 < prediction.floor_entry_us and prediction.entry_us_low <= prediction.entry_us <= prediction.entry_us_high
    assert prediction.call_us(7) == pytest.approx(prediction.entry_us + 7 * prediction.step_us)
    assert not prediction.calibrated and any("not calibrated" in note for note in prediction.notes)


@pytest.mark.parametrize("mode", MODES)
def test_a_larger_vocabulary_never_costs_less(mode):
    steps = [predicted(STUDY, Head.markov(vocab, 256), *mode).step_us for vocab in (16_000, 32_000, 129_280, 151_936, 248_320)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("mode", MODES[1:])
def test_only_one_of_the_overlapping_terms_is_exposed(mode):
    step = predicted(STUDY, QWEN, *mode).terms["step"]
    assert sum(step[name].exposed_us > 0 for name in ("products", "shared_read")) == 1
    assert step["stream"].exposed_us == 0 or mode[0] == "streaming"


def test_a_partly_resident_step_is_its_resident_part_and_its_stream():
    head, gpu = Head.markov(248_320, 256), resolve(STUDY)
    step = predict(STUDY, head, Workload(), "resident", placement=Placement(8, 40, 40, 40, 8), ran=True).terms["step"]
    streamed, ring = (15_520 - 132 * 80) * 4096, 132 * 8 * 4096
    rate = (gpu.curve.at(streamed + 2 * 496_640) * gpu.curve.at((streamed + 2 * 496_640) * 1.2)) ** 0.5
    moved_us = streamed / (0.85 * rate) * 1e6 + 496_640 / gpu.curve.at(15_520 * 4096 + 16 * 496_640) * 1e6
    filled_us = ring / (0.85 * rate) * 1e6
    beside_us = step["stream"].hidden_us
    assert step["stream"].exposed_us + beside_us == pytest.approx(moved_us + gpu.values["ring_latency_us"] - filled_us), "the ring fills while blocks agree"
    read_us = [tiles * (4096 + latents * 512) / 2.46e11 * 1e6 for tiles, latents in ((40, 8 / 40), (40, 1))]
    assert step["shared_read"].exposed_us + step["shared_read"].hidden_us == pytest.approx(sum(read_us)), "a warp reads its latents once for all resident tiles"
    cycles = 4 * 8 * gpu.values["epilogue_cycles_per_accumulator"] / 4  # 15 slots of a warp share 4 accumulators
    assert step["epilogue"].exposed_us == pytest.approx(cycles / 1980)


def test_a_slower_part_slows_the_step_by_just_that():
    slow, fast = study_h200(exchange_us=1.8), study_h200(exchange_us=0.8)
    difference = predicted(slow, QWEN, "resident", "int8x2").step_us - predicted(fast, QWEN, "resident", "int8x2").step_us
    assert difference == pytest.approx(1.0)


def test_a_streaming_step_exposes_its_stream():
    step = predicted(STUDY, QWEN, "streaming", "int8x2").terms["step"]
    assert step["stream"].exposed_us == max(term.exposed_us for term in step.values())


def test_a_ring_that_fills_while_blocks_agree_hides_that_time():
    """A step no longer than its stream does not grow with what stands beside the stream."""
    short, long = (predicted(study_h200(fused_overhead_us=overhead), QWEN, "streaming", "int8x2").step_us for overhead in (0.1, 0.4))
    assert long == pytest.approx(short)
    assert predicted(study_h200(fused_overhead_us=9.0), QWEN, "streaming", "int8x2").step_us > short + 6, "what is longer than the ring fills shows"


def test_a_longer_walk_touches_more_before_the_matrix_comes_round_again():
    """Base logits of all steps pass through L2: where these no longer fit beside the matrix, a longer walk reads them from HBM."""
    head = Head.markov(120_000, 256)
    short, long = (predicted(STUDY, head, "streaming", "int8x2", batch=4, steps=steps).step_us for steps in (1, 64))
    assert long > short


def test_resident_entry_holds_the_load_of_the_shard():
    load = predicted(STUDY, QWEN, "resident", "int8x2").terms["entry"]["shard_load"].exposed_us
    assert load == pytest.approx(38_895_616 / resolve(STUDY).curve.at(38_895_616 + 303_872) * 1e6)
    cold = predicted(STUDY, QWEN, "resident", "int8x2", l2_state="serving").terms["entry"]["shard_load"].exposed_us
    assert cold == pytest.approx(38_895_616 / 4.65e12 * 1e6)


def test_cold_streaming_pays_its_first_pass_at_entry():
    warm, cold = (predicted(STUDY, QWEN, "streaming", "int8x2", l2_state=state) for state in ("warm", "serving"))
    assert cold.terms["entry"]["first_pass"].exposed_us > 0 == warm.terms["entry"]["first_pass"].exposed_us
    later_us = cold.terms["step"]["latent"].exposed_us - warm.terms["step"]["latent"].exposed_us
    assert 0 < later_us < 0.2 and warm.step_us * (1 - 1e-9) <= cold.step_us <= warm.step_us + later_us, "rows of winners come from HBM, which the stream may hide"


def test_interval_narrows_with_calibration():
    def width(gpu):
        prediction = predicted(gpu, QWEN, "resident", "int8x2")
        return (prediction.step_us_high - prediction.step_us_low) / prediction.step_us

    assert width(STUDY) < 0.2 < width(GPUS["h200-sxm"]) < width(GPUS["b200-sxm"])


def test_kinds_say_where_each_parameter_comes_from():
    own = predicted(STUDY, QWEN, "resident", "int8x2")
    assert own.calibrated and own.kinds["exchange_us"] == "measured" and own.kinds["epilogue_cycles_per_accumulator"] == "transferred"
    published = predicted(GPUS["h200-sxm"], QWEN, "resident", "int8x2")
    assert published.kinds["exchange_us"] == "microbenchmark"
    other = predicted(GPUS["b200-sxm"], QWEN, "resident", "int8x2")
    assert other.kinds["exchange_us"] == "transferred" and "h200-sxm" in other.sources["exchange_us"]


# --- the engine's paths -----------------------------------------------------------------------------------------------------


def sglang_series():
    """Return (vocab, batch, temperature, kernel) -> {steps: us} of the published table."""
    series = {}
    for row in load_published_times("sglang-0.5.23-h200-markov").rows:
        series.setdefault((row["vocab_size"], row["batch"], row["temperature"], row["path"]), {})[row["steps"]] = row["median_us"]
    return series


@pytest.mark.parametrize("key", sglang_series())
@pytest.mark.parametrize("gpu", [GPUS["h200-sxm"], STUDY], ids=["published", "calibrated"])
def test_sglang_is_reproduced_within_fifteen_percent(gpu, key):
    vocab, batch, temperature, kernel = key
    times = sglang_series()[key]
    variant = {"MarkovGreedyStep": "greedy", "MarkovSampleStep": "sample"}[kernel]
    prediction = predict(gpu, Head.markov(vocab, 256), Workload(batch=batch, temperature=float(temperature), precision="bf16"), "stepwise", variant=variant)
    slope = (times[16] - times[1]) / 15
    assert prediction.step_us == pytest.approx(slope, rel=0.03)
    for steps, measured_us in times.items():
        assert prediction.call_us(steps) == pytest.approx(measured_us, rel=0.15)


def test_the_path_taken_and_the_fastest_are_both_named():
    prediction = predict(STUDY, QWEN, Workload(precision="bf16"), "stepwise")
    assert (prediction.implementation, prediction.variant, prediction.fastest_variant) == ("sglang-0.5.23", "greedy", "sample")
    assert any("MarkovSampleStep is its fastest path" in note for note in prediction.notes)
    sampled = predict(STUDY, QWEN, Workload(precision="bf16", temperature=1.0), "stepwise")
    assert sampled.variant == sampled.fastest_variant == "sample" and "sampling" in sampled.terms["step"]


def test_read_floor_of_the_pegainfer_head():
    """H100, V 154,880, rank 256, 7 steps: the bf16 matrix, 79.3 MB, read 7 times at 3.35 TB/s is 165.7 us."""
    prediction = predict(GPUS["h100-sxm"], Head.markov(154_880, 256), Workload(steps=7, precision="bf16"), "stepwise")
    assert 7 * prediction.floor_step_us == pytest.approx(165.7, rel=0.01)
    assert 7 * prediction.read_floor_step_us == pytest.approx(165.7, rel=0.01)
    assert 7 * prediction.terms["step"]["byte_floor"].exposed_us == pytest.approx(7 * 154_880 * 256 * 2 / 3.35e12 * 1e6)


def test_a_matrix_that_l2_holds_is_read_faster_than_hbm_allows():
    small = predict(STUDY, Head.markov(40_000, 256), Workload(precision="bf16"), "stepwise")
    assert small.read_floor_step_us < 40_000 * 512 / 4.8e12 * 1e6


# --- what is refused -----------------------------------------------------------------------------------------------------------


def test_a_gpu_that_lacks_facts_names_all_of_them():
    with pytest.raises(MissingFact, match="h20 lacks boost_clock_mhz"):
        predicted(load_gpu("h20"), QWEN, "resident", "int8x2")
    facts = load_gpu("h20")
    bare = replace(facts, figures={name: figure for name, figure in facts.figures.items() if name != "l2_bytes"})
    with pytest.raises(MissingFact, match="h20 lacks boost_clock_mhz, l2_bytes"):
        predicted(bare, QWEN, "resident", "int8x2")
    with pytest.raises(MissingFact, match="int8_dense_ops_per_s"):
        predicted(load_gpu("h800-sxm"), QWEN, "resident", "int8x2")
    assert predicted(load_gpu("h800-sxm"), QWEN, "streaming", "bf16").step_us > 0, "a fact that is not needed is not asked for"


@pytest.mark.parametrize("arguments, word", [
    (dict(mode="folded"), "mode"), (dict(mode="stepwise", implementation="vllm-9"), "vllm-9.*sglang-0.5.23"),
    (dict(mode="stepwise"), "precision is int8x2 for stepwise.*bf16"), (dict(mode="stepwise", variant="beam"), "beam.*greedy, sample"), (dict(mode="resident", implementation="sglang-0.5.23"), "wts"),
    (dict(mode="stepwise", placement=Placement(8, 40, 32, 0, 0)), "placement"), (dict(mode="resident", placement=Placement(8, 40, 24, 0, 0)), "needs 72"),
    (dict(mode="streaming", placement=Placement(8, 40, 32, 0, 0)), "streaming walk keeps nothing"),
    (dict(mode="resident", placement=Placement(8, 0, 0, 72, 8)), "at least one slot"),
    (dict(mode="resident", placement=Placement(8, 64, 8, 0, 0)), "registers a thread"),
])
def test_bad_requests_are_refused(arguments, word):
    with pytest.raises(BadInput, match=word):
        predict(STUDY, QWEN, Workload(), **arguments)


def test_greedy_path_at_a_temperature_is_refused_with_what_serves():
    with pytest.raises(BadInput, match="use sample"):
        predict(STUDY, QWEN, Workload(temperature=1.0), "stepwise", variant="greedy")


def test_as_dict_has_what_the_command_prints():
    import json

    plain = json.loads(json.dumps(predicted(STUDY, QWEN, "resident", "int8x2").as_dict()))
    assert {"entry_us", "step_us", "step_us_low", "step_us_high", "floor_step_us", "terms", "placement"} <= plain.keys()
    assert {"exposed_us", "hidden_us", "resource"} == plain["terms"]["step"]["latent"].keys() and "launch" in plain["terms"]["entry"]
    assert predict(STUDY, QWEN, Workload(precision="bf16"), "stepwise").as_dict()["placement"] is None


def test_given_placement_is_used_and_a_better_one_is_planned():
    worse = Placement(8, 8, 16, 48, 24)
    fixed = predict(STUDY, QWEN, Workload(), "resident", placement=worse)
    assert fixed.placement == worse and predicted(STUDY, QWEN, "resident", "int8x2").placement == plan(STUDY, QWEN, "int8x2", "resident")
    assert fixed.step_us > predicted(STUDY, QWEN, "resident", "int8x2").step_us


def test_importing_predict_imports_neither_scipy_nor_pandas():
    code = "import sys, cost_model.predict; sys.exit(any(name in sys.modules for name in ('scipy', 'pandas', 'numpy', 'pyarrow', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_transfer_rules_scale_with_datasheet_facts():
    reference, other = resolve(load_gpu("h200-sxm")).by_name, resolve(GPUS["h100-sxm"]).by_name
    assert other["hbm_read_bytes_per_s"].value == pytest.approx(reference["hbm_read_bytes_per_s"].value * 3.35 / 4.8)
    assert other["mma_s8_ops_per_s_per_sm"].value == pytest.approx(reference["mma_s8_ops_per_s_per_sm"].value)
    assert other["exchange_us"].value == reference["exchange_us"].value and other["exchange_us"].relative_error >= 0.3


def test_tensor_rates_carried_over_agree_with_published_ones():
    """mma.sync int8 over the whole chip: 607.6 Top/s on an A100 (Luo et al. 2024), 143 on a B300 (QuickRunCUDA)."""
    for gpu, published in (("a100-sxm-80gb", 607.6e12), ("b300-sxm", 143e12)):
        rate = resolve(GPUS[gpu]).by_name["mma_s8_ops_per_s_per_sm"].value * GPUS[gpu].sm_count
        assert rate == pytest.approx(published, rel=0.05)


def test_at_most_three_residual_coefficients():
    assert len(RESIDUALS) <= 3


def test_predictions_do_not_share_state_between_gpus():
    before = predicted(STUDY, QWEN, "resident", "int8x2").step_us
    predicted(study_h200(exchange_us=5.0), QWEN, "resident", "int8x2")
    assert predicted(STUDY, QWEN, "resident", "int8x2").step_us == before
    assert predict(STUDY, replace(QWEN, name="other"), Workload(), "resident").step_us == before


def test_what_no_record_has_checked_is_predicted_with_a_note():
    notes = predict(study_h200(), Head.markov(32_000, 128), Workload(precision="bf16"), "resident").notes
    assert "the model is not fitted to records of this, so its interval is wide: resident bf16" in notes


def test_what_is_recorded_has_no_such_note():
    for mode, precision in (("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16"), ("stepwise", "bf16")):
        assert not any("not fitted to records" in note for note in predict(study_h200(), QWEN, Workload(precision=precision), mode).notes)
    for mode in ("resident", "streaming"):
        assert not any("not fitted to records" in note for note in predict(study_h200(), QWEN, Workload(batch=32, temperature=1.0), mode).notes)


def test_more_blocks_than_multiprocessors_are_refused():
    with pytest.raises(PlanError, match="h200-sxm has 132"):
        predict(study_h200(), QWEN, Workload(), "resident", grid_blocks=133, placement=plan(study_h200(), QWEN, "int8x2", "resident"))
