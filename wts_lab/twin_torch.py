"""The twin of `reference.py` in torch, for many walks of a large vocabulary on a GPU (or a CPU).

Same results bit for bit, which tests check on a CPU. The integer products are float64 matrix products, exact in any order and
untouched by the TF32 and bf16 switches of torch; everything after them is fp32, one elementwise operation at a time, so that
nothing is contracted into a fused multiply-add. bfloat16 rounding and the order of values are integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK
from cost_model.workload import PRECISIONS, ROUNDINGS, require_word
from wts_lab.quantize import quantize_latents, quantize_rows
from wts_lab.reference import CANONICAL_NAN_BF16, INDEX_BITS, check_walk

CHUNK_ELEMENTS = 1 << 24  # walks times rows at a time: bounds the float64 temporaries to 256 MiB


@dataclass(frozen=True)
class TorchTwinWalk:
    """Tensors ``[walks, steps]``: tokens int64 (target ids), draft_ids int64 (rows of ``W2``), values float32."""

    tokens: torch.Tensor
    draft_ids: torch.Tensor
    values: torch.Tensor


def twin_walks_torch(
    w_q, w_scale, q1, q2, s1, s2, base_logits, anchors, *, vocab_size=None, rounding="once", draft_to_target=None
) -> TorchTwinWalk:
    """:func:`wts_lab.reference.twin_walks` on the device of its inputs.

    :param base_logits: bfloat16 ``[walks, steps, columns]`` on the device of ``w_q``.
    :param anchors: int64 ``[walks]``.
    :raises BadInput: as the NumPy twin.
    """
    if not w_q.shape[1] == q1.shape[1] == q2.shape[1] <= MAX_RANK:
        raise BadInput(f"matrix and latents must share a rank up to {MAX_RANK}; got {tuple(w_q.shape)}, {tuple(q1.shape)}")
    matrix = w_q.to(torch.float64)

    def corrections(previous: torch.Tensor, rows: slice) -> torch.Tensor:
        latents = torch.cat([q1[previous], q2[previous]]).to(torch.float64)
        products = (latents @ matrix[rows].T).to(torch.float32)  # integers below 2^24: exact
        first = products[: len(previous)] * s1[previous][:, None]
        second = products[len(previous) :] * s2[previous][:, None]
        return w_scale[rows] * (first + second)

    return _run(corrections, len(w_q), len(q1), base_logits, anchors, vocab_size, rounding, draft_to_target)


def twin_walks_bf16_torch(w2, w1, base_logits, anchors, *, vocab_size=None, rounding="once", draft_to_target=None) -> TorchTwinWalk:
    """:func:`wts_lab.reference.twin_walks_bf16` on the device of its inputs: bf16 weights that are exact in fp32.

    :raises BadInput: a product is not an fp32 number (synchronises once a step to find out).
    """
    matrix, table = w2.to(torch.float64), w1.to(torch.float64)

    def corrections(previous: torch.Tensor, rows: slice) -> torch.Tensor:
        exact = table[previous] @ matrix[rows].T
        rounded = exact.to(torch.float32)
        if not torch.equal(rounded.to(torch.float64), exact):
            raise BadInput("a product of these bf16 inputs is not an fp32 number; use inputs from planting.plant(exact_bf16=True)")
        return rounded

    return _run(corrections, len(w2), len(w1), base_logits, anchors, vocab_size, rounding, draft_to_target)


def expected_walks(head, base_logits, anchors, *, precision="int8x2", rounding="once", draft_to_target=None) -> TorchTwinWalk:
    """What the kernel must return for a `MarkovHead` and inputs on its device.

    :param precision: "int8x2" for any weights; "bf16" for weights that are exact in fp32 (`planting.plant(exact_bf16=True)`).
    :raises BadInput: as the twins; another precision.
    """
    require_word("precision", precision, PRECISIONS)
    w2, w1 = head.markov_w2.weight, head.markov_w1.weight
    options = {"vocab_size": head.vocab_size, "rounding": rounding, "draft_to_target": draft_to_target}
    if precision == "bf16":
        return twin_walks_bf16_torch(w2, w1, base_logits, anchors, **options)
    return twin_walks_torch(*quantize_rows(w2), *quantize_latents(w1), base_logits, anchors, **options)


def round_to_bf16(values: torch.Tensor) -> torch.Tensor:
    """float32 to float32 that are bfloat16 numbers: to nearest, ties to even, every NaN to 0x7FFF."""
    bits = values.contiguous().view(torch.int32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return torch.where(torch.isnan(values), CANONICAL_NAN_BF16 << 16, rounded).view(torch.float32)


def signed_order(values: torch.Tensor) -> torch.Tensor:
    """int64 keys in the order of :func:`wts_lab.reference.ordered_value`, shifted so that +0 has key 0."""
    bits = values.contiguous().view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = torch.where(values == 0, 0, keys)
    return torch.where(torch.isnan(values), 0x7FFFFFFF, keys).to(torch.int64)


def _combine(base: torch.Tensor, correction: torch.Tensor, rounding: str) -> torch.Tensor:
    """float32 ``y`` of the three roundings."""
    if rounding == "twice":
        correction = round_to_bf16(correction)
    total = base + correction
    return total if rounding == "none" else round_to_bf16(total)


def _run(corrections, rows, latent_rows, base_logits, anchors, vocab_size, rounding, draft_to_target) -> TorchTwinWalk:
    """All steps of all walks; ``corrections(previous, rows)`` gives float32 ``[walks, rows]``."""
    require_word("rounding", rounding, ROUNDINGS)
    vocab_size = rows if vocab_size is None else vocab_size
    ids = None if draft_to_target is None else torch.as_tensor(draft_to_target).cpu().numpy()
    targets = check_walk(rows, latent_rows, anchors.cpu().numpy(), vocab_size, ids)
    if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < vocab_size:
        raise BadInput(
            f"base_logits must be bfloat16 [walks, steps, at least {vocab_size}]; got {base_logits.dtype} {tuple(base_logits.shape)}"
        )
    if targets is not None:
        targets = torch.from_numpy(targets).to(base_logits.device)
    previous, tokens, draft_ids, values = anchors.to(base_logits.device), [], [], []
    for step in range(base_logits.shape[1]):
        winner, value = _step(corrections, previous, base_logits[:, step], vocab_size, rounding)
        previous = winner if targets is None else targets[winner]
        tokens.append(previous), draft_ids.append(winner), values.append(value)
    return TorchTwinWalk(torch.stack(tokens, 1), torch.stack(draft_ids, 1), torch.stack(values, 1))


def _step(corrections, previous, base, vocab_size, rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Winner int64 ``[walks]`` and its value, through a word (key, inverted index) that is largest for the winner."""
    last_index = (1 << INDEX_BITS) - 1
    best_word, best_value = None, None
    chunk_rows = max(1024, CHUNK_ELEMENTS // len(previous))
    for start in range(0, vocab_size, chunk_rows):
        rows = slice(start, min(start + chunk_rows, vocab_size))
        values = _combine(base[:, rows].to(torch.float32), corrections(previous, rows), rounding)
        inverted = last_index - torch.arange(rows.start, rows.stop, device=values.device)
        word = ((signed_order(values) << INDEX_BITS) + inverted).amax(dim=1)
        value = values.gather(1, (last_index - (word & last_index) - start)[:, None])[:, 0]
        if best_word is None:
            best_word, best_value = word, value
        else:
            best_value = torch.where(word > best_word, value, best_value)
            best_word = torch.maximum(word, best_word)
    return last_index - (best_word & last_index), best_value
