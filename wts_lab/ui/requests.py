"""What a panel may ask for: frozen requests whose fields carry their own label, unit, range and help.

A panel builds its controls from the field metadata (`describe`), edits a request with `with_values`, and passes it on.
A request is valid from the moment it exists: `__post_init__` refuses anything else with a `RequestError` that says what was
given, what is allowed and what to do.  It is the panel's whole state: it survives a round trip through JSON or a file, and
`command` says the same to the command line.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE, RANK_MULTIPLE, Head, list_heads, load_head
from cost_model.placement import Placement
from cost_model.workload import L2_STATES, MAX_BATCH, MODES, PRECISIONS, Workload
from wts_lab.ui.fields import Request, RequestError, spec

if TYPE_CHECKING:
    from cost_model.gpu import Gpu

OWN_SIZES = "own sizes"
"""The choice of head that leaves vocabulary and rank to the user."""

PLANNED = "planned"
"""The placement that the planner chooses."""

PLACEMENT_FORM = f"{PLANNED}, or W,R,S,X,G: warps, register, shared, streamed and staging tiles of a block"

STANDARD_STEPS = (1, 2, 4, 7, 11, 15, 16)
"""Walk lengths that recorded runs time; a panel's run times those below its own walk length."""

MAX_STEPS = 32
MAX_PINS = 2

PRECISIONS_BY_MODE: Mapping[str, tuple[str, ...]] = {
    "stepwise": ("bf16",),
    "streaming": ("int8x2", "bf16"),
    "resident": ("int8x2", "bf16"),
}
"""What there is a kernel for; the first is what a panel takes when the mode changes."""


@functools.cache
def _gpu_choices() -> tuple[str, ...]:
    from cost_model.gpu import list_gpus

    return tuple(list_gpus())


@functools.cache
def _head_choices() -> tuple[str, ...]:
    """Own sizes first, then the catalogue."""
    return (OWN_SIZES, *list_heads())


