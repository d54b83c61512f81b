"""The answer about one speculative round: its phases, what each head makes of it, memory, break-even, substitutes and the verdict.

`ask_round` joins what the other modules know: `round_phases` (times that nobody measured), `round` (the schedule), `drafter_memory`, `substitutes`
and `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from cost_model import phases
from cost_model.decide import LEAST_GAIN, Decision, decide, extra_memory_bytes
from cost_model.drafter_memory import DrafterMemory, memory_of
from cost_model.errors import BadInput
from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import Gpu
from cost_model.head import Head, load_head
from cost_model.head_memory import head_memory
from cost_model.options import Option
from cost_model.phases import ESTIMATED, Phase
from cost_model.placement import PlanError
from cost_model.predict import predict
from cost_model.round import Interval, Round, RoundGain, break_even_steps, break_even_verify_us, round_gain
from cost_model.round_phases import MODELLED, PHASES, unmeasured_phases
from cost_model.substitutes import Alternatives, ShardChoice, Substitute, engine_predictions, substitutes
from cost_model.targets import Drafter, Target, load_target
from cost_model.terms import BYTES_OF_BF16
from cost_model.units import format_bytes
from cost_model.workload import Workload, require_whole

MOST_CONTEXT = 2**27
"""Longest context asked for, far above any model's; a longer one is a slip of the keyboard."""

FUSED_WAYS = (("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2"))


@dataclass(frozen=True)
class RoundRequest:
    """What is asked of one round.

    Attributes:
        drafter, target: the shapes; head: the drafter's serial head.
        workload: batch is the concurrency, steps the drafted tokens.
        context_tokens: of each sequence.
        accepted_length, accepted_length_interval: tokens a round and sequence, the bonus token included, at most steps + 1.
        times: phase name -> Phase that is known; those of PHASES that are left out are modelled or estimated.
        schedule, hidden_share, hidden_share_interval: as in Round. An overlapped round without a share assumes 1, and 0 to 1 as interval.
        memory: how the drafter keeps context; as the catalogue says where None.
        alternatives: what else to price.
    """

    drafter: Drafter
    target: Target
    head: Head
    workload: Workload
    context_tokens: int
    accepted_length: float
    accepted_length_interval: Interval | None = None
    times: Mapping[str, Phase] = field(default_factory=dict)
    schedule: str = "serial"
    hidden_share: float | None = None
    hidden_share_interval: Interval | None = None
    memory: DrafterMemory | None = None
    alternatives: Alternatives = Alternatives()

    def __post_init__(self) -> None:
        require_whole("context_tokens", self.context_tokens, 0, MOST_CONTEXT)
        most = self.workload.steps + 1
        if max(self.accepted_length, *(self.accepted_length_interval or (0,))) > most:
            told = "" if self.accepted_length_interval is None else f", its interval {self.accepted_length_interval}"
            raise BadInput(f"accepted_length is {self.accepted_length:g}{told}; a round of {self.workload.steps} "
                           f"drafted tokens yields at most {most}, the target's own token among them")
        if self.drafter.target != self.target.name:
            raise BadInput(f"{self.drafter.name} drafts for {self.drafter.target}, not for {self.target.name}; give that target, or another drafter")
        if self.head.target_vocab_size > self.target.vocab_size:
            raise BadInput(f"{self.head.name} has {self.head.target_vocab_size:,} target tokens, {self.target.name} {self.target.vocab_size:,}; "
                           "give a head that was made for this target")
        unknown = set(self.times) - set(PHASES)
        if unknown:
            raise BadInput(f"phases {', '.join(sorted(unknown))} are not known; times can be given of {', '.join(PHASES)}")
        if self.schedule == "serial" and self.hidden_share is not None:
            raise BadInput("hidden_share was given with a serial round, in which nothing is hidden; leave it out, or choose the overlapped schedule")
        if self.alternatives.ranks > 1 and len(self.times) < len(PHASES):
            missing = ", ".join(name for name in PHASES if name not in self.times)
            raise BadInput(f"ranks is {self.alternatives.ranks} and no time was given for {missing}; the roofline is that of one GPU, so give measured "
                           "times under tensor parallelism")


