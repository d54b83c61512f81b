"""What the decision panel may ask for: a walk, the round that it is part of, and what else could be done about the head."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from cost_model.errors import BadInput
from cost_model.head import MAX_VOCAB_SIZE
from cost_model.round import SCHEDULES
from cost_model.workload import L2_STATES, MAX_BATCH
from wts_lab.measured_text import FORM, measured_from
from wts_lab.ui.fields import RequestError, spec
from wts_lab.ui.requests import MAX_STEPS, OWN_SIZES, PanelRequest

if TYPE_CHECKING:
    from cost_model.round import Interval, Round
    from cost_model.serving import RoundRequest
    from cost_model.substitutes import Alternatives
    from cost_model.workload import Workload

OWN_ROUND = "own round"
"""The choice of drafter that leaves head and times to the user."""

WALK = ("gpu", "head", "vocab_size", "rank", "batch", "steps", "temperature")
"""What a decision has in common with the other panels' requests."""

MAX_TIME_US = 10_000_000.0
PHASES = ("verify", "backbone", "base_logits")
TIME_FORM = f"{FORM}, in microseconds up to {MAX_TIME_US:,.0f}; or empty"
Measured = tuple[float, "Interval | None"]


@functools.cache
def _drafter_choices() -> tuple[str, ...]:
    from cost_model.targets import list_drafters

    return (OWN_ROUND, *list_drafters())


def _number_of(name: str, text: str, least: float, most: float, form: str) -> Measured:
    """The number and interval that a text means.  Raises RequestError where it is none or lies outside the range."""
    try:
        value, interval = measured_from(name, text)
    except BadInput as error:
        raise RequestError(name, text, form, f"{error}.") from None
    if not all(math.isfinite(each) and least <= each <= most for each in (value, *(interval or ()))):
        raise RequestError(name, text, f"numbers from {least:g} to {most:,.0f}", "Give a number in that range.")
    return value, interval


def _check_time(name: str, text: str) -> None:
    if text.strip():
        _number_of(name, text, 0.0, MAX_TIME_US, TIME_FORM)


def _check_length(text: str) -> None:
    _number_of("accepted_length", text, 1.0, MAX_STEPS + 1.0, FORM)


def _time(name: str, default: str, label: str, about: str) -> str:
    """The field of a phase's time."""
    return spec(default, label=label, unit="µs", form=TIME_FORM, check=functools.partial(_check_time, name), help=about)


