"""The stepwise bf16 walk: what a serving engine runs, one sequence of torch kernels a step, for every kind of head.

A step computes the latent in bf16 from the previous token, the hidden vector and the state, projects it with ``F.linear``, adds the base
logits and takes the argmax. The projection is rounded to bf16 and so is the sum: rounding "twice", as SGLang's MarkovSampleStep.
At temperatures above 0 the largest of ``y / T + Gumbel noise`` wins. On CUDA the walk captures into a CUDA graph; replayed, it is the
baseline that fusion and residency are compared with.

Domino's position 0 is the argmax of its base logits. With a candidate pool the later positions choose among the ``candidate_pool``
ids of the largest base logits, the maximum taken over those positions: one pool a row of the batch (SGLang's rollout).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from cost_model.errors import BadInput
from cost_model.workload import ROUNDINGS, require_word
from wts_lab.noise import gumbel, require_temperatures

WalkCall = Callable[..., torch.Tensor]
"""Anything called as ``walk(base_logits[B, positions, columns], anchor[B], hidden=...) -> tokens int64[B, positions]``."""

Noise = tuple[int, torch.Tensor]
"""Key of the noise, and its offset, an int64 tensor of one element, advanced by one with every call that samples."""

FORCING_LOGIT = 1e30
"""A base logit that wins against any finite sum of a base logit and a correction, and stays finite itself."""


@dataclass(frozen=True)
class CapturedWalk:
    """A stepwise walk in a CUDA graph. Rewrite the inputs it was captured with in place, replay, read ``tokens``."""

    graph: torch.cuda.CUDAGraph
    base_logits: torch.Tensor
    anchor: torch.Tensor
    tokens: torch.Tensor
    hidden: torch.Tensor | None = None
    temperatures: torch.Tensor | None = None

    def replay(self) -> torch.Tensor:
        """Launch the graph on the current stream; returns ``tokens``, int64 ``[B, positions]``, without synchronising."""
        self.graph.replay()
        return self.tokens


class StepwiseWalk:
    """The engine's walk over one head.

    :param head: a `DraftHead` (weights bf16 on the device that the walk runs on); its ``candidate_pool`` is honoured.
    :param rounding: of the logits. "twice" (default); "once": fp32 product and sum, one rounding; "none": the fp32 sum decides
        (both slower; for comparison of arithmetic).
    :param draft_to_target: int64 ``[V]`` target id of each row of the projection; default: the same ids.
    """

    def __init__(self, head, *, rounding: str = "twice", draft_to_target: torch.Tensor | None = None) -> None:
        require_word("rounding", rounding, ROUNDINGS)
        self.head, self.rounding = head, rounding
        self._matrix = head.projection.detach()[: head.vocab_size]
        device = self._matrix.device
        self.draft_to_target = None if draft_to_target is None else torch.as_tensor(draft_to_target, dtype=torch.int64, device=device)
        if self.draft_to_target is None and head.vocab_size > head.target_vocab_size:
            raise BadInput(
                f"{head.vocab_size} draft ids need a row of the token table each, which has {head.target_vocab_size}; "
                "give draft_to_target if ids are mapped"
            )

    @torch.no_grad()
    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        tokens_out: torch.Tensor | None = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Walk ``base_logits`` bf16 ``[B, positions, columns]`` from ``anchor`` int64 ``[B]``; returns int64 ``[B, positions]``, target ids.

        :param base_logits: columns beyond the head's vocabulary are ignored.
        :param hidden: bf16 ``[B, positions, hidden_size]``, for heads that read it (Domino: position 0 is not read).
        :param temperatures: float32 ``[B]``, 0 for a greedy row; with ``noise``. Not for Domino, nor with rounding "none".
        :param noise: key and offset of the Gumbel noise (`wts_lab.noise.gumbel`).
        :param tokens_out: receives the result in place.
        :param logits_out: bf16 ``[B, positions, at least V]``, receives the logits before noise. Not with a candidate pool.
        :raises BadInput: what does not fit, or is not offered for the head.
        """
        self._check(base_logits, anchor, hidden, temperatures, noise, logits_out)
        base, first = base_logits[:, :, : self.head.vocab_size], self.head.first_step
        tokens = torch.empty(base.shape[:2], dtype=torch.int64, device=base.device) if tokens_out is None else tokens_out
        kept = None if logits_out is None else logits_out[:, :, : self.head.vocab_size]
        previous, state = anchor, self.head.initial_state(anchor)
        if first:
            previous = tokens[:, 0] = self._target(torch.argmax(base[:, 0], dim=-1))
            if kept is not None:
                kept[:, 0] = base[:, 0]
        matrix, candidates = self._matrix, None
        if self.head.candidate_pool is not None and base.shape[1] > first:
            candidates = candidate_ids(base[:, first:], self.head.candidate_pool)
            base = base.gather(2, candidates[:, None].expand(-1, base.shape[1], -1))
            matrix = functional.embedding(candidates, self._matrix)
        for step in range(first, base.shape[1]):
            latent, state = self.head.latent(previous, None if hidden is None else hidden[:, step], state)
            logits = self._logits(base[:, step], latent, matrix)
            if kept is not None:
                kept[:, step] = logits
            winner = torch.argmax(logits if noise is None else self._keys(logits, temperatures, noise, step), dim=-1)
            draft = winner if candidates is None else candidates.gather(1, winner[:, None])[:, 0]
            previous = tokens[:, step] = self._target(draft)
        if noise is not None:
            noise[1].add_(1)
        return tokens

    def capture(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
    ) -> CapturedWalk:
        """Capture one walk over these very tensors into a CUDA graph (warmed up first on a side stream, which leaves the noise's
        offset as it was). Parameters as for the call.

        :raises RuntimeError: the tensors are not on a CUDA device.
        """
        if not base_logits.is_cuda:
            raise RuntimeError(f"a CUDA graph needs tensors on a CUDA device; base_logits is on {base_logits.device}: call the walk instead")
        tokens = torch.empty(base_logits.shape[:2], dtype=torch.int64, device=base_logits.device)
        inputs = {"hidden": hidden, "temperatures": temperatures, "noise": noise, "tokens_out": tokens}
        with torch.cuda.device(base_logits.device):
            offset = None if noise is None else noise[1].clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self(base_logits, anchor, **inputs)
            torch.cuda.current_stream().wait_stream(side)
            if offset is not None:
                noise[1].copy_(offset)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self(base_logits, anchor, **inputs)
        return CapturedWalk(graph, base_logits, anchor, tokens, hidden, temperatures)

    def _logits(self, base: torch.Tensor, latent: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, V]`` in bf16, or fp32 with rounding "none"; ``matrix`` ``[V, r]``, or ``[B, pool, r]`` of a row's candidates."""
        if self.rounding == "twice":
            return base + _project(latent, matrix)
        total = base.float() + _project(latent.float(), matrix.float())
        return total if self.rounding == "none" else total.to(torch.bfloat16)

    def _keys(self, logits: torch.Tensor, temperatures: torch.Tensor, noise: Noise, step: int) -> torch.Tensor:
        """What a sampled row chooses by, float32 ``[B, V]``: ``y / T + Gumbel noise``, or ``y`` where ``T`` is 0."""
        key, offset = noise
        rows, vocab = logits.shape
        values, scale = logits.float(), temperatures[:, None]
        # masked_fill, since `where` would copy its scalar to the device, which a graph capture forbids
        sampled = values / scale.masked_fill(scale == 0, 1.0) + gumbel(key, offset, rows=rows, step=step, vocab=vocab, device=logits.device)
        return torch.where(scale == 0, values, sampled)

    def _target(self, draft: torch.Tensor) -> torch.Tensor:
        """Target ids of draft ids."""
        return draft if self.draft_to_target is None else self.draft_to_target[draft]

    def _check(self, base_logits, anchor, hidden, temperatures, noise, logits_out) -> None:
        """Shapes and dtypes, checked on the host without synchronising."""
        head, vocab_size = self.head, self.head.vocab_size
        if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < vocab_size:
            raise BadInput(
                f"base_logits must be bfloat16 [batch, steps, at least {vocab_size}]; got {base_logits.dtype} {tuple(base_logits.shape)}"
            )
        batch, positions, _ = base_logits.shape
        _require("anchor", anchor, torch.int64, (batch,))
        if head.hidden_size is not None:
            _require(f"hidden (of a {head.kind} head)", hidden, torch.bfloat16, (batch, positions, head.hidden_size))
        if (temperatures is None) != (noise is None):
            raise BadInput("temperatures and noise come together: float32 [batch], and (key, int64 [1] offset)")
        if noise is not None:
            if head.kind == "domino" or self.rounding == "none":
                raise BadInput("Domino heads and rounding 'none' are greedy only, as in the engines; leave temperatures and noise out")
            _require("temperatures", temperatures, torch.float32, (batch,))
            require_temperatures(temperatures)
            _require("the noise's offset", noise[1], torch.int64, (1,))
        if logits_out is not None:
            if head.candidate_pool is not None:
                raise BadInput("a walk over a candidate pool has no logits of the whole vocabulary; leave logits_out out")
            if logits_out.shape[:2] != base_logits.shape[:2] or logits_out.shape[2] < vocab_size or logits_out.dtype != torch.bfloat16:
                raise BadInput(
                    f"logits_out must be bfloat16 [{batch}, {positions}, at least {vocab_size}]; got {logits_out.dtype} {tuple(logits_out.shape)}"
                )