@dataclass(frozen=True)
class Outcome:
    """A round with one head. Attributes: `way` says which, `option` its call, `gain` compares with the path that the engine takes."""

    way: str
    option: Option
    gain: RoundGain

    def as_dict(self) -> dict:
        """Return plain values."""
        return {"way": self.way, "option": asdict(self.option), "gain": self.gain.as_dict()}


@dataclass(frozen=True)
class BreakEven:
    """Where the best fused walk stops gaining over the engine's fastest path. None: at no value.

    Attributes:
        accepted_length: below it the faster head gives fewer tokens per second, should it draft worse.
        verify_us: above it the gain is below `least_gain`.
        steps: shortest walk from which on its call is shorter.
        least_gain: the gain that verify_us is stated for.
        plain_length: accepted length from which the round beats decoding without speculation.
    """

    accepted_length: float
    verify_us: float | None
    steps: int | None
    least_gain: float
    plain_length: float | None

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Memory:
    """Device memory and traffic of a round, in bytes.

    Attributes:
        target_bytes: its weights, the token embedding too; target_kv_bytes: its K and V of all sequences.
        drafter_bytes: weights of the backbone; drafter_context_bytes: what it keeps of the context.
        boundary_bytes: hidden vectors and base logits of an overlapped draft, for each acceptance boundary; 0 for a serial one.
        matrix_bytes, table_bytes, own_bytes: the head's W2, W1 (0 where the target's embedding serves) and its gate, joint projection, or GRU and
            projector, in bf16; fused_bytes: what the recommended walk adds.
        draft_read_bytes, draft_written_bytes: of context, by one draft pass.
        device_bytes: what the GPU has; None where not known.
    """

    target_bytes: int
    target_kv_bytes: int
    drafter_bytes: int
    drafter_context_bytes: int
    boundary_bytes: int
    matrix_bytes: int
    table_bytes: int
    own_bytes: int
    fused_bytes: int
    draft_read_bytes: int
    draft_written_bytes: float
    device_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """All that is held."""
        target, drafter = self.target_bytes + self.target_kv_bytes, self.drafter_bytes + self.drafter_context_bytes + self.boundary_bytes
        return target + drafter + self.matrix_bytes + self.table_bytes + self.own_bytes + self.fused_bytes

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self), "total_bytes": self.total_bytes}


