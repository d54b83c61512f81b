"""Predictions of every kind of walk: conservation over all of them, what grows with what, published times of recurrent heads, refusals."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.fused import RING_PARAMETERS, WalkWords, fused_case, moving_parameters, step_groups, step_parameters
from cost_model.gpu import Figure, load_gpu
from cost_model.head import Head, load_head
from cost_model.parameters import resolve
from cost_model.parts import split
from cost_model.placement import Placement, PlanError, kernel_beside
from cost_model.predict import NotModelled, crowded_slots, fused_request, narrow_ring, predict, walk_sizes
from cost_model.published import load_published_times
from cost_model.sweep import Grid, sweep
from cost_model.workload import L2_STATES, ROUNDINGS, Workload
from tests.cost_model.walk_examples import QWEN, study_h200

STUDY = study_h200()
GPUS = {"study": STUDY, **{name: load_gpu(name, calibrated=False) for name in ("h200-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm", "b300-sxm")}}
POOL = load_head("domino-qwen3-4b")
HEADS = {
    "markov": QWEN, "gated": Head("gated", "gated", 151_936, 151_936, 151_936, 256, 2560), "rnn": Head("rnn", "rnn", 151_936, 151_936, 151_936, 256, 2560),
    "domino": replace(POOL, name="domino", candidate_pool=None), "pool": POOL,
}
WAYS = [("stepwise", "bf16"), ("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2"), ("resident", "bf16")]


def walk(kind="markov", mode="resident", gpu=STUDY, **workload):
    return predict(gpu, HEADS[kind], Workload(**workload), mode)


def exposed(prediction, part="step"):
    return {name: term.exposed_us for name, term in prediction.terms[part].items()}


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(HEADS)), vocab=st.integers(1, 400_000), rank=st.sampled_from([32, 96, 256, 512]), gpu=st.sampled_from(sorted(GPUS)),
       way=st.sampled_from(WAYS), state=st.sampled_from(L2_STATES), batch=st.integers(1, 32), temperature=st.sampled_from([0.0, 1.0]),
       rounding=st.sampled_from(ROUNDINGS), kept=st.booleans(), steps=st.integers(1, 64))
def test_exposed_terms_sum_to_the_totals_of_every_walk(kind, vocab, rank, gpu, way, state, batch, temperature, rounding, kept, steps):
    head = replace(HEADS[kind], vocab_size=vocab, padded_vocab_size=vocab, rank=rank)
    try:
        prediction = predict(GPUS[gpu], head, Workload(batch, steps, temperature, way[1], rounding, state, kept), way[0])
    except (PlanError, NotModelled):
        return
    except BadInput as error:
        assert "no path of sglang-0.5.23 runs a domino head" in str(error)
        return
    for part, total in (("entry", prediction.entry_us), ("step", prediction.step_us)):
        assert sum(exposed(prediction, part).values()) == pytest.approx(total, rel=1e-12)
        assert all(term.exposed_us >= 0 and term.hidden_us >= 0 and term.resource for term in prediction.terms[part].values())
    assert 0 < prediction.floor_step_us <= prediction.step_us_low <= prediction.step_us <= prediction.step_us_high
    assert 0 < prediction.floor_entry_us and prediction.entry_us_low <= prediction.entry_us <= prediction.entry_us_high
    assert set(prediction.kinds.values()) <= {"datasheet", "microbenchmark", "measured", "derived", "transferred"}


@pytest.mark.parametrize("mode, precision", WAYS[1:])
@pytest.mark.parametrize("kind", ["markov", "gated", "rnn", "domino"])
def test_more_batch_rows_never_cost_less(kind, mode, precision):
    """Placements change with the rows of the kernel, so it holds among batches of one kernel and, loosely, between kernels."""
    steps = [walk(kind, mode, precision=precision, batch=batch).step_us for batch in range(1, 33)]
    for first, last in ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32)):
        assert steps[first - 1:last] == sorted(steps[first - 1:last])
    assert steps[31] > steps[15] > steps[0]


def sized(batch, products, temperature=0.0, placement=Placement(8, 24, 48, 0, 0), l2_state="warm"):
    """Return the case of a walk whose kernel multiplies by warps or by warpgroups, whatever the planner would have it do."""
    workload = Workload(batch=batch, temperature=temperature)
    request = fused_request(STUDY, QWEN, workload)
    kernel = replace(kernel_beside(placement, STUDY, QWEN, "int8x2", grid_blocks=132, **request.built), products=products)
    return fused_case(STUDY, resolve(STUDY).curve, WalkWords("int8x2", l2_state, False, kernel), walk_sizes(request, QWEN, workload, placement, kernel))


def parts_of(case):
    """Return term -> exposed and hidden time together."""
    return {name: shown + hidden for name, (shown, hidden, _) in split(step_groups(resolve(STUDY).values, case)).items()}


class ReadValues(dict):
    """Parameter values that remember which of them were read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("products, rows, temperature", [("warp", 1, 0.0), ("warp", 16, 0.0), ("warp", 16, 1.0), ("warpgroup", 16, 0.0)])
