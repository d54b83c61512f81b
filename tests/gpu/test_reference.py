"""On a GPU: twin, planted inputs, head terms and the stepwise walk give what they give on a CPU; the walk replays from a graph."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.head import HEAD_KINDS, Head  # noqa: E402
from wts_lab import reference  # noqa: E402
from wts_lab.head_terms import position_terms, state_matrices, token_table  # noqa: E402
from wts_lab.heads import DominoHead, MarkovHead, random_head  # noqa: E402
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


VOCAB, POSITIONS, HIDDEN = 3000, 5, 320
SHAPES = {
    kind: Head(kind, kind, VOCAB, VOCAB, VOCAB + 8, 64, None if kind == "markov" else HIDDEN, 256 if kind == "domino" else None)
    for kind in HEAD_KINDS
}
SHAPES["pool"] = Head("pool", "domino", VOCAB, VOCAB, VOCAB + 8, 64, HIDDEN, 256, 200)


def walk_inputs(kind: str, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Base logits, anchors and, for heads that read them, hidden vectors, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(9)
    base = torch.randn(batch, POSITIONS, VOCAB + 8, device="cuda", generator=generator).to(torch.bfloat16)
    hidden = torch.randn(batch, POSITIONS, HIDDEN, device="cuda", generator=generator).to(torch.bfloat16)
    anchor = torch.randint(VOCAB, (batch,), device="cuda", generator=generator)
    return base, anchor, {} if kind == "markov" else {"hidden": hidden}


@pytest.mark.parametrize("kind", SHAPES)
def test_stepwise_walk_replays_from_a_graph_on_rewritten_inputs(kind):
    walk = reference.StepwiseWalk(random_head(SHAPES[kind], seed=2, device="cuda"))
    base, anchor, extra = walk_inputs(kind)
    captured = walk.capture(base, anchor, **extra)
    seen = []
    for _ in range(3):
        for tensor in (base, *extra.values()):
            tensor.copy_(torch.randn_like(tensor))
        anchor.random_(0, VOCAB)
        expected = walk(base, anchor, **extra)
        assert torch.equal(captured.replay(), expected)
        seen.append(expected.tolist())
    assert seen[0] != seen[1] != seen[2]


def test_a_captured_walk_samples_with_a_new_offset_each_time():
    walk = reference.StepwiseWalk(random_head(SHAPES["rnn"], seed=2, device="cuda"))
    base, anchor, extra = walk_inputs("rnn")
    temperatures, offset = torch.tensor([1.0, 0.0], device="cuda"), torch.tensor([17], device="cuda")
    captured = walk.capture(base, anchor, **extra, temperatures=temperatures, noise=(12345, offset))
    assert offset.item() == 17
    replayed = [captured.replay().clone() for _ in range(2)]
    assert offset.item() == 19
    offset.fill_(17)
    for found in replayed:
        assert torch.equal(found, walk(base, anchor, **extra, temperatures=temperatures, noise=(12345, offset)))
    assert not torch.equal(replayed[0][0], replayed[1][0]) and torch.equal(replayed[0][1], replayed[1][1])


@pytest.mark.parametrize("kind", SHAPES)
def test_stepwise_walk_in_float64_is_that_of_the_cpu(kind):
    # without rounding nothing depends on the order of sums; distinct base logits keep ties from the pool's edge
    base, anchor, extra = walk_inputs(kind)
    order = torch.stack([torch.randperm(VOCAB + 8, generator=torch.Generator().manual_seed(row)) for row in range(2)])
    base = ((order[:, None] % 256) / 64 - 2).to(torch.bfloat16).repeat(1, POSITIONS, 1).cuda()
    found = {}
    for device in ("cpu", "cuda"):
        head = random_head(SHAPES[kind], seed=2, device=device, dtype=torch.float64)
        if kind == "pool":
            head = head.with_candidate_pool(VOCAB)
        given = {name: tensor.to(device) for name, tensor in extra.items()}
        found[device] = reference.StepwiseWalk(head)(base.to(device), anchor.to(device), **given).cpu()
    assert torch.equal(found["cpu"], found["cuda"])


@pytest.mark.parametrize("kind", SHAPES)
def test_agreement_with_itself_is_nearly_1_whatever_else_is_in_the_batch(kind):
    head = random_head(SHAPES[kind], seed=2, device="cuda")
    walk, (base, anchor, extra) = reference.StepwiseWalk(head), walk_inputs(kind, batch=4)
    tokens = walk(base, anchor, **extra)
    options = {"first_step": head.first_step, **extra}
    assert reference.teacher_forced_agreement(walk, tokens, base, anchor, max_batch=4, **options) == 1.0
    # other batch sizes take other kernels, whose sums round otherwise: a step in a while may fall the other way
    assert reference.teacher_forced_agreement(walk, tokens, base, anchor, max_batch=1, **options) > 0.7


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_head_terms_are_those_of_the_cpu(kind):
    ours, theirs = (random_head(SHAPES[kind], seed=4, device=device) for device in ("cuda", "cpu"))
    moved = random_head(SHAPES[kind], seed=4).to("cuda").state_dict()
    assert all(torch.equal(moved[name], tensor) for name, tensor in ours.state_dict().items())
    table, expected = token_table(ours).cpu().float(), token_table(theirs).float()
    # sums in another order differ in fp32, which moves a few entries by one bf16 step
    torch.testing.assert_close(table, expected, rtol=2.0**-7, atol=1e-4)
    assert (table == expected).float().mean() > 0.98
    assert all(torch.equal(mine.cpu(), its) for mine, its in zip(state_matrices(ours), state_matrices(theirs), strict=True))
    if kind != "markov":
        hidden = walk_inputs(kind)[2]["hidden"]
        torch.testing.assert_close(position_terms(ours, hidden).cpu(), position_terms(theirs, hidden.cpu()), rtol=1e-4, atol=1e-4)
        one = position_terms(ours, hidden[:1, :1])
        torch.testing.assert_close(one.cpu(), position_terms(theirs, hidden[:1, :1].cpu()), rtol=1e-4, atol=1e-4)


def test_position_terms_capture_into_a_graph():
    head, hidden = random_head(SHAPES["rnn"], seed=4, device="cuda"), walk_inputs("rnn")[2]["hidden"]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        position_terms(head, hidden)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        terms = position_terms(head, hidden)
    hidden.copy_(torch.randn_like(hidden))
    graph.replay()
    torch.testing.assert_close(terms, position_terms(head, hidden), rtol=1e-5, atol=1e-5)


def test_a_large_token_table_is_made_without_a_large_temporary():
    rows, hidden, gru = 60_000, 512, 1024
    weights = [torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in ((rows, hidden), (3 * gru, hidden), (3 * gru, gru), (64, hidden + gru), (256, 64))]
    head = DominoHead(*weights)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    table = token_table(head)
    torch.cuda.synchronize()
    assert table.shape == (rows, 3 * gru)
    assert torch.cuda.max_memory_allocated() - before < table.numel() * 2 + (300 << 20), "an fp32 table would take 737 MB more"
