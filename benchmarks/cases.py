"""The declared benchmarks: what is measured under which name, and why. Nothing is measured here.

A walk benchmark is every case at every walk length and L2 state; a probe benchmark is all probes; the phases take one step
apart. `run.py` records them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.placement import Placement
from wts_lab.bench_plan import WalkCase, comparison_cases, exchange_name, resident_case, streaming_case

GRID_VOCAB_SIZES = (129_280, 151_936, 154_880, 248_320)
"""DeepSeek-V4-Flash, Qwen3, GLM-5.2 and Qwen3.8: the vocabularies of released DSpark heads of rank 256."""

RANK = 256
STEPS = (1, 2, 4, 7, 11, 15, 16)
ALL_L2_STATES = ("warm", "cold", "serving")


@dataclass(frozen=True)
class Benchmark:
    """One declared benchmark.

    Attributes:
        name: also the name of its record.
        about: the question it answers, one line.
        kind: ``walks``, ``probes`` or ``phases`` (`benchmarks.phases`).
        cases, steps, l2_states: what a walk benchmark times.
        processes, repeats: defaults, which the command line can change.
    """

    name: str
    about: str
    kind: str
    cases: tuple[WalkCase, ...] = ()
    steps: tuple[int, ...] = ()
    l2_states: tuple[str, ...] = ()
    processes: int = 3
    repeats: int = 100


def declared() -> dict[str, Benchmark]:
    """All benchmarks by name."""
    qwen3 = Head.markov(151_936, RANK)
    grid = tuple(case for size in GRID_VOCAB_SIZES for case in comparison_cases(Head.markov(size, RANK)))
    benchmarks = (
        Benchmark("walks", "what fusion, precision and residency give, four vocabularies, all walk lengths and L2 states", "walks",
                  grid, STEPS, ALL_L2_STATES),
        Benchmark("headline", "the fused walks at one vocabulary, warm: the figures of the README", "walks",
                  (resident_case(qwen3), streaming_case(qwen3)), STEPS, ("warm",)),
        Benchmark("placements", "how a resident step depends on the split between registers and shared memory", "walks",
                  _placement_cases(qwen3), (1, 7, 16), ("warm",)),
        Benchmark("exchanges", "how a resident step depends on the copies of the exchange words", "walks",
                  tuple(_with_replicas(resident_case(qwen3), count) for count in (1, 2, 4, 8, 16, 33)), (1, 7, 16), ("warm",)),
        Benchmark("probes", "everything that calibrates the cost model", "probes"),
        Benchmark("phases", "where a resident step's time goes, phase by phase", "phases", processes=1),
        Benchmark("smoke", "whether measuring works at all: one small head, one process, seconds", "walks",
                  comparison_cases(Head.markov(4096, 64)), (1, 4, 7), ("warm", "serving"), 1, 5),
    )  # fmt: skip
    return {benchmark.name: benchmark for benchmark in benchmarks}


def _placement_cases(head: Head) -> tuple[WalkCase, ...]:
    """Resident walks of 8 warps and 9 tiles a warp (V 151,936 on 132 multiprocessors), 3 to 6 of them in registers."""
    warps, slots = 8, 9
    splits = {count: Placement(warps, count * warps, (slots - count) * warps, 0, 0) for count in (3, 4, 5, 6)}
    return tuple(replace(resident_case(head, placement), variant=f"registers-{count}-of-{slots}") for count, placement in splits.items())


def _with_replicas(case: WalkCase, count: int) -> WalkCase:
    """The case with another number of copies of the exchange words, named after it."""
    name = exchange_name(count)
    return replace(case, exchange=name, variant=name)


def find(name: str) -> Benchmark:
    """The benchmark of that name; BadInput lists the names where there is none."""
    known = declared()
    if name not in known:
        raise BadInput(f"no benchmark is named {name!r}; declared are {', '.join(known)}")
    return known[name]
