"""The head's share of a draft, and of a whole round: released drafters, each with the engine's head and with the resident one.

A round is verify, draft backbone, base logits and head, one after the other. Phases are modelled on recorded rounds, or wide estimates from a roofline
(`cost_model.round_phases`); the head is measured where its calls were recorded in the serving state, else predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.drafter_memory import memory_of
from cost_model.round_phases import unmeasured_phases
from cost_model.serving import shapes_of
from cost_model.targets import list_drafters, load_drafter
from cost_model.workload import Workload
from wts_lab.comparison import MEASURED, PREDICTED
from wts_lab.walked import Walked, walked

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from cost_model.phases import Phase
    from cost_model.targets import Drafter

VERIFY = "verify"
ENGINE_WAY, RESIDENT_WAY = "the engine's head", "resident head"
CONTEXT_TOKENS = 2048
"""Tokens of context of each sequence; verify and backbone read their keys and values."""

Share = tuple[float, float, float]
"""A share of 1, and the ends of its interval."""


@dataclass(frozen=True)
class HeadShare:
    """One drafter's round with one head.

    Attributes:
        drafter: its catalogue name; steps: tokens that it drafts; concurrency: sequences together.
        way: ENGINE_WAY or RESIDENT_WAY; walk: the head's call.
        phases: the round without its head, by name.
        head_us: time of the head's call with the ends of its interval, in microseconds.
        basis: 'measured' or 'predicted', of the head.
    """

    drafter: str
    steps: int
    concurrency: int
    way: str
    walk: Walked
    phases: Mapping[str, Phase]
    head_us: tuple[float, float, float]
    basis: str

    @property
    def round_us(self) -> float:
        """The whole round, in microseconds."""
        return self.head_us[0] + sum(phase.time_us for phase in self.phases.values())

    @property
    def of_round(self) -> Share:
        """Share of the head in the whole round."""
        return self._share(self.phases)

    @property
    def of_draft(self) -> Share:
        """Share of the head in the draft: the round without verify."""
        return self._share({name: phase for name, phase in self.phases.items() if name != VERIFY})

    def _share(self, beside: Mapping[str, Phase]) -> Share:
        """head / (head + rest); the ends take head and rest at opposite ends."""
        rest = [sum(getattr(phase, name) for phase in beside.values()) for name in ("time_us", "time_us_high", "time_us_low")]
        value, low, high = (head / (head + other) for head, other in zip(self.head_us, rest))
        return value, low, high


def drafters_with_heads() -> tuple[Drafter, ...]:
    """The catalogued drafters that have a serial head."""
    return tuple(drafter for drafter in map(load_drafter, list_drafters()) if drafter.head is not None)


def head_shares(
    gpu: Gpu, drafters: Iterable[Drafter], *, concurrency: int = 1, context_tokens: int = CONTEXT_TOKENS, records: Path | None = None
) -> tuple[HeadShare, ...]:
    """Two rows a drafter: with the head that the engine takes, and with the resident one.

    Raises MissingFact where the GPU lacks what a roofline needs; BadInput where a head cannot be predicted. `records` as in `walked`.
    """
    return tuple(row for drafter in drafters for row in _shares(gpu, drafter, concurrency, context_tokens, records))


def _shares(gpu: Gpu, drafter: Drafter, concurrency: int, context_tokens: int, records: Path | None) -> list[HeadShare]:
    target, head = shapes_of(drafter)
    memory, steps = memory_of(drafter, target), drafter.steps
    unmeasured = unmeasured_phases(gpu, drafter, target, memory, concurrency, context_tokens, steps, vocab_size=head.padded_vocab_size)
    found = {name.replace("_", " "): phase for name, phase in unmeasured.items()}
    load = Workload(concurrency, steps, l2_state="serving")
    walks = {
        ENGINE_WAY: walked(gpu, head, replace(load, precision="bf16"), "stepwise", records=records),
        RESIDENT_WAY: walked(gpu, head, load, "resident", records=records),
    }
    rows = []
    for way, walk in walks.items():
        measured = walk.measured_us(steps)
        time_us = measured or walk.predicted_us(steps)
        if time_us is not None:
            rows.append(HeadShare(drafter.name, steps, concurrency, way, walk, found, time_us, MEASURED if measured else PREDICTED))
    return rows
