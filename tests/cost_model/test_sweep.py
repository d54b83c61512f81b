"""sweep equals predict, cell by cell, and says what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.sweep import QUANTITIES, Grid, sweep
from cost_model.workload import L2_STATES, ROUNDINGS, Workload
from tests.cost_model.test_predict_heads import GPUS, HEADS, WAYS
from tests.cost_model.walk_examples import QWEN, study_h200


def some(labels, most):
    """Draw a few labels, each once, in any order."""
    return st.lists(st.sampled_from(list(labels)), min_size=1, max_size=most, unique=True).map(tuple)


def heads_of(kinds, vocabs, ranks):
    """One head of each kind, vocabulary and rank, by name."""
    return tuple(replace(HEADS[kind], name=f"{kind}-{vocab}-{rank}", vocab_size=vocab, padded_vocab_size=vocab, rank=rank)
                 for kind in kinds for vocab in vocabs for rank in ranks)


@settings(max_examples=30, deadline=None)
@given(gpus=some(GPUS, 2), kinds=some(HEADS, 2), vocabs=st.lists(st.integers(1, 300_000), min_size=1, max_size=2, unique=True), ranks=some((32, 96, 256, 512), 2),
       ways=some(WAYS, 3), batches=st.lists(st.integers(1, 32), min_size=1, max_size=3, unique=True),
       steps=st.lists(st.integers(1, 100), min_size=1, max_size=2, unique=True), temperatures=some((0.0, 0.7), 2), states=some(L2_STATES, 2),
       roundings=some(ROUNDINGS, 1), kept=some((False, True), 1), engine=st.sampled_from(["sglang-0.5.23", "torch-stepwise"]))
def test_every_cell_is_predicts(gpus, kinds, vocabs, ranks, ways, batches, steps, temperatures, states, roundings, kept, engine):
    gpus = tuple(load_gpu("h200-sxm") if name == "h200-sxm" else GPUS[name] for name in gpus if name != "study") or (GPUS["study"],)
    grid = Grid(gpus, heads_of(kinds, vocabs, ranks), ways, batches, steps, temperatures, states, roundings, kept, engine)
    made = sweep(grid)
    for cell in np.ndindex(*(len(labels) for labels in grid.axes.values())):
        gpu, head, way, batch, length, temperature, state, rounding, flag = (labels[i] for labels, i in zip(
            (grid.gpus, grid.heads, grid.ways, grid.batches, grid.steps, grid.temperatures, grid.l2_states, grid.roundings, grid.logits_kept), cell))
        try:
            one = predict(gpu, head, Workload(batch, length, temperature, way[1], rounding, state, flag), way[0], engine if way[0] == "stepwise" else None)
        except BadInput:
            assert all(math.isnan(made.values[name][cell]) for name in QUANTITIES) and made.refused
            continue
        for name in QUANTITIES:
            assert made.values[name][cell] == pytest.approx(getattr(one, name), rel=1e-9), name
        assert made.call_us[cell] == pytest.approx(one.call_us(), rel=1e-9)


def test_a_sweep_is_read_by_its_labels():
    grid = Grid((study_h200(),), (QWEN, Head.markov(32_000, 256)), batches=(1, 8), steps=(7, 16))
    made = sweep(grid)
    one = made.at(gpu="h200-sxm", head=QWEN.name, way="resident int8x2", batch=8, l2_state="warm", temperature=0.0, rounding="once", logits_kept=False)
    assert list(one.axes) == ["steps"]
    wanted = predict(study_h200(), QWEN, Workload(batch=8, steps=7), "resident")
    assert one.values["step_us"][0] == pytest.approx(wanted.step_us, rel=1e-12) and one.call_us[0] == pytest.approx(wanted.call_us(7), rel=1e-12)
    frame = made.frame()
    assert len(frame) == 2 * 4 * 2 * 2 and not frame["step_us"].isna().any()
    row = frame[(frame["head"] == QWEN.name) & (frame["way"] == "resident int8x2") & (frame["batch"] == 8) & (frame["steps"] == 7)].iloc[0]
    assert row["call_us"] == pytest.approx(wanted.call_us(7), rel=1e-12)
    assert "call_us" not in made.at(steps=7).frame()


def test_heads_whose_kernels_multiply_in_different_ways_share_no_block():
    """At rank 512 the sums of sampled rows leave a Hopper's warpgroups no room, at rank 32 they do."""
    grid = Grid((study_h200(),), heads_of(("markov",), (1,), (32, 512)), (("streaming", "int8x2"),), (17,), temperatures=(0.7,))
    made = sweep(grid).values["step_us"].reshape(-1)
    for head, step_us in zip(grid.heads, made):
        assert step_us == pytest.approx(predict(study_h200(), head, Workload(17, temperature=0.7), "streaming").step_us, rel=1e-9)


def test_what_is_refused_is_nan_with_its_reason():
    wide = Head.markov(151_936, 512)
    grid = Grid((load_gpu("rtx-4090"), load_gpu("h20")), (QWEN, wide, HEADS["pool"]), (("resident", "bf16"), ("stepwise", "int8x2")), temperatures=(0.0, 1.0))
    made = sweep(grid)
    reasons = " ".join(one.reason for one in made.refused)
    for words in ("h20 lacks", "domino heads draft greedily", "precision is int8x2 for stepwise", "no resident placement of markov-151936-r512"):
        assert words in reasons
    assert np.isnan(made.at(gpu="h20").values["step_us"]).all()
    fits = made.at(gpu="rtx-4090", way="resident bf16", temperature=0.0).values["step_us"]
    assert not np.isnan(fits[0]).any() and np.isnan(fits[1]).all()
    assert any(one.where.get("head") == wide.name for one in made.refused)


def test_one_thread_or_many_give_the_same():
    grid = Grid((study_h200(),), heads_of(("markov", "rnn"), (32_000, 151_936), (256,)), batches=tuple(range(1, 33)), steps=(1, 16), l2_states=L2_STATES)
    one, many = sweep(grid, threads=1), sweep(grid, threads=4)
    for name in QUANTITIES:
        assert np.array_equal(one.values[name], many.values[name])


@pytest.mark.parametrize("axes, words", [
    (dict(batches=()), "axis batch of the grid is empty"), (dict(batches=(1, 1)), "each once"), (dict(batches=(0,)), "batch is 0"),
    (dict(heads=(QWEN, QWEN)), "axis head"), (dict(steps=(0,)), "steps is 0"), (dict(temperatures=(-1.0,)), "temperature is -1.0"),
    (dict(ways=(("resident", "fp8"),)), "precision is 'fp8'"), (dict(ways=(("folded", "bf16"),)), "mode is 'folded'"),
    (dict(l2_states=("hot",)), "l2_state is 'hot'"), (dict(implementation="vllm-9"), "vllm-9"),
])
def test_bad_axes_are_named(axes, words):
    with pytest.raises(BadInput, match=words):
        sweep(Grid(**{"gpus": (study_h200(),), "heads": (QWEN,), **axes}))


def test_unknown_labels_are_named():
    made = sweep(Grid((study_h200(),), (QWEN,)))
    with pytest.raises(BadInput, match="no axis 'colour'; it has gpu, head"):
        made.at(colour="red")
    with pytest.raises(BadInput, match="axis batch has no label 2; it has 1"):
        made.at(batch=2)
