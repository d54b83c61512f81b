"""The Gumbel noise of sampled walks: Philox4x32-10, addressed as SGLang's step sampler addresses it.

Philox is a counter-based generator: ten rounds of two 32-bit products turn a counter of four words and a key of two into four
random words (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The word of draft id ``n``
in batch row ``b`` at walk position ``k`` of the call with offset ``o`` is

    word n % 4 of philox(counter = (n // 4, b, k, o mod 2^32), key = (key mod 2^32, key div 2^32))

    uniform = (float32(word) + 0.5) · 2^-32        in (0, 1]; each operation rounded to fp32
    gumbel  = -log(-log1p(-uniform))               fp32; -inf where the uniform is 1
    argmax over n of  y / temperature + gumbel     is a sample of softmax(y / temperature)

So the noise depends on no token, a row's noise on no other row, and tokens are the same however the vocabulary is cut up.

The words and uniforms are exact everywhere. ``log`` and ``log1p`` are each machine's own in the torch form, which is therefore
equal to the kernel on a GPU and within 2 ulp of it for each function elsewhere; the NumPy form rounds each function's exact value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_model.errors import BadInput

if TYPE_CHECKING:
    import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, as the paper has them
WORD_MASK = 0xFFFFFFFF
LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""The smallest normal fp32 number: of less the hardware's reciprocal is infinite, and the kernel's bounds of noise tell nothing."""
CHUNK_WORDS = 1 << 22  # at a time: bounds the int64 temporaries to some 100 MiB


def split_key(key: int) -> tuple[int, int]:
    """Low and high 32-bit word of a 64-bit key, signed or unsigned.

    :raises BadInput: the key does not fit 64 bits.
    """
    if not -(1 << 63) <= key < 1 << 64:
        raise BadInput(f"a noise key has 64 bits, signed or unsigned; got {key}")
    return key & WORD_MASK, (key >> 32) & WORD_MASK


def require_temperatures(given: Any) -> None:
    """Raise BadInput unless temperatures, a number, an array or a tensor of them, are finite and 0 or at least LEAST_TEMPERATURE.

    A tensor on another device than the host's is let be: reading it would wait for that device, which a walk must not.
    """
    if getattr(getattr(given, "device", None), "type", "cpu") != "cpu":
        return
    values = _host(given, np.float32)
    if not np.isfinite(values).all() or ((values != 0) & (values < LEAST_TEMPERATURE)).any():
        raise BadInput(f"temperatures are {values.tolist()}; each must be a finite number of at least {LEAST_TEMPERATURE:.3g}, or 0 (greedy)")


