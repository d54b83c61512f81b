"""Elementwise: the few operations that read the same for numbers and for NumPy arrays, so that a formula is written once.

Plain numbers never import NumPy. A condition is a bool or an array of them.
"""

from __future__ import annotations

from typing import Any

Number = Any
"""An int, a float, or an array of either."""

_PLAIN = (int, float)


def larger(left: Number, right: Number) -> Number:
    """The larger of two, element by element; not broadcast where the smaller array is the larger everywhere."""
    if isinstance(left, _PLAIN) and isinstance(right, _PLAIN):
        return left if left >= right else right
    import numpy

    if getattr(left, "size", 1) < getattr(right, "size", 1) and (right <= left).all():
        return left  # without the axes that only the other has
    return numpy.maximum(left, right)


def smaller(left: Number, right: Number) -> Number:
    """The smaller of two, element by element."""
    if isinstance(left, _PLAIN) and isinstance(right, _PLAIN):
        return left if left <= right else right
    import numpy

    return numpy.minimum(left, right)


def choose(condition: Any, this: Number, other: Number) -> Number:
    """`this` where the condition holds, `other` elsewhere; both are evaluated. Not broadcast where it holds, or fails, everywhere."""
    if isinstance(condition, bool):
        return this if condition else other
    if condition.all():
        return this
    if not condition.any():
        return other
    import numpy

    return numpy.where(condition, this, other)


def rounded_up(count: Number, divisor: Number) -> Number:
    """count / divisor, rounded up to a whole number."""
    return -(-count // divisor)


def rate_at(curve: Any, footprint_bytes: Number) -> Number:
    """Bytes a second of a `figures.BandwidthCurve` at a footprint: straight lines in log-log, flat outside."""
    if isinstance(footprint_bytes, _PLAIN):
        return curve.at(footprint_bytes)
    import numpy

    rates = numpy.log([figure.value for figure in curve.figures])
    return numpy.exp(numpy.interp(numpy.log(footprint_bytes), numpy.log(curve.footprints_bytes), rates))