@pytest.mark.parametrize("l2_state", ["warm", "serving"])
@pytest.mark.parametrize("streamed", [0, 8])
def test_a_step_names_the_parameters_that_its_terms_read(products, rows, temperature, l2_state, streamed):
    placement = Placement(8, 24, 48 - streamed, streamed, streamed)
    case = sized(rows, products, temperature, placement=placement, l2_state=l2_state)
    values, named = ReadValues(resolve(STUDY).values), step_parameters(case.words)
    step_groups(values, case)
    of_streams = set() if streamed else {*RING_PARAMETERS, "stream_efficiency"} & set(named)
    assert len(set(named)) == len(named) and set(named) == values.read | of_streams
    assert set(moving_parameters(named, case)) <= values.read


def test_each_quad_reads_the_matrix_again():
    one, four = parts_of(sized(4, "warp")), parts_of(sized(16, "warp"))
    for name in ("products", "shared_read", "epilogue"):
        assert four[name] == pytest.approx(4 * one[name]), name
    rest_us = resolve(STUDY).values["tile_rest_4_us"]
    assert one["tile_rest"] == rest_us and four["tile_rest"] == pytest.approx(4 * rest_us)
    assert parts_of(sized(16, "warp", 1.0))["tile_rest"] == rest_us, "noise between readings hides it"
    assert one["shared_read"] == pytest.approx((48 * 4096 + 8 * 4 * 512) / 2.46e11 * 1e6), "the tiles, and four latents for each warp"
    three_quads = parts_of(sized(12, "warp"))
    assert three_quads["products"] == pytest.approx(3 * one["products"]), "rows that the batch leaves out are not multiplied"


def test_a_warpgroup_reads_its_tiles_once_for_four_quads_and_the_latents_with_them():
    rate = STUDY.value("int8_dense_ops_per_s") / 132
    quad, eight, sixteen, most = parts_of(sized(4, "warp")), *(parts_of(sized(batch, "warpgroup")) for batch in (8, 16, 32))
    assert eight["products"] == sixteen["products"] == pytest.approx(72 * 2 * 16 * 256 * 32 / rate * 1e6) == most["products"] / 2
    for rows, found, readings in ((8, eight, 1), (16, sixteen, 1), (32, most, 2)):
        assert found["shared_read"] == pytest.approx((48 * 4096 * readings + 72 / 4 * 2 * rows * 256) / 2.46e11 * 1e6)
    assert sixteen["overhead"] == quad["overhead"]


@pytest.mark.parametrize("batch, slots, together", [(8, 9, 2), (16, 9, 4), (32, 18, 4)])
def test_products_of_a_warpgroup_run_under_its_selection(batch, slots, together):
    case, values = sized(batch, "warpgroup"), resolve(STUDY).values
    selected_us = slots * (values["group_slot_cycles"] + together * values["group_quad_cycles"]) / 1980
    shown = split(step_groups(values, case))
    assert shown["epilogue"][0] == pytest.approx(selected_us) and shown["products"][0] == shown["shared_read"][0] == 0
    quick = split(step_groups({**values, "group_slot_cycles": 1.0, "group_quad_cycles": 1.0}, case))
    assert quick["epilogue"][0] == 0 < max(quick["products"][0], quick["shared_read"][0]), "whichever takes longer"


