"""What a panel may ask for: one frozen request whose fields carry their own label, unit, range and help.

A panel builds its controls from the field metadata (`describe`), edits a request with `dataclasses.replace`, and passes it on.
A request is valid from the moment it exists: `__post_init__` refuses anything else with a `RequestError` that says what was
given, what is allowed and what to do.  It survives a round trip through JSON, so a panel's state can be saved and reloaded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE, RANK_MULTIPLE, Head, list_heads, load_head
from cost_model.workload import L2_STATES, MODES, PRECISIONS, Workload

if TYPE_CHECKING:
    from cost_model.gpu import Gpu

OWN_SIZES = "own sizes"
"""The choice of head that leaves vocabulary and rank to the user."""

STANDARD_STEPS = (1, 2, 4, 7, 11, 15, 16)
"""Walk lengths that recorded runs time; a panel's run times those below its own walk length."""

MAX_STEPS = 32

PRECISIONS_BY_MODE: Mapping[str, tuple[str, ...]] = {
    "stepwise": ("bf16",),
    "streaming": ("int8x2", "bf16"),
    "resident": ("int8x2",),
}
"""What there is a kernel for; the first is what a panel takes when the mode changes."""


class RequestError(BadInput):
    """A field holds something that cannot be asked for: names the field, what was given, what is allowed, what to do."""

    def __init__(self, name: str, given: object, allowed: str, mend: str) -> None:
        self.field_name = name
        super().__init__(f"{name}: {given!r} is not possible; allowed: {allowed}. {mend}")


@dataclass(frozen=True)
class FieldSpec:
    """How a field is shown and limited: the only place where a control's label, unit, help and range are written."""

    name: str
    label: str
    help: str
    unit: str = ""
    choices: tuple[str, ...] | None = None
    minimum: int | None = None
    maximum: int | None = None
    multiple_of: int = 1

    @property
    def caption(self) -> str:
        """Label with its unit in brackets, as a control shows it."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def allowed(self) -> str:
        """The allowed values in words, for messages and help."""
        if self.choices is not None:
            return ", ".join(self.choices)
        multiples = f"multiples of {self.multiple_of}" if self.multiple_of > 1 else "whole numbers"
        return f"{multiples} from {self.minimum} to {self.maximum}"


def _spec(default: object, **about: Any) -> Any:
    """A dataclass field whose metadata is the text and range of its control."""
    return field(default=default, metadata=about)


@functools.cache
def _gpu_choices() -> tuple[str, ...]:
    from cost_model.gpu import list_gpus

    return tuple(list_gpus())


@functools.cache
def _head_choices() -> tuple[str, ...]:
    """Own sizes first, then the catalogue's Markov heads that state a rank (others cannot be walked yet)."""
    heads = (load_head(name) for name in list_heads())
    return (OWN_SIZES, *(head.name for head in heads if head.kind == "markov" and head.rank))


