"""What a measurement will do, decided before any GPU is touched: cases, groups, order of the samples, parts of a run.

A *case* is one implementation on one head. Cases that are compared form a *group* (same head, batch and temperature): they
share inputs and run interleaved. A *point* is a case at one walk length and L2 state; its samples come in *bursts*, one a
round, and each round visits all points in a fresh random order, so that drift of the GPU meets all of them alike. A *part*
is one group in one process, the unit in which an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.measurement import NO_PROBE
from cost_model.placement import Placement
from cost_model.workload import (
    ENGINE, EXCHANGES, L2_STATES, MAX_BATCH, MODES, OURS, PRECISIONS, REFERENCE, ROUNDINGS, require_whole, require_word,
)
from wts_lab.run_folder import Plan

IMPLEMENTATIONS = (OURS, REFERENCE, ENGINE)
"""What can be launched here; an engine's own paths need its unpacked files (`RunPlan.engine_root`)."""

ENGINE_PATHS = {"MarkovGreedyStep": ("greedy", "none"), "MarkovSampleStep": ("sample", "twice")}
"""The engine's kernels, which name its variants, each with its path in `engines.sglang` and how it rounds logits."""

PARTS = {"fixed_latent": "fixed_latent", "exchange": "walk_exchange", "state": "walk_state"}
"""Probes of the walk kernel that repeat one part of a step (products and selection, the exchange, the state update), each with its name
in records, where ``exchange`` is a micro-measurement that calibrates the model."""

DEFAULT_REPEATS = 100
DEFAULT_PROCESSES = 3
DEFAULT_ROUNDS = 4


@dataclass(frozen=True)
class WalkCase:
    """One implementation on one head.

    Attributes:
        implementation: ``wts`` (the fused walk), ``torch-stepwise`` (the reference) or the engine (both graph-replayed).
        variant: the path within the implementation: one of ENGINE_PATHS for the engine, else free text.
        mode: ``resident`` or ``streaming`` for ``wts``, ``stepwise`` for the others.
        precision: ``int8x2`` or ``bf16``; stepwise walks are bf16, and so are fused ones of Markov heads where asked.
        head: shape of the head.
        batch: rows walked together, 1 to 32.
        placement: placement to build; ``None`` for the planner's.
        exchange: where the words lie that the blocks exchange, one of EXCHANGES; ``None`` for the walk's own default.
        rounding: ``once``, ``twice`` or ``none``; the reference rounds ``twice`` unless told otherwise.
        temperature: of every row; 0 is greedy.
        logits_kept: whether the step logits are stored too.
        probe: ``none``, or the kernel's probe of PARTS that is repeated in place of whole steps.

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
    logits_kept: bool = False
    probe: str = NO_PROBE

    def __post_init__(self) -> None:
        require_word("implementation", self.implementation, IMPLEMENTATIONS)
        require_word("mode", self.mode, MODES)
        require_word("precision", self.precision, PRECISIONS)
        require_word("rounding", self.rounding, ROUNDINGS)
        require_word("probe", self.probe, (NO_PROBE, *PARTS))
        require_whole("batch", self.batch, 1, MAX_BATCH)
        if self.exchange is not None:
            require_word("exchange", self.exchange, EXCHANGES)
        if not isinstance(self.temperature, (int, float)) or not 0 <= self.temperature < math.inf:
            raise BadInput(f"temperature is {self.temperature!r}; it must be a finite number of at least 0 (0 is greedy)")
        for problem in (*self._problems_of_any(), *(self._problems_of_fused() if self.fused else self._problems_of_stepwise())):
            raise BadInput(problem)

    def _problems_of_any(self) -> Iterator[str]:
        """Why nothing can run the case."""
        if self.temperature and self.head.kind == "domino":
            yield f"temperature is {self.temperature}; domino heads walk greedily, so leave it at 0"
        if self.temperature and self.rounding == "none":
            yield "a sampled walk draws from logits rounded to bf16; choose rounding once or twice"
        if self.logits_kept and self.head.candidate_pool is not None:
            yield "a walk over a candidate pool has no logits of the whole vocabulary; leave logits_kept out"

    def _problems_of_fused(self) -> Iterator[str]:
        """Why a fused walk cannot run the case."""
        if self.mode == "stepwise":
            yield f"{self.implementation} cannot run stepwise; {REFERENCE} and {ENGINE} do, {OURS} runs streaming and resident"
        if self.precision == "bf16" and self.head.kind != "markov":
            yield f"a bf16 walk of a {self.head.kind} head has no exact twin to be checked with; choose int8x2"

    def _problems_of_stepwise(self) -> Iterator[str]:
        """Why the reference or the engine cannot run the case."""
        name = self.implementation
        if self.mode != "stepwise":
            yield f"{name} cannot run {self.mode}; it runs stepwise, and {OURS} runs streaming and resident"
        if self.precision != "bf16" or self.placement is not None or self.exchange is not None or self.probe != NO_PROBE:
            yield f"{name} walks in bf16 and has no placement, exchange or probe; leave precision at bf16 and the others out"
        if name == ENGINE:
            if self.head.kind != "markov":
                yield f"the head is {self.head.kind}; of {name} only the walks of markov heads are run here"
            require_word("variant", self.variant, tuple(ENGINE_PATHS))
            path, rounding = ENGINE_PATHS[self.variant]
            if self.rounding != rounding:
                yield f"{self.variant} rounds {rounding}, not {self.rounding}"
            if path == "greedy" and (self.temperature or self.logits_kept):
                yield f"{self.variant} walks greedily and keeps no logits; choose MarkovSampleStep"

    @property
    def fused(self) -> bool:
        """Whether this package's kernels run it."""
        return self.implementation == OURS

    @property
    def label(self) -> str:
        """Short text for progress and messages; what is as usual is left out."""
        name = {OURS: f"{self.mode} {self.precision}", REFERENCE: "stepwise torch"}.get(self.implementation, f"{self.implementation} {self.variant}")
        unusual = (
            (self.probe, self.probe != NO_PROBE), (f"{self.head.kind} {self.head.name}", self.head.kind != "markov"),
            (f"batch {self.batch}", self.batch > 1), (f"temperature {self.temperature:g}", self.temperature > 0),
            ("logits kept", self.logits_kept), (f"rounding {self.rounding}", self.fused and self.rounding != "once"),
            (self.variant, self.fused and self.variant not in (self.mode, self.probe)),
        )
        return ", ".join((name, f"V {self.head.vocab_size:,}", f"rank {self.head.rank}", *(text for text, holds in unusual if holds)))

    @property
    def words(self) -> frozenset[str]:
        """Words that pick this case out of a benchmark: kind, ``v``, ``r``, ``h``, ``pool``, ``b`` and ``t`` with their numbers,
        implementation, variant, mode, precision, rounding and probe."""
        head = self.head
        sizes = {"v": head.vocab_size, "r": head.rank, "h": head.hidden_size, "pool": head.candidate_pool, "b": self.batch}
        numbers = (f"{letter}{size}" for letter, size in sizes.items() if size is not None)
        names = (head.kind, self.implementation, self.variant, self.mode, self.precision, self.rounding, self.probe)
        return frozenset((*numbers, f"t{self.temperature:g}", *names))

    def positions(self, steps: int) -> int:
        """Positions of a block of that many steps: a Domino block has one more, its first, which takes no step."""
        return steps + (self.head.kind == "domino")

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