@pytest.mark.parametrize("batch, quads", [(16, 4), (32, 8)])
def test_streamed_tiles_of_warpgroups_follow_their_stream(batch, quads):
    head, workload, placement = Head.markov(248_320, 256), Workload(batch=batch), Placement(8, 0, 0, 120, 16)
    request = fused_request(STUDY, head, workload)
    kernel = kernel_beside(placement, STUDY, head, "int8x2", grid_blocks=132, **request.built)
    case = fused_case(STUDY, resolve(STUDY).curve, WalkWords("int8x2", "warm", False, kernel), walk_sizes(request, head, workload, placement, kernel))
    values, rate = resolve(STUDY).values, case.stream_bytes_per_s * resolve(STUDY).values["stream_efficiency"]
    shown = split(step_groups(values, case))
    assert shown["epilogue"][0] == pytest.approx(15 * (values["group_slot_cycles"] + quads * values["group_quad_cycles"]) / 1980), "all quads at once, one reading"
    multiplied_us = max(sum(shown[name][:2]) for name in ("products", "shared_read"))
    stream_us = (case.streamed_bytes - 132 * 16 * 4096) / rate * 1e6 + case.logits_bytes / case.logits_bytes_per_s * 1e6
    hidden_us = case.beyond_l2 * min(stream_us, multiplied_us + shown["epilogue"][0])
    assert shown["stream"][0] == pytest.approx(stream_us - hidden_us) and 0 < case.beyond_l2 < 1


def test_bf16_takes_quads_too():
    one, five = (walk(mode="streaming", precision="bf16", batch=batch).terms["step"]["products"].hidden_us for batch in (4, 5))
    assert five == pytest.approx(2 * one)


def test_noise_is_bounded_and_evaluated_once_a_lane_where_slots_are_multiplied_side_by_side():
    values = resolve(STUDY).values
    bound = values["noise_bound_instructions"]
    for batch, quads, accumulators, words in ((1, 1, 3, 0), (4, 1, 9, 40), (8, 2, 9, 40), (32, 8, 9, 40)):
        shown_us, hidden_us, _ = split(step_groups(values, sized(batch, "warp", 1.0)))["noise"]
        again = min(batch * 8 * 132 * 0.22 / (9 * 16 * 32 / min(batch, 4)), 1.0) * accumulators * 115
        drawn = 160 if batch == 1 else 0
        assert shown_us == pytest.approx((quads * (accumulators * (bound + words) + 80) + again + drawn) * values["instruction_cycles"] / 1980), batch
        assert hidden_us == 0
    latent = split(step_groups(values, sized(1, "warp", 1.0)))["latent"]
    assert latent[:2] == (0, values["l2_latency_us"]), "it travels while the leader draws the words of one row"
    assert walk(temperature=0.5).step_us == walk(temperature=2.0).step_us, "the temperature is an input of one kernel"


def test_streamed_slots_of_many_rows_bound_their_noise_twice_and_evaluate_a_row_a_lane():
    """9 slots and 2 quads: words of a pair and two bounds, one more instruction group than of resident slots; the exact noise of two quads at once."""
    values, step = resolve(STUDY).values, walk(mode="streaming", temperature=1.0, batch=8).terms["step"]
    instructions = 2 * (9 * (values["noise_bound_instructions"] + 16 + 40) + 80 / 2)
    assert step["noise"].exposed_us == pytest.approx(instructions * values["instruction_cycles"] / 1980)