@dataclass(frozen=True)
class PanelRequest:
    """One question to the lab: this GPU, this head, this way of walking it."""

    gpu: str = _spec(
        "h200-sxm", label="GPU", choices=_gpu_choices, help="The GPU to predict for; a live run uses the one in this machine."
    )
    head: str = _spec(
        OWN_SIZES,
        label="Draft head",
        choices=_head_choices,
        help="A released checkpoint's shape, or your own vocabulary and rank.",
    )
    vocab_size: int = _spec(
        151_936,
        label="Vocabulary",
        unit="tokens",
        minimum=1,
        maximum=MAX_VOCAB_SIZE,
        help="Rows of the projection W2: how many tokens the draft head scores at each step.",
    )
    rank: int = _spec(
        256,
        label="Rank",
        unit="elements",
        minimum=RANK_MULTIPLE,
        maximum=MAX_RANK,
        multiple_of=RANK_MULTIPLE,
        help="Columns of W2: length of the vector projected at each step.",
    )
    mode: str = _spec(
        "resident",
        label="Mode",
        choices=MODES,
        help="resident: W2 stays in registers and shared memory; streaming: one kernel, W2 re-read each step; "
        "stepwise: a sequence of kernels a step, as engines do.",
    )
    precision: str = _spec(
        "int8x2",
        label="Precision",
        choices=PRECISIONS,
        help="int8x2: int8 weights with the latent split in two int8 vectors; bf16: weights as trained.",
    )
    l2_state: str = _spec(
        "warm",
        label="L2 state",
        choices=L2_STATES,
        help="warm: back-to-back calls; serving: weights cold, base logits just written, as in a draft round; cold: all flushed.",
    )
    steps: int = _spec(
        16, label="Walk length", unit="steps", minimum=1, maximum=MAX_STEPS, help="Tokens drafted one after another in a call."
    )

    def __post_init__(self) -> None:
        for name, spec in describe().items():
            _check_field(spec, getattr(self, name))
        allowed = PRECISIONS_BY_MODE[self.mode]
        if self.precision not in allowed:
            raise RequestError(
                "precision",
                self.precision,
                f"{' or '.join(allowed)} when mode is {self.mode}",
                f"Choose {allowed[0]}, or another mode.",
            )

    def load_gpu(self) -> Gpu:
        """The chosen GPU with its calibration where there is one."""
        from cost_model.gpu import load_gpu

        return load_gpu(self.gpu)

    def load_head(self) -> Head:
        """The chosen catalogue head, or a Markov head of the given vocabulary and rank."""
        return Head.markov(self.vocab_size, self.rank) if self.head == OWN_SIZES else load_head(self.head)

    def workload(self) -> Workload:
        """Batch 1, greedy, with this request's steps, precision and L2 state."""
        return Workload(steps=self.steps, precision=self.precision, l2_state=self.l2_state)

    def walk_lengths(self) -> tuple[int, ...]:
        """Walk lengths a run times: the standard ones up to `steps`, and `steps` itself."""
        return tuple(sorted({length for length in STANDARD_STEPS if length < self.steps} | {self.steps}))

    def to_json(self) -> str:
        """This request as a JSON object, keys in field order."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> PanelRequest:
        """The request that `to_json` wrote.  Raises RequestError for unknown keys, other types or values out of range."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise RequestError("request", text[:40], "a JSON object", f"The text is not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise RequestError("request", values, "a JSON object", "Save a panel's request and edit that.")
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise RequestError("request", name, f"the fields {', '.join(known)}", "Remove the unknown field.")
        return cls(**values)

    def with_values(self, **changes: object) -> PanelRequest:
        """A changed copy that follows its own couplings: a catalogue head brings its sizes, a mode its precisions."""
        merged = {**asdict(self), **changes}
        if merged["head"] != OWN_SIZES and merged["head"] in describe()["head"].choices:
            head = load_head(merged["head"])
            merged.update(vocab_size=head.vocab_size, rank=head.rank)
        if "mode" in changes and "precision" not in changes:
            allowed = PRECISIONS_BY_MODE.get(merged["mode"], (merged["precision"],))
            if merged["precision"] not in allowed:
                merged["precision"] = allowed[0]
        return replace(self, **merged)


def describe(request_type: type = PanelRequest) -> dict[str, FieldSpec]:
    """Field name to FieldSpec, in field order; choices that live in data files are looked up now."""
    return {each.name: _field_spec(each.name, each.metadata) for each in fields(request_type)}


def _field_spec(name: str, about: Mapping[str, Any]) -> FieldSpec:
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = about.get("choices")
    return FieldSpec(name=name, **{**about, "choices": choices() if callable(choices) else choices})


def _check_field(spec: FieldSpec, value: object) -> None:
    """Raise RequestError unless `value` is one of the choices, or a whole number in range and of the right multiple."""
    if spec.choices is not None:
        if value not in spec.choices:
            raise RequestError(spec.name, value, spec.allowed, "Choose one of these.")
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(spec.name, value, spec.allowed, "Give a whole number.")
    if not spec.minimum <= value <= spec.maximum or value % spec.multiple_of:
        nearest = min(max(round(value / spec.multiple_of) * spec.multiple_of, spec.minimum), spec.maximum)
        raise RequestError(spec.name, value, spec.allowed, f"The nearest possible value is {nearest}.")
