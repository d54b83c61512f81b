"""What a head weighs: sizes counted by hand from its equations, and what fits on a chip."""

from __future__ import annotations

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head, list_heads, load_head
from cost_model.head_memory import head_memory, on_chip_bytes, residency_share

V, R, HIDDEN, GRU, POOL = 151_936, 256, 2560, 1024, 2048
PACKED = V * R + 4 * V
"""W2 in int8 and a float a row; V is whole tiles."""


def test_a_markov_head_is_two_matrices_and_a_fused_walk_adds_one_packed_and_a_table_of_latents() -> None:
    found = head_memory(Head.markov(V, R))
    assert (found.matrix_bytes, found.table_bytes, found.own_bytes) == (V * R * 2, V * R * 2, 0)
    assert found.head_bytes == 4 * V * R and found.step_read_bytes == 2 * V * R and found.resident_bytes == V * R
    assert found.fused_bytes == PACKED + V * (2 * R + 16)


def test_recurrent_heads_add_their_own_weights_and_larger_tables() -> None:
    gated, rnn = (head_memory(Head(kind, kind, V, V, V, R, HIDDEN)) for kind in ("gated", "rnn"))
    assert gated.own_bytes == 2 * R * (HIDDEN + R) and gated.fused_bytes == PACKED + V * 2 * (2 * R)
    assert rnn.own_bytes == 2 * 3 * R * (2 * R + HIDDEN) and rnn.step_read_bytes == 2 * V * R + rnn.own_bytes
    assert rnn.resident_bytes == V * R + 2 * 3 * R * R and rnn.fused_bytes == PACKED + V * 2 * (3 * R) + 2 * 3 * R * R


def test_domino_reads_the_targets_embedding_and_with_candidates_only_their_rows() -> None:
    whole, pooled = (head_memory(Head("d", "domino", V, V, V, R, HIDDEN, GRU, pool)) for pool in (None, POOL))
    own, states = 2 * (3 * GRU * (HIDDEN + GRU) + R * (HIDDEN + GRU)), 2 * (3 * GRU + R) * GRU
    assert whole.table_bytes == 0 and whole.own_bytes == pooled.own_bytes == own
    assert (whole.step_read_bytes, pooled.step_read_bytes) == (2 * V * R + own, 2 * POOL * R + own)
    assert (whole.resident_bytes, pooled.resident_bytes) == (V * R + states, (POOL + 1) * R + states)
    table, projector = V * 2 * 3 * GRU, 2 * R * GRU
    assert whole.fused_bytes == PACKED + table + projector
    assert pooled.fused_bytes == (POOL + 16) * (R + 4) + table + projector, "the candidates and one row more fill whole tiles"


def test_padding_and_separate_vocabularies_count_where_they_are_stored() -> None:
    found = head_memory(Head("padded", "markov", 32_000, 163_840, 32_016, R))
    assert found.matrix_bytes == 32_016 * R * 2 and found.table_bytes == 163_840 * R * 2


def test_what_a_chip_holds_and_what_the_planner_keeps() -> None:
    gpu = load_gpu("h200-sxm")
    assert on_chip_bytes(gpu) == 132 * (262_144 + 233_472)
    assert residency_share(gpu, Head.markov(V, R)) == 1.0
    assert 0 < residency_share(gpu, Head.markov(248_320, R)) < 1
    assert residency_share(gpu, load_head("domino-qwen3-4b")) == 1.0


@pytest.mark.parametrize("name", list_heads())
def test_every_catalogued_head_can_be_weighed(name: str) -> None:
    found = head_memory(load_head(name))
    assert found.head_bytes == found.matrix_bytes + found.table_bytes + found.own_bytes > 0
    assert 0 < found.resident_bytes < found.step_read_bytes + found.head.rank
    assert found.as_dict()["head"]["name"] == name
