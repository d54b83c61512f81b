"""Estimate: a sum of overlapping terms with its 95 % interval, from the errors of the parameters and of the model; numbers or arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cost_model.elementwise import Number, larger, smaller
from cost_model.parameters import Parameter
from cost_model.parts import Group, total_us

Z_95 = 1.96
"""Standard errors on each side of a 95 % interval."""

GroupsOf = Callable[[Mapping[str, Number]], Sequence[Group]]
"""Parameter values -> the groups of terms of a time."""


def estimate(groups_of: GroupsOf, by_name: Mapping[str, Parameter], used: Iterable[str], model_error: float, floor_us: Number,
             checked: bool = False) -> tuple[Number, Number, Number]:
    """Return (time, low end, high end) in microseconds.

    Each parameter in `used` is moved down by its own error in turn; the changes add in quadrature, errors being taken as independent. The
    model's own error adds in quadrature, too; where it was `checked`, read from what the same parameters leave of recorded walks, it has theirs in
    it, and the larger of both counts. The low end never lies below the floor, unless the time itself does.
    """
    values = {name: one.value for name, one in by_name.items()}
    total = total_us(groups_of(values))
    variance = 0.0
    for name in used:
        parameter = by_name[name]
        moved = {**values, name: parameter.value / (1.0 + parameter.relative_error)}
        variance = variance + (total_us(groups_of(moved)) - total) ** 2
    of_model = (model_error * total) ** 2
    half = Z_95 * (larger(variance, of_model) if checked else variance + of_model) ** 0.5
    return total, larger(smaller(floor_us, total), total - half), total + half
