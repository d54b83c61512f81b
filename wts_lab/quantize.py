"""Int8 weights with one scale a row, and latents as the sum of two int8 vectors (precision ``int8x2``).

A row ``w`` of ``W2`` becomes ``q * scale`` with ``scale = max|w| / 127``; a latent ``u`` becomes ``s1 * q1 + s2 * q2`` with
``s2 = s1 / 254``, so the second vector holds what rounding to the first one lost. Code −128 is never used. Formulas:
docs/kernel.md, "Arithmetic". Every operation is fp32, rounded on its own, so that another implementation can be equal bit
for bit: divisors are tensors, because torch multiplies by a reciprocal when it divides a CUDA tensor by a Python number.

A row so small that a scale would not be a normal fp32 number (below 2^-126) counts as zero: its codes and scales are 0.
Everything here works on any device, in chunks of rows.
"""

from __future__ import annotations

import torch

from cost_model.errors import BadInput

LARGEST_CODE = 127
SECOND_VECTOR_STEPS = 254  # s1 / s2: half a step of the first vector is 127 steps of the second
SMALLEST_NORMAL = 2.0**-126
CHUNK_ROWS = 16384  # rows at a time: the fp32 temporaries of a chunk stay near the cache


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix row by row.

    :param weight: ``[V, r]``, any floating dtype, any device.
    :returns: codes int8 ``[V, r]`` in −127..127, scales float32 ``[V]``; ``|w − q·scale| ≤ scale/2`` up to fp32 rounding.
    :raises BadInput: not a floating-point matrix, empty, or a value is not finite (the first such row is named).
    """
    _check_matrix(weight, "weight")
    codes, scale = zip(*(_quantize_row_chunk(weight, start) for start in range(0, len(weight), CHUNK_ROWS)))
    return torch.cat(codes), torch.cat(scale)


def quantize_latents(latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split each latent into two int8 vectors.

    :param latents: ``[N, r]``, any floating dtype, any device.
    :returns: ``q1, q2`` int8 ``[N, r]`` and ``s1, s2`` float32 ``[N]``; ``|u − s1·q1 − s2·q2| ≤ s2/2`` up to fp32 rounding.
    :raises BadInput: not a floating-point matrix, empty, or a value is not finite (the first such row is named).
    """
    _check_matrix(latents, "latents")
    chunks = zip(*(_split_latent_chunk(latents, start) for start in range(0, len(latents), CHUNK_ROWS)))
    q1, q2, s1, s2 = (torch.cat(parts) for parts in chunks)
    return q1, q2, s1, s2


def dequantize_rows(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 ``[V, r]``: ``q * scale``, the weights that the int8 walk really uses."""
    return codes.to(torch.float32) * scale[:, None]


def _quantize_row_chunk(weight: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`quantize_rows` of the chunk of rows that begins at ``start``."""
    values = _finite_values(weight, start, "weight")
    scale = _scale(values, SMALLEST_NORMAL)
    return _codes(values, scale), scale


def _split_latent_chunk(latents: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`quantize_latents` of the chunk of rows that begins at ``start``."""
    values = _finite_values(latents, start, "latents")
    s1 = _scale(values, SMALLEST_NORMAL * SECOND_VECTOR_STEPS)
    s2 = s1 / torch.tensor(float(SECOND_VECTOR_STEPS), dtype=torch.float32, device=s1.device)
    q1 = _codes(values, s1)
    residual = values - s1[:, None] * q1.to(torch.float32)
    return q1, _codes(residual, s2), s1, s2


def _check_matrix(matrix: torch.Tensor, name: str) -> None:
    """A floating-point matrix with at least one row and one column."""
    if matrix.dim() != 2 or not matrix.is_floating_point() or not matrix.numel():
        raise BadInput(
            f"{name} must be a floating-point matrix [rows, rank] that is not empty; got {matrix.dtype} of shape {tuple(matrix.shape)}"
        )


def _finite_values(matrix: torch.Tensor, start: int, name: str) -> torch.Tensor:
    """One chunk of rows in float32, checked to be finite."""
    values = matrix[start : start + CHUNK_ROWS].detach().to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        first_bad = start + int((~torch.isfinite(values)).any(dim=1).nonzero()[0, 0])
        raise BadInput(f"{name} must be finite to be quantised; row {first_bad} holds NaN or infinity")
    return values


def _scale(values: torch.Tensor, smallest: float) -> torch.Tensor:
    """float32 ``[rows]``: ``max|row| / 127``, or 0 where that is below ``smallest``."""
    scale = values.abs().amax(dim=1) / torch.tensor(float(LARGEST_CODE), dtype=torch.float32, device=values.device)
    return torch.where(scale < smallest, torch.zeros_like(scale), scale)


def _codes(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8 ``[rows, r]``: ``round_half_even(value / scale)`` within ±127, and 0 where the scale is 0."""
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = (values / divisor[:, None]).round_().clamp_(-LARGEST_CODE, LARGEST_CODE).to(torch.int8)
    return codes.masked_fill_((scale == 0)[:, None], 0)
