"""Domino walks over candidate pools on a real GPU: tokens against the twin's over masked base logits, and against the stepwise walk."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from wts_lab.head_terms import position_terms  # noqa: E402
from wts_lab.heads import DominoHead  # noqa: E402
from wts_lab.recurrent_twin import twin_head_walks  # noqa: E402
from wts_lab.stepwise import StepwiseWalk, candidate_ids  # noqa: E402
from wts_lab.walk import AnchorOutOfRange, Walk  # noqa: E402

STEPS = 6
VOCAB, RANK, HIDDEN, GRU = 20_011, 64, 96, 64
SHAPES = {
    # vocabulary, rank, GRU size, pool, largest batch, batch
    "released": (151_936, 256, 1024, 2048, 1, 1),
    "3-of-4": (VOCAB, RANK, GRU, 256, 4, 3),
    "one-tile": (VOCAB, RANK, GRU, 15, 2, 2),
    "one-candidate": (VOCAB, RANK, GRU, 1, 2, 2),
    "everything": (500, RANK, GRU, 600, 2, 2),
}


def make_head(vocab=VOCAB, rank=RANK, gru=GRU, pool=256, **sizes):
    """A random head whose products with hidden vectors of −1, 0 and 1 are exact, however a library orders its sums."""
    head = DominoHead.random(vocab, rank, hidden_size=HIDDEN, gru_size=gru, candidate_pool=pool, device="cuda", **sizes)
    first = head.embed_proj[0].weight
    first.data[:, :HIDDEN] = (first[:, :HIDDEN] * 256).round().clamp(-255, 255) / 256
    return head


def inputs(head, walks, seed=0):
    """base_logits, anchors and hidden vectors."""
    generator = torch.Generator("cuda").manual_seed(seed)
    base = torch.randn(walks, STEPS + 1, head.padded_vocab_size, generator=generator, device="cuda").bfloat16()
    anchors = torch.randint(head.target_vocab_size, (walks,), generator=generator, device="cuda")
    hidden = torch.randint(-1, 2, (walks, STEPS + 1, HIDDEN), generator=generator, device="cuda").bfloat16()
    return base, anchors, hidden


def expected(head, base, anchors, hidden, batch, **options):
    """The twin's tokens where steps find −inf outside of the pool, chosen for as many rows at once as the walk does."""
    masked = base[:, :, : head.vocab_size].clone()
    for rows in masked.split(batch):
        inside = torch.zeros_like(rows[:, 0], dtype=torch.bool).scatter_(1, candidate_ids(rows[:, 1:], head.candidate_pool), True)
        rows[:, 1:].masked_fill_(~inside[:, None], float("-inf"))
    return twin_head_walks(head, masked, anchors, position_terms(head, hidden), **options).tokens


def run(walk, base, anchors, hidden, batch):
    """Tokens of all walks, `batch` a call."""
    parts = zip(base.split(batch), anchors.split(batch), hidden.split(batch), strict=True)
    tokens = torch.cat([walk(*part[:2], hidden=part[2]) for part in parts])
    walk.check()
    return tokens


def differing(found, wanted):
    """Rows and positions where two token tensors differ: what a failure should print."""
    return (found != wanted).nonzero().tolist()[:8]


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_equal_the_twins(name):
    *shape, max_batch, batch = SHAPES[name]
    head = make_head(*shape)
    given = inputs(head, 12)
    wanted = expected(head, *given, batch)
    walk = Walk(head, steps=STEPS, max_batch=max_batch, mode="resident")
    assert differing(run(walk, *given, batch), wanted) == []
    assert differing(run(walk, *given, batch), wanted) == [], "again, from the state the last call left"
    assert walk.spec.rows == 1 and walk.placement.residency == 1.0


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_padded_and_mapped_vocabularies_in_every_rounding(mode, rounding):
    head = make_head(padded_vocab_size=VOCAB + 9, target_vocab_size=VOCAB + 100, seed=1)
    mapping = torch.randperm(VOCAB + 100, generator=torch.Generator().manual_seed(2))[:VOCAB].cuda()
    options = {"rounding": rounding, "draft_to_target": mapping}
    given = inputs(head, 3, seed=3)
    walk = Walk(head, steps=STEPS, max_batch=4, mode=mode, **options)
    assert differing(run(walk, *given, 3), expected(head, *given, 3, **options)) == []


