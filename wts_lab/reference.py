"""What the kernel must compute: a NumPy twin of the walk, equal to it bit for bit, and the selection rules it stands on.

The twin shares no code with `quantize.py`, `packing.py` or the kernel: tests compare them. One step of the int8x2 walk is

    c1 = W2_q · q1,  c2 = W2_q · q2                         exact integers, below 2^24 for rank ≤ 512
    correction = scale · (s1·c1 + s2·c2)                    four fp32 operations, each rounded on its own
    y = bf16(base + correction)                             rounding "once"
    y = bf16(base + bf16(correction))                       rounding "twice"
    y = base + correction                                   rounding "none", fp32

    key = y                                                 a greedy walk
    key = y / temperature + gumbel                          a sampled one: noise of `noise.py`, IEEE division

and the row with the largest key wins; the lowest index wins a tie, −0 equals +0, NaN is above everything (as `torch.argmax`).
Columns from ``vocab_size`` on are padding and are never chosen. A row of −inf alone gives index 0.

A sampled twin is the kernel's equal at temperature 1, where division is exact, as far as the machine's logarithms are the kernel's
(torch on a GPU); here they differ by up to 2 ulp each. At other temperatures the kernel divides as SGLang's Triton kernel does
(``div.full.f32``, up to 2 ulp: the compiler makes it a product with the temperature's approximate reciprocal, on sm_80 to sm_120),
which no twin repeats. Either may swap two keys that nearly tie.

The integer products are float32 BLAS products: every partial sum is an integer below 127·127·512 = 8.26e6 < 2^24, so each is
exact in any order. The same walk in torch, for many walks on a GPU, is `twin_torch.py`; the bf16 stepwise walk that engines run
is `stepwise.py`. Their public names can be imported from here too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE
from cost_model.workload import ROUNDINGS, require_word
from wts_lab.noise import Sampling

INDEX_BITS = 20
EPOCH_BITS = 12
LARGEST_CODE = 127
CHUNK_ROWS = 8192  # vocabulary rows at a time: keeps a batched step's temporaries in megabytes
CANONICAL_NAN_BF16 = 0x7FFF

_TORCH_NAMES = {
    "StepwiseWalk": "stepwise",
    "teacher_forced_agreement": "stepwise",
    "twin_walks_torch": "twin_torch",
    "twin_walks_bf16_torch": "twin_torch",
    "expected_walks": "twin_torch",
    "select_step": "twin_torch",
}


def __getattr__(name: str) -> object:
    """The torch implementations, imported only when asked for: the twin itself needs NumPy alone."""
    if name in _TORCH_NAMES:
        return getattr(importlib.import_module(f"wts_lab.{_TORCH_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


@dataclass(frozen=True)
class TwinWalk:
    """Result of a twin: arrays ``[steps]`` of one walk, or ``[walks, steps]`` of many.

    ``tokens`` int64 in target ids; ``draft_ids`` int64, the rows of ``W2`` that won; ``values`` float32, their keys (``y`` where
    the walk is greedy); ``logits`` bfloat16 bit patterns (uint16) ``[..., vocab_size]``, every ``y``, or None where not kept.
    """

    tokens: np.ndarray
    draft_ids: np.ndarray
    values: np.ndarray
    logits: np.ndarray | None = None


# --- numbers -------------------------------------------------------------------------------------------------------------


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    """float32 values of bfloat16 bit patterns (uint16), exactly."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) of float32 values: to nearest, ties to even, every NaN to 0x7FFF."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    not_a_number = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(not_a_number, np.uint32(CANONICAL_NAN_BF16), rounded).astype(np.uint16)


def ordered_value(values: np.ndarray) -> np.ndarray:
    """uint32 keys that order as the selection does: ``a`` beats ``b`` if and only if key(a) > key(b).

    Any NaN is 0xFFFFFFFF, −0 has the key of +0, −inf is 0x007FFFFF; no value has a key of 0.
    """
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    bits = np.where(magnitude == 0, np.uint32(0), bits)
    keys = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))
    return np.where(magnitude > np.uint32(0x7F800000), np.uint32(0xFFFFFFFF), keys)


