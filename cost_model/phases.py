"""Phases of a round without its head, estimated from a roofline: verify, draft backbone, base logits; and plain decoding for comparison.

A phase takes at least max(bytes / HBM bandwidth, operations / bf16 rate). Engines take longer: launches, attention kernels, sampling, the
host. How much longer is read from rounds that others published (`data/published/rounds.toml`): the largest ratio of such a round to its own
roofline is the high end of every estimate, the roofline the low end, and their geometric mean the estimate. Those rounds hold everything
between two rounds as well, so the high end is a cautious one. An estimate is labelled as such; a measured time is always better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cost_model.catalogue import check_keys, check_version, read_facts
from cost_model.drafter_memory import DrafterMemory, memory_of
from cost_model.errors import BadInput
from cost_model.forms import is_number
from cost_model.gpu import Gpu, load_gpu
from cost_model.paths import data_root
from cost_model.targets import Drafter, Target, load_drafter, load_target
from cost_model.terms import BYTES_OF_BF16
from cost_model.units import US_PER_S, us_from_operations, us_from_transfer
from cost_model.workload import require_whole

ROUNDS_SCHEMA_VERSION = 1
GIVEN, ESTIMATED = "given", "estimated from a roofline"


@dataclass(frozen=True)
class Phase:
    """One phase of a round.

    Attributes:
        time_us, time_us_low, time_us_high: its time with the ends of its interval; equal where a time was given without an interval.
        basis: GIVEN or ESTIMATED.
    """

    time_us: float
    time_us_low: float
    time_us_high: float
    basis: str

    @property
    def interval_us(self) -> tuple[float, float]:
        """The ends of the interval."""
        return self.time_us_low, self.time_us_high


@dataclass(frozen=True)
class Demand:
    """What a phase needs of a GPU: bytes moved through HBM, and bf16 operations, two a multiply-add."""

    work_bytes: float
    operations: float

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.work_bytes + other.work_bytes, self.operations + other.operations)

    def roofline_us(self, gpu: Gpu) -> float:
        """max(bytes / datasheet bandwidth, operations / dense bf16 rate), in microseconds."""
        return max(us_from_transfer(self.work_bytes, gpu.value("dram_bandwidth_bytes_per_s")),
                   us_from_operations(self.operations, gpu.value("bf16_dense_flops_per_s")))


def target_demand(target: Target, concurrency: int, context_tokens: int, tokens: int) -> Demand:
    """One pass of the target over `tokens` positions of each sequence: weights and output projection once, K and V of the context once a
    sequence; 2 operations a weight and token, and 4 × heads × head size a layer, attended position and token."""
    require_whole("tokens", tokens, 1, None)
    weights = target.layers * target.layer_parameters + target.output_parameters
    kept = concurrency * context_tokens * target.layers * target.kv_bytes_per_layer_token
    attention = 4 * target.layers * target.attention_heads * target.head_dim * context_tokens
    return Demand(weights * BYTES_OF_BF16 + kept, concurrency * tokens * (2 * weights + attention))


def backbone_demand(target: Target, drafter: Drafter, memory: DrafterMemory, concurrency: int, context_tokens: int, steps: int,
                    boundaries: int = 1) -> Demand:
    """One pass of the drafter that drafts `steps` tokens: its weights once, its context as `memory` reads it; operations as for the target.

    `boundaries`: acceptance boundaries for which representations are computed, each a block of its own (DPara: one for every number of
    accepted tokens; else 1).
    """
    weights = drafter.parameters(target)
    attended = min(context_tokens, memory.window_tokens) if memory.window_tokens is not None else context_tokens
    attention = 4 * memory.attention_layers * target.attention_heads * target.head_dim * attended
    tokens = concurrency * drafter.positions(steps) * boundaries
    return Demand(weights * BYTES_OF_BF16 + memory.read_bytes(concurrency, context_tokens), tokens * (2 * weights + attention))


def base_logits_demand(target: Target, concurrency: int, steps: int, boundaries: int = 1, vocab_size: int | None = None) -> Demand:
    """The output projection of a draft: its weights once, and [concurrency, steps, V] bf16 logits written for each boundary.

    `vocab_size`: V, the draft vocabulary; the target's where None.
    """
    rows, vocabulary = concurrency * steps * boundaries, target.vocab_size if vocab_size is None else vocab_size
    weights = vocabulary * target.hidden_size
    return Demand(BYTES_OF_BF16 * (weights + rows * vocabulary), 2 * rows * weights)


def estimated(demand: Demand, gpu: Gpu) -> Phase:
    """Estimate a phase. Raises MissingFact where the GPU lacks its bandwidth or bf16 rate."""
    least, excess = demand.roofline_us(gpu), published_excess()
    return Phase(least * excess**0.5, least, least * excess, ESTIMATED)


def given(time_us: float, interval_us: tuple[float, float] | None = None) -> Phase:
    """A phase whose time the caller knows; raises BadInput unless it is a finite time between the ends of its interval."""
    low, high = interval_us or (time_us, time_us)
    if not all(map(is_number, (low, time_us, high))) or not 0 <= low <= time_us <= high:
        raise BadInput(f"the time of a phase is {time_us!r} with the interval {interval_us!r}; give a finite time of at least 0 between the interval's ends")
    return Phase(time_us, low, high, GIVEN)


@dataclass(frozen=True)
class PublishedRound:
    """A serving rate that others published.

    Attributes:
        gpu, target, drafter: catalogue names; concurrency: sequences together.
        tokens_per_s: of all sequences; accepted_length: tokens a round and sequence.
        source: where it was published.
    """

    gpu: str
    target: str
    drafter: str
    concurrency: int
    tokens_per_s: float
    accepted_length: float
    source: str

    @property
    def round_us(self) -> float:
        """Time of a round, with all that lies between rounds: concurrency × accepted length / tokens per second."""
        return self.concurrency * self.accepted_length / self.tokens_per_s * US_PER_S

    def roofline_us(self) -> float:
        """Roofline of the same round, context left out since it was not published."""
        target, drafter = load_target(self.target), load_drafter(self.drafter)
        gpu, steps = load_gpu(self.gpu), drafter.steps
        phases = (target_demand(target, self.concurrency, 0, steps + 1), base_logits_demand(target, self.concurrency, steps),
                  backbone_demand(target, drafter, memory_of(drafter, target), self.concurrency, 0, steps))
        return sum(phase.roofline_us(gpu) for phase in phases)


def published_rounds() -> tuple[PublishedRound, ...]:
    """Return the rounds of `data/published/rounds.toml`."""
    path = data_root() / "published" / "rounds.toml"
    facts = read_facts(path)
    check_version(path, facts, ROUNDS_SCHEMA_VERSION)
    check_keys(path, "the file", facts, {"schema_version", "rounds"})
    fields = set(PublishedRound.__dataclass_fields__)
    for each in facts["rounds"]:
        check_keys(path, "a round", each, fields)
    return tuple(PublishedRound(**each) for each in facts["rounds"])


@lru_cache(maxsize=1)
def published_excess() -> float:
    """Largest ratio of a published round to its roofline."""
    return max(each.round_us / each.roofline_us() for each in published_rounds())
