"""The twin of `reference.py` in torch, for many walks of a large vocabulary on a GPU (or a CPU).

Same results bit for bit, which tests check on a CPU; of sampled walks all but the logarithms, which are the machine's own. The
integer products are float64 matrix products, exact in any order and untouched by the TF32 and bf16 switches of torch; everything
after them is fp32, one elementwise operation at a time, so that nothing is contracted into a fused multiply-add. bfloat16 rounding
and the order of values are integer arithmetic.

:func:`select_step` is one step of any head: whoever computes latents (a table here, a recurrence elsewhere) gives it the present
ones and a matrix, `Int8x2Matrix` or `ExactBf16Matrix`. Temperatures divide as IEEE says; `reference.py` says what that leaves open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK
from cost_model.workload import PRECISIONS, ROUNDINGS, require_word
from wts_lab.noise import Sampling
from wts_lab.quantize import quantize_latents, quantize_rows
from wts_lab.reference import CANONICAL_NAN_BF16, INDEX_BITS, check_walk

CHUNK_ELEMENTS = 1 << 24  # walks times rows at a time: bounds the float64 temporaries to 256 MiB
LAST_INDEX = (1 << INDEX_BITS) - 1


@dataclass(frozen=True)
class TorchTwinWalk:
    """Tensors ``[walks, steps]``: tokens int64 (target ids), draft_ids int64 (rows of ``W2``), values float32 (the keys compared:
    ``y``, or ``y / temperature + noise`` where the walk samples); logits bfloat16 ``[walks, steps, vocab_size]`` where kept."""

    tokens: torch.Tensor
    draft_ids: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor | None = None


class Int8x2Matrix:
    """``W2`` of the int8x2 arithmetic: codes int8 ``[V, r]``, scales float32 ``[V]``.

    :raises BadInput: a rank above 512, where the integer products would leave fp32.
    """

    def __init__(self, w_q: torch.Tensor, w_scale: torch.Tensor) -> None:
        if w_q.shape[1] > MAX_RANK:
            raise BadInput(f"the rank must be at most {MAX_RANK}; got a matrix {tuple(w_q.shape)}")
        self.rows, self.rank = w_q.shape
        self._codes, self._scale = w_q.to(torch.float64), w_scale

    def corrections(self, latents: tuple[torch.Tensor, ...], rows: slice) -> torch.Tensor:
        """float32 ``[walks, rows]`` of latents ``(q1, q2, s1, s2)``: int8 ``[walks, r]`` twice, float32 ``[walks]`` twice."""
        q1, q2, s1, s2 = latents
        products = (torch.cat([q1, q2]).to(torch.float64) @ self._codes[rows].T).to(torch.float32)  # integers below 2^24: exact
        first, second = products[: len(q1)] * s1[:, None], products[len(q1) :] * s2[:, None]
        return self._scale[rows] * (first + second)


class ExactBf16Matrix:
    """``W2`` ``[V, r]`` of the bf16 arithmetic, for numbers whose products and sums are exact in fp32."""

    def __init__(self, w2: torch.Tensor) -> None:
        self.rows, self.rank = w2.shape
        self._matrix = w2.to(torch.float64)

    def corrections(self, latents: torch.Tensor, rows: slice) -> torch.Tensor:
        """float32 ``[walks, rows]`` of latents ``[walks, r]``.

        :raises BadInput: a product is not an fp32 number (synchronises to find out).
        """
        exact = latents.to(torch.float64) @ self._matrix[rows].T
        rounded = exact.to(torch.float32)
        if not torch.equal(rounded.to(torch.float64), exact):
            raise BadInput("a product of these bf16 inputs is not an fp32 number; use inputs from planting.plant(exact_bf16=True)")
        return rounded


def twin_walks_torch(w_q, w_scale, q1, q2, s1, s2, base_logits, anchors, **options) -> TorchTwinWalk:
    """:func:`wts_lab.reference.twin_walks` on the device of its inputs, with the options of `reference.run_walks`.

    :param base_logits: bfloat16 ``[walks, steps, columns]`` on the device of ``w_q``.
    :param anchors: int64 ``[walks]``.
    :raises BadInput: as the NumPy twin.
    """
    if not w_q.shape[1] == q1.shape[1] == q2.shape[1] <= MAX_RANK:
        raise BadInput(f"matrix and latents must share a rank up to {MAX_RANK}; got {tuple(w_q.shape)}, {tuple(q1.shape)}")
    table = (q1, q2, s1, s2)
    return run_walks_torch(Int8x2Matrix(w_q, w_scale), lambda tokens: tuple(part[tokens] for part in table), len(q1), base_logits, anchors, **options)


def twin_walks_bf16_torch(w2, w1, base_logits, anchors, **options) -> TorchTwinWalk:
    """:func:`wts_lab.reference.twin_walks_bf16` on the device of its inputs: bf16 weights that are exact in fp32.

    :raises BadInput: a product is not an fp32 number (synchronises once a step to find out).
    """
    return run_walks_torch(ExactBf16Matrix(w2), lambda tokens: w1[tokens], len(w1), base_logits, anchors, **options)


def expected_walks(head, base_logits, anchors, *, precision="int8x2", **options) -> TorchTwinWalk:
    """What the kernel must return for a `MarkovHead` and inputs on its device.

    :param precision: "int8x2" for any weights; "bf16" for weights that are exact in fp32 (`planting.plant(exact_bf16=True)`).
    :param options: rounding, draft_to_target, temperatures, noise, rows and keep_logits of `reference.run_walks`. The walks of one
        batched call are ``rows=torch.arange(batch)``; without ``rows`` each is row 0 of a call of its own.
    :raises BadInput: as the twins; another precision.
    """
    require_word("precision", precision, PRECISIONS)
    w2, w1 = head.markov_w2.weight, head.markov_w1.weight
    if precision == "bf16":
        return twin_walks_bf16_torch(w2, w1, base_logits, anchors, vocab_size=head.vocab_size, **options)
    return twin_walks_torch(*quantize_rows(w2), *quantize_latents(w1), base_logits, anchors, vocab_size=head.vocab_size, **options)


def run_walks_torch(
    matrix, latents_of: Callable, latent_rows: int, base_logits, anchors, *, vocab_size=None, rounding="once", draft_to_target=None,
    temperatures=None, noise=None, rows=None, keep_logits=False,
) -> TorchTwinWalk:  # fmt: skip
    """:func:`wts_lab.reference.run_walks` over any matrix of :func:`select_step` and any latents, with its options.

    :param latents_of: gives the latents after target ids int64 ``[walks]``; called once a step, in order, so it may keep a state.
    :param latent_rows: target ids there are latents for.
    :param base_logits: bfloat16 ``[walks, steps, columns]``, whose device is the walk's.
    :raises BadInput: as the NumPy twin.
    """
    vocab_size = matrix.rows if vocab_size is None else vocab_size
    ids = None if draft_to_target is None else torch.as_tensor(draft_to_target).cpu().numpy()
    targets = check_walk(matrix.rows, latent_rows, anchors.cpu().numpy(), vocab_size, ids)
    if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < vocab_size:
        raise BadInput(
            f"base_logits must be bfloat16 [walks, steps, at least {vocab_size}]; got {base_logits.dtype} {tuple(base_logits.shape)}"
        )
    device, (walks, steps, _) = base_logits.device, base_logits.shape
    targets = None if targets is None else torch.from_numpy(targets).to(device)
    sampling = Sampling.of(walks, temperatures, noise, rows)
    options = {"vocab_size": vocab_size, "rounding": rounding}
    if sampling is not None:
        options["temperatures"] = torch.from_numpy(sampling.temperatures).to(device)
    logits = torch.empty((walks, steps, vocab_size), dtype=torch.bfloat16, device=device) if keep_logits else None
    previous, found = anchors.to(device), []
    for step in range(steps):
        if sampling is not None:
            options["noise_rows"] = sampling.noise(step, vocab_size, device)
        winner, value, y = select_step(matrix, latents_of(previous), base_logits[:, step], **options)
        if keep_logits:
            logits[:, step] = y
        previous = winner if targets is None else targets[winner]
        found.append((previous, winner, value))
    return TorchTwinWalk(*(torch.stack(column, 1) for column in zip(*found, strict=True)), logits)


def select_step(
    matrix, latents, base, *, vocab_size: int | None = None, rounding: str = "once",
    temperatures: torch.Tensor | None = None, noise_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """One step of many walks: project the present latents, add the base logits, choose.

    :param matrix: `Int8x2Matrix` or `ExactBf16Matrix`.
    :param latents: what its ``corrections`` takes, of ``walks`` rows; None for none: ``y`` is the base itself.
    :param base: bfloat16 ``[walks, at least vocab_size]``.
    :param vocab_size: logical columns; default: all rows of the matrix.
    :param temperatures: float32 ``[walks]``, 0 where a walk is greedy; None: all are.
    :param noise_rows: float32 ``[walks, vocab_size]`` of :meth:`wts_lab.noise.Sampling.noise`; needed with temperatures.
    :returns: draft ids int64 ``[walks]``, their keys float32 ``[walks]``, and every ``y`` as bfloat16 ``[walks, vocab_size]``.
    """
    require_word("rounding", rounding, ROUNDINGS)
    vocab_size = matrix.rows if vocab_size is None else vocab_size
    kept = torch.empty((len(base), vocab_size), dtype=torch.bfloat16, device=base.device)
    best_word, best_value = None, None
    chunk_rows = max(1024, CHUNK_ELEMENTS // len(base))
    for start in range(0, vocab_size, chunk_rows):
        rows = slice(start, min(start + chunk_rows, vocab_size))
        correction = base.new_zeros((), dtype=torch.float32) if latents is None else matrix.corrections(latents, rows)
        values = _combine(base[:, rows].to(torch.float32), correction, rounding)
        kept[:, rows] = _as_bf16(values)
        if temperatures is not None:
            values = selection_keys(values, temperatures, noise_rows[:, rows])
        word = ((signed_order(values) << INDEX_BITS) + LAST_INDEX - torch.arange(rows.start, rows.stop, device=values.device)).amax(dim=1)
        value = values.gather(1, (_index(word) - start)[:, None])[:, 0]
        if best_word is None:
            best_word, best_value = word, value
        else:
            best_value = torch.where(word > best_word, value, best_value)
            best_word = torch.maximum(word, best_word)
    return _index(best_word), best_value, kept


def selection_keys(y: torch.Tensor, temperatures: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """:func:`wts_lab.reference.selection_keys` of tensors."""
    sampled = (temperatures > 0)[:, None]
    return torch.where(sampled, y / torch.where(sampled, temperatures[:, None], 1.0) + noise, y)


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


def _as_bf16(y: torch.Tensor) -> torch.Tensor:
    """bfloat16 of float32 by :func:`round_to_bf16`: torch's own conversion writes other NaNs on other devices."""
    return (round_to_bf16(y).view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


def _index(word: torch.Tensor) -> torch.Tensor:
    """Row of a word (order of the key, inverted index), which is largest for the winner."""
    return LAST_INDEX - (word & LAST_INDEX)
