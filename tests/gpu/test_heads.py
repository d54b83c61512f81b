"""Gated, RNN and Domino walks on a real GPU: tokens and every kept logit against the twin's, bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from wts_lab import recurrent_twin  # noqa: E402
from wts_lab.head_terms import position_terms  # noqa: E402
from wts_lab.heads import DominoHead, GatedHead, RnnHead  # noqa: E402
from wts_lab.recurrent_twin import twin_head_walks  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402

FULL_V = 151_936
STEPS = 6
CLASSES = {"gated": GatedHead, "rnn": RnnHead, "domino": DominoHead}
SHAPES = {
    # kind, vocabulary, rank, hidden size, GRU size, largest batch, batch
    "gated-full": ("gated", FULL_V, 256, 2560, None, 1, 1),
    "gated-3-of-8": ("gated", 30_007, 64, 96, None, 8, 3),
    "gated-wide-32": ("gated", 40_000, 512, 96, None, 32, 32),
    "gated-few-words": ("gated", 5, 64, 96, None, 2, 2),
    "rnn-full": ("rnn", FULL_V, 256, 2560, None, 1, 1),
    "rnn-odd-8": ("rnn", 20_011, 96, 96, None, 8, 8),
    "rnn-wide-3-of-4": ("rnn", 40_000, 512, 96, None, 4, 3),
    "rnn-few-words-32": ("rnn", 5, 64, 96, None, 32, 32),
    "domino-full": ("domino", FULL_V, 256, 96, 1024, 1, 1),
    "domino-hidden-3-of-4": ("domino", 20_011, 64, 2560, 64, 4, 3),
    "domino-32": ("domino", 8_009, 128, 96, 1024, 32, 32),
    "domino-few-words-8": ("domino", 5, 64, 96, 264, 8, 8),
}
KINDS = {"gated": "gated-3-of-8", "rnn": "rnn-odd-8", "domino": "domino-hidden-3-of-4"}


def make_head(kind, vocab, rank, hidden, gru, **sizes):
    """A random head whose products with hidden vectors of −1, 0 and 1 are exact: position terms then do not depend on how a library
    orders its sums, which may differ between one call and many."""
    sizes |= {"gru_size": gru} if gru else {}
    head = CLASSES[kind].random(vocab, rank, hidden_size=hidden, device="cuda", **sizes)
    first = head.embed_proj[0] if kind == "domino" else head.gate_proj if kind == "gated" else head.joint_proj
    columns = slice(2 * rank, None) if kind == "rnn" else slice(None, hidden)
    first.weight.data[:, columns] = (first.weight[:, columns] * 256).round().clamp(-255, 255) / 256
    if first.bias is not None:
        first.bias.data = (first.bias * 256).round().clamp(-255, 255) / 256
    return head


def inputs(head, walks, seed=0):
    """base_logits, anchors and hidden vectors of many walks."""
    generator = torch.Generator("cuda").manual_seed(seed)
    positions = STEPS + head.first_step
    base = torch.randn(walks, positions, head.padded_vocab_size, generator=generator, device="cuda").bfloat16()
    anchors = torch.randint(head.target_vocab_size, (walks,), generator=generator, device="cuda")
    hidden = torch.randint(-1, 2, (walks, positions, head.hidden_size), generator=generator, device="cuda").bfloat16()
    return base, anchors, hidden


def run(walk, base, anchors, hidden, batch, **more):
    """Tokens of all walks, `batch` a call."""
    parts = zip(base.split(batch), anchors.split(batch), hidden.split(batch), strict=True)
    tokens = torch.cat([walk(*part[:2], hidden=part[2], **more) for part in parts])
    walk.check()
    return tokens


def differing(found, expected):
    """Rows and positions where two token tensors differ: what a failure should print."""
    return (found != expected).nonzero().tolist()[:8]


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_equal_the_twins(name):
    *shape, max_batch, batch = SHAPES[name]
    head = make_head(*shape)
    walks = batch * max(4, 24 // batch)
    base, anchors, hidden = inputs(head, walks)
    expected = twin_head_walks(head, base, anchors, position_terms(head, hidden)).tokens
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="resident")
    assert differing(run(walk, base, anchors, hidden, batch), expected) == []
    assert differing(run(walk, base, anchors, hidden, batch), expected) == [], "again, from the state the last call left"
    assert shape[1] <= 5 or len(expected.unique()) > walks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
def test_every_logit_equals_the_twins(kind, rounding):
    *shape, max_batch, batch = SHAPES[KINDS[kind]]
    head = make_head(*shape, padded_vocab_size=shape[1] + 9, target_vocab_size=shape[1] + 100, seed=1)
    mapping = torch.randperm(shape[1] + 100, generator=torch.Generator().manual_seed(2))[: shape[1]].cuda()
    base, anchors, hidden = inputs(head, batch, seed=3)
    options = {"rounding": rounding, "draft_to_target": mapping}
    expected = twin_head_walks(head, base, anchors, position_terms(head, hidden), keep_logits=True, **options)
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="streaming", **options)
    logits = torch.empty_like(expected.logits)
    tokens = run(walk, base, anchors, hidden, batch, logits_out=logits)
    for position in range(base.shape[1]):
        same = logits[:, position].view(torch.int16) == expected.logits[:, position].view(torch.int16)
        assert bool(same.all()), f"position {position}: {int((~same).sum())} logits differ, first at {(~same).nonzero()[0].tolist()}"
    assert differing(tokens, expected.tokens) == []


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_equals_the_twin_where_sums_are_exact(kind):
    *shape, max_batch, batch = SHAPES[KINDS[kind]]
    head = make_head(*shape)
    rank = shape[2]
    signs = torch.tensor([1.0, -1.0, 2.0, -0.5], dtype=torch.bfloat16, device="cuda")
    rows = torch.arange(shape[1], device="cuda")
    head.projection.data = torch.zeros_like(head.projection)
    head.projection.data[rows, rows % rank] = signs[rows // rank % 4]
    base, anchors, hidden = inputs(head, 4 * batch)
    expected = twin_head_walks(head, base, anchors, position_terms(head, hidden), precision="bf16").tokens
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="streaming", precision="bf16")
    assert differing(run(walk, base, anchors, hidden, batch), expected) == []


def test_a_sampled_rnn_walk_equals_the_twin():
    *shape, max_batch, batch = SHAPES["rnn-odd-8"]
    head = make_head(*shape)
    base, anchors, hidden = inputs(head, batch)
    temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 1.0, 4.0], device="cuda")
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="resident", sampling=True)
    offset = torch.tensor([7], device="cuda")
    tokens = run(walk, base, anchors, hidden, batch, temperatures=temperatures, noise=(1234, offset))
    expected = twin_head_walks(
        head, base, anchors, position_terms(head, hidden), temperatures=temperatures, noise=(1234, 7), rows=torch.arange(batch)
    ).tokens
    assert offset.item() == 8
    assert differing(tokens, expected) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_replays_with_new_inputs(kind):
    *shape, max_batch, batch = SHAPES[KINDS[kind]]
    head = make_head(*shape)
    first, second = inputs(head, batch, seed=4), inputs(head, batch, seed=5)
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="resident")
    static = [tensor.clone() for tensor in first]
    tokens = walk(static[0], static[1], hidden=static[2])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk(static[0], static[1], hidden=static[2], tokens_out=tokens)
    for given in (second, first, second):
        for tensor, values in zip(static, given, strict=True):
            tensor.copy_(values)
        graph.replay()
        walk.check()
        expected = twin_head_walks(head, *given[:2], position_terms(head, given[2])).tokens
        assert differing(tokens, expected) == []


def test_domino_position_0_is_the_argmax_of_the_base_logits():
    *shape, max_batch, batch = SHAPES["domino-few-words-8"]
    head = make_head(*shape)
    base, anchors, hidden = inputs(head, batch)
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="resident")
    tokens = walk(base, anchors, hidden=hidden)
    assert tokens.shape == (batch, STEPS + 1)
    assert torch.equal(tokens[:, 0], base[:, 0].float().argmax(dim=1))
    hidden[:, 0] = float("nan")
    assert torch.equal(walk(base, anchors, hidden=hidden), tokens), "the hidden vector of position 0 is not used"


def test_the_twin_is_the_same_on_both_devices():
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1 << 20, generator=generator) * torch.exp2(torch.randint(-30, 7, (1 << 20,), generator=generator).float())
    for function in (recurrent_twin.sigmoid, recurrent_twin.tanh, recurrent_twin.silu):
        assert torch.equal(function(x), function(x.cuda()).cpu())
    matrix, state = torch.randn(300, 264, generator=generator).bfloat16(), torch.randn(5, 264, generator=generator).bfloat16().float()
    assert torch.equal(recurrent_twin.state_products(matrix, state), recurrent_twin.state_products(matrix.cuda(), state.cuda()).cpu())