def test_half_of_the_stream_of_many_sampled_rows_runs_beside_their_noise():
    """9 slots of two parts, each 160 cycles beside what it reads; of what the ring (4 tiles a warp) does not hold, and of the logits, half is waited for."""
    sampled, curve = walk(mode="streaming", temperature=1.0, batch=8).terms["step"], resolve(STUDY).curve
    rate = curve.at(38_895_616 + 8 * 303_872) ** 0.5 * curve.at(1.2 * (38_895_616 + 8 * 303_872)) ** 0.5 * min(resolve(STUDY).values["stream_efficiency"], 1)
    left_us = (38_895_616 - 132 * 32 * 4096) / rate * 1e6 + 8 * 303_872 / curve.at(38_895_616 + 16 * 8 * 303_872) * 1e6
    assert sampled["stream"].exposed_us == pytest.approx(left_us / 2, rel=0.02)
    assert sampled["products"].exposed_us == pytest.approx(9 * 2 * 160 / 1980)
    twice = walk(mode="streaming", temperature=1.0, batch=32).terms["step"]
    assert twice["products"].exposed_us == pytest.approx(9 * 2 * 2 * 160 / 1980), "eight quads read a tile twice, and the first reading hides nothing of the stream"


def test_nothing_of_a_reading_shows_where_eight_quads_are_selected_at_once():
    streaming, resident = (walk(mode=mode, batch=32).terms["step"]["tile_rest"].exposed_us for mode in ("streaming", "resident"))
    assert streaming == 0 and resident == resolve(STUDY).values["tile_rest_32_us"] > 0


def test_kept_logits_double_the_logits_traffic():
    kept, not_kept = (walk(batch=16, logits_kept=flag).terms["step"]["stream"] for flag in (True, False))
    rates = [resolve(STUDY).curve.at(38_895_616 + 16 * 16 * 303_872 * times) for times in (2, 1)]
    assert kept.exposed_us + kept.hidden_us == pytest.approx(2 * 16 * 303_872 / rates[0] * 1e6)
    assert not_kept.exposed_us + not_kept.hidden_us == pytest.approx(16 * 303_872 / rates[1] * 1e6)
    assert walk(logits_kept=True).terms["step"]["epilogue"].exposed_us > walk().terms["step"]["epilogue"].exposed_us


def test_wide_words_cost_more():
    narrow, wide = exposed(walk()), exposed(walk(rounding="none"))
    assert wide["exchange"] == pytest.approx(narrow["exchange"] * 1.1) and wide["block_reduction"] > narrow["block_reduction"]
    huge = predict(STUDY, Head.markov(400_000, 256), Workload(), "resident")
    assert exposed(huge)["exchange"] == pytest.approx(narrow["exchange"] * 1.1), "more than 2,048 matrix rows a block"


def test_a_recurrent_head_adds_its_state_to_a_markov_step():
    markov, gated, rnn, domino = (exposed(walk(kind)) for kind in ("markov", "gated", "rnn", "domino"))
    for other in (gated, rnn, domino):
        assert {name: other[name] for name in ("latent", "shared_read", "exchange", "overhead")} == {
            name: markov[name] for name in ("latent", "shared_read", "exchange", "overhead")}
    assert gated.keys() - markov.keys() == {"state_read", "gate"}
    assert rnn.keys() - markov.keys() == {"state_products", "state_read", "state_update", "latent_update"} and rnn["state_products"] == 0
    assert domino.keys() - rnn.keys() == {"projector", "latent_exchange"}, "Domino agrees twice"
    assert domino["latent_exchange"] > domino["exchange"]
    words = 132 * (3 * 1024 * 8 + 3 * 1024 * 2 + 256 * 4)
    assert domino["state_read"] == pytest.approx(words / resolve(STUDY).curve.at(1 << 20) * 1e6)


def test_rows_of_a_state_matrix_that_do_not_stay_are_read_again():
    few = predict(STUDY, replace(HEADS["domino"], gru_size=4096), Workload(), "resident").terms["step"]["state_products"]
    whole = 3 * 4096 // 132 * (16 * 26 + 20) / 7 * (7 / 4) / 1980  # seven warps, several sums each
    assert few.exposed_us + few.hidden_us > whole, "97 rows of 8 KiB a block do not fit beside the tiles"


