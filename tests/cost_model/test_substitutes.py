"""Substitutes side by side: what each reads, holds and gains; and where replicating flips to sharding."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.head import load_head
from cost_model.options import gather_options
from cost_model.predict import predict
from cost_model.round import Round, round_gain
from cost_model.substitutes import Alternatives, choose_shard, engine_predictions, pruned, reduced, shard_of, substitutes
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, exact_fit, series_key, study_h200

GPU, WORK, REST = study_h200(), Workload(1, 7, l2_state="serving"), Round(6000, 1000, 4.0)
MATRIX = 151_936 * 256


@pytest.fixture(scope="module")
def rows():
    """Every way at once, by name."""
    return {row.name: row for row in substitutes(GPU, QWEN, WORK, Alternatives(2048, 32_000), REST)[0]}


def test_every_way_stands_beside_the_engines_path(rows):
    engine, fastest, *others = rows
    assert engine.startswith("engine: ") and fastest.startswith("engine's fastest: ")
    assert others == ["resident int8x2", "streaming int8x2", "top-2,048 pruning, engine", "top-2,048 pruning, resident int8x2",
                      "draft vocabulary of 32,000, engine", "draft vocabulary of 32,000, resident int8x2"]
    assert [name for name, row in rows.items() if row.approximate] == others[2:]
    assert all(("approximate" in row.note) == row.approximate for row in rows.values())


def test_the_bytes_of_each(rows):
    read = {name: row.read_bytes_per_step for name, row in rows.items()}
    assert read["streaming int8x2"] == MATRIX and read["resident int8x2"] == 0
    assert read["top-2,048 pruning, engine"] == 2048 * 256 * 2 and read["draft vocabulary of 32,000, engine"] == 32_000 * 256 * 2
    assert {read[name] for name in rows if name.startswith("engine")} == {2 * MATRIX}
    assert {rows[name].extra_memory_bytes for name in rows if "engine" in name} == {0}


def test_calls_are_predictions_and_gains_are_over_the_path_taken(rows):
    direct = predict(GPU, QWEN, WORK, "resident")
    taken, fastest = engine_predictions(GPU, QWEN, WORK)
    resident, engine = rows["resident int8x2"], next(iter(rows.values()))
    assert resident.call_us == pytest.approx(direct.call_us()) and engine.call_us == pytest.approx(taken.call_us()) and fastest.call_us() < taken.call_us()
    assert resident.gain == pytest.approx(round_gain(REST, taken.call_us(), direct.call_us()).gain)
    assert (engine.gain, engine.gain_low, engine.gain_high) == (0.0, 0.0, 0.0)


def test_an_approximate_way_says_what_loss_undoes_it(rows):
    engine, cheap = next(iter(rows.values())), rows["draft vocabulary of 32,000, engine"]
    worse = Round(REST.verify_us, REST.backbone_us, REST.accepted_length * cheap.least_length_ratio)
    assert worse.accepted_length / (worse.rest_us + cheap.call_us) == pytest.approx(REST.accepted_length / (REST.rest_us + engine.call_us))
    assert rows["resident int8x2"].least_length_ratio is None


def test_without_a_round_there_is_no_gain():
    assert {row.gain for row in substitutes(GPU, QWEN, WORK)[0]} == {None}


def test_a_measured_series_replaces_the_prediction():
    fits = [(series_key("resident", l2_state="serving", placement=(40, 32, 0, 0)), exact_fit(2.0, 10.0))]
    rows = {row.name: row for row in substitutes(GPU, QWEN, WORK, rest=REST, measured=gather_options(QWEN, WORK, (), fits))[0]}
    assert rows["resident int8x2"].call_us == pytest.approx(24.0) and rows["resident int8x2"].basis == "measured"
    assert rows["streaming int8x2"].basis == "predicted"


# --- replicate or shard ---------------------------------------------------------------------------------------------------


def test_the_flip_by_hand():
    choice = choose_shard("x", replicated_us=100.0, shard_us=60.0, steps=8, collective_us=4.0)
    assert (choice.sharded_us, choice.flip_us, choice.shard) == (92.0, 5.0, True)
    assert not choose_shard("x", 100.0, 60.0, 8, 5.0).shard and not choose_shard("x", 100.0, 60.0, 8, 6.0).shard


@given(replicated=st.floats(1, 1e4), shard=st.floats(1, 1e4), steps=st.integers(1, 64), collective=st.floats(0, 300))
def test_sharding_pays_exactly_below_the_flip(replicated, shard, steps, collective):
    choice = choose_shard("x", replicated, shard, steps, collective)
    if collective != pytest.approx(choice.flip_us, rel=1e-9, abs=1e-9):
        assert choice.shard == (collective < choice.flip_us)


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_choice_flips_at_the_predicted_point(ranks):
    large = load_head("dspark-qwen3.8-27b")
    flips = {choice.way: choice.flip_us for choice in substitutes(GPU, large, WORK, Alternatives(ranks=ranks, collective_us=0.0))[1]}
    assert len(flips) == 2 and min(flips.values()) > 0
    for way, flip in flips.items():
        for factor, shard in ((0.99, True), (1.01, False)):
            choices = substitutes(GPU, large, WORK, Alternatives(ranks=ranks, collective_us=factor * flip))[1]
            assert next(choice.shard for choice in choices if choice.way == way) is shard


def test_a_slow_link_replicates():
    """vLLM-Ascend pull 14748: a collective of 240 us a step."""
    assert not any(choice.shard for choice in substitutes(GPU, QWEN, WORK, Alternatives(ranks=16, collective_us=240.0))[1])


def test_shards_cover_the_vocabulary_and_keep_w1():
    shard = shard_of(QWEN, 7)
    assert 7 * shard.padded_vocab_size >= QWEN.padded_vocab_size > 7 * (shard.padded_vocab_size - 1) and shard.target_vocab_size == QWEN.target_vocab_size
    assert shard_of(replace(load_head("domino-qwen3-8b"), candidate_pool=2048), 3).candidate_pool == 683


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, word", [
    ((None, None, 2), "time of a\\s+collective"), ((None, None, 1, 5.0), "more than one rank"), ((0,), "top_k is 0"), ((None, None, 2, -1.0), "collective_us is -1"),
])
def test_impossible_alternatives_are_refused(arguments, word):
    with pytest.raises(BadInput, match=word):
        Alternatives(*arguments)


@pytest.mark.parametrize("make, size, word", [(pruned, 151_936, "needed to prune"), (reduced, 200_000, "needed to reduce"), (shard_of, 151_937, "at most as many ranks")])
def test_alternatives_that_do_not_fit_the_head_are_refused(make, size, word):
    with pytest.raises(BadInput, match=word):
        make(QWEN, size)
