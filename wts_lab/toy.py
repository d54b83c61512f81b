"""A head small enough to read: 12 tokens, rank 4, three steps, every number of its int8x2 walk kept.

Each step is worked out here in plain operations, in the order of docs/kernel.md, "Arithmetic"; `twin` and `reference` walk the same head with
the project's own twins, and `walk_on_gpu` with the kernel. The kernel takes ranks from 32 on, in steps of 32, so there the four columns
are followed by zeros: a zero changes no maximum, no scale and no product, so the numbers stay the same.

All weights are multiples of 1/8 and all base logits of 1/4. They are bf16 numbers, and their products and sums are exact in fp32, so the bf16 walk
of engines has a NumPy twin as well. NumPy alone is needed; torch on a GPU only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_model.head import RANK_MULTIPLE
from wts_lab.reference import (
    TwinWalk, bf16_to_float, combine, round_to_bf16, select, twin_quantize_latents, twin_quantize_rows, twin_walk, twin_walks_bf16,
)

TOY_TOKENS, TOY_RANK, TOY_STEPS = 12, 4, 3
TOY_SEED = 87
"""Of the heads that were drawn, the first whose walk meets four tokens, none of them the one that the base logits alone would choose."""
TOY_ANCHOR = 5


@dataclass(frozen=True, eq=False)
class ToyHead:
    """Weights and inputs, float32 that are bf16 numbers: ``w1`` and ``w2`` ``[12, 4]``, ``base`` ``[3, 12]``; ``anchor`` is a token."""

    w1: np.ndarray
    w2: np.ndarray
    base: np.ndarray
    anchor: int

    @property
    def base_bits(self) -> np.ndarray:
        """uint16 ``[3, 12]``: the base logits as bf16 patterns, as twins take them."""
        return round_to_bf16(self.base)


@dataclass(frozen=True, eq=False)
class ToyCodes:
    """What int8x2 stores of a toy head.

    Attributes:
        w_q, w_scale: int8 ``[12, 4]`` and float32 ``[12]``, the rows of ``W2``.
        q1, q2: int8 ``[12, 4]``, both vectors of each row of ``W1``.
        s1, s2: float32 ``[12]``, their scales.
    """

    w_q: np.ndarray
    w_scale: np.ndarray
    q1: np.ndarray
    q2: np.ndarray
    s1: np.ndarray
    s2: np.ndarray

    @property
    def tensors(self) -> tuple[np.ndarray, ...]:
        """In the order in which twins take them."""
        return self.w_q, self.w_scale, self.q1, self.q2, self.s1, self.s2


@dataclass(frozen=True, eq=False)
class ToyStep:
    """One step of the int8x2 walk.

    Attributes:
        number: from 0.
        previous: the token before, whose row of ``W1`` is the latent.
        latent: float32 ``[4]``.
        q1, q2, s1, s2: its two int8 vectors ``[4]`` and their fp32 scales.
        c1, c2: int64 ``[12]``, the integer products of the codes of ``W2`` with q1 and q2.
        correction: float32 ``[12]``, scale × (s1 × c1 + s2 × c2).
        exact: float64 ``[12]``, W2 · latent without quantisation.
        base: float32 ``[12]``.
        y: float32 ``[12]``, base + correction rounded once to bf16.
        token: the row with the largest y, the lowest of equals.
    """

    number: int
    previous: int
    latent: np.ndarray
    q1: np.ndarray
    q2: np.ndarray
    s1: np.float32
    s2: np.float32
    c1: np.ndarray
    c2: np.ndarray
    correction: np.ndarray
    exact: np.ndarray
    base: np.ndarray
    y: np.ndarray
    token: int


@dataclass(frozen=True, eq=False)
class ToyOnGpu:
    """What the kernel made of a toy head: ``tokens`` int64 ``[3]`` and ``logits`` float32 ``[3, 12]``, or None for both and why in ``says``."""

    says: str
    tokens: np.ndarray | None = None
    logits: np.ndarray | None = None

    def differs_from(self, walk: TwinWalk) -> bool:
        """Whether it ran and gave another token, or another bit of a logit, than a twin that kept its logits."""
        if self.tokens is None:
            return False
        return not (np.array_equal(self.tokens, walk.tokens) and np.array_equal(round_to_bf16(self.logits), walk.logits))


def toy_head(seed: int = TOY_SEED) -> ToyHead:
    """The toy head of a seed: weights from −1 to 1 in eighths, base logits from −1 to 1 in quarters."""
    draw = np.random.default_rng(seed).integers
    w1, w2 = (draw(-8, 9, (TOY_TOKENS, TOY_RANK)).astype(np.float32) / 8 for _ in range(2))
    return ToyHead(w1, w2, draw(-4, 5, (TOY_STEPS, TOY_TOKENS)).astype(np.float32) / 4, TOY_ANCHOR)


def toy_codes(head: ToyHead) -> ToyCodes:
    """The head in int8x2."""
    return ToyCodes(*twin_quantize_rows(head.w2), *twin_quantize_latents(head.w1))


def toy_walk(head: ToyHead) -> tuple[ToyStep, ...]:
    """The int8x2 walk with everything that it computes."""
    codes, previous, steps = toy_codes(head), head.anchor, []
    for number in range(len(head.base)):
        steps.append(_step(head, codes, number, previous))
        previous = steps[-1].token
    return tuple(steps)


def _step(head: ToyHead, codes: ToyCodes, number: int, previous: int) -> ToyStep:
    """One step: every fp32 operation is rounded on its own, the products are integers."""
    q1, q2, s1, s2 = codes.q1[previous], codes.q2[previous], codes.s1[previous], codes.s2[previous]
    matrix = codes.w_q.astype(np.int64)
    c1, c2 = matrix @ q1, matrix @ q2
    correction = codes.w_scale * (s1 * c1.astype(np.float32) + s2 * c2.astype(np.float32))
    y = combine(head.base[number], correction)
    exact = head.w2.astype(np.float64) @ head.w1[previous]
    return ToyStep(number, previous, head.w1[previous], q1, q2, s1, s2, c1, c2, correction, exact, head.base[number], y, int(select(y)))


# --- what it must equal ---------------------------------------------------------------------------------------------------


def twin(head: ToyHead) -> TwinWalk:
    """The project's twin of the kernel on the same codes, logits kept; it shares no arithmetic of a step with `toy_walk` but the rounding."""
    return twin_walk(*toy_codes(head).tensors, head.base_bits, head.anchor, keep_logits=True)


