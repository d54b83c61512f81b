"""What a walk over candidate pools is given, without a GPU. Its tokens are tested in tests/gpu/test_pool.py."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import load_head  # noqa: E402
from wts_lab import abi, packing  # noqa: E402
from wts_lab.head_terms import position_terms  # noqa: E402
from wts_lab.heads import DominoHead  # noqa: E402
from wts_lab.pool import CandidatePool  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.recurrent_twin import HeadLatents, twin_head_walks  # noqa: E402
from wts_lab.stepwise import candidate_ids  # noqa: E402
from wts_lab.twin_torch import Int8x2Matrix, run_walks_torch  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402
from wts_lab.walk_plan import plan_walk, walked_shape  # noqa: E402
from wts_lab.weights import prepare_weights  # noqa: E402

VOCAB, RANK, POSITIONS, BATCH = 300, 32, 5, 3
INFINITY = float("inf")


def head_of(pool: int) -> DominoHead:
    """A small head whose projection has rows of padding."""
    return DominoHead.random(VOCAB, RANK, hidden_size=64, gru_size=16, candidate_pool=pool, padded_vocab_size=VOCAB + 7, target_vocab_size=VOCAB + 50)


def base_logits(seed: int = 0) -> torch.Tensor:
    """Whole numbers in few steps, so that ties abound; columns past the vocabulary hold what would win."""
    base = torch.randint(-3, 4, (BATCH, POSITIONS, VOCAB + 9), generator=torch.Generator().manual_seed(seed)).bfloat16()
    base[:, :, VOCAB:] = 100.0
    return base


def best_ids(base: torch.Tensor, pool: int) -> list[set[int]]:
    """Ids that any choice of the pool must hold: those above the value of the last that fits."""
    most = base[:, 1:, :VOCAB].amax(1)
    edge = most.sort(descending=True).values[:, pool - 1 : pool]
    return [set(row.nonzero()[:, 0].tolist()) for row in most > edge]


@pytest.mark.parametrize("precision", ["int8x2", "bf16"])
@pytest.mark.parametrize("pool", [1, 15, 16, 100, VOCAB, VOCAB + 5])
def test_rows_of_the_matrix_are_those_of_the_targets_and_the_last_is_zero(precision, pool):
    head, base = head_of(pool), base_logits()
    gathered = CandidatePool(head, precision).gather(base)
    size = min(pool, VOCAB)
    ids = gathered.targets[:, :size].long()
    assert gathered.targets.dtype == torch.int32 and gathered.targets.shape == (BATCH, size + 1)
    projection = head.projection[:VOCAB]
    codes, scales = quantize_rows(projection)
    for row in range(BATCH):
        if precision == "bf16":
            assert gathered.row_scales is None
            unpacked, wanted = packing.unpack_matrix_bf16(gathered.matrix[row], size + 1), projection[ids[row]]
            alone = packing.pack_matrix_bf16(torch.cat([wanted, wanted.new_zeros(1, RANK)]))
        else:
            unpacked, wanted = packing.unpack_matrix_int8(gathered.matrix[row], size + 1), codes[ids[row]]
            alone = packing.pack_matrix_int8(torch.cat([wanted, wanted.new_zeros(1, RANK)]))
            assert torch.equal(gathered.row_scales[row], packing.pack_scales(torch.cat([scales[ids[row]], torch.zeros(1)])))
        assert torch.equal(unpacked[:size], wanted) and not unpacked[size].any()
        assert torch.equal(gathered.matrix[row], alone) and gathered.matrix[row].is_contiguous()


@pytest.mark.parametrize("pool", [1, 20, 100])
def test_candidates_are_the_best_of_the_steps_in_ascending_order(pool):
    base = base_logits(1)
    ids = CandidatePool(head_of(pool), "int8x2").gather(base).targets[:, :pool]
    assert bool((ids[:, 1:] > ids[:, :-1]).all())
    for row, needed in zip(ids.tolist(), best_ids(base, pool), strict=True):
        assert needed <= set(row) and len(set(row)) == pool


def test_base_logits_follow_the_candidates_and_position_0_leaves_no_choice():
    base, pool = base_logits(2), 40
    gathered = CandidatePool(head_of(pool), "int8x2").gather(base)
    ids = gathered.targets[:, :pool].long()
    assert gathered.base_logits.shape == (BATCH, POSITIONS, 48) and gathered.base_logits.dtype == torch.bfloat16
    for row in range(BATCH):
        assert torch.equal(gathered.base_logits[row, 1:, :pool], base[row, 1:, ids[row]])
    assert gathered.base_logits[:, 0].float().argmax(-1).tolist() == [pool] * BATCH
    assert torch.equal(gathered.targets[:, pool].long(), base[:, 0, :VOCAB].float().argmax(-1)), "the lowest of equals"
    everywhere_else = gathered.base_logits.clone()
    everywhere_else[:, 0, pool] = -INFINITY
    everywhere_else[:, 1:, :pool] = -INFINITY
    assert bool((everywhere_else == -INFINITY).all())


def test_argmax_over_the_candidates_is_the_argmax_outside_of_which_nothing_is_allowed():
    """The lowest id among equals, as in a whole vocabulary masked to the pool."""
    base = base_logits(3)
    gathered = CandidatePool(head_of(60), "int8x2").gather(base)
    chosen = gathered.targets.gather(1, gathered.base_logits[:, 1:, :61].float().argmax(-1))
    masked = base[:, :, :VOCAB].float()
    inside = torch.zeros(BATCH, VOCAB, dtype=torch.bool).scatter_(1, gathered.targets[:, :60].long(), True)
    masked = masked[:, 1:].masked_fill(~inside[:, None], -INFINITY)
    assert torch.equal(chosen.long(), masked.argmax(-1))


def test_targets_are_mapped_and_weights_keep_no_matrix_of_their_own():
    base, head = base_logits(4), head_of(30)
    mapping = torch.randperm(VOCAB + 50, generator=torch.Generator().manual_seed(5))[:VOCAB]
    weights = prepare_weights(head, "int8x2", torch.device("cpu"), mapping)
    assert weights.matrix is weights.row_scales is weights.draft_to_target is None
    mapped, plain = weights.pool.gather(base), CandidatePool(head, "int8x2").gather(base)
    assert torch.equal(mapped.targets.long(), mapping[plain.targets.long()])
    assert torch.equal(mapped.matrix, plain.matrix) and torch.equal(mapped.base_logits, plain.base_logits)


def test_a_call_of_position_0_alone_and_inputs_of_any_strides_are_taken():
    base, pool = base_logits(6), CandidatePool(head_of(10), "int8x2")
    first = pool.gather(base[:, :1])
    assert torch.equal(first.targets[:, 10].long(), base[:, 0, :VOCAB].float().argmax(-1)) and first.base_logits.shape == (BATCH, 1, 16)
    strided = torch.empty(POSITIONS, BATCH, 400, dtype=torch.bfloat16).transpose(0, 1)[:, :, : VOCAB + 9]
    strided.copy_(base)
    for mine, theirs in zip(vars(pool.gather(strided)).values(), vars(pool.gather(base)).values(), strict=True):
        assert torch.equal(mine, theirs)


def test_infinite_logits_and_nan_at_position_0_win_it():
    base = base_logits(7)
    base[0, 0, 17], base[1, 0, 200] = INFINITY, float("nan")
    gathered = CandidatePool(head_of(10), "int8x2").gather(base)
    assert gathered.targets[:2, 10].tolist() == [17, 200] and bool(gathered.base_logits[:, 0, 10].isfinite().all())


def test_more_candidates_than_are_packed_at_once_are_refused():
    pool = CandidatePool(head_of(100), "int8x2")
    pool.check_batch(32)
    with pytest.raises(ValueError, match="prepare a walk for 9362 rows"):
        pool.check_batch(10_000)


def test_the_kernel_is_planned_for_the_candidates_and_one_batch_row():
    head, gpu = load_head("domino-qwen3-4b"), load_gpu("h200-sxm")
    shape = walked_shape(head)
    assert (shape.vocab_size, shape.padded_vocab_size, shape.target_vocab_size) == (2049, 2049, head.target_vocab_size)
    assert walked_shape(shape) == shape and walked_shape(replace(head, candidate_pool=1 << 19)).vocab_size == head.vocab_size + 1
    planned = plan_walk(gpu, head, mode="resident", max_batch=8)
    assert planned == plan_walk(gpu, shape, mode="resident") and planned.grid_blocks == 129 and planned.spec.rows == 1
    assert planned.placement.residency == 1.0


def memory(address: int, count: int, kind, dtype: torch.dtype) -> torch.Tensor:
    """A copy of what lies at an address."""
    return torch.frombuffer((kind * count).from_address(address), dtype=dtype).clone()


class TwinBinding:
    """In place of the kernel: walks what a launch's parameters point to, as the twin walks any matrix."""

    def __init__(self, head: DominoHead):
        self.head, self.checked, self.launches = head, [], 0

    def check(self, *given):
        self.checked.append(given)

    def launch(self, _launcher, _error, params, _grid, max_batch, _steps, _device, _stream, base, anchor, tokens, terms, *_rest):
        params = abi.WalkParams.from_address(params)
        packed = memory(params.matrix, params.vocab_tiles * RANK * 16, ctypes.c_uint8, torch.uint8).view(params.vocab_tiles, RANK // 32, 32, 16)
        scales = memory(params.row_scales, params.vocab_size, ctypes.c_float, torch.float32)
        targets = memory(params.draft_to_target, params.vocab_size, ctypes.c_int32, torch.int32)
        latents = HeadLatents(self.head, terms)

        def latents_of(previous):
            found = latents(previous)
            return None if found is None else quantize_latents(found)

        matrix = Int8x2Matrix(packing.unpack_matrix_int8(packed, params.vocab_size), scales)
        tokens.copy_(run_walks_torch(matrix, latents_of, self.head.target_vocab_size, base, anchor, draft_to_target=targets).tokens)
        assert max_batch == len(base) == 1
        self.launches += 1


@pytest.mark.parametrize("pool", [1, 20, 63, VOCAB])
@pytest.mark.parametrize("mapped", [False, True])
def test_walks_of_the_rows_are_the_twins_over_masked_base_logits(pool, mapped):
    head = head_of(pool)
    generator = torch.Generator().manual_seed(8)
    base = (base_logits(9) * 0.5).bfloat16()
    anchors = torch.randint(head.target_vocab_size, (BATCH,), generator=generator)
    hidden = torch.randn(BATCH, POSITIONS, head.hidden_size, generator=generator).bfloat16()
    mapping = torch.randperm(head.target_vocab_size, generator=generator)[:VOCAB] if mapped else None
    walk = object.__new__(Walk)  # what a launch reads of it, without a device
    rows = walked_shape(head.shape).vocab_size
    walk.shape, walk.head, walk.steps, walk.max_batch, walk.device = head.shape, head, POSITIONS - 1, BATCH, torch.device("cpu")
    walk._weights = prepare_weights(head, "int8x2", walk.device, mapping)
    walk._binding, walk._addresses, walk.grid_blocks = TwinBinding(head), (0, 0), 1
    walk._bad_anchors = torch.zeros(BATCH, dtype=torch.bool)
    walk._params = abi.WalkParams(vocab_size=rows, vocab_tiles=packing.count_tiles(rows))
    terms, tokens = position_terms(head, hidden), torch.full((BATCH, POSITIONS), -1)
    walk._launch_rows(SimpleNamespace(cuda_stream=0), base, anchors, tokens, terms, None)

    inside = torch.zeros(BATCH, VOCAB, dtype=torch.bool).scatter_(1, candidate_ids(base[:, 1:, :VOCAB], pool), True)
    masked = torch.cat([base[:, :1, :VOCAB], base[:, 1:, :VOCAB].masked_fill(~inside[:, None], -INFINITY)], 1)
    assert torch.equal(tokens, twin_head_walks(head, masked, anchors, terms, draft_to_target=mapping).tokens)
    assert walk._binding.launches == BATCH and walk._binding.checked == [(BATCH, POSITIONS, VOCAB, None, base, anchors, tokens)]
    assert not walk._bad_anchors.any() and walk._params.matrix is None
    with pytest.raises(ValueError, match="leave logits_out out"):
        walk._launch_rows(SimpleNamespace(cuda_stream=0), base, anchors, tokens, terms, base)
