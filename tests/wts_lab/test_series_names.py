"""Names of series in the table of fits: short, and no two alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pandas")

from cost_model.fit import SeriesKey, fit_frame  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from wts_lab.cli_inputs import read_walks  # noqa: E402
from wts_lab.series_names import series_names, series_order  # noqa: E402

WALK = SeriesKey(
    "NVIDIA H200", 132, "warm", "wts", "resident", "resident", "int8x2", "once", "markov", 151_936, 151_936, 151_936, 256, batch=1, temperature=0.0,
    logits_kept=False, grid_blocks=132, warps=8, register_tiles=40, shared_tiles=32, streamed_tiles=0, staging_tiles=0, exchange="spread-lines",
    probe="none", record="walks",
)  # fmt: skip
POOLED = replace(WALK, head_kind="domino", hidden_size=2560, gru_size=1024, candidate_pool=2048)


def named(*others: SeriesKey) -> list[str]:
    """Names of the usual walk and some others."""
    return series_names([WALK, *others])


def test_what_is_as_usual_is_left_out_and_what_is_not_stands_after_the_way():
    sampled, stepwise = replace(WALK, temperature=0.7, logits_kept=True), replace(WALK, implementation="torch-stepwise", variant="graph", mode="stepwise")
    assert named(replace(WALK, batch=8), sampled, stepwise, POOLED, replace(WALK, streamed_tiles=4), replace(sampled, batch=2)) == [
        "resident int8x2", "resident int8x2, batch 8", "resident int8x2, temperature 0.7", "torch-stepwise graph", "resident int8x2, domino",
        "resident int8x2 (4 tiles streamed)", "resident int8x2, batch 2, temperature 0.7",
    ]  # fmt: skip


def test_a_series_is_told_no_more_than_sets_it_apart():
    other = replace(WALK, exchange="slots-x1")
    assert named(other, replace(other, register_tiles=48, shared_tiles=24), replace(WALK, logits_kept=True), replace(WALK, rounding="none")) == [
        "resident int8x2, rounding once", "resident int8x2, rounding once, exchange slots-x1, placement 8,40,32,0,0",
        "resident int8x2, rounding once, exchange slots-x1, placement 8,48,24,0,0", "resident int8x2, rounding once, logits kept",
        "resident int8x2, rounding none",
    ]  # fmt: skip
    assert named(POOLED, replace(POOLED, candidate_pool=None), replace(POOLED, hidden_size=4096))[1:] == [
        "resident int8x2, domino, hidden 2560, candidate pool 2048", "resident int8x2, domino, hidden 2560", "resident int8x2, domino, hidden 4096",
    ]  # fmt: skip
    assert named(replace(WALK, record="again"), replace(WALK, gpu_name="NVIDIA A100")) == [
        "resident int8x2, GPU NVIDIA H200, record walks", "resident int8x2, GPU NVIDIA H200, record again", "resident int8x2, GPU NVIDIA A100",
    ]  # fmt: skip


CHANGES = {
    "gpu_name": ("NVIDIA A100", None), "implementation": ("torch-stepwise", None), "variant": ("other", None), "mode": ("streaming", None),
    "precision": ("bf16", None), "rounding": ("none", None), "head_kind": ("rnn", None), "hidden_size": (64, 128), "candidate_pool": (32, 64), "batch": (2, None),
    "temperature": (0.7, 1.0, None), "logits_kept": (True, None), "exchange": ("slots-x1", None), "warps": (4, None), "grid_blocks": (64, None),
    "streamed_tiles": (4, None), "tensor_tiles": (1, 2), "record": ("again", None), "target_vocab_size": (1, None), "l2_state": ("cold", "serving"),
}  # fmt: skip


def test_a_count_that_is_not_known_is_no_zero():
    assert named(replace(WALK, staging_tiles=None))[1] == "resident int8x2, placement 8,40,32,0,n/a"


@given(st.sets(st.builds(lambda facts: replace(WALK, **facts), st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHANGES.items()}))))
def test_no_two_series_are_named_alike(keys):
    keys = list(keys)
    shown = {(name, key.l2_state) for name, key in zip(series_names(keys), keys)}
    assert len(shown) == len(keys)


def test_the_shipped_records_have_names_that_differ():
    for every in (False, True):
        keys = [key for key, _ in fit_frame(read_walks([data_root() / "measurements"], every)[0])]
        rows = [(name, key.vocab_size, key.rank, key.l2_state) for name, key in zip(series_names(keys), keys)]
        assert len(rows) == len(set(rows)) > 40
        assert not any("None" in name or "False" in name for name, *_ in rows)


def test_tables_are_in_the_order_of_shape_state_way_kind_sampling_and_batch():
    keys = [
        WALK, replace(WALK, batch=2), replace(WALK, batch=16), replace(WALK, temperature=1.0), replace(WALK, head_kind="gated"), POOLED,
        replace(WALK, mode="streaming"), replace(WALK, l2_state="serving"), replace(WALK, vocab_size=248_320), replace(WALK, vocab_size=248_320, rank=512),
    ]  # fmt: skip
    assert sorted(reversed(keys), key=series_order) == keys