@dataclass(frozen=True)
class RoundAnswer:
    """Everything about one round.

    Attributes:
        request, gpu_id: what was asked.
        phases: phase name -> Phase, without the head; round: the same, joined.
        outcomes: the engine's path, its fastest, and the best fused walk; those that there are.
        break_even: None where an engine's path or a fused walk is missing.
        memory, substitutes, shards, decision: see there.
        notes: what the reader must know.
    """

    request: RoundRequest
    gpu_id: str
    phases: Mapping[str, Phase]
    round: Round
    outcomes: tuple[Outcome, ...]
    break_even: BreakEven | None
    memory: Memory
    substitutes: tuple[Substitute, ...]
    shards: tuple[ShardChoice, ...]
    decision: Decision
    notes: tuple[str, ...]

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON."""
        asked = self.request
        return {
            "gpu_id": self.gpu_id, "target": asked.target.as_dict(), "drafter": asked.drafter.as_dict(), "head": asked.head.as_dict(),
            "workload": asked.workload.as_dict(), "context_tokens": asked.context_tokens, "round": asdict(self.round),
            "phases": {name: asdict(phase) for name, phase in self.phases.items()}, "outcomes": [each.as_dict() for each in self.outcomes],
            "break_even": self.break_even.as_dict() if self.break_even else None, "memory": self.memory.as_dict(),
            "substitutes": [each.as_dict() for each in self.substitutes], "shards": [each.as_dict() for each in self.shards],
            "decision": self.decision.as_dict(), "notes": list(self.notes),
        }


def shapes_of(drafter: Drafter, head: Head | None = None) -> tuple[Target, Head]:
    """Return the target and the head of a drafter; `head` is for one that has none, or to price another."""
    if head is None and drafter.head is None:
        raise BadInput(f"{drafter.name} has no serial head, so there is nothing to replace; name one to price it")
    return load_target(drafter.target), head if head is not None else load_head(str(drafter.head))


def ask_round(gpu: Gpu, request: RoundRequest, fits: Iterable[tuple[SeriesKey, StepFit]] = (), environment: Mapping | None = None,
              **source: str) -> RoundAnswer:
    """Answer about one round.

    Args:
        fits: measured series of the head's calls, which replace predictions.
        environment, source: as `decide`.

    Raises:
        MissingFact: the GPU lacks what a prediction or a roofline needs; BadInput: as `predict`, `decide` and `substitutes`.
    """
    asked, memory = request, request.memory or memory_of(request.drafter, request.target)
    found = _phases(gpu, asked, memory)
    rest = _joined(asked, found)
    decision = decide(gpu, asked.head, asked.workload, _predictions(gpu, asked), fits, rest, environment=environment, **source)
    rows, shards = substitutes(gpu, asked.head, asked.workload, asked.alternatives, rest, decision.options)
    held = _memory(gpu, asked, memory, decision)
    return RoundAnswer(asked, gpu.id, found, rest, _outcomes(rest, decision), _break_even(gpu, asked, found, rest, decision), held, rows, shards, decision,
                       _notes(asked, found, held))


def _phases(gpu: Gpu, asked: RoundRequest, memory: DrafterMemory) -> dict[str, Phase]:
    """Times of the phases without the head: as given, else as `round_phases.unmeasured_phases` says."""
    workload, overlapped = asked.workload, asked.schedule == "overlapped"
    unmeasured = unmeasured_phases(gpu, asked.drafter, asked.target, memory, workload.batch, asked.context_tokens, workload.steps,
                                   boundaries=workload.steps + 1 if overlapped else 1, vocab_size=asked.head.padded_vocab_size, without=asked.times)
    return {name: asked.times[name] if name in asked.times else unmeasured[name] for name in PHASES}


def _joined(asked: RoundRequest, found: Mapping[str, Phase]) -> Round:
    """The round without its head."""
    share, interval = asked.hidden_share, asked.hidden_share_interval
    if asked.schedule == "overlapped" and share is None:
        share, interval = 1.0, (0.0, 1.0)
    verify, backbone, base = (found[name] for name in PHASES)
    return Round(verify.time_us, backbone.time_us, asked.accepted_length, verify.interval_us, backbone.interval_us, asked.accepted_length_interval,
                 base.time_us, base.interval_us, asked.schedule, 1.0 if share is None else share, interval, asked.workload.batch)


def _predictions(gpu: Gpu, asked: RoundRequest) -> list:
    """Predict the engine's paths and each fused way that the GPU can hold."""
    taken, fastest = engine_predictions(gpu, asked.head, asked.workload)
    found = [taken] if fastest is taken else [taken, fastest]
    for mode, precision in FUSED_WAYS:
        try:
            found.append(predict(gpu, asked.head, replace(asked.workload, precision=precision), mode))
        except PlanError:
            continue
    return found


def _outcomes(rest: Round, decision: Decision) -> tuple[Outcome, ...]:
    """The round with each head that matters, each compared with the path that the engine takes."""
    ways = {"engine's path": decision.taken, "engine's fastest path": decision.fastest, "best fused walk": decision.best}
    known = {way: option for way, option in ways.items() if option and option.status != "inconclusive"}
    if decision.taken == decision.fastest:
        known.pop("engine's fastest path", None)
    before = known.get("engine's path")
    if before is None:
        return ()
    return tuple(Outcome(way, option, _same(rest, option) if option is before else _against(rest, before, option)) for way, option in known.items())


def _same(rest: Round, option: Option) -> RoundGain:
    """A round compared with itself: no gain, and no doubt about that."""
    return replace(_against(rest, option, option), gain_low=0.0, gain_high=0.0)