def pack_word(ordered: int, index: int, epoch: int) -> int:
    """The 64-bit word a block publishes: ordered value 32 bits | inverted index 20 | epoch 12; the larger word wins.

    :raises BadInput: a field does not fit its bits.
    """
    for name, value, bits in (("ordered value", ordered, 32), ("index", index, INDEX_BITS), ("epoch", epoch, EPOCH_BITS)):
        if not 0 <= value < 1 << bits:
            raise BadInput(f"the {name} of a selection word has {bits} bits, 0 to {(1 << bits) - 1}; got {value}")
    return (int(ordered) << 32) | ((MAX_VOCAB_SIZE - 1 - int(index)) << EPOCH_BITS) | int(epoch)


def unpack_word(word: int) -> tuple[int, int, int]:
    """``(ordered value, index, epoch)`` of a selection word."""
    return word >> 32, MAX_VOCAB_SIZE - 1 - ((word >> EPOCH_BITS) & (MAX_VOCAB_SIZE - 1)), word & ((1 << EPOCH_BITS) - 1)


def combine(base: np.ndarray, correction: np.ndarray, rounding: str = "once") -> np.ndarray:
    """``y`` in float32 from float32 base logits and corrections of one shape (formulas in the module docstring)."""
    require_word("rounding", rounding, ROUNDINGS)
    with np.errstate(over="ignore", invalid="ignore"):
        if rounding == "twice":
            correction = bf16_to_float(round_to_bf16(correction))
        total = np.add(base, correction, dtype=np.float32)
    return total if rounding == "none" else bf16_to_float(round_to_bf16(total))


