"""Timeline: a predicted walk as spans of time, for drawing.

Exposed terms follow one another and make up the call; what hides runs beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cost_model.parts import TOGETHER
from cost_model.predict import Prediction, Term
from cost_model.workload import require_whole

TILE_TERMS = ("products", "shared_read", "stream", "epilogue")
"""Terms of the groups in which one is exposed and the others hide."""


@dataclass(frozen=True)
class Span:
    """One term at one place of a walk.

    Attributes:
        term: name of the term.
        resource: what it keeps busy.
        step: 0 for the entry, then 1 to the walk length.
        start_us, length_us: from the start of the call.
        hidden: whether it runs beside exposed spans and adds nothing.
    """

    term: str
    resource: str
    step: int
    start_us: float
    length_us: float
    hidden: bool

    @property
    def end_us(self) -> float:
        """Where it ends."""
        return self.start_us + self.length_us


def walk_timeline(prediction: Prediction, steps: int | None = None) -> tuple[Span, ...]:
    """Spans of a call of `steps` steps (the workload's unless given), in order of step.

    The exposed spans join without gaps and end at `prediction.call_us(steps)`. A hidden one starts where the first term that it runs
    beside starts: the tiles of the step, or the agreement. No hidden span outlasts the exposed ones of its group.
    """
    if steps is not None:
        require_whole("steps", steps, 1, None)
    spans, at_us = list(_laid_out(prediction.terms["entry"], 0, 0.0)), prediction.entry_us
    for step in range(1, (prediction.workload.steps if steps is None else steps) + 1):
        spans += _laid_out(prediction.terms["step"], step, at_us)
        at_us += prediction.step_us
    return tuple(spans)


def _laid_out(terms: Mapping[str, Term], step: int, start_us: float) -> Iterator[Span]:
    """Exposed terms one after the other; then the hidden ones."""
    at_us, starts_us = start_us, {}
    for name, term in terms.items():
        starts_us.setdefault(_beside(name), at_us)
        if term.exposed_us > 0:
            yield Span(name, term.resource, step, at_us, term.exposed_us, False)
        at_us += term.exposed_us
    for name, term in terms.items():
        if term.hidden_us > 0:
            yield Span(name, term.resource, step, starts_us[_beside(name)], term.hidden_us, True)


def _beside(name: str) -> tuple[str, ...]:
    """The terms that a term runs side by side with, itself included."""
    return next((names for names in TOGETHER if name in names), (name,))