# --- NumPy ---------------------------------------------------------------------------------------------------------------


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of uint32 counters ``[..., 4]``: uint32 words ``[..., 4]``."""
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counters, dtype=np.uint32).astype(np.uint64), -1, 0)
    mask, shift = np.uint64(WORD_MASK), np.uint64(32)
    keys = split_key(key)
    for step in range(ROUNDS):
        k0, k1 = (np.uint64((word + step * gain) & WORD_MASK) for word, gain in zip(keys, KEY_STEPS, strict=True))
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (second >> shift) ^ c1 ^ k0, second & mask, (first >> shift) ^ c3 ^ k1, first & mask
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniforms_numpy(key: int, offset, *, rows, step: int, vocab: int) -> np.ndarray:
    """float32 ``[rows, vocab]``: the NumPy form of :func:`uniforms`, exactly equal."""
    row = np.arange(rows) if isinstance(rows, int) else np.asarray(rows)
    counters = np.zeros((len(row), -(-vocab // 4), 4), dtype=np.int64)
    counters[..., 0] = np.arange(counters.shape[1])
    counters[..., 1] = row[:, None]
    counters[..., 2] = step
    counters[..., 3] = np.asarray(offset, dtype=np.int64).reshape(-1, 1)
    words = philox(key, counters & WORD_MASK).reshape(len(row), -1)[:, :vocab]
    return (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


def gumbel_numpy(key: int, offset, *, rows, step: int, vocab: int) -> np.ndarray:
    """float32 ``[rows, vocab]``: the NumPy form of :func:`gumbel`, each function evaluated in float64 and rounded to fp32."""
    uniform = uniforms_numpy(key, offset, rows=rows, step=step, vocab=vocab)
    with np.errstate(divide="ignore"):
        exponential = -np.log1p(-uniform.astype(np.float64)).astype(np.float32)
        return -np.log(exponential.astype(np.float64)).astype(np.float32)


# --- torch ---------------------------------------------------------------------------------------------------------------


def uniforms(key: int, offset, *, rows, step: int, vocab: int, device: torch.device | str) -> torch.Tensor:
    """float32 ``[rows, vocab]`` in (0, 1] on ``device``.

    :param key: 64 bits, signed or unsigned.
    :param offset: int or int64 ``[1]`` or ``[rows]``; its low 32 bits are used.
    :param rows: how many batch rows, numbered from 0; or their numbers, ``[rows]``.
    :param step: walk position, from 0.
    :raises BadInput: the key does not fit 64 bits.
    """
    import torch

    row = torch.arange(rows, device=device) if isinstance(rows, int) else torch.as_tensor(rows, device=device)
    block = torch.as_tensor(offset, dtype=torch.int64, device=device).reshape(-1, 1) & WORD_MASK
    result = torch.empty((len(row), vocab), dtype=torch.float32, device=device)
    chunk = 4 * max(1, CHUNK_WORDS // (4 * len(row)))
    for start in range(0, vocab, chunk):
        stop = min(start + chunk, vocab)
        quads = torch.arange(start // 4, -(-stop // 4), device=device)
        words = _philox_torch(key, quads[None, :], row[:, None], step, block)
        numbers = torch.stack([word.to(torch.float32) for word in words], dim=-1).flatten(1)
        result[:, start:stop] = numbers[:, : stop - start].add_(0.5).mul_(2.0**-32)
    return result


def gumbel(key: int, offset, *, rows, step: int, vocab: int, device: torch.device | str) -> torch.Tensor:
    """float32 ``[rows, vocab]``: ``-log(-log1p(-uniform))`` of :func:`uniforms`, whose parameters it takes."""
    return uniforms(key, offset, rows=rows, step=step, vocab=vocab, device=device).neg_().log1p_().neg_().log_().neg_()


def _philox_torch(key: int, c0, c1, c2, c3) -> tuple[torch.Tensor, ...]:
    """The four words as int64 tensors. A product wraps at 64 bits, so both its halves come out right behind a mask."""
    keys = split_key(key)
    for step in range(ROUNDS):
        k0, k1 = ((word + step * gain) & WORD_MASK for word, gain in zip(keys, KEY_STEPS, strict=True))
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = ((second >> 32) & WORD_MASK) ^ c1 ^ k0, ((first >> 32) & WORD_MASK) ^ c3 ^ k1
        c1, c3 = second & WORD_MASK, first & WORD_MASK
    return c0, c1, c2, c3


# --- the rows of a call --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """What each walk of a twin samples with: arrays ``[walks]``.

    ``temperatures`` float32, 0 where the walk is greedy; ``offsets`` int64, of the call that the walk stands for; ``rows`` int64,
    its batch row in that call.
    """

    temperatures: np.ndarray
    key: int
    offsets: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, walks: int, temperatures: Any, noise: tuple[int, Any] | None, rows: Any = None) -> Sampling | None:
        """From the arguments of a walk, NumPy or torch; None where no row samples.

        :param temperatures: ``[walks]``, or None: all greedy.
        :param noise: ``(key, offset)`` with an offset for all walks (int, or int64 ``[1]``) or one each (``[walks]``).
        :param rows: int64 ``[walks]``; None: each walk is row 0 of its own call.
        :raises BadInput: a shape that does not fit, a temperature below 0 or not finite, or no noise where a row samples.
        """
        if temperatures is None:
            return None
        given = _host(temperatures, np.float32)
        if given.shape != (walks,):
            raise BadInput(f"temperatures must be [{walks}] numbers; got {list(given.shape)}")
        require_temperatures(given)
        if not given.any():
            return None
        if noise is None:
            raise BadInput("a temperature above 0 needs noise=(key, offset)")
        key, offset = noise
        split_key(key)
        offsets, numbers = _host(offset, np.int64).reshape(-1), _host(0 if rows is None else rows, np.int64).reshape(-1)
        for name, array in (("an offset", offsets), ("rows", numbers)):
            if len(array) not in (1, walks):
                raise BadInput(f"{name} must be one number for all walks or [{walks}]; got {array.shape}")
        return cls(given, key, np.broadcast_to(offsets, walks), np.broadcast_to(numbers, walks))

    def noise_numpy(self, step: int, vocab: int) -> np.ndarray:
        """:func:`gumbel_numpy` ``[walks, vocab]`` of a step."""
        return gumbel_numpy(self.key, self.offsets, rows=self.rows, step=step, vocab=vocab)

    def noise(self, step: int, vocab: int, device: torch.device | str) -> torch.Tensor:
        """:func:`gumbel` ``[walks, vocab]`` of a step, on ``device``."""
        return gumbel(self.key, self.offsets.copy(), rows=self.rows.copy(), step=step, vocab=vocab, device=device)


def _host(values: Any, dtype: type) -> np.ndarray:
    """A NumPy copy of a number, an array or a tensor on any device: a walk advances its offset in place."""
    return np.array(values.cpu().numpy() if hasattr(values, "numpy") else values, dtype=dtype)