def reference(head: ToyHead) -> TwinWalk:
    """The walk in bf16 that engines run, correction and sum each rounded; exact here, see the module."""
    walks = twin_walks_bf16(head.w2, head.w1, head.base_bits[None], np.array([head.anchor]), rounding="twice", keep_logits=True)
    return TwinWalk(walks.tokens[0], walks.draft_ids[0], walks.values[0], walks.logits[0])


def padded(head: ToyHead) -> ToyHead:
    """The same head at the smallest rank that the kernel takes: zeros behind the columns."""
    behind = ((0, 0), (0, -head.w2.shape[1] % RANK_MULTIPLE))
    return ToyHead(np.pad(head.w1, behind), np.pad(head.w2, behind), head.base, head.anchor)


def walk_on_gpu(head: ToyHead, log: Any = None) -> ToyOnGpu:
    """Walk the head with the kernel, on this machine's GPU where there is one; builds the kernel the first time.

    Raises:
        BuildError: the kernel cannot be built.
        WalkStalled: the GPU's blocks did not meet.
    """
    from wts_lab.study import capable_device

    device = capable_device()
    if device is None:
        return ToyOnGpu("not run: this machine has no CUDA GPU of compute capability 8.0 or more that torch can use")
    import torch

    from wts_lab.heads import MarkovHead
    from wts_lab.walk import Walk

    wide = padded(head)
    w1, w2, base = (torch.from_numpy(each).to(torch.bfloat16) for each in (wide.w1, wide.w2, wide.base))
    walk = Walk(MarkovHead(w1, w2).to("cuda"), steps=len(base), mode="resident", log=log)
    logits = torch.zeros((1, *base.shape), dtype=torch.bfloat16, device=walk.device)
    tokens = walk(base[None].to(walk.device), torch.tensor([head.anchor], device=walk.device), logits_out=logits)
    walk.check()
    says = f"run on {device.name}: rank {head.w2.shape[1]} and zeros up to {wide.w2.shape[1]}, the smallest rank of the kernel"
    return ToyOnGpu(says, tokens[0].cpu().numpy(), bf16_to_float(logits[0].view(torch.int16).cpu().numpy().view(np.uint16)))
