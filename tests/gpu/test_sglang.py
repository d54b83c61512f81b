"""The fused walk beside SGLang's own kernels: one stream of noise, equal tokens where corrections are exact, shares elsewhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.exact_heads import one_hot_head  # noqa: E402
from wts_lab.engines.sglang import SglangWalk, load_step_kernels  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.stepwise import teacher_forced_agreement  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402

VOCAB, RANK, STEPS = 151_936, 256, 16
KEY = 0x7EDCBA9876543210

GREEDY = {
    # path, our rounding, precision, mode, batch: what must agree where corrections are exact
    "greedy-int8x2": ("greedy", "none", "int8x2", "resident", 1),
    "greedy-bf16": ("greedy", "none", "bf16", "streaming", 1),
    "sample-int8x2": ("sample", "twice", "int8x2", "resident", 4),
    "sample-bf16": ("sample", "twice", "bf16", "streaming", 4),
}


def make_inputs(vocab: int, batch: int, steps: int = STEPS, seed: int = 1):
    generator = torch.Generator("cuda").manual_seed(seed)
    base = (2 * torch.randn(batch, steps, vocab, generator=generator, device="cuda")).to(torch.bfloat16)
    return base, torch.randint(vocab, (batch,), generator=generator, device="cuda")


def make_walk(head, name: str):
    _, rounding, precision, mode, batch = GREEDY[name]
    return Walk(head, steps=STEPS, max_batch=batch, mode=mode, precision=precision, rounding=rounding)


@pytest.mark.parametrize(("vocab", "rank", "batch"), [(VOCAB, RANK, 1), (VOCAB, RANK, 4), (VOCAB, RANK, 32), (40_000, 64, 4), (30_007, 96, 4)])
def test_sampled_tokens_equal_its_samplers_on_the_same_logits(vocab, rank, batch, sglang_root):
    """Its Triton kernel draws from the logits that our walk kept, with a bias of zero, at the same key, offset, row and step."""
    sampler = load_step_kernels(sglang_root).sample
    head = MarkovHead.random(vocab, rank, seed=2, device="cuda")
    walk = Walk(head, steps=7, max_batch=batch, mode="resident", sampling=True)
    base, anchor = make_inputs(vocab, batch, steps=7)
    no_bias = torch.zeros(batch, vocab, dtype=torch.bfloat16, device="cuda")
    logits = torch.empty(batch, 7, vocab, dtype=torch.bfloat16, device="cuda")
    offset = torch.tensor([2**32 - 3], device="cuda")
    mixed = torch.tensor([0.7, 1.0, 1.3, 0.0], device="cuda").repeat(8)[:batch]
    for temperatures in (*(torch.full((batch,), value, device="cuda") for value in (0.7, 1.0, 1.3)), mixed):
        before = offset.clone()
        tokens = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset), logits_out=logits)
        walk.check()
        theirs = [
            sampler.triton(
                base_logits=logits[:, step], bias=no_bias, temperatures=temperatures, key=KEY, offset=before, step=step, step_dtype=torch.bfloat16
            )
            for step in range(7)
        ]
        wrong = (tokens != torch.stack(theirs, 1)).nonzero().tolist()
        assert not wrong, f"at temperatures {temperatures.unique().tolist()} {len(wrong)} tokens differ, first at (row, step) {wrong[0]}"
        assert offset.item() == before.item() + 1


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_equal_its_own_where_corrections_are_exact(name, sglang_root):
    path, *_, batch = GREEDY[name]
    head = one_hot_head(VOCAB, RANK, seed=3, device="cuda")
    walk, theirs = make_walk(head, name), SglangWalk(head, path, root=sglang_root)
    assert theirs.rounding == GREEDY[name][1]
    for seed in range(8):
        base, anchor = make_inputs(VOCAB, batch, seed=seed)
        wrong = (walk(base, anchor) != theirs(base, anchor)).nonzero().tolist()
        assert not wrong, f"inputs {seed}: {len(wrong)} tokens differ, first at (row, step) {wrong[0]}"
    walk.check()


@pytest.mark.parametrize("name", GREEDY)
def test_share_of_equal_steps_elsewhere_is_reported(name, sglang_root, record_property, capsys):
    path, *_, batch = GREEDY[name]
    head = MarkovHead.random(VOCAB, RANK, seed=4, device="cuda")
    walk, theirs = make_walk(head, name), SglangWalk(head, path, root=sglang_root)
    shares, prefixes = [], []
    for seed in range(8):
        base, anchor = make_inputs(VOCAB, batch, seed=seed)
        reference = theirs(base, anchor)
        shares.append(teacher_forced_agreement(walk, reference, base, anchor, max_batch=batch))
        equal = (walk(base, anchor) == reference).long()
        prefixes.append(equal.cumprod(dim=1).sum(dim=1).double().mean().item())
    walk.check()
    share, prefix = sum(shares) / len(shares), sum(prefixes) / len(prefixes)
    record_property("share_of_equal_steps", share)
    record_property("equal_prefix_steps", prefix)
    with capsys.disabled():
        print(f"\n{name}: {share:.4f} of steps equal SGLang's (teacher-forced); free-running prefix {prefix:.2f} of {STEPS} steps")
    assert share > 0.9


def test_sampled_walks_equal_its_whole_walk_where_corrections_are_exact(sglang_root):
    head = one_hot_head(VOCAB, RANK, seed=5, device="cuda")
    walk, theirs = Walk(head, steps=STEPS, max_batch=4, mode="resident", sampling=True), SglangWalk(head, "sample", root=sglang_root)
    temperatures = torch.tensor([0.7, 1.0, 1.3, 0.0], device="cuda")
    ours_at, theirs_at = (torch.tensor([50], device="cuda") for _ in range(2))
    kept, expected = (torch.empty(4, STEPS, VOCAB, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for seed in range(3):
        base, anchor = make_inputs(VOCAB, 4, seed=seed)
        tokens = walk(base, anchor, temperatures=temperatures, noise=(KEY, ours_at), logits_out=kept)
        assert torch.equal(tokens, theirs(base, anchor, temperatures=temperatures, noise=(KEY, theirs_at), logits_out=expected))
        assert torch.equal(kept, expected) and ours_at.item() == theirs_at.item() == 51 + seed
    walk.check()


@pytest.mark.parametrize("path", ["greedy", "sample"])
def test_its_walk_replays_from_a_graph_on_rewritten_inputs(path, sglang_root):
    head = MarkovHead.random(3000, 64, seed=6, device="cuda")
    walk = SglangWalk(head, path, root=sglang_root)
    base, anchor = make_inputs(3000, 1, steps=5)
    walk(base, anchor)  # compiles
    tokens = torch.empty((1, 5), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk(base, anchor, tokens_out=tokens)
    for _ in range(3):
        base.copy_(torch.randn_like(base))
        anchor.random_(0, 3000)
        graph.replay()
        assert torch.equal(tokens, walk(base, anchor))
