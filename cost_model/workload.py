"""Workload: what is asked of a head in one call, apart from the head's own shape and the GPU.

The tuples here are the only lists of the words that name modes, precisions, roundings and L2 states.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cost_model.errors import BadInput

MODES = ("stepwise", "streaming", "resident")
"""`stepwise`: kernels for each step, graph-replayed; `streaming`: fused, W2 read again each step; `resident`: W2 stays on chip."""

PRECISIONS = ("bf16", "int8x2")
"""`bf16`, or `int8x2`: int8 weights against a latent written as two int8 vectors."""

ROUNDINGS = ("once", "twice", "none")
"""Base plus correction rounded to bf16 once, the correction and then the sum, or compared in fp32."""

L2_STATES = ("warm", "cold", "serving")
"""Back-to-back calls, L2 flushed between calls, or weights cold with base logits just written."""

OURS = "wts"
"""This project's kernels, which run the fused modes."""

REFERENCE = "torch-stepwise"
"""The stepwise walk of this project in plain torch, as a replayed graph: a check and a fallback, not an engine."""

ENGINE = "sglang-0.5.23"
"""The engine whose stepwise paths are the baseline."""

EXCHANGES = ("spread-lines", "dense-lines")
"""Where the words lie that the blocks of a walk exchange: each unit of 16 bytes on a cache line of its own, or packed."""

DEFAULT_EXCHANGE = "spread-lines"
"""The exchange of a walk that nobody asked another of: the only one that settings stand for and the model describes."""

FORMER_EXCHANGES = ("slots-x1", "near-lines")
"""Exchanges of walks that were recorded earlier: each was the default of its time."""

MAX_BATCH = 32


@dataclass(frozen=True)
class Workload:
    """One call of the head.

    Attributes:
        batch: rows walked together, 1 to 32.
        steps: walk length, at least 1.
        temperature: sampling temperature; 0 is greedy.
        precision: one of PRECISIONS.
        rounding: one of ROUNDINGS.
        l2_state: one of L2_STATES.
        logits_kept: whether the step logits are written out, as a sampling engine's acceptance test needs them.

    Raises:
        BadInput: a field is outside what is allowed.
    """

    batch: int = 1
    steps: int = 16
    temperature: float = 0.0
    precision: str = "int8x2"
    rounding: str = "once"
    l2_state: str = "warm"
    logits_kept: bool = False

    def __post_init__(self) -> None:
        require_whole("batch", self.batch, 1, MAX_BATCH)
        require_whole("steps", self.steps, 1, None)
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, (int, float)) or not 0 <= self.temperature < math.inf:
            raise BadInput(f"temperature is {self.temperature!r}; it must be a finite number of at least 0 (0 is greedy)")
        require_word("precision", self.precision, PRECISIONS)
        require_word("rounding", self.rounding, ROUNDINGS)
        require_word("l2_state", self.l2_state, L2_STATES)
        if not isinstance(self.logits_kept, bool):
            raise BadInput(f"logits_kept is {self.logits_kept!r}; it must be True or False")

    def as_dict(self) -> dict:
        """Return the fields as plain values, ready for JSON."""
        return asdict(self)


def is_experiment(exchange: str | None) -> bool:
    """Tell whether a walk of that exchange (None: none, or not known) is an experiment, which no settings can ask for."""
    return isinstance(exchange, str) and exchange not in (DEFAULT_EXCHANGE, *FORMER_EXCHANGES)


def require_word(name: str, given: object, allowed: tuple[str, ...]) -> None:
    """Raise BadInput unless `given` is one of the allowed words."""
    if given not in allowed:
        raise BadInput(f"{name} is {given!r}; choose one of {', '.join(allowed)}")


def require_whole(name: str, given: object, low: int, high: int | None) -> None:
    """Raise BadInput unless `given` is a whole number from `low` to `high` (no upper bound where `high` is None)."""
    if type(given) is int and low <= given and (high is None or given <= high):
        return
    allowed = f"at least {low:,}" if high is None else f"from {low:,} to {high:,}"
    if isinstance(given, bool) or not isinstance(given, int):
        raise BadInput(f"{name} is {given!r}; it must be a whole number {allowed}")
    if given < low or (high is not None and given > high):
        raise BadInput(f"{name} is {given:,}; it must be {allowed}")