def candidate_ids(base_logits: torch.Tensor, pool: int) -> torch.Tensor:
    """The candidate pool of each row, int64 ``[B, pool]``, ascending, so that the lowest of equal candidates wins.

    The ids whose largest base logit over the positions given is among the ``pool`` largest; which of equals at the edge is torch's choice.

    :param base_logits: ``[B, positions, V]`` of the head's steps (Domino: without position 0) and of its logical vocabulary.
    :param pool: at most all ids are taken.
    """
    return base_logits.amax(dim=1).topk(min(pool, base_logits.shape[2]), dim=-1, sorted=False).indices.sort(dim=-1).values


def _project(latent: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Corrections ``[B, rows]`` of one matrix, or of one a row of the batch."""
    return functional.linear(latent, matrix) if matrix.dim() == 2 else torch.bmm(matrix, latent[:, :, None])[:, :, 0]


def _require(name: str, tensor: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise BadInput unless a tensor is there with that dtype and shape."""
    if tensor is None or tensor.dtype != dtype or tensor.shape != shape:
        given = "none" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise BadInput(f"{name} must be {str(dtype).removeprefix('torch.')} {list(shape)}; got {given}")


@torch.no_grad()
def teacher_forced_agreement(
    candidate: WalkCall,
    reference_tokens: torch.Tensor,
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    *,
    hidden: torch.Tensor | None = None,
    first_step: int = 0,
    draft_to_target: torch.Tensor | None = None,
    max_batch: int = 1,
) -> float:
    """Share of steps in which a candidate chooses as the reference did, given the reference's own history.

    One disagreement must not spread to the steps after it, and a head's state must be the one along that history. So each step is
    asked in a walk of its own, whose earlier positions have base logits that leave no choice but the reference's tokens.

    :param candidate: a `Walk`, a `StepwiseWalk` or anything of that form. One that samples must draw in every call the noise that the
        reference drew, so it takes all rows at once and starts from the same offset.
    :param reference_tokens: int64 ``[B, positions]``, what the bf16 reference chose on these inputs, target ids.
    :param hidden: given on to the candidate where not None.
    :param first_step: the head's; positions before it are given, not counted.
    :param draft_to_target: as the candidate has it.
    :param max_batch: rows that the candidate takes at once.
    """
    batch, positions = reference_tokens.shape
    drafts = reference_tokens if draft_to_target is None else _draft_ids(reference_tokens, draft_to_target)
    forced, equal = base_logits.clone(), 0
    for step in range(positions):
        if step >= first_step:
            for rows in (slice(start, start + max_batch) for start in range(0, batch, max_batch)):
                extra = {} if hidden is None else {"hidden": hidden[rows]}
                chosen = candidate(forced[rows], anchor[rows], **extra)[:, step]
                equal += int((chosen == reference_tokens[rows, step]).sum())
        forced[:, step].scatter_(1, drafts[:, step : step + 1], FORCING_LOGIT)
    return equal / (batch * (positions - first_step))


def _draft_ids(tokens: torch.Tensor, draft_to_target: torch.Tensor) -> torch.Tensor:
    """Draft ids that map to target ids."""
    targets = torch.as_tensor(draft_to_target, dtype=torch.int64, device=tokens.device)
    inverse = torch.zeros(int(targets.max()) + 1, dtype=torch.int64, device=tokens.device)
    inverse[targets] = torch.arange(len(targets), device=tokens.device)
    return inverse[tokens]


def free_running_prefix(tokens: torch.Tensor, reference: torch.Tensor) -> float:
    """Mean number of tokens before a walk and its reference first differ; both int64 ``[B, positions]``, each on its own history.

    Domino's position 0 is no step: leave it out of both.
    """
    return float((tokens == reference).cumprod(dim=1).sum(dim=1).double().mean())
