"""What else an engineer could do about the head, side by side: residency, streaming int8, the engine's own faster path, top-k pruning, a
reduced draft vocabulary, and replicating or sharding the head under tensor parallelism.

Every row is a whole call, measured where a series is at hand and predicted where none is, with the bytes of W2 that it reads in a step and the device memory that it adds. Pruning and a
reduced vocabulary are approximate: they draft other tokens, so each says how far the accepted length may fall before nothing is gained.
What they do to it has to be measured: nobody's model knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from cost_model import terms
from cost_model.decide import extra_memory_bytes
from cost_model.errors import BadInput
from cost_model.forms import require_number
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.options import Option, predicted_option
from cost_model.placement import PlanError
from cost_model.predict import Prediction, predict
from cost_model.round import LARGEST, Round, round_gain
from cost_model.workload import ENGINE, Workload, require_whole

FUSED_WAYS = (("resident", "int8x2"), ("streaming", "int8x2"))


@dataclass(frozen=True)
class Substitute:
    """One way of making the head cheaper.

    Attributes:
        name: in words; approximate: whether it scores fewer tokens than the head as trained.
        call_us, call_us_low, call_us_high: complete call with its 95 % interval.
        read_bytes_per_step: of W2, from HBM or L2.
        extra_memory_bytes: device memory beside the engine's own, of each GPU.
        gain, gain_low, gain_high: tokens per second over the path that the engine takes, less 1; None without a round.
        least_length_ratio: share of the accepted length at which the gain is gone, of an approximate way; None else.
        basis: `measured`, `extrapolated` or `predicted`; note: what it rests on, "" where nothing needs to be said.
    """

    name: str
    approximate: bool
    call_us: float
    call_us_low: float
    call_us_high: float
    read_bytes_per_step: float
    extra_memory_bytes: int
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    least_length_ratio: float | None = None
    basis: str = "predicted"
    note: str = ""

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Alternatives:
    """What to price beside residency and streaming.

    Attributes:
        top_k: candidates that pruning keeps for a block; None to leave it out.
        draft_vocab_size: rows of a reduced draft vocabulary; None to leave it out.
        ranks: GPUs of tensor parallelism; 1 for none.
        collective_us: one collective of a step, as measured on the link; needed where ranks > 1.
    """

    top_k: int | None = None
    draft_vocab_size: int | None = None
    ranks: int = 1
    collective_us: float | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "draft_vocab_size"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1, None)
        require_whole("ranks", self.ranks, 1, None)
        if (self.ranks > 1) != (self.collective_us is not None):
            raise BadInput(f"ranks is {self.ranks} and collective_us {self.collective_us!r}; sharding needs more than one rank and the time of a "
                           "collective on their link, replicating on one GPU neither")
        if self.collective_us is not None and not 0 <= self.collective_us <= LARGEST:
            raise BadInput(f"collective_us is {self.collective_us!r}; it must be a finite time from 0 to {LARGEST:g}")


@dataclass(frozen=True)
class ShardChoice:
    """Replicate the head on every rank, or give each a shard of W2 and agree on a winner in every step.

    Attributes:
        way: whose calls these are.
        replicated_us: a call of the whole head; sharded_us: of a shard, with its collectives.
        flip_us: collective at which both take the same time, (replicated − shard without collectives) / steps; sharding pays below it, and
            never where it is negative.
        shard: whether sharding is faster.
    """

    way: str
    replicated_us: float
    sharded_us: float
    flip_us: float
    shard: bool

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return asdict(self)


def choose_shard(way: str, replicated_us: float, shard_us: float, steps: int, collective_us: float) -> ShardChoice:
    """Compare replicating with sharding: sharded = shard + steps × collective; raises BadInput for times below 0 or no step."""
    for name, time_us in (("replicated_us", replicated_us), ("shard_us", shard_us), ("collective_us", collective_us)):
        require_number(name, time_us, 0)
    require_whole("steps", steps, 1, None)
    sharded = shard_us + steps * collective_us
    return ShardChoice(way, replicated_us, sharded, (replicated_us - shard_us) / steps, sharded < replicated_us)


def shard_of(head: Head, ranks: int) -> Head:
    """Return one rank's share of the head: ceil(V / ranks) rows of W2 and as large a part of a candidate pool, and all of W1, which the walk
    looks up by target id. State of recurrent heads is kept by every rank."""
    require_whole("ranks", ranks, 1, None)
    if ranks > head.padded_vocab_size:
        raise BadInput(f"ranks is {ranks}; {head.name} has {head.padded_vocab_size:,} rows, so at most as many ranks")
    rows, pool = -(-head.padded_vocab_size // ranks), head.candidate_pool
    return replace(head, name=f"{head.name}/{ranks}", vocab_size=min(rows, head.vocab_size), padded_vocab_size=rows,
                   candidate_pool=None if pool is None else -(-pool // ranks))


def reduced(head: Head, draft_vocab_size: int) -> Head:
    """Return the head over a draft vocabulary of so many rows; W1 keeps a row for each target token."""
    if draft_vocab_size >= head.vocab_size:
        raise BadInput(f"draft_vocab_size is {draft_vocab_size:,}; {head.name} has {head.vocab_size:,} rows, so fewer are needed to reduce it")
    return replace(head, name=f"{head.name}, {draft_vocab_size:,} rows", vocab_size=draft_vocab_size, padded_vocab_size=draft_vocab_size)


def pruned(head: Head, top_k: int) -> Head:
    """Return the head over `top_k` candidates of the base logits (vLLM pull 49969, SGLang pull 40523)."""
    if top_k >= head.vocab_size:
        raise BadInput(f"top_k is {top_k:,}; {head.name} has {head.vocab_size:,} rows, so fewer are needed to prune")
    return replace(head, name=f"{head.name}, top {top_k:,}", candidate_pool=top_k)


def substitutes(gpu: Gpu, head: Head, workload: Workload, alternatives: Alternatives = Alternatives(), rest: Round | None = None,
                measured: Iterable[Option] = (), implementation: str = ENGINE) -> tuple[tuple[Substitute, ...], tuple[ShardChoice, ...]]:
    """Price every way for one head and workload; the engine's own path first, and the shard choices where there is more than one rank.

    Args:
        rest: the round, for gains end to end over the path that the engine takes.
        measured: options of which the measured ones replace the predictions of the same name.

    A way that the GPU cannot run, or that nobody has (a pool of a head that has one already), is left out.

    Raises:
        BadInput: alternatives that do not fit the head; MissingFact: as `predict`.
    """
    taken, fastest = engine_predictions(gpu, head, workload, implementation)
    ways = {f"{mode} {precision}": _fused(gpu, head, workload, mode, precision) for mode, precision in FUSED_WAYS}
    known = {option.name: option for option in measured if option.measured and option.status != "inconclusive"}
    before = _option(taken, known)
    rows = [_row(f"engine: {before.name}", taken, head, before, before, rest)]
    if fastest is not taken:
        after = _option(fastest, known)
        rows.append(_row(f"engine's fastest: {after.name}", fastest, head, before, after, rest))
    rows += [_row(name, found, head, before, _option(found, known), rest) for name, found in ways.items() if found]
    for name, shape, note in _approximations(head, alternatives):
        asked = workload if shape.candidate_pool is None else replace(workload, logits_kept=False)  # a pool has no logits of the vocabulary to keep
        cheap, fused = engine_predictions(gpu, shape, asked, implementation)[1], _fused(gpu, shape, asked, "resident", "int8x2")
        rows.append(_row(f"{name}, engine", cheap, shape, before, _option(cheap), rest, note))
        rows += [_row(f"{name}, resident int8x2", fused, shape, before, _option(fused), rest, note)] if fused else []
    return tuple(rows), _shards(gpu, head, workload, alternatives, fastest, ways, implementation)


def _approximations(head: Head, alternatives: Alternatives) -> list[tuple[str, Head, str]]:
    """(name, shape, what the price rests on) of the ways that draft other tokens."""
    found = []
    if alternatives.top_k is not None and head.candidate_pool is None:
        found.append((f"top-{alternatives.top_k:,} pruning", pruned(head, alternatives.top_k), "priced as the engine's candidate pool, its gather included"))
    if alternatives.draft_vocab_size is not None:
        found.append((f"draft vocabulary of {alternatives.draft_vocab_size:,}", reduced(head, alternatives.draft_vocab_size),
                      "its base logits get cheaper too, which is not counted"))
    return found


def _option(prediction: Prediction, known: Mapping[str, Option] = MappingProxyType({})) -> Option:
    """The measured option of the same name, else the prediction as one."""
    option = predicted_option(prediction, prediction.workload)
    return known.get(option.name, option)


def engine_predictions(gpu: Gpu, head: Head, workload: Workload, implementation: str = ENGINE) -> tuple[Prediction, Prediction]:
    """Return the predictions of the path that an engine takes, and of its fastest."""
    asked = replace(workload, precision="bf16")
    taken = predict(gpu, head, asked, "stepwise", implementation)
    if taken.fastest_variant in (None, taken.variant):
        return taken, taken
    return taken, predict(gpu, head, asked, "stepwise", implementation, variant=taken.fastest_variant)


def _fused(gpu: Gpu, head: Head, workload: Workload, mode: str, precision: str) -> Prediction | None:
    """Predict a fused walk, or None where the GPU cannot hold it."""
    try:
        return predict(gpu, head, replace(workload, precision=precision), mode)
    except PlanError:
        return None


def _shards(gpu: Gpu, head: Head, workload: Workload, alternatives: Alternatives, fastest: Prediction, ways: dict[str, Prediction | None],
            implementation: str) -> tuple[ShardChoice, ...]:
    """Compare replicating and sharding for the engine's fastest path and for the fastest fused walk of each."""
    if alternatives.ranks == 1 or alternatives.collective_us is None:
        return ()
    shard = shard_of(head, alternatives.ranks)
    found = [choose_shard(f"{implementation}, fastest path", fastest.call_us(), engine_predictions(gpu, shard, workload, implementation)[1].call_us(),
                          workload.steps, alternatives.collective_us)]
    whole = _quickest(ways.values())
    part = _quickest(_fused(gpu, shard, workload, mode, precision) for mode, precision in FUSED_WAYS)
    if whole and part:
        found.append(choose_shard("fused int8x2 walk", whole.call_us(), part.call_us(), workload.steps, alternatives.collective_us))
    return tuple(found)