def test_position_terms_are_an_entry_not_a_step():
    entry = exposed(walk("rnn"), "entry")
    product_us, small_us = (resolve(STUDY).values[name] for name in ("position_product_us", "small_kernel_us"))
    assert entry["position_terms"] == pytest.approx(product_us + 2 * small_us + 768 * 2560 * 2 / 4.65e12 * 1e6)
    assert exposed(walk("domino"), "entry")["position_terms"] == pytest.approx(product_us + 256 * 2560 * 2 / 4.65e12 * 1e6), "no bias"
    assert "position_terms" not in exposed(walk(), "entry")


def test_a_candidate_pool_is_walked_a_batch_row_at_a_time():
    one, four = walk("pool"), walk("pool", batch=4)
    assert four.step_us == pytest.approx(4 * one.step_us), "its scan of the base logits included"
    assert exposed(one)["products"] < 0.1 and one.placement.tiles == 8
    assert one.grid_blocks == 129, "2,049 rows are 129 tiles"
    assert exposed(one, "entry")["pool_gather"] == exposed(four, "entry")["pool_gather"] == 92
    assert exposed(four, "entry")["launch"] == pytest.approx(3.2 + 3 * 0.52)


# --- the engine's paths ---------------------------------------------------------------------------------------------------------


def recurrent_times():
    """Return path -> {steps: us} of the published table."""
    times = {}
    for row in load_published_times("sglang-0.5.23-h200-recurrent").rows:
        times.setdefault(row["head"], {})[row["steps"]] = row["median_us"]
    return times


@pytest.mark.parametrize("gpu", [GPUS["h200-sxm"], STUDY], ids=["published", "calibrated"])
@pytest.mark.parametrize("path, kind", [("dspark-rnn", "rnn"), ("domino-pool0", "domino"), ("domino-pool2048", "pool")])
def test_sglang_steps_of_recurrent_heads_are_reproduced(gpu, path, kind):
    times = recurrent_times()[path]
    slope = (times[max(times)] - times[min(times)]) / (max(times) - min(times))
    prediction = predict(gpu, HEADS[kind], Workload(precision="bf16"), "stepwise")
    assert prediction.variant == prediction.fastest_variant == "sample" and prediction.step_us == pytest.approx(slope, rel=0.03)
    lm_head_us = 0 if kind == "rnn" else 151_936 * 2560 * 2 / 4.65e12 * 1e6
    for steps, measured_us in times.items():
        assert prediction.call_us(steps) + lm_head_us == pytest.approx(measured_us, rel=0.15)


def test_a_path_is_known_by_its_kernel_too():
    by_kernel = predict(STUDY, QWEN, Workload(precision="bf16"), "stepwise", variant="MarkovSampleStep")
    assert by_kernel.step_us == predict(STUDY, QWEN, Workload(precision="bf16"), "stepwise", variant="sample").step_us


# --- honesty ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload, kind, words", [
    (dict(precision="bf16"), "markov", "resident bf16"), (dict(mode="streaming", batch=9, temperature=1.0), "gated", "gated heads of 9 rows"),
])
def test_what_no_record_has_checked_has_a_wide_interval_and_a_note(workload, kind, words):
    def half(one):
        return one.step_us_high / one.step_us - 1

    prediction, checked = walk(kind, **workload), walk()
    assert f"the model is not fitted to records of this, so its interval is wide: {words}" in prediction.notes
    assert half(prediction) > 0.29 > 0.2 > half(checked)


