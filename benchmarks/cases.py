"""The declared benchmarks: what is measured under which name, and why. Nothing is measured here.

A walk benchmark is every case at every walk length and L2 state; a probe benchmark is all probes; the phases take one step
apart. `run.py` records them, whole or in parts (:func:`select`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.workload import EXCHANGES
from wts_lab.bench_plan import (
    PARTS, WalkCase, comparison_cases, engine_case, group_cases, resident_case, stepwise_case, streaming_case,
)

VOCAB_SIZES = (129_280, 151_936, 154_880, 248_320)
"""DeepSeek-V4-Flash, Qwen3, GLM-5.2 and Qwen3.8: the vocabularies of released DSpark heads of rank 256."""

GRID_VOCAB_SIZES = (129_280, 151_936, 154_880, 163_840, 248_320, 262_144)
"""The same, Kimi and Gemma 4."""

RANK = 256
GRID_RANKS = (256, 512)
BATCHES = (1, 2, 4, 8, 16, 32)
STEPS = (1, 2, 4, 7, 11, 15, 16)
FIT_STEPS = (1, 7, 16)
ALL_L2_STATES = ("warm", "cold", "serving")
ROUND_STATES = ("warm", "serving")
GRID_REPEATS = 60
SAMPLED = {"temperature": 1.0, "logits_kept": True}
"""What a sampled walk of a benchmark is: temperature 1, with the step logits kept for the acceptance test."""

QWEN3 = Head.markov(151_936, RANK)
QWEN38 = Head.markov(248_320, RANK)
GRU_SIZE = 1024
CANDIDATE_POOL = 2048
HIDDEN_SIZES = {"qwen3-4b": 2560, "qwen3-8b": 4096}


def recurrent_heads(target: str) -> dict[str, Head]:
    """Heads that read hidden vectors, at the shape of one Qwen3 target model: gated, rnn, domino, and domino with a pool."""
    kinds = {"gated": (None, None), "rnn": (None, None), "domino": (GRU_SIZE, None), "domino-pool": (GRU_SIZE, CANDIDATE_POOL)}
    size, hidden = QWEN3.vocab_size, HIDDEN_SIZES[target]
    return {
        name: Head(f"{name}-{target}", name.partition("-")[0], size, size, size, RANK, hidden, gru, pool)
        for name, (gru, pool) in kinds.items()
    }


SMALL_HEADS = recurrent_heads("qwen3-4b")
DISSECTED = (
    (QWEN3, 1), (QWEN3, 4), (QWEN3, 8), (QWEN3, 16), (QWEN3, 32), (SMALL_HEADS["gated"], 1), (SMALL_HEADS["rnn"], 1), (SMALL_HEADS["domino"], 1),
)  # fmt: skip
"""Heads and batches whose steps are taken apart, by probes (`parts`) and by clocks (`phases`)."""

DISSECTED_SAMPLED = (1, 4, 16)
"""Sampled batches whose products and selection are taken alone (`parts`): they tell what noise costs."""

SPREAD_VOCAB_SIZE, SPREAD_HEADS = 129_280, ("gated", "rnn", "domino")
"""Where `spread` records walks that the other benchmarks record at 151,936 rows alone."""


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

    @property
    def size(self) -> str:
        """How much a walk benchmark measures, in words; empty for another kind."""
        if not self.cases:
            return ""
        points = len(self.cases) * len(self.steps) * len(self.l2_states)
        groups = len(group_cases(self.cases))
        return f"{len(self.cases)} cases in {groups} group{'s' if groups > 1 else ''}, {points:,} points, {self.processes} processes"


def declared() -> dict[str, Benchmark]:
    """All benchmarks by name."""
    walks = tuple(case for size in VOCAB_SIZES for case in comparison_cases(Head.markov(size, RANK)))
    benchmarks = (
        Benchmark("walks", "what fusion, precision and residency give, four vocabularies, all walk lengths and L2 states", "walks",
                  walks, STEPS, ALL_L2_STATES),
        Benchmark("headline", "the fused walks of the README and of the speed table, warm", "walks", _headline_cases(), STEPS, ("warm",)),
        Benchmark("grid-greedy", "resident greedy walks over vocabularies, ranks and batches", "walks",
                  _grid_cases(BATCHES), STEPS, ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("grid-sampled", "the same at temperature 1 with the step logits kept", "walks",
                  _grid_cases(BATCHES, **SAMPLED), STEPS, ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("heads", "every kind of head at the shapes of Qwen3-4B and Qwen3-8B, beside its stepwise walk", "walks",
                  _head_cases(), STEPS, ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("batches", "what fusion, precision and residency give as a batch grows, greedy and sampled", "walks",
                  _batch_cases(), (1, 4, 7, 16), ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("engine", "SGLang's own paths beside ours in one process: greedy at batch 1, sampled and batched", "walks",
                  _engine_cases(), STEPS, ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("arithmetic", "what precision and rounding of the logits cost", "walks", _arithmetic_cases(), FIT_STEPS, ("warm",)),
        Benchmark("parts", "what the parts of a step cost alone, beside the whole walk, for every kind of head", "walks",
                  _part_cases(), FIT_STEPS, ("warm",)),
        Benchmark("spread", "every class of walks at a second vocabulary, and recurrent heads between the batches of the others: what the model is held to", "walks",
                  _spread_cases(), FIT_STEPS, ROUND_STATES, repeats=GRID_REPEATS),
        Benchmark("placements", "how a step depends on warps and on tiles in registers, shared memory, stream and staging ring", "walks",
                  _placement_cases(), FIT_STEPS, ("warm",), repeats=GRID_REPEATS),
        Benchmark("exchanges", "how a resident step depends on where the words lie that the blocks exchange", "walks",
                  _exchange_cases(), FIT_STEPS, ("warm",)),
        Benchmark("probes", "everything that calibrates the cost model", "probes"),
        Benchmark("phases", "where a resident step's time goes, phase by phase, for every kind of head", "phases", processes=1),
        Benchmark("smoke", "whether measuring works at all: one small head, one process, seconds", "walks",
                  comparison_cases(Head.markov(4096, 64)), (1, 4, 7), ("warm", "serving"), 1, 5),
    )  # fmt: skip
    return {benchmark.name: benchmark for benchmark in benchmarks}


def _headline_cases() -> tuple[WalkCase, ...]:
    """The walks whose times stand in the README, and those of the speed table: batches, sampling, partial residency, recurrent heads."""
    return (
        resident_case(QWEN3), streaming_case(QWEN3), *(resident_case(QWEN3, batch=batch) for batch in (4, 8, 16, 32)),
        resident_case(QWEN3, **SAMPLED), resident_case(QWEN38), resident_case(SMALL_HEADS["rnn"]), resident_case(SMALL_HEADS["domino"]),
    )  # fmt: skip


def _grid_cases(batches: Sequence[int], **fields: object) -> tuple[WalkCase, ...]:
    """Resident int8x2 walks of Markov heads: every vocabulary, rank and batch."""
    heads = [Head.markov(size, rank) for size in GRID_VOCAB_SIZES for rank in GRID_RANKS]
    return tuple(resident_case(head, batch=batch, **fields) for head in heads for batch in batches)


def _head_cases() -> tuple[WalkCase, ...]:
    """Every kind: greedy at batch 1 in all its ways, at batch 8 resident and stepwise; sampled at batch 1, resident, where the kind samples.

    A Markov head reads no hidden vector, so both targets have the same one.
    """
    heads = [QWEN3, *(head for target in HIDDEN_SIZES for head in recurrent_heads(target).values())]
    greedy = [case for head in heads for case in (*comparison_cases(head), resident_case(head, batch=8), stepwise_case(head, batch=8))]
    return *greedy, *(resident_case(head, **SAMPLED) for head in heads if head.kind != "domino")


def _batch_cases() -> tuple[WalkCase, ...]:
    """Every greedy way of walking at every batch; sampled, the fused int8x2 ones, since torch's noise costs more than its walk."""
    greedy = [case for batch in BATCHES for case in comparison_cases(QWEN3, batch=batch)]
    return *greedy, *(make(QWEN3, batch=batch, **SAMPLED) for batch in BATCHES for make in (resident_case, streaming_case))


