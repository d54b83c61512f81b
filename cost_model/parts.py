"""Parts of a time: groups of named times that overlap, of which the longest is exposed and the others hide behind it.

A time is the sum over its groups of each group's longest part. Times may be numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cost_model.elementwise import Number, larger, smaller

Group = Mapping[str, Number]
"""Name of a term -> its time in microseconds; all of one group run side by side."""

Parts = dict[str, tuple[float, float, str]]
"""Term name -> (exposed_us, hidden_us, resource)."""

RESOURCES = {
    "products": "tensor cores", "shared_read": "shared memory", "stream": "memory", "epilogue": "issue",
    "latent": "L2 latency", "gate": "issue", "block_reduction": "latency", "exchange": "exchange", "noise": "issue", "overhead": "latency",
    "led_rows": "latency", "tile_rest": "latency",
    "state_products": "issue", "state_read": "L2", "state_update": "issue", "projector": "issue", "latent_exchange": "exchange",
    "latent_update": "issue", "pool_read": "memory", "launch": "launch", "shard_load": "memory", "first_latent": "L2 latency",
    "first_fill": "memory latency", "first_pass": "memory", "first_step": "latency", "position_terms": "kernel efficiency",
    "pool_gather": "kernel efficiency", "byte_floor": "memory", "projection_excess": "kernel efficiency", "selection": "kernel efficiency",
    "state": "kernel efficiency", "sampling": "kernel efficiency", "first_kernels": "launch",
}
"""What binds each term."""

TILE_TERMS = ("products", "shared_read", "stream", "epilogue")
"""Terms of the tiles."""

TOGETHER = (TILE_TERMS, ("exchange", "noise", "state_products"))
"""Terms that run side by side: what of them hides runs from where the first of them starts."""


@dataclass(frozen=True)
class Beside:
    """Groups that follow one another, and one term that runs beside them all.

    Attributes:
        groups: what follows one another.
        name, time_us: the term: in each group it is hidden, as far as it lasts, and what is left shows.
    """

    groups: tuple[Group, ...]
    name: str
    time_us: Number

    def spread(self) -> list[Group]:
        """Give plain groups: the term has a part in each, and what is left stands alone."""
        found, left_us = [], self.time_us
        for group in self.groups:
            part_us = smaller(left_us, _longest_us(group))
            found.append({**group, self.name: part_us})
            left_us = left_us - part_us
        return [*found, {self.name: left_us}]


def total_us(groups: Sequence[Group | Beside]) -> Number:
    """Sum over the groups of the longest part of each; small arrays are added up before large ones."""
    longest = [_longest_us(group) for group in groups]
    if any(hasattr(one, "size") for one in longest):
        longest.sort(key=lambda one: getattr(one, "size", 1))
    return sum(longest)


def times(groups: Sequence[Group | Beside], factor: Number) -> list[Group | Beside]:
    """The same groups, each so many times."""
    return [Beside(tuple(times(group.groups, factor)), group.name, factor * group.time_us) if isinstance(group, Beside)
            else {name: factor * time_us for name, time_us in group.items()} for group in groups]


def _longest_us(group: Group | Beside) -> Number:
    """The longest part of a group, element by element."""
    if isinstance(group, Beside):
        return larger(total_us(group.groups), group.time_us)
    first, *others = group.values()
    for other in others:
        first = larger(first, other)
    return first


def split(groups: Sequence[Group | Beside]) -> Parts:
    """Exposed and hidden time of every term of numbers: in each group the longest part is exposed, the first of equals."""
    parts: Parts = {}
    for group in (plain for one in groups for plain in (one.spread() if isinstance(one, Beside) else [one])):
        binding = max(group, key=lambda name: group[name])
        for name, time_us in group.items():
            exposed, hidden, resource = parts.get(name, (0.0, 0.0, RESOURCES[name]))
            parts[name] = (exposed + time_us, hidden, resource) if name == binding else (exposed, hidden + time_us, resource)
    return parts


def one_by_one(terms: Group) -> list[Group]:
    """Groups of one term each: nothing overlaps."""
    return [{name: time_us} for name, time_us in terms.items()]