def test_all_tiles_through_a_small_ring_have_a_wide_interval_and_a_note_in_a_grid_too():
    half = {}
    for staging in (8, 16, 32, 72):
        placement = Placement(8, 0, 0, 72, staging)
        prediction = predict(STUDY, QWEN, Workload(), "streaming", placement=placement, ran=True)
        half[staging] = prediction.step_us_high / prediction.step_us - 1
        assert any("all tiles through a small ring" in note for note in prediction.notes) == (staging < 32)
        assert narrow_ring(placement, 256, "int8x2") == (staging < 32)
    assert half[16] > 0.29 > 0.2 > half[32], "128 KiB are what the planner gives a ring; one that holds all tiles is not narrow"
    partly = predict(STUDY, QWEN, Workload(), "resident", placement=Placement(8, 32, 24, 16, 8), ran=True)
    assert not partly.notes, "a ring beside resident tiles is checked"
    few = GPUS["rtx-4090"]
    made = sweep(Grid((few,), (QWEN, Head.markov(32_000, 64)), (("streaming", "int8x2"),)))
    for number, head in enumerate((QWEN, Head.markov(32_000, 64))):
        one = predict(few, head, Workload(), "streaming")
        assert made.values["step_us_high"].reshape(-1)[number] == pytest.approx(one.step_us_high)
        assert any("small ring" in note for note in one.notes) == (number == 0), "99 KiB of shared memory leave a ring of 64"


def test_many_greedy_rows_with_many_resident_slots_have_a_wide_interval_and_a_note_in_a_grid_too():
    """Of three slots that follow each other the last may spill; sampled rows and few ones are multiplied by warps, and do not."""
    heads, batches, temperatures = tuple(Head.markov(132 * 8 * 16 * slots, 256) for slots in (8, 9, 10)), (4, 8), (0.0, 1.0)
    made = sweep(Grid((STUDY,), heads, (("resident", "int8x2"),), batches, temperatures=temperatures)).values["step_us_high"].reshape(3, 2, 2)
    for (number, head), (row, batch), (column, warm) in product(enumerate(heads), enumerate(batches), enumerate(temperatures)):
        one = predict(STUDY, head, Workload(batch, temperature=warm), "resident")
        crowded = one.placement.slots > 9 and one.placement.streamed_tiles == 0
        assert crowded_slots(one.placement) == crowded and made[number, row, column] == pytest.approx(one.step_us_high)
        noted = any("more than 9 resident slots a warp with 8 greedy rows" in note for note in one.notes)
        assert noted == (crowded and batch == 8 and warm == 0.0) and (one.step_us_high / one.step_us > 1.29) == noted


def test_a_candidate_pool_widens_the_entry_alone():
    pool, domino = walk("pool"), walk("domino")
    assert any("the entry with a candidate pool" in note for note in pool.notes) and not domino.notes
    assert pool.step_us_high / pool.step_us == pytest.approx(domino.step_us_high / domino.step_us, abs=0.02)
    assert pool.entry_us_high / pool.entry_us > 1.29


def test_each_class_of_walks_has_the_width_that_its_own_records_leave():
    errors = {"many_rows": 0.17, "sampled": 0.18, "recurrent": 0.19}
    gpu = STUDY.with_figures({f"{name}_model_relative_error": Figure(error, "ratio", "measured", "made up") for name, error in errors.items()})
    walks = (walk(gpu=gpu, batch=4), walk(gpu=gpu, batch=5), walk(gpu=gpu, temperature=1.0), walk("rnn", gpu=gpu), walk("rnn", gpu=gpu, temperature=1.0))
    halves = [(one.step_us_high / one.step_us - 1) / 1.96 for one in walks]
    assert halves[0] < 0.06 and halves[1:] == pytest.approx([0.17, 0.18, 0.19, 0.18])


@pytest.mark.parametrize("kind, mode, workload, words", [
    ("domino", "resident", dict(temperature=1.0), "draft greedily"), ("domino", "stepwise", dict(temperature=1.0, precision="bf16"), "draft greedily"),
    ("pool", "resident", dict(logits_kept=True), "candidate pool"),
])
def test_walks_that_nothing_runs_are_refused(kind, mode, workload, words):
    with pytest.raises(NotModelled, match=words):
        walk(kind, mode, **workload)


def test_the_greedy_path_serves_markov_heads_alone():
    with pytest.raises(BadInput, match="a rnn head, batch 1 at temperature 0; use sample"):
        predict(STUDY, HEADS["rnn"], Workload(precision="bf16"), "stepwise", variant="greedy")