def _engine_cases() -> tuple[WalkCase, ...]:
    """The engine's paths beside all of ours at batch 1, and beside the resident walk where it batches or samples.

    The engine takes its greedy path at batch 1 alone.
    """
    found: list[WalkCase] = []
    for head in (QWEN3, QWEN38):
        found += [*comparison_cases(head), engine_case(head, "MarkovGreedyStep"), engine_case(head, "MarkovSampleStep")]
        for fields in ({"batch": 4}, {"batch": 16}, SAMPLED, SAMPLED | {"batch": 4}, SAMPLED | {"batch": 16}):
            found += [resident_case(head, **fields), engine_case(head, "MarkovSampleStep", **fields)]
    return tuple(found)


def _arithmetic_cases() -> tuple[WalkCase, ...]:
    """Resident walks in both precisions (bf16 is partly resident) and all roundings, and the bf16 walk that keeps nothing."""
    resident = [
        resident_case(QWEN3, precision=precision, rounding=rounding) for precision in ("int8x2", "bf16") for rounding in ("once", "twice", "none")
    ]
    return *resident, streaming_case(QWEN3), streaming_case(QWEN3, "bf16")


def _part_cases() -> tuple[WalkCase, ...]:
    """The whole resident walk, and every part of its step alone. A Markov head has no state to update: its latent is a table's row."""
    found: list[WalkCase] = []
    for head, batch in DISSECTED:
        parts = [part for part in PARTS if part != "state" or head.kind != "markov"]
        found += [resident_case(head, batch=batch), *(resident_case(head, batch=batch, probe=part, variant=part) for part in parts)]
    for batch in DISSECTED_SAMPLED:
        found += [resident_case(QWEN3, batch=batch, **SAMPLED), resident_case(QWEN3, batch=batch, probe="fixed_latent", variant="fixed_latent", **SAMPLED)]
    return tuple(found)


