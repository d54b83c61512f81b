"""The stepwise bf16 walk: what a serving engine runs, one sequence of torch kernels a step.

A step takes the embedding row of the previous token, projects it with ``F.linear``, adds the base logits and takes the argmax.
The projection is rounded to bf16 and so is the sum: rounding "twice", as SGLang's MarkovSampleStep. On CUDA the walk captures
into a CUDA graph; replayed, it is the baseline that fusion and residency are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from cost_model.errors import BadInput

WalkCall = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Anything called as ``walk(base_logits[B, steps, columns], anchor[B]) -> tokens int64[B, steps]``."""


@dataclass(frozen=True)
class CapturedWalk:
    """A stepwise walk in a CUDA graph. Rewrite ``base_logits`` and ``anchor`` in place, replay, read ``tokens``."""

    graph: torch.cuda.CUDAGraph
    base_logits: torch.Tensor
    anchor: torch.Tensor
    tokens: torch.Tensor

    def replay(self) -> torch.Tensor:
        """Launch the graph on the current stream; returns ``tokens``, int64 ``[B, steps]``, without synchronising."""
        self.graph.replay()
        return self.tokens


class StepwiseWalk:
    """The engine's walk over one Markov head.

    :param head: a `MarkovHead` (weights bf16 on the device that the walk runs on).
    :param rounding: "twice" (default), or "once": fp32 product and sum, one rounding (slower; for comparison of arithmetic).
    :param draft_to_target: int64 ``[V]`` target id of each row of ``W2``; default: the same ids.
    """

    def __init__(self, head, *, rounding: str = "twice", draft_to_target: torch.Tensor | None = None) -> None:
        if rounding not in ("once", "twice"):
            raise BadInput(f"rounding of the stepwise walk must be 'twice' or 'once'; got {rounding!r}")
        self.head, self.rounding = head, rounding
        device = head.markov_w2.weight.device
        self.draft_to_target = None if draft_to_target is None else torch.as_tensor(draft_to_target, dtype=torch.int64, device=device)
        self._matrix = head.markov_w2.weight.detach()[: head.vocab_size]
        self._table = head.markov_w1.weight.detach()
        if self.draft_to_target is None and head.vocab_size > len(self._table):
            raise BadInput(
                f"{head.vocab_size} draft ids need a row of W1 each, which has {len(self._table)}; give draft_to_target if ids are mapped"
            )

    @torch.no_grad()
    def __call__(self, base_logits: torch.Tensor, anchor: torch.Tensor, *, tokens_out: torch.Tensor | None = None) -> torch.Tensor:
        """Walk ``base_logits`` bf16 ``[B, steps, columns]`` from ``anchor`` int64 ``[B]``; returns int64 ``[B, steps]``.

        Columns beyond the head's vocabulary are ignored. ``tokens_out`` receives the result in place where given.
        """
        self._check(base_logits, anchor)
        batch, steps, _ = base_logits.shape
        tokens = tokens_out if tokens_out is not None else torch.empty((batch, steps), dtype=torch.int64, device=base_logits.device)
        previous = anchor
        for step in range(steps):
            previous = self._step(previous, base_logits[:, step, : self.head.vocab_size])
            tokens[:, step] = previous
        return tokens

    def capture(self, base_logits: torch.Tensor, anchor: torch.Tensor) -> CapturedWalk:
        """Capture one walk over these very tensors into a CUDA graph (warmed up first on a side stream).

        :raises RuntimeError: the tensors are not on a CUDA device.
        """
        if not base_logits.is_cuda:
            raise RuntimeError(f"a CUDA graph needs tensors on a CUDA device; base_logits is on {base_logits.device}: call the walk instead")
        tokens = torch.empty(base_logits.shape[:2], dtype=torch.int64, device=base_logits.device)
        side = torch.cuda.Stream(base_logits.device)
        side.wait_stream(torch.cuda.current_stream(base_logits.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self(base_logits, anchor, tokens_out=tokens)
        torch.cuda.current_stream(base_logits.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(base_logits.device), torch.cuda.graph(graph):
            self(base_logits, anchor, tokens_out=tokens)
        return CapturedWalk(graph, base_logits, anchor, tokens)

    def _step(self, previous: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Next target ids int64 ``[B]``."""
        latent = functional.embedding(previous, self._table)
        if self.rounding == "twice":
            logits = base + functional.linear(latent, self._matrix)
        else:
            logits = (base.float() + functional.linear(latent.float(), self._matrix.float())).to(torch.bfloat16)
        winner = torch.argmax(logits, dim=-1)
        return winner if self.draft_to_target is None else self.draft_to_target[winner]

    def _check(self, base_logits: torch.Tensor, anchor: torch.Tensor) -> None:
        """Shapes and dtypes, checked on the host without synchronising."""
        vocab_size, batch = self.head.vocab_size, base_logits.shape[0]
        if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < vocab_size:
            raise BadInput(
                f"base_logits must be bfloat16 [batch, steps, at least {vocab_size}]; got {base_logits.dtype} {tuple(base_logits.shape)}"
            )
        if anchor.shape != (batch,) or anchor.dtype != torch.int64:
            raise BadInput(f"anchor must be int64 [{batch}]; got {anchor.dtype} {tuple(anchor.shape)}")


def teacher_forced_agreement(
    candidate: WalkCall, reference_tokens: torch.Tensor, base_logits: torch.Tensor, anchor: torch.Tensor, *, max_batch: int = 1
) -> float:
    """Share of steps in which a candidate chooses as the reference did, given the reference's own history.

    Each step is asked on its own: a walk of one step that starts from the reference's previous token, so that one disagreement
    does not spread to the steps after it.

    :param candidate: a `Walk`, a `StepwiseWalk` or anything of that form.
    :param reference_tokens: int64 ``[B, steps]``, what the bf16 reference chose on these inputs.
    :param max_batch: rows that the candidate takes at once.
    """
    batch, steps = reference_tokens.shape
    history = torch.cat([anchor[:, None], reference_tokens[:, :-1]], dim=1).reshape(batch * steps)
    rows = base_logits.reshape(batch * steps, 1, base_logits.shape[-1])
    chosen = [
        candidate(rows[start : start + max_batch], history[start : start + max_batch]).clone()
        for start in range(0, batch * steps, max_batch)
    ]
    return float((torch.cat(chosen).reshape(batch, steps) == reference_tokens).double().mean())
