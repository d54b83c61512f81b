"""What is built for a request, decided without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head, load_head
from cost_model.placement import Placement
from wts_lab.walk_plan import plan_walk, planner_request

H200 = load_gpu("h200-sxm")
QWEN3 = Head.markov(151_936, 256)


def test_the_kernel_is_built_for_the_next_number_of_rows():
    assert [plan_walk(H200, QWEN3, mode="resident", max_batch=batch).spec.rows for batch in (1, 2, 3, 5, 16, 32)] == [1, 2, 4, 8, 16, 32]


def test_words_are_wide_where_values_or_rows_need_it():
    assert not plan_walk(H200, QWEN3, mode="resident").spec.wide
    assert plan_walk(H200, QWEN3, mode="resident", rounding="none").spec.wide
    assert plan_walk(H200, QWEN3, mode="resident", sampling=True).spec.wide
    assert plan_walk(H200, Head.markov(400_000, 64), mode="streaming").spec.wide  # 3,040 rows a block


def test_slots_and_ring_entries_come_from_the_tiles():
    spec = plan_walk(H200, QWEN3, mode="resident", placement=Placement(8, 24, 24, 24, 16)).spec
    assert (spec.register_slots, spec.shared_slots, spec.streamed_slots, spec.staging_entries) == (3, 3, 3, 4)


def test_a_recurrent_head_keeps_its_share_of_the_state_matrices():
    rnn = replace(load_head("dspark-qwen3-4b"), name="rnn", kind="rnn", checkpoint=None)
    assert plan_walk(H200, rnn, mode="resident").spec.state_rows == 6  # of 768 rows over 132 blocks
    domino = replace(load_head("domino-qwen3-4b"), candidate_pool=None)
    spec = plan_walk(H200, domino, mode="resident").spec
    assert (spec.gru, spec.state_rows, spec.projector_rows) == (1024, 24, 2)


def test_the_planner_is_asked_for_a_pool_and_one_row_where_there_is_a_pool():
    domino = load_head("domino-qwen3-4b")
    walked, wanted = planner_request(H200, domino, max_batch=8, rounding="twice")
    assert (walked.vocab_size, walked.gru_size, walked.candidate_pool) == (2049, 1024, None)
    assert wanted == {"grid_blocks": 129, "rows": 1, "rounding": "twice", "sampling": False}
    whole = replace(domino, candidate_pool=None)
    assert planner_request(H200, whole, max_batch=5) == (whole, {"grid_blocks": 132, "rows": 8, "rounding": "once", "sampling": False})


def test_a_small_vocabulary_takes_a_block_a_tile():
    assert plan_walk(H200, Head.markov(100, 64), mode="resident").grid_blocks == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "stepwise"}, "mode is"),
        ({"precision": "fp8"}, "precision is"),
        ({"rounding": "up"}, "rounding is"),
        ({"max_batch": 33}, "max_batch is 33"),
        ({"placement": Placement(8, 8, 0, 0, 0)}, "holds 8 tiles a block"),
        ({"mode": "streaming", "placement": Placement(8, 40, 32, 0, 0)}, "keeps nothing on chip"),
    ],
)
def test_what_cannot_be_built_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        plan_walk(H200, QWEN3, **{"mode": "resident", **change})


def test_domino_does_not_sample():
    with pytest.raises(ValueError, match="greedily"):
        plan_walk(H200, load_head("domino-qwen3-4b"), mode="resident", sampling=True)
    assert issubclass(BadInput, ValueError)