def _spread_cases() -> tuple[WalkCase, ...]:
    """At another vocabulary: greedy batches, sampled ones, and recurrent heads of one row. At the usual one: recurrent heads of four rows.

    Errors of the cost model are stated for walks whose vocabulary, or batch, its coefficients have not seen; of a class that is recorded at one vocabulary
    only nothing is left then.
    """
    def at(vocab: int, kind: str) -> Head:
        return replace(SMALL_HEADS[kind], name=f"{kind}-{vocab}", vocab_size=vocab, target_vocab_size=vocab, padded_vocab_size=vocab)

    markov, ways = Head.markov(SPREAD_VOCAB_SIZE, RANK), (resident_case, streaming_case)
    greedy = [make(markov, batch=batch) for batch in (4, 8, 16, 32) for make in ways]
    sampled = [make(markov, batch=batch, **SAMPLED) for batch in (1, 4, 16) for make in ways]
    recurrent = [make(at(SPREAD_VOCAB_SIZE, kind)) for kind in SPREAD_HEADS for make in ways]
    return *greedy, *sampled, *recurrent, *(make(SMALL_HEADS[kind], batch=4) for kind in SPREAD_HEADS for make in ways)


RESIDENT_SLOTS = {
    8: ((3, 6, 0, 0), (4, 5, 0, 0), (5, 4, 0, 0), (6, 3, 0, 0), (5, 3, 1, 1), (5, 2, 2, 1), (5, 2, 2, 2), (5, 1, 3, 3), (4, 3, 2, 2), (3, 2, 4, 2)),
    4: ((5, 13, 0, 0), (4, 12, 2, 1), (5, 11, 2, 2)),
    12: ((2, 4, 0, 0), (2, 3, 1, 1), (1, 3, 2, 1)),
    16: ((1, 2, 2, 1), (0, 2, 3, 1)),
}
"""By warps: slots of a warp in registers, shared memory, stream and staging ring. Each holds the 72 tiles of a block (V 151,936 on
132 multiprocessors), or up to 80 where warps do not divide 72."""

STREAMING_SLOTS = {8: ((0, 0, 9, 1), (0, 0, 9, 2), (0, 0, 9, 4), (0, 0, 9, 6)), 16: ((0, 0, 5, 1), (0, 0, 5, 2), (0, 0, 5, 3))}
"""The same for walks that keep nothing: rings of several depths."""


def _placement_cases() -> tuple[WalkCase, ...]:
    """Walks of the swept placements, resident and streaming, each named ``w<warps>-<slots of each tier>``."""
    found = []
    for make, swept in ((resident_case, RESIDENT_SLOTS), (streaming_case, STREAMING_SLOTS)):
        for warps, splits in swept.items():
            for slots in splits:
                placement = Placement(warps, *(warps * count for count in slots))
                found.append(make(QWEN3, placement=placement, variant=f"w{warps}-{'-'.join(map(str, slots))}"))
    return tuple(found)


def _exchange_cases() -> tuple[WalkCase, ...]:
    """Every exchange at one, a few and many words a block, each named after it."""
    return tuple(resident_case(QWEN3, batch=batch, exchange=name, variant=name) for batch in (1, 8, 32) for name in EXCHANGES)


def find(name: str) -> Benchmark:
    """The benchmark of that name; BadInput lists the names where there is none."""
    known = declared()
    if name not in known:
        raise BadInput(f"no benchmark is named {name!r}; declared are {', '.join(known)}")
    return known[name]


def select(benchmark: Benchmark, only: Sequence[str]) -> Benchmark:
    """The part of a walk benchmark whose cases have, of every condition, one of its alternatives among their words.

    Args:
        only: conditions, each of alternatives between commas, each a word of `WalkCase.words` or a shell pattern of one: ``v151936,v248320``,
            ``b[124]``. The part's name has them all, so every part has a record of its own.

    Raises:
        BadInput: it has no cases, or none is left.
    """
    if not only:
        return benchmark
    conditions = [condition.split(",") for condition in only]
    cases = tuple(case for case in benchmark.cases if all(_has(case, alternatives) for alternatives in conditions))
    if not cases:
        words = sorted({word for case in benchmark.cases for word in case.words})
        raise BadInput(f"no case of {benchmark.name} has {' and '.join(only)}; its words are {', '.join(words) or 'none: it is recorded whole'}")
    suffix = re.sub(r"[^a-z0-9.]+", "-", "-".join(only).lower()).strip("-.")
    return replace(benchmark, name=f"{benchmark.name}-{suffix}", cases=cases)


def _has(case: WalkCase, alternatives: Sequence[str]) -> bool:
    """Whether one of the alternatives fits one of a case's words."""
    return any(fnmatchcase(word, pattern) for word in case.words for pattern in alternatives)
