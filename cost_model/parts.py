"""Parts of a time: groups of named times that overlap, of which the longest is exposed and the others hide behind it.

A time is the sum over its groups of each group's longest part. Times may be numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_model.elementwise import Number, larger, smaller

Group = Mapping[str, Number]
"""Name of a term -> its time in microseconds; all of one group run side by side."""

Parts = dict[str, tuple[float, float, str]]
"""Term name -> (exposed_us, hidden_us, resource)."""

RESOURCES = {
    "products": "tensor cores", "shared_read": "shared memory", "stream": "memory", "epilogue": "issue",
    "latent": "L2 latency", "gate": "issue", "block_reduction": "latency", "exchange": "exchange", "noise": "issue", "overhead": "latency",
    "led_rows": "latency", "further_quads": "latency",
    "state_products": "issue", "state_read": "L2", "state_update": "issue", "projector": "issue", "latent_exchange": "exchange",
    "latent_update": "issue", "pool_read": "memory", "launch": "launch", "shard_load": "memory", "first_latent": "L2 latency",
    "first_fill": "memory latency", "first_pass": "memory", "first_step": "latency", "first_noise": "issue", "position_terms": "kernel efficiency",
    "pool_gather": "kernel efficiency", "byte_floor": "memory", "projection_excess": "kernel efficiency", "selection": "kernel efficiency",
    "state": "kernel efficiency", "sampling": "kernel efficiency", "first_kernels": "launch",
}
"""What binds each term."""

TILE_TERMS = ("products", "shared_read", "stream", "epilogue")
"""Terms of the tiles."""

TOGETHER = (TILE_TERMS, ("exchange", "noise", "state_products"))
"""Terms that run side by side: what of them hides runs from where the first of them starts."""


def total_us(groups: Sequence[Group]) -> Number:
    """Sum over the groups of the longest part of each; small arrays are added up before large ones."""
    longest = [_longest_us(group) for group in groups]
    if any(hasattr(one, "size") for one in longest):
        longest.sort(key=lambda one: getattr(one, "size", 1))
    return sum(longest)


def _longest_us(group: Group) -> Number:
    """The longest part of a group, element by element."""
    first, *others = group.values()
    for other in others:
        first = larger(first, other)
    return first


def split(groups: Sequence[Group]) -> Parts:
    """Exposed and hidden time of every term of numbers: in each group the longest part is exposed, the first of equals."""
    parts: Parts = {}
    for group in groups:
        binding = max(group, key=lambda name: group[name])
        for name, time_us in group.items():
            exposed, hidden, resource = parts.get(name, (0.0, 0.0, RESOURCES[name]))
            parts[name] = (exposed + time_us, hidden, resource) if name == binding else (exposed, hidden + time_us, resource)
    return parts


def beside(groups: Sequence[Group], name: str, time_us: Number) -> list[Group]:
    """Add a term that runs beside several groups: in each it is hidden, as far as it lasts, and what is left stands alone."""
    found: list[Group] = []
    for group in groups:
        shown_us = _longest_us(group)
        found.append({**group, name: smaller(time_us, shown_us)})
        time_us = time_us - found[-1][name]
    return [*found, {name: time_us}]


def one_by_one(terms: Group) -> list[Group]:
    """Groups of one term each: nothing overlaps."""
    return [{name: time_us} for name, time_us in terms.items()]
