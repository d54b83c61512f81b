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
    "deep-ring": (spec(0, 0, 4, 4), 352, 1),  # base logits that are copied 16 bytes at a time, behind as many parts of tiles
    "deep-ring-four-rows": (spec(1, 1, 2, 2, rows=4), 352, 4),
    "warpgroups": (spec(2, 1, rows=8, warps=4, products="warpgroup"), 500, 7),
    "warpgroups-sixteen-rows": (spec(1, 2, rows=16, rank=256, warps=4, products="warpgroup"), 500, 13),
    "warpgroups-thirty-two-rows": (spec(1, 1, rows=32, rank=96, warps=8, products="warpgroup"), 700, 30),
    "warpgroups-streaming": (spec(0, 0, 3, 2, rows=8, rank=128, warps=4, products="warpgroup"), 500, 8),
    "warpgroups-partial": (spec(1, 1, 2, 1, rows=32, rank=128, warps=4, products="warpgroup"), 640, 21),
    "warpgroups-looping": (spec(0, 0, 4, 4, rows=32, rank=320, warps=4, products="warpgroup"), 700, 29),
    "warpgroups-looping-partial": (spec(1, 1, 3, 4, rows=32, rank=320, warps=4, products="warpgroup"), 900, 32),
    "warpgroups-looping-many-slots": (spec(1, 1, 10, 2, rows=32, rank=96, warps=4, products="warpgroup"), 2200, 18),
    "warpgroups-looping-wide-words": (spec(0, 0, 3, 4, rows=32, rank=320, warps=4, rounding="none", products="warpgroup"), 560, 32),
    "warpgroups-one-streamed-slot": (spec(0, 0, 1, 4, rows=32, rank=320, warps=4, products="warpgroup"), 190, 32),
    "warpgroups-wide-words": (spec(2, 1, rows=8, warps=4, rounding="none", products="warpgroup"), 500, 8),
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


HEADS = {
    "gated": (GatedHead, spec(2, 1, head="gated"), 1),
    "gated-four-rows": (GatedHead, spec(2, 1, rows=4, head="gated"), 3),
    "rnn": (RnnHead, spec(2, 1, head="rnn", state_rows=32), 1),
    "rnn-matrix-in-part": (RnnHead, spec(2, 1, rows=2, head="rnn", state_rows=5), 2),
    "rnn-eight-rows": (RnnHead, spec(2, 1, rows=8, head="rnn", state_rows=32), 7),
    "domino": (DominoHead, spec(2, 1, head="domino", gru=24, state_rows=24, projector_rows=11), 1),
    "domino-matrix-in-part": (DominoHead, spec(2, 1, rows=4, head="domino", gru=24, state_rows=7, projector_rows=3), 4),
    "domino-streaming": (DominoHead, spec(0, 0, 3, 2, head="domino", gru=24, state_rows=24, projector_rows=11), 1),
}


@pytest.mark.parametrize("name", HEADS)
def test_tokens_of_every_head_are_the_twins(name, folder):
    kind, what, batch = HEADS[name]
    sizes = {"hidden_size": HIDDEN} | ({"gru_size": what.gru} if what.gru else {})
    head = kind.random(250, what.rank, seed=4, **sizes)
    walk = EmulatedWalk(head, what, GRID, folder)
    for seed in range(3):
        base, anchors, hidden = inputs(250, batch, STEPS + head.first_step, seed)
        twin = twin_head_walks(head, base, anchors, position_terms(head, hidden))
        assert walk(base, anchors, hidden=hidden, seed=seed).tolist() == twin.tokens.tolist()
        assert walk.workspace.control[CONSTANTS["kControlStatus"]] == CONSTANTS["kStatusClean"]