@dataclass(frozen=True)
class DecisionRequest(PanelRequest):
    """The decision panel's state.  Every way of walking is weighed, so mode and precision are not asked for."""

    mode: str = "resident"
    precision: str = "int8x2"
    batch: int = spec(1, label="Concurrency", unit="sequences", min=1, max=MAX_BATCH, slider=True, help="Sequences that go through a round together.")
    l2_state: str = spec(
        "serving", label="L2 state", choices=L2_STATES, help="serving is what a draft round sees: weights cold, base logits just written."
    )
    target: str = spec("", label="Target model", form="any text", help="A name for your notes and exports; it changes no figure.")
    drafter: str = spec(
        OWN_ROUND, label="Drafter", choices=_drafter_choices,
        help="A released drafter brings its target and head, and its phases are estimated where their time is left empty. An own round needs times.",
    )  # fmt: skip
    context_tokens: int = spec(
        2_048, label="Context", unit="tokens", min=0, max=MAX_VOCAB_SIZE, step=1,
        help="Of each sequence. Estimates and memory of a released drafter rest on it; an own round's times are taken as they are.",
    )  # fmt: skip
    schedule: str = spec("serial", label="Schedule", choices=SCHEDULES, help="serial, or overlapped: the draft runs beside verify, as in DPara.")
    hidden_share: float = spec(
        1.0, label="Hidden share", min=0.0, max=1.0, step=0.05, whole=False, slider=True,
        help="Overlapped: part of the shorter of verify and draft that runs beside the longer.",
    )  # fmt: skip
    verify_us: str = _time("verify_us", "20000", "Verify", "The target's pass over the drafted block, at your concurrency.")
    backbone_us: str = _time("backbone_us", "2000", "Backbone", "The drafter's layers; with its base logits where those are left empty in an own round.")
    base_logits_us: str = _time("base_logits_us", "", "Base logits", "The draft's output projection.")
    accepted_length: str = spec(
        "4", label="Accepted length", unit="tokens", form=FORM, check=_check_length,
        help="Tokens that a round yields a sequence on average, the bonus token included: at most walk length + 1.",
    )  # fmt: skip
    top_k: int = spec(2_048, label="Pruning to", unit="candidates", min=0, max=MAX_VOCAB_SIZE, help="Also price scoring so few candidates; 0 leaves it out.")
    draft_vocab_size: int = spec(
        32_000, label="Draft vocabulary", unit="tokens", min=0, max=MAX_VOCAB_SIZE, help="Also price so small a draft vocabulary; 0 leaves it out."
    )
    ranks: int = spec(1, label="Ranks", unit="GPUs", min=1, max=16, slider=True, help="GPUs of tensor parallelism: replicate the head, or shard it.")
    collective_us: float = spec(
        10.0, label="Collective", unit="µs", min=0.0, max=10_000.0, step=0.5, whole=False, help="One collective of a step on the link of the ranks."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_length_of_walk()
        if self.drafter == OWN_ROUND:
            for name in ("verify_us", "backbone_us"):
                if not getattr(self, name).strip():
                    raise RequestError(name, "", f"{FORM}", "Give the time, or choose a drafter whose shapes it is estimated from.")
        rows = self.load_head().vocab_size
        for name in ("top_k", "draft_vocab_size"):
            if getattr(self, name) >= max(rows, 1):
                raise RequestError(name, getattr(self, name), f"fewer than the head's {rows:,} rows, or 0 to leave it out", f"Give at most {rows - 1:,}.")

    def _check_length_of_walk(self) -> None:
        value, interval = _number_of("accepted_length", self.accepted_length, 1.0, MAX_STEPS + 1.0, FORM)
        if max((value, *(interval or ()))) > self.steps + 1:
            allowed = f"numbers from 1 to {self.steps + 1}, the target's own token among them"
            raise RequestError("accepted_length", self.accepted_length, allowed, "Shorten it, or lengthen the walk.")

    def with_values(self, **changes: object) -> Self:
        """As PanelRequest; a drafter brings target, head and walk length, and a pruning that the head is too small for is left out."""
        changed = dict(changes)
        if changed.get("drafter", OWN_ROUND) != OWN_ROUND and changed["drafter"] in _drafter_choices():
            from cost_model.targets import load_drafter

            drafter = load_drafter(str(changed["drafter"]))
            changed = {"target": drafter.target, "steps": drafter.steps, **({"head": drafter.head} if drafter.head else {}), **changed}
        if changed.keys() & {"head", "vocab_size"}:
            rows = PanelRequest().with_values(head=changed.get("head", self.head), vocab_size=changed.get("vocab_size", self.vocab_size)).vocab_size
            changed = {**{name: 0 for name in ("top_k", "draft_vocab_size") if getattr(self, name) >= rows}, **changed}
        return super().with_values(**changed)

    @classmethod
    def about(cls, walk: PanelRequest) -> Self:
        """The usual round about a walk."""
        rows = walk.load_head().vocab_size
        priced = {name: getattr(cls, name) if getattr(cls, name) < rows else 0 for name in ("top_k", "draft_vocab_size")}
        length = f"{min(float(cls.accepted_length), walk.steps + 1):g}"
        return cls(**{name: getattr(walk, name) for name in WALK}, **priced, accepted_length=length)

    def workload(self) -> Workload:
        """The workload of one call; a sampled walk keeps its logits for the acceptance test."""
        return replace(super().workload(), logits_kept=self.temperature > 0 and self.drafter == OWN_ROUND)

    def time_of(self, phase: str) -> Measured | None:
        """A phase's time with its interval; None where it was left empty."""
        text = getattr(self, f"{phase}_us")
        return _number_of(f"{phase}_us", text, 0.0, MAX_TIME_US, TIME_FORM) if text.strip() else None

    def length(self) -> Measured:
        """The accepted length with its interval."""
        return _number_of("accepted_length", self.accepted_length, 1.0, MAX_STEPS + 1.0, FORM)

    def alternatives(self) -> Alternatives:
        """What else to price."""
        from cost_model.substitutes import Alternatives

        return Alternatives(self.top_k or None, self.draft_vocab_size or None, self.ranks, self.collective_us if self.ranks > 1 else None)

    def round(self) -> Round:
        """An own round but for its head."""
        from cost_model.round import Round

        (verify, verify_ends), (backbone, backbone_ends) = (self.time_of(name) for name in ("verify", "backbone"))
        base, base_ends = self.time_of("base_logits") or (0.0, None)
        length, length_ends = self.length()
        return Round(verify, backbone, length, verify_ends, backbone_ends, length_ends, base, base_ends, self.schedule, self.hidden_share, None, self.batch)

    def question(self) -> RoundRequest:
        """The round of a released drafter.  Raises BadInput where head and target do not go together."""
        from cost_model.phases import given
        from cost_model.serving import RoundRequest, shapes_of
        from cost_model.targets import load_drafter

        drafter = load_drafter(self.drafter)
        target, head = shapes_of(drafter, self.load_head())
        times = {name: given(*time) for name in PHASES if (time := self.time_of(name)) is not None}
        share = self.hidden_share if self.schedule == "overlapped" else None
        return RoundRequest(drafter, target, head, self.workload(), self.context_tokens, *self.length(), times, self.schedule, share, None, None, self.alternatives())

    def command(self) -> str:
        """The command line that decides the same; name a folder of records to replay them there."""
        shape = f"--vocab {self.vocab_size} --rank {self.rank}" if self.head == OWN_SIZES else f"--head {self.head}"
        times = "".join(f" --{name.replace('_', '-')}-us {getattr(self, f'{name}_us')}" for name in PHASES if getattr(self, f"{name}_us").strip())
        walk = f"--steps {self.steps} --temperature {self.temperature!r} --l2-state {self.l2_state} --accepted-length {self.accepted_length}{times}"
        overlapped = f" --schedule {self.schedule} --hidden-share {self.hidden_share!r}" if self.schedule != "serial" else ""
        if self.drafter == OWN_ROUND:
            return f"wts-lab decide --gpu {self.gpu} {shape} --batch {self.batch} {walk}{overlapped}"
        priced = "".join(f" --{name} {value}" for name, value in (("top-k", self.top_k), ("draft-vocab", self.draft_vocab_size)) if value)
        ranks = f" --ranks {self.ranks} --collective-us {self.collective_us!r}" if self.ranks > 1 else ""
        head = "" if self.head == OWN_SIZES else f" --head {self.head}"
        return (
            f"wts-lab round --gpu {self.gpu} --drafter {self.drafter}{head} --concurrency {self.batch} --context {self.context_tokens} "
            f"{walk}{overlapped}{priced}{ranks}"
        )