def selection_keys(y: np.ndarray, temperatures: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What is compared, float32 ``[walks, V]``: ``y / temperature + noise``, or ``y`` where the temperature ``[walks]`` is 0."""
    sampled = (temperatures > 0)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(sampled, y / np.where(sampled, temperatures[:, None], np.float32(1)) + noise, y)


def select(values: np.ndarray) -> np.ndarray:
    """int64 ``[...]``: index of the winner along the last axis of float32 ``[..., V]`` by the selection rules."""
    return np.argmax(ordered_value(values), axis=-1)


# --- quantisation, once more ---------------------------------------------------------------------------------------------


def twin_quantize_rows(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NumPy's own form of :func:`wts_lab.quantize.quantize_rows`: int8 ``[V, r]``, float32 ``[V]``."""
    values = np.asarray(weight, dtype=np.float32)
    scale = _scales(values, 2.0**-126)
    return _codes(values, scale), scale


def twin_quantize_latents(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """NumPy's own form of :func:`wts_lab.quantize.quantize_latents`: ``q1, q2`` int8 ``[N, r]``, ``s1, s2`` float32 ``[N]``."""
    values = np.asarray(latents, dtype=np.float32)
    s1 = _scales(values, 254 * 2.0**-126)
    s2 = s1 / np.float32(254)
    q1 = _codes(values, s1)
    return q1, _codes(values - s1[:, None] * q1.astype(np.float32), s2), s1, s2


def _scales(values: np.ndarray, smallest: float) -> np.ndarray:
    """float32 ``[rows]``: ``max|row| / 127``, or 0 where that is below ``smallest``."""
    scale = np.max(np.abs(values), axis=1) / np.float32(LARGEST_CODE)
    return np.where(scale < np.float32(smallest), np.float32(0), scale)


def _codes(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """int8 ``[rows, r]``: ``round_half_even(value / scale)`` within ±127, and 0 where the scale is 0."""
    codes = np.rint(values / np.where(scale == 0, np.float32(1), scale)[:, None])
    codes = np.clip(codes, -LARGEST_CODE, LARGEST_CODE)
    return np.where(scale[:, None] == 0, 0, codes).astype(np.int8)


# --- the walk ------------------------------------------------------------------------------------------------------------


class Int8x2Projection:
    """Corrections of the int8x2 arithmetic: ``w_q`` int8 ``[V, r]``, ``w_scale`` float32 ``[V]``, latent table as quantised."""

    def __init__(self, w_q, w_scale, q1, q2, s1, s2) -> None:
        if max(w_q.shape[1], q1.shape[1], q2.shape[1]) > MAX_RANK or not w_q.shape[1] == q1.shape[1] == q2.shape[1]:
            raise BadInput(f"matrix and latents must share a rank up to {MAX_RANK}; got {w_q.shape}, {q1.shape}, {q2.shape}")
        self.rows, self.latent_rows = w_q.shape[0], q1.shape[0]
        self._matrix = np.asarray(w_q).astype(np.float32)
        self._scale = np.asarray(w_scale, dtype=np.float32)
        self._q1, self._q2, self._s1, self._s2 = q1, q2, np.asarray(s1, np.float32), np.asarray(s2, np.float32)

    def corrections(self, previous: np.ndarray, rows: slice) -> np.ndarray:
        """float32 ``[walks, rows]`` for the tokens ``previous`` int64 ``[walks]``."""
        latents = np.concatenate([self._q1[previous], self._q2[previous]]).astype(np.float32)
        products = latents @ self._matrix[rows].T
        c1, c2 = products[: len(previous)], products[len(previous) :]
        inner = self._s1[previous][:, None] * c1 + self._s2[previous][:, None] * c2
        return self._scale[rows] * inner


class ExactBf16Projection:
    """Corrections of the bf16 arithmetic for inputs whose products and sums are exact in fp32 (`planting.py` makes them).

    ``w2`` ``[V, r]`` and ``w1`` ``[N, r]`` float32 holding bfloat16 values. Each correction is computed in float64 and must be
    an fp32 number: otherwise the order of summation would matter and no twin could be exact.
    """

    def __init__(self, w2: np.ndarray, w1: np.ndarray) -> None:
        self.rows, self.latent_rows = w2.shape[0], w1.shape[0]
        self._w2, self._w1 = np.asarray(w2, dtype=np.float64), np.asarray(w1, dtype=np.float64)

    def corrections(self, previous: np.ndarray, rows: slice) -> np.ndarray:
        """float32 ``[walks, rows]`` for the tokens ``previous`` int64 ``[walks]``."""
        exact = self._w1[previous] @ self._w2[rows].T
        rounded = exact.astype(np.float32)
        if not np.array_equal(rounded, exact):
            raise BadInput("a product of these bf16 inputs is not an fp32 number; use inputs from planting.plant(exact_bf16=True)")
        return rounded


def twin_walks(w_q, w_scale, q1, q2, s1, s2, base_bits, anchors, **options) -> TwinWalk:
    """Advance many int8x2 walks together, one matrix product a step and chunk of rows.

    :param base_bits: uint16 ``[walks, steps, columns]`` bfloat16 bit patterns, or an iterable of ``[walks, columns]`` a step.
    :param anchors: int64 ``[walks]``, target ids: rows of the latent table.
    :param options: those of :func:`run_walks`.
    :raises BadInput: shapes that do not fit, an anchor or a mapped id outside the latent table, an unknown rounding.
    """
    return run_walks(Int8x2Projection(w_q, w_scale, q1, q2, s1, s2), base_bits, anchors, **options)


def twin_walk(w_q, w_scale, q1, q2, s1, s2, base_bits, anchor: int, **options) -> TwinWalk:
    """One walk: :func:`twin_walks` with ``base_bits`` uint16 ``[steps, columns]`` and one anchor; arrays are ``[steps]``."""
    walks = twin_walks(w_q, w_scale, q1, q2, s1, s2, np.asarray(base_bits)[None], np.array([anchor]), **options)
    return TwinWalk(walks.tokens[0], walks.draft_ids[0], walks.values[0], None if walks.logits is None else walks.logits[0])


def twin_walks_bf16(w2, w1, base_bits, anchors, **options) -> TwinWalk:
    """:func:`twin_walks` in bf16 arithmetic, for inputs that are exact in fp32 (:class:`ExactBf16Projection`)."""
    return run_walks(ExactBf16Projection(w2, w1), base_bits, anchors, **options)


def run_walks(
    projection, base_bits, anchors, *, vocab_size=None, rounding="once", draft_to_target=None,
    temperatures=None, noise=None, rows=None, keep_logits=False,
) -> TwinWalk:  # fmt: skip
    """Walks over any projection with ``rows``, ``latent_rows`` and ``corrections``.

    :param vocab_size: logical columns; from there on columns are padding. Default: all rows of ``W2``.
    :param draft_to_target: int64 ``[V]``, target id of each row of ``W2``; default: the same ids.
    :param temperatures: float32 ``[walks]``, 0 where a walk is greedy; None: all are.
    :param noise: ``(key, offset)`` and ``rows``, as :meth:`wts_lab.noise.Sampling.of` takes them.
    :param keep_logits: return every ``y`` too, rounded to bfloat16 whatever the rounding.
    """
    previous = np.asarray(anchors, dtype=np.int64)
    vocab_size = projection.rows if vocab_size is None else vocab_size
    targets = check_walk(projection.rows, projection.latent_rows, previous, vocab_size, draft_to_target)
    sampling = Sampling.of(len(previous), temperatures, noise, rows)
    found = []
    for step, bits in enumerate(_by_step(base_bits)):
        if bits.shape[0] != len(previous) or bits.shape[1] < vocab_size:
            raise BadInput(f"base logits of a step must be [{len(previous)}, at least {vocab_size}]; got {bits.shape}")
        logits = np.empty((len(previous), vocab_size), dtype=np.uint16) if keep_logits else None
        winner, value = _step(projection, previous, bits[:, :vocab_size], rounding, _keys_of(sampling, step, vocab_size), logits)
        previous = winner if targets is None else targets[winner]
        found.append((previous, winner, value, logits))
    tokens, draft_ids, values, logits = zip(*found, strict=True)
    return TwinWalk(np.stack(tokens, 1), np.stack(draft_ids, 1), np.stack(values, 1), np.stack(logits, 1) if keep_logits else None)


def check_walk(rows: int, latent_rows: int, anchors: np.ndarray, vocab_size: int, draft_to_target) -> np.ndarray | None:
    """Validate sizes, anchors and the id map once for every twin; returns the map as int64, or None."""
    if not 1 <= vocab_size <= min(rows, MAX_VOCAB_SIZE):
        raise BadInput(f"vocab_size must be 1 to {min(rows, MAX_VOCAB_SIZE)} (rows of W2, and 20 index bits); got {vocab_size}")
    if anchors.ndim != 1 or anchors.min() < 0 or anchors.max() >= latent_rows:
        raise BadInput(f"anchors must be [walks] token ids from 0 to {latent_rows - 1}; got {anchors}")
    targets = None if draft_to_target is None else np.asarray(draft_to_target, dtype=np.int64)
    reach = vocab_size if targets is None else int(targets[:vocab_size].max(initial=0)) + 1
    if (targets is not None and (len(targets) < vocab_size or targets.min() < 0)) or reach > latent_rows:
        raise BadInput(
            f"every selectable row needs a latent: draft ids reach target id {reach - 1}, the latent table has {latent_rows} rows"
        )
    return targets


def _by_step(base_bits: np.ndarray | Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Base logits one step at a time, uint16 ``[walks, columns]``."""
    if isinstance(base_bits, np.ndarray):
        if base_bits.ndim != 3 or base_bits.dtype != np.uint16:
            raise BadInput(f"base logits must be uint16 bit patterns [walks, steps, columns]; got {base_bits.dtype} {base_bits.shape}")
        return iter(base_bits.transpose(1, 0, 2))
    return iter(base_bits)


def _keys_of(sampling: Sampling | None, step: int, vocab_size: int) -> Callable[[np.ndarray, slice], np.ndarray]:
    """What turns the ``y`` of a slice of rows into keys, in one step of the walks."""
    if sampling is None:
        return lambda y, rows: y
    noise = sampling.noise_numpy(step, vocab_size)
    return lambda y, rows: selection_keys(y, sampling.temperatures, noise[:, rows])


def _step(projection, previous: np.ndarray, bits: np.ndarray, rounding: str, keys_of, logits) -> tuple[np.ndarray, np.ndarray]:
    """Winner int64 ``[walks]`` and its key float32 ``[walks]``, keeping the best over chunks of rows; ``y`` goes to ``logits``."""
    walks = np.arange(len(previous))
    best_key = np.zeros(len(previous), dtype=np.uint32)  # below the order of every value
    best_index, best_value = np.zeros(len(previous), dtype=np.int64), np.zeros(len(previous), dtype=np.float32)
    for start in range(0, bits.shape[1], CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, bits.shape[1]))
        y = combine(bf16_to_float(bits[:, rows]), projection.corrections(previous, rows), rounding)
        if logits is not None:
            logits[:, rows] = round_to_bf16(y)
        values = keys_of(y, rows)
        keys = ordered_value(values)
        index = np.argmax(keys, axis=1)  # the first of equals
        better = keys[walks, index] > best_key  # strictly: an earlier chunk keeps a tie
        best_key = np.where(better, keys[walks, index], best_key)
        best_index = np.where(better, index + start, best_index)
        best_value = np.where(better, values[walks, index], best_value)
    return best_index, best_value
