"""The kernel itself, on the host, against its twins: every kind of head, batches, rings, roundings, samples, and how it fails."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.wts_lab.emulation import EmulatedWalk  # noqa: E402
from wts_lab.abi import CONSTANTS, WalkSpec  # noqa: E402
from wts_lab.head_terms import position_terms  # noqa: E402
from wts_lab.heads import DominoHead, GatedHead, MarkovHead, RnnHead  # noqa: E402
from wts_lab.recurrent_twin import twin_head_walks  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402

GRID = 3
STEPS = 6
HIDDEN = 40


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


def spec(register=1, shared=1, streamed=0, entries=0, rows=1, rank=32, precision="int8x2", warps=2, **more):
    wide = more.get("sampling", False) or more.get("rounding") == "none"
    return WalkSpec(warps, register, shared, streamed, entries, rows, rank, precision, **{"wide": wide, **more})


def inputs(vocab, batch, positions, seed):
    generator = torch.Generator().manual_seed(seed)
    base = (1.5 * torch.randn(batch, positions, vocab, generator=generator)).to(torch.bfloat16)
    hidden = torch.randn(batch, positions, HIDDEN, generator=generator).to(torch.bfloat16)
    return base, torch.randint(0, vocab, (batch,), generator=generator), hidden


MARKOV = {
    "one-row": (spec(2, 1), 250, 1),
    "one-row-registers": (spec(3, 0), 250, 1),
    "one-row-shared": (spec(0, 3), 250, 1),
    "two-rows": (spec(2, 1, rows=2), 250, 2),
    "four-rows": (spec(2, 1, rows=4), 250, 3),
    "eight-rows": (spec(2, 1, rows=8), 250, 8),
    "thirty-two-rows": (spec(1, 2, rows=32), 250, 23),
    "streaming": (spec(0, 0, 3, 2), 250, 1),
    "streaming-eight-rows": (spec(0, 0, 3, 2, rows=8), 250, 7),
    "streaming-thirty-two-rows": (spec(0, 0, 3, 2, rows=32), 250, 30),
    "partial": (spec(1, 1, 3, 2, rank=128), 440, 1),
    "partial-four-rows": (spec(1, 1, 2, 1, rows=4, rank=128), 330, 4),
    "partial-eight-rows": (spec(1, 1, 2, 2, rows=8, rank=128), 330, 6),
    "many-slots": (spec(3, 2), 470, 1),
    "wide-words": (spec(2, 1, wide=True), 250, 1),
    "twice": (spec(2, 1, rounding="twice"), 250, 1),
    "none": (spec(2, 1, rounding="none"), 250, 1),
    "none-eight-rows": (spec(2, 1, rows=8, rounding="none"), 250, 8),
}


@pytest.mark.parametrize("name", MARKOV)
def test_tokens_and_logits_of_a_markov_walk_are_the_twins(name, folder):
    what, vocab, batch = MARKOV[name]
    head = MarkovHead.random(vocab, what.rank, seed=3)
    walk = EmulatedWalk(head, what, GRID, folder)
    for seed in range(4):
        base, anchors, _ = inputs(vocab, batch, STEPS, seed)
        kept = torch.zeros_like(base)
        twin = expected_walks(head, base, anchors, precision="int8x2", rounding=what.rounding, keep_logits=True)
        tokens = walk(base, anchors, logits_out=kept if seed % 2 else None, seed=seed)
        assert tokens.tolist() == twin.tokens.tolist()
        assert walk.workspace.control[CONSTANTS["kControlStatus"]] == CONSTANTS["kStatusClean"]
        if seed % 2:
            assert torch.equal(kept.view(torch.int16), twin.logits.view(torch.int16))
    assert int(walk.workspace.control[CONSTANTS["kControlEpoch"]]) == 4 * STEPS
