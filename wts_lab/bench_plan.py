"""What a measurement will do, decided before any GPU is touched: cases, groups, order of the samples, parts of a run.

A *case* is one implementation on one head. Cases that are compared form a *group* (same head, batch and temperature): they
share inputs and run interleaved. A *point* is a case at one walk length and L2 state; its samples come in *bursts*, one a
round, and each round visits all points in a fresh random order, so that drift of the GPU meets all of them alike. A *part*
is one group in one process, the unit in which an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.workload import L2_STATES, MODES, PRECISIONS, ROUNDINGS, require_whole, require_word

IMPLEMENTATIONS = ("wts", "torch-stepwise")
"""What this package can launch itself; engines' own paths are recorded elsewhere."""

DEFAULT_REPEATS = 100
DEFAULT_PROCESSES = 3
DEFAULT_ROUNDS = 4
PLAN_VERSION = 1


@dataclass(frozen=True)
class WalkCase:
    """One implementation on one head.

    Attributes:
        implementation: ``wts`` (the fused walk) or ``torch-stepwise`` (the reference, graph-replayed).
        variant: names the path within the implementation, free text.
        mode: ``resident`` or ``streaming`` for ``wts``, ``stepwise`` for ``torch-stepwise``.
        precision: ``int8x2`` or ``bf16``; the reference is bf16.
        head: shape of the head; Markov.
        batch: rows walked together.
        placement: placement to build; ``None`` for the planner's.
        exchange: how the blocks agree, ``slots-x<replicas>``; ``None`` for the walk's own default.
        rounding: ``once``, ``twice`` or ``none``; the reference rounds ``twice`` unless told otherwise.
        temperature: 0, greedy.

    Raises:
        BadInput: a field, or a combination of them, that cannot be measured.
    """

    implementation: str
    variant: str
    mode: str
    precision: str
    head: Head
    batch: int = 1
    placement: Placement | None = None
    exchange: str | None = None
    rounding: str = "once"
    temperature: float = 0.0

    def __post_init__(self) -> None:
        require_word("implementation", self.implementation, IMPLEMENTATIONS)
        require_word("mode", self.mode, MODES)
        require_word("precision", self.precision, PRECISIONS)
        require_word("rounding", self.rounding, ROUNDINGS)
        require_whole("batch", self.batch, 1, None)
        if self.exchange is not None:
            exchange_replicas(self.exchange)
        if (self.implementation == "torch-stepwise") != (self.mode == "stepwise"):
            raise BadInput(
                f"{self.implementation} cannot run {self.mode}; torch-stepwise runs stepwise, wts runs streaming and resident"
            )
        if self.mode == "stepwise" and (self.precision != "bf16" or self.placement is not None):
            raise BadInput("torch-stepwise walks in bf16 and has no placement; leave precision at bf16 and placement out")
        if self.mode == "resident" and self.precision != "int8x2":
            raise BadInput(f"resident walks are built in int8x2, not in {self.precision}; choose streaming for bf16")
        if self.head.kind != "markov":
            raise BadInput(f"the head is {self.head.kind}; only markov heads can be measured yet")
        if self.temperature != 0:
            raise BadInput(f"temperature is {self.temperature}; only greedy walks (0) can be measured yet")

    @property
    def label(self) -> str:
        """Short text for progress and messages."""
        name = "stepwise torch" if self.mode == "stepwise" else f"{self.mode} {self.precision}"
        return f"{name}, V {self.head.vocab_size:,}, rank {self.head.rank}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "head": self.head.as_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> WalkCase:
        """The inverse of :meth:`as_dict`."""
        placement = values["placement"]
        return cls(**{
            **values, "head": Head(**values["head"]),
            "placement": None if placement is None else Placement(**placement),
        })


def exchange_name(replicas: int) -> str:
    """How records name an exchange over a slots array with that many copies."""
    return f"slots-x{replicas}"


def exchange_replicas(name: str) -> int:
    """Copies of the slots array that an exchange of that name writes; BadInput for another name."""
    prefix, _, count = name.partition("-x")
    if prefix != "slots" or not count.isdecimal() or int(count) < 1:
        raise BadInput(f"exchange is {name!r}; write slots-x<replicas>, such as slots-x8")
    return int(count)


def resident_case(head: Head, placement: Placement | None = None) -> WalkCase:
    """The resident walk in int8x2."""
    return WalkCase("wts", "resident", "resident", "int8x2", head, placement=placement)


def streaming_case(head: Head, precision: str = "int8x2", placement: Placement | None = None) -> WalkCase:
    """The streaming walk in either precision, past the L1 cache."""
    return WalkCase("wts", "streaming", "streaming", precision, head, placement=placement)


def stepwise_case(head: Head) -> WalkCase:
    """The reference in torch, one sequence of kernels a step, rounding as SGLang's step sampler does."""
    return WalkCase("torch-stepwise", "graph", "stepwise", "bf16", head, rounding="twice")


