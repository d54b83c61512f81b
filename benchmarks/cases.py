"""The declared benchmarks: what is measured under which name, and why. Nothing is measured here.

A walk benchmark is every case at every walk length and L2 state; a probe benchmark is all probes. `run.py` records them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_model.errors import BadInput
from cost_model.head import Head
from wts_lab.bench_plan import WalkCase, comparison_cases, resident_case, streaming_case

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
        kind: ``walks`` or ``probes``.
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
        Benchmark("probes", "everything that calibrates the cost model", "probes"),
        Benchmark("smoke", "whether measuring works at all: one small head, one process, seconds", "walks",
                  comparison_cases(Head.markov(4096, 64)), (1, 4, 7), ("warm", "serving"), 1, 5),
    )  # fmt: skip
    return {benchmark.name: benchmark for benchmark in benchmarks}


def find(name: str) -> Benchmark:
    """The benchmark of that name; BadInput lists the names where there is none."""
    known = declared()
    if name not in known:
        raise BadInput(f"no benchmark is named {name!r}; declared are {', '.join(known)}")
    return known[name]
