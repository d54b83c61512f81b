"""The walk on a real GPU: its tokens against the twin's, on planted inputs; its refusals, its stalls, its repeats."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.placement import Placement  # noqa: E402
from cost_model.workload import EXCHANGES  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.planting import Layout, cover, plant, walks_needed  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402
from wts_lab.walk import AnchorOutOfRange, LaunchRefused, Walk, WalkStalled  # noqa: E402

FULL_V = 151_936


def placed(warps, register, shared, streamed, staging):
    return Placement(warps, *(warps * slots for slots in (register, shared, streamed, staging)))


INSTANTIATIONS = {
    # vocabulary, rank, mode, precision, placement (None: the planner's), batch rows
    "resident-default": (FULL_V, 256, "resident", "int8x2", None, 1),
    "resident-registers-6": (FULL_V, 256, "resident", "int8x2", placed(8, 6, 3, 0, 0), 1),
    "resident-12-warps": (FULL_V, 256, "resident", "int8x2", placed(12, 2, 4, 0, 0), 1),
    "resident-129280": (129_280, 256, "resident", "int8x2", None, 1),
    "resident-154880": (154_880, 256, "resident", "int8x2", None, 1),
    "partial-248320": (248_320, 256, "resident", "int8x2", None, 1),
    "partial-deep-ring": (FULL_V, 256, "resident", "int8x2", placed(8, 3, 2, 4, 2), 1),
    "partial-bf16": (FULL_V, 256, "resident", "bf16", None, 1),
    "streaming": (FULL_V, 256, "streaming", "int8x2", None, 1),
    "streaming-248320": (248_320, 256, "streaming", "int8x2", None, 1),
    "streaming-bf16": (FULL_V, 256, "streaming", "bf16", None, 1),
    "wide-rows": (300_000, 64, "resident", "int8x2", None, 1),
    "rank-32": (40_001, 32, "resident", "int8x2", None, 1),
    "rank-96-odd": (30_007, 96, "resident", "int8x2", None, 1),
    "rank-512": (64_000, 512, "resident", "int8x2", None, 1),
    "rank-512-streaming": (64_000, 512, "streaming", "int8x2", None, 1),
    "bf16-rank-160": (20_011, 160, "streaming", "bf16", None, 1),
    "one-tile": (5, 64, "resident", "int8x2", None, 1),
    "one-row": (1, 32, "streaming", "int8x2", None, 1),
    "batch-2": (FULL_V, 256, "resident", "int8x2", None, 2),
    "batch-3-odd": (30_007, 96, "resident", "int8x2", None, 3),
    "batch-4": (FULL_V, 256, "resident", "int8x2", None, 4),
    "batch-8": (FULL_V, 256, "resident", "int8x2", None, 8),
    "batch-13": (FULL_V, 256, "resident", "int8x2", None, 13),
    "batch-32": (FULL_V, 256, "resident", "int8x2", None, 32),
    "batch-8-streaming": (40_000, 128, "streaming", "int8x2", None, 8),
    "batch-32-streaming": (40_000, 128, "streaming", "int8x2", None, 32),
    "batch-32-rank-512": (129_280, 512, "resident", "int8x2", None, 32),
    "batch-32-one-streamed-slot": (16_000, 512, "streaming", "int8x2", None, 32),
    "batch-8-partial": (FULL_V, 256, "resident", "int8x2", placed(8, 2, 4, 3, 1), 8),
    "batch-32-one-tile": (5, 64, "resident", "int8x2", None, 32),
    "batch-5-bf16": (20_011, 160, "streaming", "bf16", None, 5),
}


def make_walk(planted, mode, precision, placement, steps=16, **more):
    return Walk(
        planted.head, steps=steps, mode=mode, precision=precision, placement=placement, draft_to_target=planted.draft_to_target, **more
    )


@pytest.mark.parametrize("name", INSTANTIATIONS)
def test_every_token_of_256_planted_walks_equals_the_twins(name):
    vocab, rank, mode, precision, placement, batch = INSTANTIATIONS[name]
    probe_head = MarkovHead.random(vocab, rank, device="cuda")
    prepared = Walk(probe_head, steps=1, mode=mode, precision=precision, placement=placement, max_batch=batch)
    assert placement or prepared.build.spill_bytes == 0, "no placement of the planner may spill"
    layout = Layout(vocab, prepared.grid_blocks, prepared.placement.warps)
    first_streamed = (prepared.placement.register_tiles + prepared.placement.shared_tiles) // prepared.placement.warps
    all_streamed = prepared.placement.streamed_tiles > 0 and mode == "resident" and vocab <= FULL_V and batch == 1
    options = {"tiles_from_slot": first_streamed} if all_streamed else {}
    walks = max(256, walks_needed(layout, 16, **options)) if vocab > 5 else 256
    padded = vocab + 64 if vocab % 2 == 0 else vocab + 3
    planted = plant(
        layout, rank, walks=walks, device="cuda", padded_vocab_size=padded, exact_bf16=precision == "bf16", **options
    )
    expected = expected_walks(planted.head, planted.base_logits, planted.anchors, precision=precision, draft_to_target=planted.draft_to_target)
    walk = make_walk(planted, mode, precision, placement, max_batch=batch)
    tokens = torch.empty_like(expected.tokens)
    for index in range(0, walks, batch):  # the last call may have fewer rows
        rows = slice(index, min(index + batch, walks))
        walk(planted.base_logits[rows], planted.anchors[rows], tokens_out=tokens[rows])
    walk.check()
    wrong = (tokens != expected.tokens).nonzero().tolist()
    assert not wrong, f"{len(wrong)} tokens differ, first at (walk, step) {wrong[0]}"
    assert int(tokens.max()) < planted.head.target_vocab_size
    if vocab > 1000 and batch == 1:
        covered = cover(expected.draft_ids.cpu().numpy(), layout)
        assert covered.complete, covered.describe()


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_every_rounding_gives_the_twins_tokens_and_logits(rounding, batch):
    head = MarkovHead.random(20_000, 128, seed=8, device="cuda")
    walk = Walk(head, steps=6, mode="resident", max_batch=batch, rounding=rounding)
    generator = torch.Generator("cuda").manual_seed(9)
    base = torch.randn(batch, 6, 20_000, generator=generator, device="cuda").to(torch.bfloat16)
    anchors = torch.randint(0, 20_000, (batch,), generator=generator, device="cuda")
    kept = torch.full((batch, 6, 20_002), 7.0, dtype=torch.bfloat16, device="cuda")
    twin = expected_walks(head, base, anchors, precision="int8x2", rounding=rounding, keep_logits=True)
    assert torch.equal(walk(base, anchors, logits_out=kept), twin.tokens)
    walk.check()
    assert torch.equal(kept[:, :, :20_000].contiguous().view(torch.int16), twin.logits.view(torch.int16))
    assert bool((kept[:, :, 20_000:] == 7.0).all()), "columns past the vocabulary are the caller's"


def test_every_place_of_the_words_gives_the_same_tokens():
    head = MarkovHead.random(40_000, 64, seed=3, device="cuda")
    base = torch.randn(4, 8, 40_000, device="cuda").to(torch.bfloat16)
    anchors = torch.arange(4, device="cuda")
    expected = expected_walks(head, base, anchors, precision="int8x2").tokens
    for exchange in EXCHANGES:
        walk = Walk(head, steps=8, mode="resident", max_batch=4, exchange=exchange)
        assert torch.equal(walk(base, anchors), expected), exchange
        walk.check()


@pytest.fixture(scope="module")
def small():
    """A head of 40,000 rows, its walk of up to 16 steps, and inputs."""
    head = MarkovHead.random(40_000, 64, seed=3, device="cuda")
    walk = Walk(head, steps=16, mode="resident")
    generator = torch.Generator("cuda").manual_seed(4)
    base = (2 * torch.randn(8, 16, 40_000, generator=generator, device="cuda")).to(torch.bfloat16)
    anchors = torch.arange(8, device="cuda") * 4999
    return head, walk, base, anchors, expected_walks(head, base, anchors, precision="int8x2").tokens


def test_a_captured_walk_replays_any_number_of_times_and_past_the_epoch_field(small):
    _, walk, base, anchors, expected = small
    tokens = torch.empty((1, 16), dtype=torch.int64, device="cuda")
    inputs, anchor = base[:1].clone(), anchors[:1].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk(inputs, anchor, tokens_out=tokens)
    for replay in range(1000):  # 16,000 epochs: the 12-bit field wraps three times
        graph.replay()
        if replay % 100 == 0:
            assert torch.equal(tokens, expected[:1]), replay
    inputs.copy_(base[5:6])
    anchor.copy_(anchors[5:6])
    graph.replay()
    assert torch.equal(tokens, expected[5:6])
    walk.check()


def test_a_thousand_launches_give_one_answer(small):
    _, walk, base, anchors, expected = small
    tokens = torch.empty((1000, 16), dtype=torch.int64, device="cuda")
    for index in range(1000):
        walk(base[:1], anchors[:1], tokens_out=tokens[index : index + 1])
    walk.check()
    assert torch.equal(tokens, expected[:1].expand(1000, 16))


def test_strided_and_shorter_inputs_give_the_same_tokens(small):
    _, walk, base, anchors, expected = small
    odd_rows = torch.zeros((1, 16, 40_003), dtype=torch.bfloat16, device="cuda")
    odd_rows[:, :, :40_000] = base[:1]
    odd_rows[:, :, 40_000:] = 1e4
    assert torch.equal(walk(odd_rows, anchors[:1]), expected[:1])
    shifted = torch.zeros(16 * 40_002 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(1, 16, 40_002)
    shifted[:, :, :40_000] = base[:1]
    assert torch.equal(walk(shifted[:, :, :40_000], anchors[:1]), expected[:1])
    assert torch.equal(walk(base[:1, :5], anchors[:1]), expected[:1, :5])
    assert torch.equal(walk(base.transpose(0, 1)[:, :1].transpose(0, 1), anchors[:1]), expected[:1])
    walk.check()


def test_a_bad_anchor_yields_zeros_and_is_named_and_the_next_call_is_sound(small):
    head, walk, base, anchors, expected = small
    for bad in (-1, head.target_vocab_size, 1 << 40):
        tokens = walk(base[:1], torch.tensor([bad], device="cuda"))
        assert torch.equal(tokens, torch.zeros_like(tokens))
        with pytest.raises(AnchorOutOfRange, match="row 0.*from 0 to 39999"):
            walk.check()
    assert torch.equal(walk(base[:1], anchors[:1]), expected[:1])
    walk.check()


def test_one_bad_anchor_leaves_the_other_rows_right(small):
    head, _, base, anchors, expected = small
    walk = Walk(head, steps=16, mode="resident", max_batch=4)
    mixed = anchors[:4].clone()
    mixed[2] = -5
    tokens = walk(base[:4], mixed)
    assert torch.equal(tokens[[0, 1, 3]], expected[[0, 1, 3]]) and not tokens[2].any()
    with pytest.raises(AnchorOutOfRange, match="row 2"):
        walk.check()


def test_a_missing_block_stalls_within_the_bound_and_check_names_it(small):
    head, _, base, anchors, expected = small
    stalled = Walk(head, steps=16, mode="resident", expected_blocks=141, max_polls=2000)
    tokens = stalled(base[:1], anchors[:1])
    with pytest.raises(WalkStalled) as caught:
        stalled.check()
    assert caught.value.step == 0 and caught.value.missing_blocks == tuple(range(stalled.grid_blocks, 141))  # units of four: so is the grid
    assert torch.equal(tokens, torch.zeros_like(tokens))
    stalled._params.expected_blocks = stalled.grid_blocks  # the block is back
    assert torch.equal(stalled(base[:1], anchors[:1]), expected[:1])
    stalled.check()


def test_a_stalled_workspace_stays_inert_until_it_is_checked(small):
    head, _, base, anchors, expected = small
    stalled = Walk(head, steps=16, mode="resident", expected_blocks=141, max_polls=2000)
    stalled(base[:1], anchors[:1])
    stalled._params.expected_blocks = stalled.grid_blocks
    later = stalled(base[:1], anchors[:1])
    torch.cuda.synchronize()
    assert torch.equal(later, torch.zeros_like(later))
    with pytest.raises(WalkStalled):
        stalled.check()
    assert torch.equal(stalled(base[:1], anchors[:1]), expected[:1])


def test_waiting_for_a_busy_gpu_ends_with_the_right_tokens(small):
    _, walk, base, anchors, expected = small
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        big = torch.randn(8192, 8192, device="cuda")
        for _ in range(10):
            big = big @ big * 1e-4  # holds multiprocessors while the walk wants them all
    tokens = walk(base[:1], anchors[:1])
    torch.cuda.synchronize()
    walk.check()
    assert torch.equal(tokens, expected[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda base, anchor: (base.float(), anchor), "base_logits has dtype Float"),
        (lambda base, anchor: (base.cpu(), anchor), "base_logits is on the CPU"),
        (lambda base, anchor: (base[0], anchor), "base_logits has shape"),
        (lambda base, anchor: (base[:, :, ::2], anchor), "columns|last stride"),
        (lambda base, anchor: (base[:, :, :100], anchor), "holds 100 columns"),
        (lambda base, anchor: (base.repeat(1, 2, 1), anchor), "holds 32 positions"),
        (lambda base, anchor: (base, anchor.int()), "anchor has dtype Int"),
        (lambda base, anchor: (base, anchor.repeat(2)), "anchor has shape"),
        (lambda base, anchor: (base.repeat(2, 1, 1), anchor.repeat(2)), "holds 2 batch rows"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_before_the_launch(small, change, message):
    _, walk, base, anchors, _ = small
    with pytest.raises(ValueError, match=message):
        walk(*change(base[:1], anchors[:1]))


def test_a_second_stream_is_refused_while_the_workspace_is_busy(small):
    head, _, base, anchors, _ = small
    walk = Walk(head, steps=16, mode="resident")
    other = torch.cuda.Stream()  # making the first one waits for the device
    walk(base[:1], anchors[:1])  # and loads the kernel
    torch.cuda._sleep(200_000_000)
    walk(base[:1], anchors[:1])
    with torch.cuda.stream(other), pytest.raises(RuntimeError, match="one stream at a time"):
        walk(base[:1], anchors[:1])
    torch.cuda.synchronize()


def test_a_kernel_too_large_for_the_device_is_refused():
    head = MarkovHead.random(FULL_V, 256, device="cuda")
    with pytest.raises((LaunchRefused, ValueError)):
        Walk(head, steps=1, mode="resident", placement=placed(8, 1, 8, 0, 0))


def test_weights_that_are_not_finite_are_refused():
    head = MarkovHead.random(1000, 32, device="cuda")
    head.markov_w2.weight.data[3, 3] = float("nan")
    with pytest.raises(ValueError, match="markov_w2"):
        Walk(head, steps=1, mode="streaming")