def _against(rest: Round, before: Option, after: Option) -> RoundGain:
    """The gain of one option over another."""
    return round_gain(rest, before.call_us, after.call_us, before.interval_us, after.interval_us)


def _break_even(gpu: Gpu, asked: RoundRequest, found: Mapping[str, Phase], rest: Round, decision: Decision) -> BreakEven | None:
    """Where the best fused walk stops gaining over the engine's fastest path."""
    fastest, best = decision.fastest, decision.best
    if fastest is None or best is None or "inconclusive" in (fastest.status, best.status):
        return None
    one, drafted = (phases.target_demand(asked.target, asked.workload.batch, asked.context_tokens, tokens).roofline_us(gpu) for tokens in (1, asked.workload.steps + 1))
    gain, plain_us = _against(rest, fastest, best), found["verify"].time_us * one / drafted
    return BreakEven(
        gain.break_even_length, break_even_verify_us(rest, fastest.call_us, best.call_us, LEAST_GAIN),
        break_even_steps((fastest.entry_us, fastest.step_us), (best.entry_us, best.step_us)), LEAST_GAIN,
        gain.round_us_after / plain_us if plain_us > 0 else None,
    )


def _memory(gpu: Gpu, asked: RoundRequest, memory: DrafterMemory, decision: Decision) -> Memory:
    """Add up what the round holds."""
    target, head, sequences, context = asked.target, asked.head, asked.workload.batch, asked.context_tokens
    embedding = 1 if target.tied_embeddings else 2
    weights = target.layers * target.layer_parameters + embedding * target.output_parameters
    settings, own = decision.settings, head_memory(head)
    return Memory(
        weights * BYTES_OF_BF16, sequences * context * target.layers * target.kv_bytes_per_layer_token, asked.drafter.parameters(target) * BYTES_OF_BF16,
        memory.held_bytes(sequences, context), _boundary_bytes(asked), own.matrix_bytes, own.table_bytes, own.own_bytes,
        extra_memory_bytes(head, settings.mode, settings.precision), memory.read_bytes(sequences, context),
        memory.written_bytes(sequences, asked.accepted_length), round(gpu.value("dram_visible_bytes")) if gpu.has("dram_visible_bytes") else None,
    )


def _boundary_bytes(asked: RoundRequest) -> int:
    """bf16 hidden vectors of every position and base logits of every drafted token: sequences × (steps + 1) × (positions × hidden + steps × V)."""
    if asked.schedule == "serial":
        return 0
    steps = asked.workload.steps
    elements = asked.drafter.positions(steps) * asked.target.hidden_size + steps * asked.head.padded_vocab_size
    return asked.workload.batch * (steps + 1) * elements * BYTES_OF_BF16


def _notes(asked: RoundRequest, found: Mapping[str, Phase], held: Memory) -> tuple[str, ...]:
    """Say what weakens the answer."""
    notes = []
    guessed = [name.replace("_", " ") for name in PHASES if found[name].basis == ESTIMATED]
    if guessed:
        notes.append(f"{', '.join(guessed)}: estimated from a roofline, whose low end no engine beats and whose high end is {phases.published_excess():.2f} times it, "
                     "the most that a published round takes; measure them for a narrower answer")
    modelled = [name.replace("_", " ") for name in PHASES if found[name].basis == MODELLED]
    if modelled:
        notes.append(f"{', '.join(modelled)}: modelled on rounds recorded under CUDA graphs; an engine's host, its sampling and what lies between passes add to them")
    if asked.schedule == "overlapped" and asked.hidden_share is None:
        notes.append("how much of the draft hides behind verify is assumed: all of it, and anything from none to all as the interval, as both want the same memory")
    if asked.alternatives.ranks > 1:
        notes.append(f"memory is that of the whole round over {asked.alternatives.ranks} GPUs; a replicated head and what its walk adds are held by each")
    if held.device_bytes is not None and held.total_bytes > held.device_bytes and asked.alternatives.ranks == 1:
        notes.append(f"{format_bytes(held.total_bytes)} are needed and the GPU has {format_bytes(held.device_bytes)}: this round does not fit")
    return tuple(notes)