def test_bf16_equals_the_twin_where_sums_are_exact():
    head = make_head()
    rows = torch.arange(VOCAB, device="cuda")
    signs = torch.tensor([1.0, -1.0, 2.0, -0.5], dtype=torch.bfloat16, device="cuda")
    head.projection.data = torch.zeros_like(head.projection)
    head.projection.data[rows, rows % RANK] = signs[rows // RANK % 4]
    given = inputs(head, 6)
    walk = Walk(head, steps=STEPS, max_batch=2, mode="streaming", precision="bf16")
    assert differing(run(walk, *given, 2), expected(head, *given, 2, precision="bf16")) == []


def test_ties_go_to_the_lowest_candidate_as_in_the_stepwise_walk():
    """Without corrections only base logits decide: whole numbers, of which most are equal."""
    head = make_head()
    head.projection.data.zero_()
    base, anchors, hidden = inputs(head, 3)
    base.mul_(2).round_()
    walk = Walk(head, steps=STEPS, max_batch=3, mode="resident")
    tokens = run(walk, base, anchors, hidden, 3)
    assert differing(tokens, StepwiseWalk(head)(base, anchors, hidden=hidden)) == []
    assert differing(tokens[:, 0], base[:, 0].float().argmax(-1)) == []


def test_it_nearly_always_chooses_as_the_stepwise_walk():
    head = make_head()
    base, anchors, hidden = inputs(head, 4)
    tokens = run(Walk(head, steps=STEPS, max_batch=4, mode="resident"), base, anchors, hidden, 4)
    stepwise = StepwiseWalk(head)(base, anchors, hidden=hidden)
    assert torch.equal(tokens[:, 0], stepwise[:, 0]) and (tokens == stepwise).float().mean() > 0.5


def test_a_graph_replays_with_new_inputs_and_other_candidates():
    head = make_head()
    first, second = inputs(head, 3, seed=4), inputs(head, 3, seed=5)
    walk = Walk(head, steps=STEPS, max_batch=4, mode="resident")
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
        assert differing(tokens, expected(head, *given, 3)) == []


def test_shorter_calls_and_position_0_alone():
    head = make_head()
    base, anchors, hidden = inputs(head, 2)
    walk = Walk(head, steps=STEPS, max_batch=2, mode="resident")
    for positions in (1, 2, 4):
        part = base[:, :positions], anchors, hidden[:, :positions]
        tokens = run(walk, *part, 2)
        wanted = base[:, :1].float().argmax(-1) if positions == 1 else expected(head, *part, 2)
        assert differing(tokens, wanted) == []


def test_an_anchor_out_of_range_is_told_by_its_batch_row():
    head = make_head()
    base, anchors, hidden = inputs(head, 4)
    walk = Walk(head, steps=STEPS, max_batch=4, mode="resident")
    good = run(walk, base, anchors, hidden, 4)
    for row, wrong in ((2, head.target_vocab_size), (1, -1), (0, 1 << 40)):
        bad = anchors.clone()
        bad[row] = wrong
        tokens = walk(base, bad, hidden=hidden)
        with pytest.raises(AnchorOutOfRange, match=f"row {row} "):
            walk.check()
        others = [other for other in range(4) if other != row]
        assert not tokens[row].any() and torch.equal(tokens[others], good[others])
    walk.check()


def test_what_does_not_fit_is_refused_before_anything_is_gathered():
    head = make_head()
    base, anchors, hidden = inputs(head, 3)
    walk = Walk(head, steps=STEPS, max_batch=2, mode="resident")
    part = base[:2], anchors[:2]
    with pytest.raises(ValueError, match="leave logits_out out"):
        walk(*part, hidden=hidden[:2], logits_out=torch.empty_like(base[:2]))
    with pytest.raises(ValueError, match="3 batch rows; this walk was prepared for 1 to 2"):
        walk(base, anchors, hidden=hidden)
    with pytest.raises(ValueError, match="columns; the vocabulary needs at least 20011"):
        walk(base[:2, :, :300], anchors[:2], hidden=hidden[:2])
    with pytest.raises(ValueError, match="anchor has shape"):
        walk(base[:2], anchors, hidden=hidden[:2])
    with pytest.raises(ValueError, match="greedily"):
        Walk(head, steps=STEPS, mode="resident", sampling=True)
