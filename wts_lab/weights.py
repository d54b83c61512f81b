"""A head's weights as the kernel reads them: quantised, packed, on the device of the walk."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from wts_lab import packing, quantize
from wts_lab.head_terms import state_matrices, token_table
from wts_lab.heads import DraftHead
from wts_lab.pool import CandidatePool


@dataclass(frozen=True)
class Weights:
    """Device buffers of one head; shapes in `wts_lab/abi.py` (``PARAMETER_FIELDS``). ``head`` is the module on that device.

    Where it has a candidate pool, ``pool`` gathers matrix, scales and map in each call, and they are None here.
    """

    head: DraftHead
    matrix: torch.Tensor | None
    row_scales: torch.Tensor | None
    token_table: torch.Tensor
    state_matrix: torch.Tensor | None
    projector: torch.Tensor | None
    draft_to_target: torch.Tensor | None
    pool: CandidatePool | None = None


def prepare_weights(
    head: DraftHead, precision: str, device: torch.device, draft_to_target: torch.Tensor | None = None, *, by_rows: bool = False
) -> Weights:
    """Pack a head for a walk in ``int8x2`` or ``bf16``; ``by_rows`` for kernels that multiply by warpgroups.

    Raises ``ValueError`` for weights that are not finite and for a map that does not fit the vocabularies.
    """
    for name, weight in head.named_parameters():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name} has entries that are not finite; a walk over them has no meaning")
    if next(head.parameters()).device != device:
        head = copy.deepcopy(head).to(device)  # a module moves in place, and this one is the caller's
    state_matrix, projector = (*state_matrices(head), None, None)[:2]
    if draft_to_target is None and head.vocab_size > head.target_vocab_size:
        raise ValueError(
            f"draft ids reach {head.vocab_size - 1:,} and the token table has {head.target_vocab_size:,} rows; give draft_to_target, or the "
            "vocab_size without padding"
        )
    to_target = None if draft_to_target is None else _checked_map(draft_to_target, head.shape).to(device)
    if head.candidate_pool is not None:
        pool = CandidatePool(head, precision, to_target)
        return Weights(head, None, None, _table(head, precision), state_matrix, projector, None, pool)
    matrix, scales = _matrix(head, precision, by_rows)
    return Weights(head, matrix, scales, _table(head, precision), state_matrix, projector, to_target)


def _matrix(head: DraftHead, precision: str, by_rows: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The packed projection, and its row scales in ``int8x2``."""
    projection = head.projection.detach()[: head.shape.vocab_size]
    if precision == "int8x2":
        codes, row_scales = quantize.quantize_rows(projection)
        return packing.pack_matrix_int8(codes, by_rows=by_rows), packing.pack_scales(row_scales)
    return packing.pack_matrix_bf16(projection.to(torch.bfloat16)), None


def _table(head: DraftHead, precision: str) -> torch.Tensor:
    """A row a target id: the packed latent of a Markov head, else what the state advance reads (bf16)."""
    if head.kind != "markov":
        return token_table(head)
    latents = head.embedding.detach()
    if precision == "int8x2":
        return packing.pack_latents_int8(*quantize.quantize_latents(latents))
    return packing.pack_latents_bf16(latents.to(torch.bfloat16))


def _checked_map(draft_to_target: torch.Tensor, shape) -> torch.Tensor:
    """int32 copy of the map; raises ``ValueError`` where its length or an entry is outside the vocabularies."""
    if draft_to_target.shape != (shape.vocab_size,):
        raise ValueError(f"draft_to_target has shape {tuple(draft_to_target.shape)}; it needs one entry for each of {shape.vocab_size} draft ids")
    if int(draft_to_target.min()) < 0 or int(draft_to_target.max()) >= shape.target_vocab_size:
        raise ValueError(f"draft_to_target has entries outside the target vocabulary of {shape.target_vocab_size}")
    return draft_to_target.to(torch.int32).contiguous()