SAMPLED = {
    "one-row": (spec(2, 1, sampling=True), 1),
    "four-rows": (spec(2, 1, rows=4, sampling=True), 4),
    "eight-rows": (spec(2, 1, rows=8, sampling=True), 6),
    "streaming-eight-rows": (spec(0, 0, 3, 2, rows=8, sampling=True), 6),
    "streaming-twelve-rows": (spec(0, 0, 3, 2, rows=12, sampling=True), 11),
    "partial-eight-rows": (spec(1, 1, 1, 1, rows=8, sampling=True), 8),
    "partial-thirty-two-rows": (spec(1, 1, 2, 2, rows=32, sampling=True), 21),
    "fp32-thirty-two-rows": (spec(1, 0, 2, 1, rows=32, sampling=True, rounding="none"), 32),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_rows_draw_the_noise_of_the_stream_and_greedy_rows_none(name, folder):
    what, batch = SAMPLED[name]
    head = MarkovHead.random(250, what.rank, seed=3)
    walk = EmulatedWalk(head, what, GRID, folder)
    base, anchors, _ = inputs(250, batch, STEPS, 9)
    temperatures = torch.tensor([1.0, 0.0, 0.5, 1.0, 2.0, 0.0]).repeat(6)[:batch]
    offset = torch.tensor([41])
    for call in range(2):
        kept = torch.zeros_like(base)
        options = {"temperatures": temperatures, "noise": (0x0123456789ABCDEF, offset.clone()), "rows": torch.arange(batch), "keep_logits": True}
        twin = expected_walks(head, base, anchors, precision="int8x2", rounding=what.rounding, **options)
        assert walk(base, anchors, temperatures=temperatures, noise=(0x0123456789ABCDEF, offset), logits_out=kept).tolist() == twin.tokens.tolist()
        assert torch.equal(kept.view(torch.int16), twin.logits.view(torch.int16))
        assert offset.tolist() == [42 + call]


def test_noise_is_not_drawn_over_while_a_warp_still_reads_it(folder):
    head = MarkovHead.random(500, 128, seed=3)
    walk = EmulatedWalk(head, spec(4, 0, rank=128, warps=8, sampling=True), 1, folder)
    for seed in range(6):
        base, anchors, _ = inputs(500, 1, STEPS, seed)
        options = {"temperatures": torch.ones(1), "noise": (77, torch.tensor([seed]))}
        twin = expected_walks(head, base, anchors, precision="int8x2", rows=torch.arange(1), **options)
        assert walk(base, anchors, seed=seed, **options).tolist() == twin.tokens.tolist()


def test_an_odd_vocabulary_is_walked_in_pairs(folder):
    head = MarkovHead.random(247, 32, seed=5)
    walk = EmulatedWalk(head, spec(2, 1, rows=8), GRID, folder)
    base, anchors, _ = inputs(247, 5, STEPS, 2)
    twin = expected_walks(head, base, anchors, precision="int8x2")
    assert walk(base, anchors).tolist() == twin.tokens.tolist()


@pytest.mark.parametrize("vocab", [1, 15, 241, 247])
def test_odd_vocabularies_strides_maps_and_padding(vocab, folder):
    head = MarkovHead.random(vocab, 32, target_vocab_size=vocab + 9, padded_vocab_size=vocab + 30, seed=5)
    to_target = torch.randperm(vocab + 9, generator=torch.Generator().manual_seed(1))[:vocab]
    walk = EmulatedWalk(head, spec(2, 1), min(GRID, -(-vocab // 16)), folder, draft_to_target=to_target)
    base, _, _ = inputs(vocab, 1, STEPS, 2)
    wide = torch.full((1, STEPS, vocab + 3), 1e4, dtype=torch.bfloat16)
    wide[:, :, :vocab] = base
    anchors = torch.tensor([vocab + 8])
    twin = expected_walks(head, base, anchors, precision="int8x2", draft_to_target=to_target)
    assert walk(wide, anchors).tolist() == twin.tokens.tolist()


def test_bf16_partial_walks_equal_the_exact_twin(folder):
    whole = torch.randint(-8, 9, (260, 64), generator=torch.Generator().manual_seed(7)) / 8
    head = MarkovHead(whole.to(torch.bfloat16), whole.flip(0).contiguous().to(torch.bfloat16), vocab_size=250)
    walk = EmulatedWalk(head, spec(1, 1, 1, 1, rank=64, precision="bf16"), GRID, folder)
    base, anchors, _ = inputs(250, 1, STEPS, 3)
    twin = expected_walks(head, base, anchors, precision="bf16")
    assert walk(base, anchors).tolist() == twin.tokens.tolist()


def test_ties_nan_and_minus_infinity_follow_argmax(folder):
    head = MarkovHead(torch.zeros(250, 32, dtype=torch.bfloat16), torch.zeros(250, 32, dtype=torch.bfloat16))
    walk = EmulatedWalk(head, spec(2, 1), GRID, folder)
    base = torch.full((1, 5, 250), -1.0, dtype=torch.bfloat16)
    base[0, 0, [77, 78, 200]] = 2.0
    base[0, 1, 249] = 0.0
    base[0, 1, 31] = -0.0
    base[0, 2, [100, 30]] = float("nan")
    base[0, 2, 3] = float("inf")
    base[0, 3] = float("-inf")
    base[0, 4, 5:] = -2.0
    assert walk(base, torch.tensor([0])).tolist() == [[77, 31, 30, 0, 0]]


@pytest.mark.parametrize("temperatures", [[0.0] * 8, [1.0] * 8], ids=["greedy", "sampled"])
def test_streamed_rows_that_only_exact_values_tell_apart_are_evaluated(temperatures, folder):
    """Equal logits, infinities, NaN and rows that are not there, in slots that are read once and kept nowhere."""
    head = MarkovHead(torch.zeros(250, 32, dtype=torch.bfloat16), torch.zeros(250, 32, dtype=torch.bfloat16))
    walk = EmulatedWalk(head, spec(0, 0, 3, 2, rows=8, sampling=True), GRID, folder)
    base = torch.full((5, 7, 250), -1.0, dtype=torch.bfloat16)
    base[:, 0, [77, 78, 200]] = 200.0
    base[:, 1, 249] = 0.0
    base[:, 1, 31] = -0.0
    base[:, 2, [100, 30]] = float("nan")
    base[:, 2, 3] = float("inf")
    base[:, 3] = float("-inf")
    base[:, 4, 5:] = float("-inf")
    base[:, 5, [8, 9, 120]] = float("inf")
    base[1:, 6] = 1e4 * torch.randn(4, 250, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    options = {"temperatures": torch.tensor(temperatures[:5]), "noise": (3, torch.tensor([9]))}
    twin = expected_walks(head, base, torch.zeros(5, dtype=torch.int64), precision="int8x2", rows=torch.arange(5), **options)
    assert walk(base, torch.zeros(5, dtype=torch.int64), **options).tolist() == twin.tokens.tolist()
    assert [column.tolist() for column in twin.tokens.T[2:4]] == [[30] * 5, [0] * 5]


def test_an_anchor_that_is_no_target_id_marks_its_row_alone(folder):
    head = MarkovHead.random(250, 32, seed=3)
    walk = EmulatedWalk(head, spec(2, 1, rows=4), GRID, folder)
    base, anchors, _ = inputs(250, 4, STEPS, 1)
    anchors[2] = 250
    tokens = walk(base, anchors)
    right = expected_walks(head, base[[0, 1, 3]], anchors[[0, 1, 3]], precision="int8x2").tokens
    assert tokens[[0, 1, 3]].tolist() == right.tolist() and tokens[2].tolist() == [0] * STEPS
    control = walk.workspace.control
    assert control[CONSTANTS["kControlStatus"]] == CONSTANTS["kStatusAnchor"] and control[CONSTANTS["kControlBadRows"]] == 1 << 2


def test_a_block_that_never_comes_stalls_the_walk_and_the_workspace(folder):
    head = MarkovHead.random(250, 32, seed=3)
    walk = EmulatedWalk(head, spec(2, 1), GRID, folder)
    base, anchors, _ = inputs(250, 1, STEPS, 1)
    assert walk(base, anchors, expected_blocks=5, max_polls=50).tolist() == [[0] * STEPS]
    control = walk.workspace.control
    assert control[CONSTANTS["kControlStatus"]] == CONSTANTS["kStatusStalled"] and control[CONSTANTS["kControlDetail"]] == 0
    assert control[CONSTANTS["kControlMissing"]] == 0b11  # block 3 of the first unit of four, and the second unit
    assert walk(base, anchors).tolist() == [[0] * STEPS], "inert until it is cleared"
    walk.workspace.clear()
    assert walk(base, anchors).tolist() == expected_walks(head, base, anchors, precision="int8x2").tokens.tolist()


def test_many_orders_of_events_give_one_answer_past_the_epoch_field(folder):
    head = MarkovHead.random(250, 32, seed=3)
    walk = EmulatedWalk(head, spec(2, 1), GRID, folder)
    base, anchors, _ = inputs(250, 1, STEPS, 1)
    expected = expected_walks(head, base, anchors, precision="int8x2").tokens.tolist()
    for seed in range(40):  # 240 epochs: the 5-bit field wraps seven times
        assert walk(base, anchors, seed=seed).tolist() == expected
