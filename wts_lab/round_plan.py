"""What a measurement of rounds will do, decided before any GPU is touched: cases, the heads of each, and the plan of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cost_model.errors import BadInput
from cost_model.head import Head, load_head
from cost_model.targets import load_drafter
from cost_model.workload import MAX_BATCH, require_whole
from wts_lab.bench_plan import WalkCase, engine_case, resident_case, stepwise_case
from wts_lab.run_folder import Plan

PHASES = ("verify", "backbone", "base_logits")
"""The phases before the head, in order."""

HEAD, WHOLE = "head", "round"
"""Phases of records that stand for a round's head alone, and for the whole round."""


@dataclass(frozen=True)
class RoundCase:
    """One round: a catalogued drafter with its target and head, at one concurrency and context.

    Attributes:
        drafter: catalogue name.
        steps: tokens drafted; verify takes one more.
        concurrency: sequences together, 1 to 32.
        context_tokens: of each sequence before the round.
        engine: whether the engine's own paths are the stepwise heads; else the reference in torch is.
    """

    drafter: str
    steps: int
    concurrency: int
    context_tokens: int
    engine: bool = True

    def __post_init__(self) -> None:
        require_whole("steps", self.steps, 1, None)
        require_whole("concurrency", self.concurrency, 1, MAX_BATCH)
        require_whole("context_tokens", self.context_tokens, 1, None)
        if load_drafter(self.drafter).head is None:
            raise BadInput(f"{self.drafter} has no serial head, so its round has none to compare; choose a drafter that has one")

    @property
    def target(self) -> str:
        """Catalogue name of the target."""
        return load_drafter(self.drafter).target

    @cached_property
    def head(self) -> Head:
        """Shape of the drafter's head."""
        return load_head(str(load_drafter(self.drafter).head))

    @cached_property
    def heads(self) -> tuple[WalkCase, ...]:
        """The stepwise head and the resident one; first the path that the engine takes, and at one sequence its faster one too.

        The engine takes its greedy path at batch 1 alone.
        """
        batch = self.concurrency
        if not self.engine:
            stepwise = (stepwise_case(self.head, batch=batch),)
        else:
            paths = ("MarkovGreedyStep", "MarkovSampleStep") if batch == 1 else ("MarkovSampleStep",)
            stepwise = tuple(engine_case(self.head, path, batch=batch) for path in paths)
        return *stepwise, resident_case(self.head, batch=batch)

    @property
    def points(self) -> tuple[tuple[str, int | None], ...]:
        """(phase, number of the head, or None where it has no part) of everything that is timed."""
        numbers = range(len(self.heads))
        return *((phase, None) for phase in PHASES), *((phase, number) for phase in (HEAD, WHOLE) for number in numbers)

    @property
    def label(self) -> str:
        """Short text for progress and messages."""
        return f"{self.target}, {self.concurrency} x {self.context_tokens:,} tokens, {self.steps} drafted"

    @property
    def words(self) -> frozenset[str]:
        """Words that pick this case out: target, drafter, and ``c`` and ``k`` with concurrency and context in units of 1,024 tokens."""
        return frozenset((self.target, self.drafter, f"c{self.concurrency}", f"k{self.context_tokens // 1024}"))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RoundCase:
        """The inverse of :meth:`as_dict`."""
        return cls(**values)


def implementation_name(case: WalkCase) -> str:
    """How a head is named in round records: the implementation, with the path within an engine."""
    return case.implementation if case.variant in ("graph", case.mode) else f"{case.implementation} {case.variant}"


@dataclass(frozen=True)
class RoundPlan(Plan):
    """Everything that decides what a recorded run of rounds does, except when it runs.

    Attributes:
        cases: what is timed; those of one target beside each other share its weights.
        repeats: samples a point; rounds: bursts that they are spread over.
        processes: processes with fresh allocations; seed: of weights, inputs and order.
        gpu_id: catalogue id; provenance: columns that are the same in every row.
        engine_root: folder of the engine's unpacked files, where it is not installed; goes into no record.
    """

    VERSION, CASE, FORMAT, PART = 1, RoundCase, "round", "case"

    cases: tuple[RoundCase, ...]
    repeats: int
    rounds: int
    processes: int
    seed: int
    gpu_id: str
    provenance: dict[str, Any]
    engine_root: str | None = None

    def __post_init__(self) -> None:
        for name in ("repeats", "rounds", "processes"):
            require_whole(name, getattr(self, name), 1, None)
        if not self.cases or len(set(self.cases)) < len(self.cases):
            raise BadInput(f"{len(self.cases)} cases, {len(set(self.cases))} of them different; give at least one, and none twice")

    @property
    def parts(self) -> int:
        """Parts of a process: its cases."""
        return len(self.cases)


def select_cases(cases: Sequence[RoundCase], filters: Sequence[str]) -> tuple[RoundCase, ...]:
    """The cases that have, of each filter's words (divided by commas), at least one; BadInput where none has."""
    wanted = [frozenset(text.split(",")) for text in filters]
    kept = tuple(case for case in cases if all(words & case.words for words in wanted))
    if not kept:
        known = sorted(frozenset().union(*(case.words for case in cases)))
        raise BadInput(f"no case has the words {' and '.join(filters)}; known are {', '.join(known)}")
    return kept
