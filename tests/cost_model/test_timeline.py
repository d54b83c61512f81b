"""Timelines: exposed spans fill the call without gaps, hidden ones stay beside them."""

from __future__ import annotations

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.timeline import walk_timeline
from cost_model.workload import Workload

WALKS = [
    ("resident", "int8x2", 151_936, 1),
    ("resident", "int8x2", 248_320, 8),
    ("streaming", "bf16", 151_936, 1),
    ("stepwise", "bf16", 129_280, 4),
]


def prediction_of(mode: str, precision: str, vocab_size: int, batch: int):
    """A prediction on an H200."""
    return predict(load_gpu("h200-sxm"), Head.markov(vocab_size, 256), Workload(batch, 5, precision=precision), mode)


@pytest.mark.parametrize("walk", WALKS)
def test_exposed_spans_join_and_end_with_the_call(walk) -> None:
    prediction = prediction_of(*walk)
    exposed = [span for span in walk_timeline(prediction) if not span.hidden]
    assert exposed[0].start_us == 0.0
    for before, after in zip(exposed, exposed[1:]):
        assert after.start_us == pytest.approx(before.end_us)
    assert exposed[-1].end_us == pytest.approx(prediction.call_us(5))
    assert [span.step for span in exposed if span.step][-1] == 5
    longer = [span for span in walk_timeline(prediction, steps=9) if not span.hidden]
    assert longer[-1].end_us == pytest.approx(prediction.call_us(9))


@pytest.mark.parametrize("walk", WALKS)
def test_hidden_spans_add_up_and_stay_beside_the_tiles(walk) -> None:
    prediction = prediction_of(*walk)
    step = [span for span in walk_timeline(prediction) if span.step == 2]
    hidden_us = sum(span.length_us for span in step if span.hidden)
    assert hidden_us == pytest.approx(sum(term.hidden_us for term in prediction.terms["step"].values()))
    tiles = [span for span in step if not span.hidden and span.term in ("products", "shared_read", "stream", "epilogue")]
    for span in step:
        if span.hidden:
            assert span.start_us == pytest.approx(tiles[0].start_us) and span.end_us <= tiles[-1].end_us + 1e-9
