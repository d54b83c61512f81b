"""The order in which the kernel reads ``W2`` and the latent table.

A *tile* is 16 rows of ``W2``; a *k-step* is the depth of one ``mma.sync`` (32 int8 or 16 bf16 elements). The matrix is stored
so that a warp's 32 lanes read one tile's k-step as 32 consecutive 16-byte pieces, each exactly the A fragment of that lane.
With lane ``l``, ``g = l >> 2``, ``t = l & 3``, and register ``i`` in 0..3 of a piece:

- int8, ``m16n8k32``: byte ``4 i + j`` is row ``2 g + (i & 1)`` of the tile, element ``32 k + 16 (i >> 1) + 4 t + j``;
- bf16, ``m16n8k16``: pair ``i`` (elements ``j`` = 0, 1) is row ``2 g + (i & 1)``, element ``16 k + 8 (i >> 1) + 2 t + j``.

So row ``g`` of the instruction is tile row ``2 g`` and its row ``g + 8`` is tile row ``2 g + 1``: the two results that a lane
gets for one column belong to neighbouring vocabulary rows. Rows past the end of the vocabulary are zero.

A latent row is stored as the B fragment: lane ``t`` of an instruction's column reads 8 consecutive bytes a k-step,

- int8x2: byte ``64 k + 8 (4 p + t) + 4 h + j`` is element ``32 k + 16 h + 4 t + j`` of ``q1`` (p = 0) or ``q2`` (p = 1);
  after ``2 r`` bytes come ``s1`` and ``s2`` as float32 and 8 zero bytes;
- bf16: the element at byte ``32 k + 8 t + 4 h + 2 j`` is ``u[16 k + 8 h + 2 t + j]``.

A matrix *by rows* is for warpgroups (`wgmma`), which read shared memory in cores of 8 instruction rows and 16 bytes: of each tile and k-step
its 32 pieces are row ``l % 8 + 8 (l / 8 % 2)`` of the instruction and half ``l / 16`` of the depth, for int8 the elements ``32 k + 16 (l / 16)`` on.

All functions are single permuted copies on the tensor's own device (four bytes, ``j``, always move together).
"""

from __future__ import annotations

import torch

from cost_model.errors import BadInput
from cost_model.head import MAX_VOCAB_SIZE, require_rank
from cost_model.terms import TILE_ROWS, tiles_of
from cost_model.workload import require_whole
from wts_lab.abi import CONSTANTS

LANES = 32
INT8_DEPTH = 32  # elements of one int8 k-step
BF16_DEPTH = 16
LATENT_TAIL_BYTES = CONSTANTS["kLatentHeaderBytes"]  # s1, s2, padding


