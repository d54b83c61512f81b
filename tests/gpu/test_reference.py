"""On a GPU: the twin and planted inputs give what they give on a CPU, and the stepwise walk replays from a graph."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from wts_lab import reference  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.planting import Layout, cover, plant, walks_needed  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402


def test_quantisation_is_the_numpy_twins_bit_for_bit():
    head = MarkovHead.random(5003, 256, seed=1)
    w1, w2 = head.markov_w1.weight, head.markov_w2.weight
    ours = (*quantize_rows(w2.cuda()), *quantize_latents(w1.cuda()))
    twins = (*reference.twin_quantize_rows(w2.float().numpy()), *reference.twin_quantize_latents(w1.float().numpy()))
    for mine, its in zip(ours, twins, strict=True):
        assert np.array_equal(mine.cpu().numpy(), its)


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
@pytest.mark.parametrize("precision", ["int8x2", "bf16"])
def test_twin_equals_the_numpy_twin_on_planted_inputs(precision, rounding):
    layout = Layout(6000, 7, 4)
    walks = walks_needed(layout, 16)
    planted = plant(layout, 128, walks=walks, padded_vocab_size=6040, device="cuda", exact_bf16=precision == "bf16")
    found = reference.expected_walks(planted.head, planted.base_logits, planted.anchors, precision=precision, rounding=rounding)
    w1, w2 = (linear.weight.float().cpu().numpy() for linear in (planted.head.markov_w1, planted.head.markov_w2))
    bits, anchors = planted.base_logits.view(torch.uint16).cpu().numpy(), planted.anchors.cpu().numpy()
    if precision == "bf16":
        expected = reference.twin_walks_bf16(w2, w1, bits, anchors, vocab_size=6000, rounding=rounding)
    else:
        quantised = (*reference.twin_quantize_rows(w2), *reference.twin_quantize_latents(w1))
        expected = reference.twin_walks(*quantised, bits, anchors, vocab_size=6000, rounding=rounding)
    assert np.array_equal(found.tokens.cpu().numpy(), expected.tokens)
    assert np.array_equal(found.values.cpu().numpy(), expected.values, equal_nan=True)
    if rounding == "once":
        assert cover(expected.draft_ids, layout).complete, cover(expected.draft_ids, layout).describe()


def test_stepwise_walk_replays_from_a_graph_on_rewritten_inputs():
    head = MarkovHead.random(3000, 64, seed=2, device="cuda")
    walk = reference.StepwiseWalk(head)
    base = torch.randn(2, 5, 3000, device="cuda").to(torch.bfloat16)
    anchor = torch.tensor([5, 6], device="cuda")
    captured = walk.capture(base, anchor)
    for _ in range(3):
        base.copy_(torch.randn_like(base))
        anchor.random_(0, 3000)
        expected = walk(base, anchor)
        assert torch.equal(captured.replay(), expected)
