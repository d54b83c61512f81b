"""The positive values that a stored weight can have, as shares of the largest, and how far apart they lie.

A row of ``W2`` is scaled so that its largest weight falls on a format's highest level: 127 of int8, 448 of E4M3. What a weight loses is then at most
half of the distance between the two levels around it. Needs NumPy alone; `projection_formats.py` has the same levels as torch knows them.

    int8     1, 2, ... 127: everywhere 1 apart
    E4M3     4 exponent bits with bias 7, 3 mantissa bits: m / 8 × 2^-6 for m = 1 to 7, then (1 + m / 8) × 2^(e - 7) for e = 1 to 15 and m = 0 to 7;
             of e = 15 the last code means NaN
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cost_model.errors import BadInput

E4M3_BIAS, E4M3_MANTISSA_CODES, E4M3_LARGEST_EXPONENT = 7, 8, 15
INT8_LARGEST = 127


def int8_levels() -> np.ndarray:
    """float64 ``[127]``, ascending; code −128 is never used."""
    return np.arange(1, INT8_LARGEST + 1, dtype=np.float64)


def e4m3_levels() -> np.ndarray:
    """float64 ``[126]``, ascending, from 2^-9 to 448."""
    fractions = np.arange(E4M3_MANTISSA_CODES) / E4M3_MANTISSA_CODES
    exponents = np.arange(1, E4M3_LARGEST_EXPONENT + 1)
    normal = ((1 + fractions) * 2.0 ** (exponents[:, None] - E4M3_BIAS)).ravel()[:-1]
    return np.concatenate([fractions[1:] * 2.0 ** (1 - E4M3_BIAS), normal])


LEVELS: Mapping[str, np.ndarray] = MappingProxyType({"int8": int8_levels(), "fp8-e4m3": e4m3_levels()})
"""Levels of the formats that have one scale a row, by name."""


def share_below(levels: np.ndarray, ratio: float) -> float:
    """Share of the levels that lie below a share of the highest one, such as 1/14."""
    return float(np.mean(levels < ratio * levels[-1]))


def spacing(levels: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Distance between the two levels around each of the numbers, all as shares of the highest level; 0 is a level, too.

    Raises:
        BadInput: a number is not from 0 up to, but not including, 1.
    """
    ratios = np.asarray(ratios, dtype=np.float64)
    if ratios.size == 0 or not ((ratios >= 0) & (ratios < 1)).all():
        raise BadInput(f"ratios must be numbers from 0 up to, but not including, 1: shares of the highest level; got {ratios}")
    edges = np.concatenate([[0.0], levels / levels[-1]])
    above = np.searchsorted(edges, ratios, side="right")
    return edges[above] - edges[above - 1]


def crossing() -> float:
    """The share of the maximum below which E4M3's levels lie closer than int8's, and above which they do not: 1/14."""
    edges = LEVELS["fp8-e4m3"][:-1] / LEVELS["fp8-e4m3"][-1]
    coarser = spacing(LEVELS["fp8-e4m3"], edges) > 1 / INT8_LARGEST
    return float(edges[coarser].min())