def check_vocab(vocab_size: int) -> None:
    """:raises BadInput: unless ``1 ≤ vocab_size ≤ 1,048,576``, what the selection word's index can tell apart."""
    require_whole("vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)


def count_tiles(vocab_size: int) -> int:
    """Tiles of 16 rows that hold ``vocab_size`` rows, the last one possibly part empty."""
    return tiles_of(vocab_size)


def pack_matrix_int8(codes: torch.Tensor, *, by_rows: bool = False) -> torch.Tensor:
    """int8 ``[V, r]`` to uint8 ``[tiles, r/32, 32, 16]``, as fragments or ``by_rows`` (orders in the module docstring)."""
    _check_matrix(codes, torch.int8, "codes")
    fragments = _to_fragments(_pad_rows(codes), INT8_DEPTH)
    if not by_rows:
        return fragments
    words = fragments.view(torch.int32).view(*fragments.shape[:2], 8, 4, 4)  # [tile, k, g, t, i]
    return words.permute(0, 1, 4, 2, 3).contiguous().view(*fragments.shape[:2], LANES, 4).view(torch.uint8)


def unpack_matrix_int8(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The inverse of :func:`pack_matrix_int8`: int8 ``[vocab_size, r]``."""
    return _from_fragments(packed, torch.int8)[:vocab_size]


def pack_matrix_bf16(weight: torch.Tensor) -> torch.Tensor:
    """bfloat16 ``[V, r]`` to uint8 ``[tiles, r/16, 32, 16]`` (order in the module docstring)."""
    _check_matrix(weight, torch.bfloat16, "weight")
    return _to_fragments(_pad_rows(weight), BF16_DEPTH)


def unpack_matrix_bf16(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The inverse of :func:`pack_matrix_bf16`: bfloat16 ``[vocab_size, r]``."""
    return _from_fragments(packed, torch.bfloat16)[:vocab_size]


def pack_scales(scale: torch.Tensor) -> torch.Tensor:
    """float32 ``[V]`` to float32 ``[tiles * 16]``, zero past the vocabulary."""
    if scale.dim() != 1 or scale.dtype != torch.float32:
        raise BadInput(f"scales must be float32 [V]; got {scale.dtype} of shape {tuple(scale.shape)}")
    check_vocab(scale.shape[0])
    return _pad_rows(scale[:, None].detach())[:, 0].contiguous()


def pack_latents_int8(q1: torch.Tensor, q2: torch.Tensor, s1: torch.Tensor, s2: torch.Tensor) -> torch.Tensor:
    """Two-vector latents, int8 ``[N, r]`` twice and float32 ``[N]`` twice, to uint8 ``[N, 2 r + 16]``."""
    for name, codes in (("q1", q1), ("q2", q2)):
        _check_latents(codes, torch.int8, name)
    rows, rank = q1.shape
    if q2.shape != q1.shape or s1.shape != (rows,) or s2.shape != (rows,):
        raise BadInput(
            "q1 and q2 must share one shape [N, r], s1 and s2 be [N]; "
            f"got {tuple(q1.shape)}, {tuple(q2.shape)}, {tuple(s1.shape)}, {tuple(s2.shape)}"
        )
    packed = torch.zeros((rows, 2 * rank + LATENT_TAIL_BYTES), dtype=torch.uint8, device=q1.device)
    words = packed.view(torch.int32)
    body = words[:, : rank // 2].view(rows, rank // INT8_DEPTH, 2, 4, 2)  # [N, k, p, t, h]
    for p, codes in enumerate((q1, q2)):
        source = codes.detach().contiguous().view(torch.int32).view(rows, rank // INT8_DEPTH, 2, 4)  # [N, k, h, t]
        body[:, :, p] = source.transpose(2, 3)
    words[:, rank // 2] = s1.detach().to(torch.float32).contiguous().view(torch.int32)
    words[:, rank // 2 + 1] = s2.detach().to(torch.float32).contiguous().view(torch.int32)
    return packed


def unpack_latents_int8(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of :func:`pack_latents_int8`: ``q1, q2, s1, s2``."""
    rows, rank = packed.shape[0], (packed.shape[1] - LATENT_TAIL_BYTES) // 2
    words = packed.contiguous().view(torch.int32)
    body = words[:, : rank // 2].reshape(rows, rank // INT8_DEPTH, 2, 4, 2)
    vectors = [body[:, :, p].transpose(2, 3).contiguous().view(torch.int8).reshape(rows, rank) for p in range(2)]
    scales = [words[:, rank // 2 + p].contiguous().view(torch.float32) for p in range(2)]
    return vectors[0], vectors[1], scales[0], scales[1]


def pack_latents_bf16(latents: torch.Tensor) -> torch.Tensor:
    """bfloat16 ``[N, r]`` to uint8 ``[N, 2 r]`` (order in the module docstring)."""
    _check_latents(latents, torch.bfloat16, "latents")
    rows, rank = latents.shape
    pairs = latents.detach().contiguous().view(torch.int32).view(rows, rank // BF16_DEPTH, 2, 4)  # [N, k, h, t]
    return pairs.transpose(2, 3).contiguous().view(rows, rank // 2).view(torch.uint8)


def unpack_latents_bf16(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`pack_latents_bf16`: bfloat16 ``[N, r]``."""
    rows, rank = packed.shape[0], packed.shape[1] // 2
    pairs = packed.contiguous().view(torch.int32).view(rows, rank // BF16_DEPTH, 4, 2)  # [N, k, t, h]
    return pairs.transpose(2, 3).contiguous().view(rows, rank // 2).view(torch.bfloat16)


def in_pairs(base_logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Base logits whose pairs a kernel can load (`csrc/walk/base_logits.cuh`): bf16 ``[B, positions, >= vocab_size]`` as they are
    where every row starts at four bytes and the vocabulary is even; else a copy of ``[B, positions, even]`` with -inf behind the vocabulary.
    Strides count elements.

    A tensor that is no such base logits comes back as it is, for the launch to refuse."""
    if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < vocab_size or base_logits.stride(2) != 1:
        return base_logits
    starts = (base_logits.data_ptr() // 2, *base_logits.stride()[:2], vocab_size)
    if not any(start % 2 for start in starts):
        return base_logits
    copy = base_logits.new_full((*base_logits.shape[:2], vocab_size + vocab_size % 2), -torch.inf)
    copy[:, :, :vocab_size] = base_logits[:, :, :vocab_size]
    return copy


def _check_matrix(matrix: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """A matrix to be tiled: right dtype, two dimensions, allowed rank and rows."""
    _check_latents(matrix, dtype, name)
    check_vocab(matrix.shape[0])


def _check_latents(matrix: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """A matrix of any number of rows: right dtype, two dimensions, allowed rank."""
    if matrix.dim() != 2 or matrix.dtype != dtype:
        raise BadInput(f"{name} must be {dtype} [rows, rank]; got {matrix.dtype} of shape {tuple(matrix.shape)}")
    require_rank(matrix.shape[1])


def _pad_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, contiguous, with zero rows added up to whole tiles."""
    rows = count_tiles(matrix.shape[0]) * TILE_ROWS
    if rows == matrix.shape[0]:
        return matrix.detach().contiguous()
    padded = matrix.new_zeros((rows, matrix.shape[1]))
    padded[: matrix.shape[0]] = matrix.detach()
    return padded


def _to_fragments(matrix: torch.Tensor, depth: int) -> torch.Tensor:
    """``[tiles*16, r]`` to uint8 ``[tiles, r/depth, 32, 16]``; a unit of four bytes is the innermost index ``j``."""
    tiles, steps = matrix.shape[0] // TILE_ROWS, matrix.shape[1] // depth
    units = matrix.view(torch.int32).view(tiles, 8, 2, steps, 2, 4)  # [tile, g, i&1, k, i>>1, t]
    ordered = units.permute(0, 3, 1, 5, 4, 2).contiguous()  # [tile, k, g, t, i>>1, i&1]
    return ordered.view(tiles, steps, LANES, 4).view(torch.uint8)


def _from_fragments(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`_to_fragments`, all ``tiles*16`` rows."""
    tiles, steps = packed.shape[:2]
    units = packed.contiguous().view(torch.int32).view(tiles, steps, 8, 4, 2, 2)
    rows = units.permute(0, 2, 5, 1, 4, 3).contiguous()
    return rows.view(tiles * TILE_ROWS, steps * 8).view(dtype)