def comparison_cases(head: Head) -> tuple[WalkCase, ...]:
    """The four that split the gain into fusion, precision and residency."""
    return resident_case(head), streaming_case(head, "int8x2"), streaming_case(head, "bf16"), stepwise_case(head)


@dataclass(frozen=True)
class Point:
    """What one row of a record times: case number ``case`` of a group at ``steps`` steps from an L2 state."""

    case: int
    steps: int
    l2_state: str


def check_points(steps: Sequence[int], l2_states: Sequence[str], repeats: int) -> None:
    """Raise BadInput unless there are walk lengths and L2 states, each once, and at least one sample."""
    if not steps or not l2_states:
        raise BadInput("nothing to measure: give at least one walk length and one L2 state")
    for length in steps:
        require_whole("steps", length, 1, None)
    for state in l2_states:
        require_word("l2_state", state, L2_STATES)
    if len(set(steps)) < len(steps) or len(set(l2_states)) < len(l2_states):
        raise BadInput(f"steps {list(steps)} and L2 states {list(l2_states)} must not repeat")
    require_whole("repeats", repeats, 1, None)


def group_cases(cases: Sequence[WalkCase]) -> tuple[tuple[WalkCase, ...], ...]:
    """Cases by (head, batch, temperature), groups and members in the order given; BadInput where a case appears twice."""
    if not cases:
        raise BadInput("nothing to measure: give at least one case")
    groups: dict[tuple, list[WalkCase]] = {}
    for case in cases:
        members = groups.setdefault((case.head, case.batch, case.temperature), [])
        if case in members:
            raise BadInput(f"the case {case.label} is given twice; give it once and raise repeats instead")
        members.append(case)
    return tuple(tuple(members) for members in groups.values())


def burst_sizes(repeats: int, rounds: int) -> tuple[int, ...]:
    """Samples of each round: ``repeats`` split as evenly as whole numbers allow, the larger bursts first, none empty."""
    rounds = max(1, min(rounds, repeats))
    share, rest = divmod(repeats, rounds)
    return tuple(share + (number < rest) for number in range(rounds))


def order_bursts(
    cases: int, steps: Sequence[int], l2_states: Sequence[str], repeats: int, rounds: int, rng: Random
) -> Iterator[tuple[Point, int, bool]]:
    """Yield (point, samples, whether it is the point's last burst): every round is a fresh permutation of all points."""
    points = [Point(case, length, state) for case in range(cases) for length in steps for state in l2_states]
    sizes = burst_sizes(repeats, rounds)
    for number, size in enumerate(sizes):
        for point in rng.sample(points, len(points)):
            yield point, size, number == len(sizes) - 1


@dataclass(frozen=True)
class RunPlan:
    """Everything that decides what a recorded run does, except when it runs.

    Attributes:
        kind: ``walks``, or ``probes`` (then cases, steps and l2_states are empty).
        cases, steps, l2_states, repeats, rounds: what is timed; see this module's docstring.
        processes: processes with fresh allocations.
        seed: of inputs and order.
        gpu_id: catalogue id, or a name made from the device's.
        provenance: columns that are the same in every row.
    """

    kind: str
    cases: tuple[WalkCase, ...]
    steps: tuple[int, ...]
    l2_states: tuple[str, ...]
    repeats: int
    rounds: int
    processes: int
    seed: int
    gpu_id: str
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        require_word("kind", self.kind, ("walks", "probes"))
        require_whole("processes", self.processes, 1, None)
        require_whole("rounds", self.rounds, 1, None)
        require_whole("repeats", self.repeats, 1, None)
        if self.kind == "walks":
            group_cases(self.cases)
            check_points(self.steps, self.l2_states, self.repeats)

    @property
    def groups(self) -> tuple[tuple[WalkCase, ...], ...]:
        """The groups of a run of walks; one empty group for probes."""
        return group_cases(self.cases) if self.kind == "walks" else ((),)

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest of all fields but the command: parts are taken up again only by an equal plan."""
        values = self.as_dict()
        values["provenance"] = {name: value for name, value in values["provenance"].items() if name != "command"}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def seed_of(self, process_index: int, group: int) -> int:
        """Seed of inputs and order of one part."""
        text = f"{self.seed}/{process_index}/{group}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def bursts_of(self, group: int) -> int:
        """Bursts of one part of a run of walks, for progress."""
        rounds = len(burst_sizes(self.repeats, self.rounds))
        return len(self.groups[group]) * len(self.steps) * len(self.l2_states) * rounds

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "version": PLAN_VERSION, "cases": [case.as_dict() for case in self.cases],
                "steps": list(self.steps), "l2_states": list(self.l2_states)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunPlan:
        """The inverse of :meth:`as_dict`; BadInput for another version."""
        values = dict(values)
        version = values.pop("version", None)
        if version != PLAN_VERSION:
            raise BadInput(f"the plan has version {version}; this code reads {PLAN_VERSION}")
        cases = tuple(WalkCase.from_dict(case) for case in values.pop("cases"))
        steps, l2_states = tuple(values.pop("steps")), tuple(values.pop("l2_states"))
        return cls(cases=cases, steps=steps, l2_states=l2_states, **values)
