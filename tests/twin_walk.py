"""A stand-in for `wts_lab.walk.Walk` where there is no GPU: the bit-exact twins behind the same call."""

from __future__ import annotations

import torch

from wts_lab.head_terms import position_terms
from wts_lab.recurrent_twin import twin_head_walks
from wts_lab.twin_torch import expected_walks


class TwinWalk:
    """As `Walk`, for Markov, gated and RNN heads: the same arguments, checks and effects, computed by the twins."""

    def __init__(self, head, *, steps, max_batch, mode, precision, placement, rounding, sampling, device=None):
        self.head, self.steps, self.max_batch, self.precision, self.rounding, self.sampling = head, steps, max_batch, precision, rounding, sampling
        self.placement, self.mode, self.device, self.calls = placement, mode, device, 0

    def __call__(self, base_logits, anchor, *, hidden=None, temperatures=None, noise=None, tokens_out=None, logits_out=None):
        batch, steps, _ = base_logits.shape
        assert batch <= self.max_batch and steps <= self.steps and base_logits.dtype == torch.bfloat16
        assert anchor.shape == (batch,) and anchor.dtype == torch.int64 and anchor.is_contiguous()
        assert (temperatures is None) == (noise is None) and (temperatures is None or self.sampling)
        assert tokens_out.shape == (batch, steps) and tokens_out.dtype == torch.int64 and tokens_out.is_contiguous()
        options = {"precision": self.precision, "rounding": self.rounding, "keep_logits": logits_out is not None}
        if noise is not None:
            options |= {"temperatures": temperatures, "noise": noise, "rows": torch.arange(batch)}
        if self.head.kind == "markov":
            assert hidden is None
            found = expected_walks(self.head, base_logits, anchor, **options)
        else:
            assert hidden.shape == (batch, steps, self.head.hidden_size) and hidden.dtype == torch.bfloat16
            found = twin_head_walks(self.head, base_logits, anchor, position_terms(self.head, hidden), **options)
        tokens_out.copy_(found.tokens)
        if logits_out is not None:
            logits_out.copy_(found.logits)
        if noise is not None:
            noise[1].add_(1)
        self.calls += 1
        return tokens_out