def resident_case(head: Head, placement: Placement | None = None, **fields: Any) -> WalkCase:
    """The resident walk, in int8x2 unless ``fields`` (any of WalkCase) say otherwise."""
    return _fused_case("resident", head, placement=placement, **fields)


def streaming_case(head: Head, precision: str = "int8x2", placement: Placement | None = None, **fields: Any) -> WalkCase:
    """The streaming walk in either precision, past the L1 cache; ``fields`` as for :func:`resident_case`."""
    return _fused_case("streaming", head, precision=precision, placement=placement, **fields)


def _fused_case(mode: str, head: Head, **fields: Any) -> WalkCase:
    return WalkCase(**{"implementation": OURS, "variant": mode, "mode": mode, "precision": "int8x2", "head": head, **fields})


def stepwise_case(head: Head, **fields: Any) -> WalkCase:
    """The reference in torch, one sequence of kernels a step, rounding as SGLang's step sampler does."""
    return WalkCase(REFERENCE, "graph", "stepwise", "bf16", head, **{"rounding": "twice", **fields})


def engine_case(head: Head, variant: str, **fields: Any) -> WalkCase:
    """One of the engine's own paths, with its own rounding; BadInput where ENGINE_PATHS has none of that name."""
    require_word("variant", variant, tuple(ENGINE_PATHS))
    return WalkCase(ENGINE, variant, "stepwise", "bf16", head, rounding=ENGINE_PATHS[variant][1], **fields)


def comparison_cases(head: Head, **fields: Any) -> tuple[WalkCase, ...]:
    """The walks that split the gain into fusion, precision and residency; ``fields`` (any of WalkCase) go to all.

    Four of a Markov head. Of another kind three: it has no fused walk in bf16, so fusion and precision stay together.
    """
    fused = [resident_case(head, **fields), streaming_case(head, **fields)]
    if head.kind == "markov":
        fused.append(streaming_case(head, "bf16", **fields))
    return *fused, stepwise_case(head, **fields)


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
class RunPlan(Plan):
    """Everything that decides what a recorded run does, except when it runs.

    Attributes:
        kind: ``walks``, or ``probes`` (then cases, steps and l2_states are empty).
        cases, steps, l2_states, repeats, rounds: what is timed; see this module's docstring.
        processes: processes with fresh allocations.
        seed: of inputs and order.
        gpu_id: catalogue id, or a name made from the device's.
        provenance: columns that are the same in every row.
        engine_root: folder of the engine's unpacked files, where a case runs it and it is not installed; goes into no record.
    """

    VERSION, CASE, FORMAT, PART = 2, WalkCase, "walk", "group"

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
    engine_root: str | None = None

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
    def parts(self) -> int:
        """Parts of a process: its groups."""
        return len(self.groups)

    def seed_of(self, process_index: int, group: int) -> int:
        """Seed of inputs and order of one part."""
        text = f"{self.seed}/{process_index}/{group}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def bursts_of(self, group: int) -> int:
        """Bursts of one part of a run of walks, for progress."""
        rounds = len(burst_sizes(self.repeats, self.rounds))
        return len(self.groups[group]) * len(self.steps) * len(self.l2_states) * rounds
