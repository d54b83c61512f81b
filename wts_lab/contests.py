"""Base logits for contests whose outcome depends on the last bits of the arithmetic (used by `planting.py`).

A *close* contest lets 64 rows meet at one level. An *fma* contest goes further: it finds a row for which one fused multiply-add
in place of two rounded operations moves ``y`` across a bf16 boundary, and a rival that then changes places with it. Such rows
are rare (a contraction moves a correction by one fp32 ulp, and a boundary must lie between), but a vocabulary holds some: the
base logit is chosen so small that its own bf16 grid is fine enough to carry a correction onto a boundary.
"""

from __future__ import annotations

import numpy as np
import torch

from wts_lab.quantize import quantize_latents, quantize_rows
from wts_lab.twin_torch import round_to_bf16

CONTESTANTS, CONTEST_LEVEL = 64, 2.0  # rows of a close contest, and where they meet
OUTSIDER_BASE = -64.0  # of every row that takes no part
ROWS_SEARCHED = {"first product": 1 << 16, "second product": 1 << 18, "sum": 1 << 14}
CONTRACTIONS = tuple(ROWS_SEARCHED)  # which operation is fused in the fault that a contest detects; the second is the rarest
SMALLEST_CORRECTION = 0.5
RIVALS_TRIED = 256

Contest = tuple[torch.Tensor, torch.Tensor]
"""Rows of ``W2`` int64 ``[n]`` and their base logits bf16 ``[n]``; every other row is an outsider."""


def close_contest(w2: torch.Tensor, latent: torch.Tensor, rng: np.random.Generator) -> Contest:
    """Rows that all come within about one bf16 step of ``CONTEST_LEVEL``, for ``latent [r]`` against ``w2 [V, r]``."""
    rows = torch.from_numpy(rng.choice(len(w2), min(CONTESTANTS, len(w2)), replace=False)).to(w2.device)
    corrections = w2[rows].to(torch.float32) @ latent.to(torch.float32)
    return rows, (CONTEST_LEVEL - corrections).to(torch.bfloat16)


class FmaContests:
    """Finds fma contests over one head: ``w1 [N, r]``, ``w2 [V, r]``, floating point, without padding."""

    def __init__(self, w1: torch.Tensor, w2: torch.Tensor) -> None:
        codes, self._scale = quantize_rows(w2)
        self._matrix = codes.to(torch.float64)
        self._latents = quantize_latents(w1)

    def find(self, previous: int, contraction: str, rng: np.random.Generator) -> Contest | None:
        """A row and its rival for the step after token ``previous``, or None where none is found.

        The row comes first in the vocabulary. With every operation rounded on its own, one of the two wins; with
        ``contraction`` (one of ``CONTRACTIONS``) the other does.
        """
        step = _Step(self._scale, self._matrix, [part[previous] for part in self._latents], contraction)
        rows = torch.from_numpy(rng.permutation(len(self._scale) - 1)[: ROWS_SEARCHED[contraction]]).to(self._scale.device)
        base = _bases_near_boundaries(step.corrections[rows], contraction)
        moved = step.level(base, rows) != step.level(base, rows, contracted=True)
        moved &= (step.corrections[rows] > SMALLEST_CORRECTION)[:, None]
        candidates = moved.nonzero().cpu().numpy()
        rng.shuffle(candidates)
        for at, boundary in candidates[:8]:
            row, chosen = rows[at], base[at, boundary]
            levels = [step.level(chosen[None, None], row[None], contracted=fused)[0, 0] for fused in (False, True)]
            rival = _find_rival(step, int(row), torch.maximum(*levels), rng)
            if rival is not None:
                return torch.stack([row, rival[0]]), torch.stack([chosen, rival[1]]).to(torch.bfloat16)
        return None


class _Step:
    """The arithmetic of one step for all rows, as it must be and with one contraction."""

    def __init__(self, scale: torch.Tensor, matrix: torch.Tensor, latent: list[torch.Tensor], contraction: str) -> None:
        q1, q2, s1, s2 = latent
        c1, c2 = (matrix @ q.to(torch.float64) for q in (q1, q2))  # exact integers
        first, second = s1 * c1.to(torch.float32), s2 * c2.to(torch.float32)
        self._inner = self._fused_inner = first + second
        if contraction == "first product":
            self._fused_inner = (s1.double() * c1 + second.double()).to(torch.float32)
        elif contraction == "second product":
            self._fused_inner = (first.double() + s2.double() * c2).to(torch.float32)
        self._scale, self._fuses_sum = scale, contraction == "sum"
        self.corrections = scale * self._inner

    def level(self, base: torch.Tensor, rows: torch.Tensor, *, contracted: bool = False) -> torch.Tensor:
        """``y`` of ``base [n, m]`` float32 at ``rows [n]``."""
        if not contracted:
            return round_to_bf16(base + self.corrections[rows, None])
        scale = self._scale[rows, None]
        if self._fuses_sum:
            return round_to_bf16((base.double() + scale.double() * self._inner[rows, None].double()).to(torch.float32))
        return round_to_bf16(base + scale * self._fused_inner[rows, None])


def _bases_near_boundaries(corrections: torch.Tensor, contraction: str) -> torch.Tensor:
    """bf16 numbers in float32 ``[n, m]`` that bring ``corrections [n]`` close to boundaries of bf16 rounding.

    For a product, boundaries next to the correction: a small base logit has a fine grid. For the sum, boundaries of the next
    binade: only there is the sum's fp32 grid coarser than the correction's, so that rounding once or twice can differ.
    """
    binade = torch.exp2(torch.floor(torch.log2(corrections.clamp(min=SMALLEST_CORRECTION))))[:, None]
    if contraction == "sum":
        boundaries = 2 * binade * (1 + (torch.arange(128, device=binade.device) + 0.5) / 128)
    else:
        cell = binade / 128
        boundaries = (torch.floor(corrections[:, None] / cell) + torch.arange(-2, 3, device=cell.device) + 0.5) * cell
    return (boundaries - corrections[:, None]).to(torch.bfloat16).to(torch.float32)


def _find_rival(step: _Step, row: int, level: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A row after ``row`` and a base logit that puts it at ``level`` with either arithmetic; None if none of those tried is."""
    rivals = torch.from_numpy(rng.integers(row + 1, len(step.corrections), RIVALS_TRIED)).to(level.device)
    base = (level - step.corrections[rivals]).to(torch.bfloat16).to(torch.float32)[:, None]
    there = (step.level(base, rivals) == level) & (step.level(base, rivals, contracted=True) == level)
    found = there[:, 0].nonzero()
    return None if not len(found) else (rivals[found[0, 0]], base[found[0, 0], 0])
