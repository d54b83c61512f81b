"""Heads whose corrections are exact in bf16 whatever arithmetic computes them, so that engines can be compared token for token."""

from __future__ import annotations

import torch

from wts_lab.heads import MarkovHead

LARGEST_WHOLE = 12


def one_hot_head(vocab_size: int, rank: int, *, seed: int = 0, device: str = "cpu", padded_vocab_size: int | None = None) -> MarkovHead:
    """A head of one-hot latents and small whole numbers.

    A row of ``W1`` is a power of two, 1/8 to 1, in one column, so a correction is one product. ``W2`` holds whole numbers up to
    12, and 127 in its last column, which no latent reads: every row's int8 scale is then exactly 1. A correction has at most four
    significant bits, in int8x2 as in bf16, so rounding "twice" and "once" agree and no sum depends on its order.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randint(rank - 1, (vocab_size,), generator=generator)
    w1 = torch.zeros(vocab_size, rank)
    w1[torch.arange(vocab_size), columns] = 2.0 ** torch.randint(-3, 1, (vocab_size,), generator=generator)
    w2 = torch.randint(-LARGEST_WHOLE, LARGEST_WHOLE + 1, (padded_vocab_size or vocab_size, rank), generator=generator).float()
    w2[:, -1] = 127
    return MarkovHead(*(w.to(device=device, dtype=torch.bfloat16) for w in (w1, w2)), vocab_size=vocab_size)
