"""Candidate pools: what the walk's kernel reads of a Domino head whose steps choose among a few ids of each batch row.

A row's pool is `stepwise.candidate_ids`: the ids of the largest base logits, the maximum taken over the head's steps. Rows have pools of
their own and so share no matrix: they are walked one after the other, each as a walk of one batch row over a vocabulary of

    0 .. pool - 1   the candidates, ascending, so that the lowest id wins a tie here as it does in the whole vocabulary
    pool            the argmax of position 0's base logits, with a row of zeros

At position 0, which the head does not correct, only the last has a base logit above −inf; at later positions only the candidates do.
None of it depends on a token, so all rows are gathered before the first one is walked, by torch operations that a CUDA graph captures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from cost_model.head import MAX_VOCAB_SIZE
from cost_model.terms import TILE_ROWS
from wts_lab import packing, quantize
from wts_lab.stepwise import candidate_ids


@dataclass(frozen=True)
class GatheredPool:
    """What the launches of a call read, a batch row each: ``rows`` is pool + 1, rounded up to whole tiles.

    Attributes:
        base_logits: bf16 ``[B, positions, rows]``.
        matrix: uint8 ``[B, tiles, k_steps, 32, 16]``, as `packing.py` orders it.
        row_scales: float32 ``[B, rows]``; None in bf16.
        targets: int32 ``[B, pool + 1]``, target ids.
    """

    base_logits: torch.Tensor
    matrix: torch.Tensor
    row_scales: torch.Tensor | None
    targets: torch.Tensor


class CandidatePool:
    """The projection of a head with a pool, kept row by row so that candidates can be gathered.

    :param head: a Domino head with a ``candidate_pool``, on the device of the walk.
    :param precision: ``int8x2`` or ``bf16``.
    :param draft_to_target: int32 ``[vocab]`` on that device; None where the ids are the same.
    """

    def __init__(self, head, precision: str, draft_to_target: torch.Tensor | None = None) -> None:
        self.size, self._vocab_size, self._first_step = min(head.candidate_pool, head.vocab_size), head.vocab_size, head.first_step
        self._draft_to_target, self._scales = draft_to_target, None
        projection = head.projection.detach()[: head.vocab_size]
        if precision == "int8x2":
            projection, scales = quantize.quantize_rows(projection)
            self._scales = functional.pad(scales, (0, 1))
        else:
            projection = projection.to(torch.bfloat16)
        self._rows = functional.pad(projection, (0, 0, 0, 1))  # the last one, zeros, is every row that is no candidate's

    @property
    def rows(self) -> int:
        """Rows of a walk's matrix: the candidates and the first token, rounded up to whole tiles."""
        return packing.count_tiles(self.size + 1) * TILE_ROWS

    def check_batch(self, max_batch: int) -> None:
        """Raises ``ValueError`` where the candidates of that many batch rows are more than are packed at once."""
        if max_batch * self.rows > MAX_VOCAB_SIZE:
            raise ValueError(
                f"{max_batch} batch rows of {self.size:,} candidates are packed at once, {MAX_VOCAB_SIZE:,} rows at most; "
                f"prepare a walk for {MAX_VOCAB_SIZE // self.rows} rows, or take a smaller pool"
            )

    @torch.no_grad()
    def gather(self, base_logits: torch.Tensor) -> GatheredPool:
        """Candidates of base logits bf16 ``[B, positions, >= vocab]``, with all that a walk over them reads."""
        base, size = base_logits[:, :, : self._vocab_size], self.size
        # With position 0 alone there is no step to choose candidates for, and any will do.
        candidates = candidate_ids(base[:, min(self._first_step, base.shape[1] - 1) :], size)
        drafts = torch.cat([candidates, base[:, 0].argmax(dim=-1, keepdim=True)], dim=1)
        targets = drafts if self._draft_to_target is None else self._draft_to_target[drafts]
        rows = functional.pad(candidates, (0, self.rows - size), value=self._vocab_size)
        return GatheredPool(
            self._gathered_base(base, candidates), self._packed(rows), None if self._scales is None else self._scales[rows], targets.to(torch.int32)
        )

    def _gathered_base(self, base: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Base logits of the walks."""
        batch, positions, _ = base.shape
        gathered = base.new_full((batch, positions, self.rows), float("-inf"))
        gathered[:, 0, self.size].fill_(0.0)
        later = slice(self._first_step, None)
        gathered[:, later, : self.size] = base[:, later].gather(2, candidates[:, None].expand(-1, positions - self._first_step, -1))
        return gathered

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        """The matrices of the walks, from rows of the projection int64 ``[B, rows]``: whole tiles, so that they are packed as one."""
        pack = packing.pack_matrix_bf16 if self._scales is None else packing.pack_matrix_int8
        packed = pack(self._rows.index_select(0, rows.flatten()))
        return packed.view(len(rows), -1, *packed.shape[1:])