def _quickest(predictions: Iterable[Prediction | None]) -> Prediction | None:
    """The shortest call of those that there are."""
    return min(filter(None, predictions), key=lambda each: each.call_us(), default=None)


def _row(name: str, prediction: Prediction, head: Head, before: Option, after: Option, rest: Round | None, approximate: str = "") -> Substitute:
    """Build a row; `approximate` says what the price of an approximate way rests on, and is empty for the exact ones."""
    gains: tuple = (None, None, None, None)
    if rest is not None:
        found = round_gain(rest, before.call_us, after.call_us, before.interval_us, after.interval_us)
        length = found.break_even_length / rest.accepted_length if approximate else None
        gains = (0.0, 0.0, 0.0, None) if after is before else (found.gain, found.gain_low, found.gain_high, length)
    memory = extra_memory_bytes(head, prediction.mode, prediction.precision)
    note = f"approximate: drafts other tokens, the gain is at an unchanged accepted length; {approximate}" if approximate else ""
    return Substitute(name, bool(approximate), after.call_us, *after.interval_us, _read_bytes(head, prediction), memory, *gains, after.basis, note)


def _read_bytes(head: Head, prediction: Prediction) -> float:
    """Bytes of W2 that a step reads again: all rows that it scores, less those that stay on chip."""
    pool = head.candidate_pool
    rows = head.padded_vocab_size if pool is None else prediction.workload.batch * min(pool, head.vocab_size)
    kept = prediction.placement.residency if prediction.placement else 0.0
    return terms.matrix_bytes(rows, head.rank, prediction.precision) * (1.0 - kept)
