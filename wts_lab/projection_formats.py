"""Number formats for the product W2·u, compared with bf16: how each stores a row of ``W2`` and a latent.

In every format here a correction is

    correction = scale × Σ_k (s_k × (codes · v_k))

with ``codes`` the stored row of ``W2``, ``scale`` its one fp32 factor, and the latent as a sum of ``s_k × v_k``. Products are summed in
fp32 (exactly where both sides are int8) and every other operation is fp32, rounded on its own. In ``int8x2`` this is the walk's own
arithmetic (docs/kernel.md, "Arithmetic"); the other formats are what could stand in its place.

    bf16       codes and latent in bf16, scales of 1
    int8x2     int8 codes; the latent as two int8 vectors
    int8       int8 codes; the latent as one int8 vector, the first of the two
    fp8-e4m3   E4M3 codes with scale = max|w| / 448; the latent in bf16

Works on any device. A matrix is held as fp32 codes: four bytes an element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wts_lab.accuracy import MAGNITUDE_BINS
from wts_lab.quantize import CHUNK_ROWS, LARGEST_CODE, SMALLEST_NORMAL, quantize_latents, quantize_rows

E4M3_MAX = 448.0
EDGE_SLACK = 1e-5  # of a bin: some fp32 roundings of a ratio, and far less than the step of any format

@dataclass(frozen=True)
class StoredMatrix:
    """A matrix in some format: ``codes`` float32 ``[V, r]`` and ``scale`` float32 ``[V]``; its values are ``codes * scale``."""

    codes: torch.Tensor
    scale: torch.Tensor

    def values(self) -> torch.Tensor:
        """float32 ``[V, r]``: the weights that the format really uses."""
        return self.codes * self.scale[:, None]


LatentPart = tuple[torch.Tensor, torch.Tensor]
"""``s`` float32 ``[N]`` and ``v`` float32 ``[N, r]``, one term of a latent."""


@dataclass(frozen=True)
class ProjectionFormat:
    """One way of computing W2·u.

    Attributes:
        name: as it stands in records.
        about: weights and latent in a few words.
        store: the matrix, floating ``[V, r]``, in this format.
        split: latents float32 ``[N, r]`` as a sum of parts.
        levels: the positive values that a code can have, float32, ascending; None where no scale ties them to a row's maximum.
    """

    name: str
    about: str
    store: Callable[[torch.Tensor], StoredMatrix]
    split: Callable[[torch.Tensor], tuple[LatentPart, ...]]
    levels: Callable[[], torch.Tensor] | None = None


def corrections(matrix: StoredMatrix, latents: tuple[LatentPart, ...]) -> torch.Tensor:
    """float32 ``[N, V]``: the formula of the module docstring."""
    terms = [factor[:, None] * (vectors @ matrix.codes.T) for factor, vectors in latents]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total * matrix.scale


# --- the formats ---------------------------------------------------------------------------------------------------------


def _store_bf16(weight: torch.Tensor) -> StoredMatrix:
    codes = weight.to(torch.bfloat16).to(torch.float32)
    return StoredMatrix(codes, codes.new_ones(len(codes)))


def _store_int8(weight: torch.Tensor) -> StoredMatrix:
    codes, scale = quantize_rows(weight)
    return StoredMatrix(codes.to(torch.float32), scale)


def _store_e4m3(weight: torch.Tensor) -> StoredMatrix:
    """scale = max|w| / 448, codes = E4M3(w / scale) to nearest, ties to even; a row too small for a normal scale is zero, as in int8."""
    values = weight.detach().to(torch.float32)
    scale = values.abs().amax(dim=1) / torch.tensor(E4M3_MAX, device=values.device)
    scale = torch.where(scale < SMALLEST_NORMAL, torch.zeros_like(scale), scale)
    quotients = values / torch.where(scale == 0, torch.ones_like(scale), scale)[:, None]
    codes = quotients.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)
    return StoredMatrix(codes.masked_fill_((scale == 0)[:, None], 0), scale)


def _split_bf16(latents: torch.Tensor) -> tuple[LatentPart, ...]:
    return ((latents.new_ones(len(latents)), latents.to(torch.bfloat16).to(torch.float32)),)


def _split_int8x2(latents: torch.Tensor) -> tuple[LatentPart, ...]:
    q1, q2, s1, s2 = quantize_latents(latents)
    return (s1, q1.to(torch.float32)), (s2, q2.to(torch.float32))


def _split_int8(latents: torch.Tensor) -> tuple[LatentPart, ...]:
    return _split_int8x2(latents)[:1]


def int8_levels() -> torch.Tensor:
    """float32 ``[127]``: 1 to 127; code −128 is never used."""
    return torch.arange(1, LARGEST_CODE + 1, dtype=torch.float32)


def e4m3_levels() -> torch.Tensor:
    """float32 ``[126]``: the positive finite values of E4M3 (4 exponent bits, bias 7, 3 mantissa bits), from 2^-9 to 448.

    Of the codes 0x01 to 0x7F the last is NaN. The type has no infinity.
    """
    return torch.arange(0x01, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)


FORMATS = (
    ProjectionFormat("bf16", "bf16 weights, bf16 latent", _store_bf16, _split_bf16),
    ProjectionFormat("int8x2", "int8 weights, latent as two int8 vectors", _store_int8, _split_int8x2, int8_levels),
    ProjectionFormat("int8", "int8 weights, latent as one int8 vector", _store_int8, _split_int8, int8_levels),
    ProjectionFormat("fp8-e4m3", "E4M3 weights, bf16 latent", _store_e4m3, _split_bf16, e4m3_levels),
)
"""Every format, in the order of reports."""


# --- magnitudes ----------------------------------------------------------------------------------------------------------


def magnitude_shares(weight: torch.Tensor, bins: int = MAGNITUDE_BINS) -> list[float]:
    """Share of weights in each bin of |w| / max|w| of their row; rows of zeros are left out. The shares sum to 1.

    Bin k holds k/bins ≤ |w|/max|w| < (k+1)/bins, and the last one the maximum itself too.
    """
    counts = torch.zeros(bins, dtype=torch.int64, device=weight.device)
    for start in range(0, len(weight), CHUNK_ROWS):
        values = weight[start : start + CHUNK_ROWS].detach().to(torch.float32).abs()
        largest = values.amax(dim=1, keepdim=True)
        kept = largest[:, 0] > 0
        counts += _counts(values[kept] / largest[kept], bins)
    return _shares(counts)


def level_shares(levels: torch.Tensor, bins: int = MAGNITUDE_BINS) -> list[float]:
    """Share of a format's positive levels in each of the same bins of level / highest level."""
    return _shares(_counts(levels.to(torch.float64) / levels.max(), bins))


def _counts(ratios: torch.Tensor, bins: int) -> torch.Tensor:
    """int64 ``[bins]``: how many numbers from 0 to 1 lie in each of the equal bins.

    A rounded quotient may fall short of the edge it means (32/448 of 2/28), so the last bits are forgiven.
    """
    index = (ratios.flatten().to(torch.float64) * bins + EDGE_SLACK).floor_().clamp_(max=bins - 1).to(torch.int64)
    return torch.bincount(index, minlength=bins)


def _shares(counts: torch.Tensor) -> list[float]:
    """Counts over their sum."""
    return (counts.to(torch.float64) / counts.sum().clamp(min=1)).tolist()