@dataclass(frozen=True)
class PanelRequest(Request):
    """One question to the lab: this GPU, this head, this way of walking it."""

    gpu: str = spec(
        "h200-sxm", label="GPU", choices=_gpu_choices, help="The GPU to predict for; a live run uses the one in this machine."
    )
    head: str = spec(
        OWN_SIZES,
        label="Draft head",
        choices=_head_choices,
        help="A released checkpoint's shape, or your own vocabulary and rank.",
    )
    vocab_size: int = spec(
        151_936,
        label="Vocabulary",
        unit="tokens",
        min=1,
        max=MAX_VOCAB_SIZE,
        help="Rows of the projection W2: how many tokens the draft head scores at each step.",
    )
    rank: int = spec(
        256,
        label="Rank",
        unit="elements",
        min=RANK_MULTIPLE,
        max=MAX_RANK,
        step=RANK_MULTIPLE,
        slider=True,
        help="Columns of W2: length of the vector projected at each step.",
    )
    batch: int = spec(
        1, label="Batch", unit="rows", min=1, max=MAX_BATCH, slider=True, help="Sequences walked together, each by its own tokens."
    )
    steps: int = spec(
        16,
        label="Walk length",
        unit="steps",
        min=1,
        max=MAX_STEPS,
        slider=True,
        help="Tokens drafted one after another in a call.",
    )
    temperature: float = spec(
        0.0,
        label="Temperature",
        min=0.0,
        max=2.0,
        step=0.1,
        whole=False,
        slider=True,
        help="0 takes the best token; above 0 noise is drawn for every token.",
    )
    mode: str = spec(
        "resident",
        label="Mode",
        choices=MODES,
        help="resident: W2 stays in registers and shared memory; streaming: one kernel, W2 re-read each step; "
        "stepwise: a sequence of kernels a step, as engines do.",
    )
    precision: str = spec(
        "int8x2",
        label="Precision",
        choices=PRECISIONS,
        help="int8x2: int8 weights with the latent split in two int8 vectors; bf16: weights as trained.",
    )
    l2_state: str = spec(
        "warm",
        label="L2 state",
        choices=L2_STATES,
        help="warm: back-to-back calls; serving: weights cold, base logits just written, as in a draft round; cold: all flushed.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = PRECISIONS_BY_MODE[self.mode]
        if self.precision not in allowed:
            raise RequestError(
                "precision",
                self.precision,
                f"{' or '.join(allowed)} when mode is {self.mode}",
                f"Choose {allowed[0]}, or another mode.",
            )

    @property
    def way(self) -> tuple[str, str]:
        """Mode and precision."""
        return self.mode, self.precision

    def load_gpu(self) -> Gpu:
        """The chosen GPU with its calibration where there is one."""
        return _loaded_gpu(self.gpu)

    def load_head(self) -> Head:
        """The chosen catalogue head, or a Markov head of the given vocabulary and rank."""
        return Head.markov(self.vocab_size, self.rank) if self.head == OWN_SIZES else load_head(self.head)

    def workload(self) -> Workload:
        """The workload of one call, in this request's precision."""
        return Workload(self.batch, self.steps, self.temperature, self.precision, l2_state=self.l2_state)

    def walk_lengths(self) -> tuple[int, ...]:
        """Walk lengths a run times: the standard ones up to `steps`, and `steps` itself."""
        return tuple(sorted({length for length in STANDARD_STEPS if length < self.steps} | {self.steps}))

    def command(self) -> str:
        """The command line that predicts the same."""
        shape = f"--vocab {self.vocab_size} --rank {self.rank}" if self.head == OWN_SIZES else f"--head {self.head}"
        return (
            f"wts-lab predict --gpu {self.gpu} {shape} --mode {self.mode} --precision {self.precision} --batch {self.batch} "
            f"--steps {self.steps} --temperature {self.temperature!r} --l2-state {self.l2_state}"
        )

    def with_values(self, **changes: object) -> Self:
        """A changed copy that follows its own couplings: a catalogue head brings its sizes, a mode its precisions."""
        changed = dict(changes)
        mode = changed.get("mode", self.mode)
        if "precision" not in changed and self.precision not in PRECISIONS_BY_MODE.get(mode, (self.precision,)):
            changed["precision"] = PRECISIONS_BY_MODE[mode][0]
        name = changed.get("head", self.head)
        if name != OWN_SIZES and name in _head_choices():
            head = load_head(name)
            changed.update(vocab_size=head.vocab_size, rank=head.rank)
        return replace(self, **changed)


@functools.cache
def _loaded_gpu(name: str) -> Gpu:
    """A GPU, read from its files once: predictions are cached by the object."""
    from cost_model.gpu import load_gpu

    return load_gpu(name)


@dataclass(frozen=True)
class ExplorerRequest(PanelRequest):
    """The explorer's state: what is shown, and up to MAX_PINS configurations kept beside it."""

    pinned: tuple[PanelRequest, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pinned, tuple) or not all(type(each) is PanelRequest for each in self.pinned) or len(self.pinned) > MAX_PINS:
            raise RequestError("pinned", self.pinned, f"at most {MAX_PINS} requests", "Unpin one first.")

    @classmethod
    def from_values(cls, values: object) -> Self:
        """As `Request.from_values`; the pinned configurations are requests of their own."""
        if isinstance(values, dict) and isinstance(values.get("pinned"), list):
            values = {**values, "pinned": tuple(map(PanelRequest.from_values, values["pinned"]))}
        return super().from_values(values)

    @property
    def shown(self) -> PanelRequest:
        """What is shown, without the pins."""
        return PanelRequest(**{each.name: getattr(self, each.name) for each in fields(PanelRequest)})


def placement_of_text(text: str) -> Placement | None:
    """The placement that W,R,S,X,G names, None for the planner's.  Raises BadInput, which says what is allowed."""
    if text == PLANNED:
        return None
    parts = text.split(",")
    if len(parts) != 5 or not all(part.strip().isdigit() for part in parts):
        raise RequestError("placement", text, PLACEMENT_FORM, "For example 8,40,32,0,0.")
    return Placement(*map(int, parts))


def text_of_placement(placement: Placement) -> str:
    """W,R,S,X,G of a placement."""
    counts = (placement.warps, placement.register_tiles, placement.shared_tiles, placement.streamed_tiles, placement.staging_tiles)
    return ",".join(map(str, counts))


@dataclass(frozen=True)
class PlacementRequest(PanelRequest):
    """The placement panel's state: a walk, and where its tiles lie."""

    placement: str = spec(
        PLANNED, label="Placement", form=PLACEMENT_FORM, check=placement_of_text, help="Where the tiles of a block lie."
    )

    def load_placement(self) -> Placement | None:
        """The chosen placement; None for the planner's."""
        return placement_of_text(self.placement)

    def command(self) -> str:
        """The command line that predicts the same."""
        return super().command() + ("" if self.placement == PLANNED else f" --placement {self.placement}")
