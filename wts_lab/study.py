"""The main job: predict, measure or replay, fit, compare, decide.

`run_study` answers one request.  On a machine with torch and a CUDA GPU of compute capability 8.0 or more it launches the real
kernels; elsewhere it replays recorded runs and says which GPU and date they came from; where a GPU has no record it predicts
only.  `wts_lab.outputs` writes the result.  Importing this module imports no torch.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.gpu import Figure, Gpu, load_gpu, recognise_gpu
from cost_model.head import Head
from cost_model.settings import PREDICTED, REPLAYED
from cost_model.workload import L2_STATES, Workload, require_whole, require_word
from wts_lab.comparison import Comparison
from wts_lab.recordings import NothingRecorded, Recording, read_recording, recording_of
from wts_lab.study_answer import answer, recorded_heads, shape_of_head, shape_of_row

if TYPE_CHECKING:
    from cost_model.decide import Decision

DEFAULT_HEAD = Head.markov(151_936, 256)
DEFAULT_STEPS = (1, 2, 4, 7, 11, 15, 16)
MIN_LENGTHS = 3
"""Walk lengths that a slope and a check of its fit need."""

DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvmap")
"""One of these is there wherever CUDA can work on Linux: a driver's devices, those of WSL, or those of Tegra chips."""

LEAST_CAPABILITY = (8, 0)
MEASURED = "measured"


class NoDevice(BadInput):
    """A live run was asked for and there is no GPU that can run it; the message says what is missing."""


def no_device() -> NoDevice:
    """The error for a live run on a machine that has nothing to run it on."""
    return NoDevice(
        "a live run needs torch and a CUDA GPU of compute capability 8.0 or more, and this machine has none that works; "
        "run `wts-lab doctor` to see why, or leave out the request for a live run to replay recorded ones"
    )


@dataclass(frozen=True)
class Device:
    """The GPU in this machine, as its driver describes it."""

    name: str
    sm_count: int
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class StudyRequest:
    """What to study.

    Attributes:
        gpu: catalogue id or alias; None for the GPU in this machine, or the one recorded last.
        heads: shapes to study, of any kind, told apart by vocabulary and rank; empty for the recorded ones on replay, and for V 151,936, rank 256 when measuring.
        steps: walk lengths to time.
        l2_states: L2 states to time; the verdict uses `serving`.
        batch, temperature, rounding: rows walked together, their sampling temperature (0 is greedy; above it the step logits are kept, as
            an engine's acceptance test needs them), and how our walks round a logit.
        processes: processes with fresh allocations a series; repeats: timed calls a point.
        live: True to measure or fail, False to replay, None for what this machine allows.
        records: folder of recorded runs; None for those that ship with the lab.
        out: folder for the outputs; a live run keeps its record under `records/` in it.
    """

    gpu: str | None = None
    heads: tuple[Head, ...] = ()
    steps: tuple[int, ...] = DEFAULT_STEPS
    l2_states: tuple[str, ...] = L2_STATES
    batch: int = Workload.batch
    temperature: float = Workload.temperature
    rounding: str = Workload.rounding
    processes: int = 3
    repeats: int = 100
    live: bool | None = None
    records: Path | None = None
    out: Path = Path("out")

    def __post_init__(self) -> None:
        for steps in self.steps:
            require_whole("steps", steps, 1, None)
        sizes = [(head.vocab_size, head.rank) for head in self.heads]
        if len(set(sizes)) < len(sizes):
            told = ", ".join(head.name for head in self.heads)
            raise BadInput(f"heads are {told}; a study tells them apart by vocabulary and rank, so study those that share both one after the other")
        for state in self.l2_states:
            require_word("l2_state", state, L2_STATES)
        if len(set(self.steps)) < MIN_LENGTHS:
            raise BadInput(
                f"steps are {self.steps}; a slope and a check of its fit need at least three walk lengths, such as 1, 7 and 16"
            )
        require_whole("processes", self.processes, 1, None)
        require_whole("repeats", self.repeats, 1, None)
        _ = self.workload(L2_STATES[0])
        object.__setattr__(self, "out", Path(self.out))

    @property
    def longest(self) -> int:
        """The longest walk length, at which call times are compared."""
        return max(self.steps)

    @property
    def load(self) -> tuple[str, ...]:
        """Batch, temperature and, where it is not the usual one, rounding, in words."""
        sampling = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        return (f"batch {self.batch}", sampling, *([] if self.rounding == Workload.rounding else [f"rounding {self.rounding}"]))

    def workload(self, l2_state: str) -> Workload:
        """What is asked of a walk in one L2 state, at the longest length; BadInput where there can be no such walk."""
        return Workload(
            self.batch, self.longest, self.temperature, rounding=self.rounding, l2_state=l2_state, logits_kept=self.temperature > 0
        )


@dataclass(frozen=True)
class StudyResult:
    """The answer, as data.

    Attributes:
        request: what was answered: as asked, with the walk lengths that were recorded where a replay has no others.
        kind: 'measured', 'replayed' or 'predicted'.
        source: the same in words, with GPU and, for a replay, the date.
        gpu: the GPU the numbers are about, with its calibration.
        heads: shapes in the order studied; the first is the one that figures and settings.json show.
        comparisons: every way of walking, for every head and L2 state; the fastest placement where several were measured.
        fits: (SeriesKey, StepFit) of every measured series, all placements.
        predictions: every prediction made.
        decisions: head -> Decision.
        rows: step-cost table rows (`cost_model.tables`).
        origin: provenance of the measured rows; empty when predicted only.
        record: the record a live run wrote.
        notes: what the reader should know, such as a prediction that could not be made.
        answer_rows: how many of `rows`, the first ones, are about `comparisons`; the rest are experiments.
    """

    request: StudyRequest
    kind: str
    source: str
    gpu: Gpu
    heads: tuple[Head, ...]
    comparisons: tuple[Comparison, ...]
    fits: tuple[tuple[Any, Any], ...] = ()
    predictions: tuple[Any, ...] = ()
    decisions: dict[Head, Decision] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    origin: dict[str, Any] = field(default_factory=dict)
    record: Path | None = None
    notes: tuple[str, ...] = ()
    answer_rows: int = 0

    @property
    def decision(self) -> Decision:
        """The decision about the first head."""
        return self.decisions[self.heads[0]]

    def shown(self, head: Head, l2_state: str) -> tuple[Comparison, ...]:
        """The comparisons of one head in one L2 state, slowest first."""
        return tuple(
            each
            for each in self.comparisons
            if (each.vocab_size, each.rank, each.l2_state) == (head.vocab_size, head.rank, l2_state)
        )


def capable_device() -> Device | None:
    """The CUDA GPU that a live run would use, or None where torch, a GPU, or compute capability 8.0 is missing.

    Torch takes seconds to import, so it is left alone where the system shows no NVIDIA device.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    if sys.platform == "linux" and not any(Path(each).exists() for each in DEVICE_FILES):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    capability = (about.major, about.minor)
    return (
        Device(about.name, about.multi_processor_count, about.total_memory, capability)
        if capability >= LEAST_CAPABILITY
        else None
    )


def run_study(
    request: StudyRequest,
    *,
    progress: bool = True,
    cancel: threading.Event | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> StudyResult:
    """Answer a request; see StudyResult.

    Args:
        progress: whether a live run draws its progress bar.
        cancel: set it to end a live run after the point in hand; what was measured is kept for the next run.
        on_stage: called with a line about what is being done.

    Raises:
        NoDevice: a live run was asked for and is not possible here.
        NothingRecorded: nothing of the GPU was recorded and live is False.
        AnotherGpu: the records in the GPU's folder were made on another GPU.
        BadInput: an unknown GPU, a damaged record, or nothing is measured and nothing can be predicted.
    """
    device = None if request.live is False else capable_device()
    if request.live and device is None:
        raise no_device()
    here = recognise(device) if device is not None else None
    asked = load_gpu(request.gpu) if request.gpu is not None else None
    if here is not None and (asked is None or asked.id == here.id):
        on_stage(f"Measuring on {device.name}.")
        return _measure(request, here, device, progress, cancel, on_stage)
    if request.live:
        raise NoDevice(
            f"a live run on {asked.id} was asked for, but the GPU here is {here.id}; leave out the GPU, or run on {asked.name}"
        )
    try:
        recording = read_recording(asked.id if asked is not None else None, request.records)
    except NothingRecorded as nothing:
        if request.live is False or asked is None:
            raise
        on_stage(str(nothing))
        return answer(
            request, PREDICTED, f"predicted only: never measured on {asked.name}", asked, request.heads or (DEFAULT_HEAD,), None
        )
    on_stage(f"No measuring here. Replaying {recording.label}.")
    return _replay(request, recording, asked or load_gpu(recording.gpu_id))


def recognise(device: Device) -> Gpu:
    """The catalogue's GPU for a device; for one it does not know, a Gpu of what the driver says, marked as unverified."""
    try:
        return load_gpu(recognise_gpu(device.name, device.sm_count, device.memory_bytes).id)
    except BadInput as error:
        name = "unverified-" + "".join(letter if letter.isalnum() else "-" for letter in device.name.lower())
        known = {"sm_count": (device.sm_count, "SM"), "dram_visible_bytes": (device.memory_bytes, "B")}
        figures = {
            fact: Figure(float(value), unit, "measured", "reported by the driver") for fact, (value, unit) in known.items()
        }
        unknowns = {"everything else": str(error)}
        return Gpu(
            name, device.name, (), device.compute_capability, figures, unknowns=unknowns, driver_names=(device.name,)
        )


def _measure(
    request: StudyRequest,
    gpu: Gpu,
    device: Device,
    progress: bool,
    cancel: threading.Event | None,
    on_stage: Callable[[str], None],
) -> StudyResult:
    """Time the real kernels, write their record, answer from it."""
    from cost_model.measurement import read_walk
    from wts_lab.bench import measure
    from wts_lab.bench_plan import comparison_cases

    heads = request.heads or (DEFAULT_HEAD,)
    asked = {"batch": request.batch, "temperature": request.temperature, "logits_kept": request.temperature > 0}
    cases = tuple(
        replace(case, rounding=request.rounding) if case.fused else case for head in heads for case in comparison_cases(head, **asked)
    )
    path = measure(
        cases,
        steps=request.steps,
        l2_states=request.l2_states,
        processes=request.processes,
        repeats=request.repeats,
        out=request.out / "records",
        case_name=free_case_name(request.out / "records", gpu.id, "study"),
        gpu=gpu.id,
        progress=progress,
        cancel=cancel,
    )
    on_stage(f"Recorded {path}.")
    recording = recording_of(read_walk(path), gpu.id)
    return answer(request, MEASURED, f"measured here: {device.name}", gpu, heads, recording, record=path)


def _replay(request: StudyRequest, recording: Recording, gpu: Gpu) -> StudyResult:
    """Answer from a recording, for the heads asked for or all recorded ones, by its walks of the batch, temperature and rounding asked for."""
    recording = recording.about(request.batch, request.temperature, request.rounding)
    heads = request.heads or recorded_heads(recording, DEFAULT_HEAD) or (DEFAULT_HEAD,)
    replayed, recording, notes = _recorded_lengths(request, heads, recording)
    used = [f"{name} {getattr(request, name)}" for name in ("processes", "repeats") if getattr(request, name) != getattr(StudyRequest, name)]
    if used:
        notes.append(f"{' and '.join(used)} asked for, but a replay shows what was recorded: that is for a live run to use")
    return answer(replayed, REPLAYED, f"replayed: {recording.label}", gpu, heads, recording, notes=notes)


def _recorded_lengths(
    request: StudyRequest, heads: tuple[Head, ...], recording: Recording
) -> tuple[StudyRequest, Recording, list[str]]:
    """Bring request and recording to the same walk lengths, so that nothing beyond what was timed is shown as measured.

    Those asked for are taken where at least three were recorded of every head, else all recorded ones; a note says so.
    """
    lengths: dict[tuple, set[int]] = {shape_of_head(head): set() for head in heads}
    for row in recording.rows:
        if shape_of_row(row) in lengths:
            lengths[shape_of_row(row)].add(row["steps"])
    recorded = set.intersection(*(found for found in lengths.values() if found)) if any(lengths.values()) else set()
    asked = set(request.steps)
    shown = sorted(asked & recorded) if len(asked & recorded) >= MIN_LENGTHS else sorted(recorded)
    if len(shown) < MIN_LENGTHS:
        return request, recording, []
    missing = sorted(asked - recorded)
    notes = []
    if missing:
        notes.append(
            f"walks of {_listed(missing)} steps were not recorded: fits, predictions and the verdict are about the recorded lengths "
            f"{_listed(shown)}, and calls are compared at {shown[-1]} steps; measure on the GPU to get others"
        )
    return replace(request, steps=tuple(shown)), recording.at_steps(shown), notes


def _listed(numbers: Sequence[int]) -> str:
    """Numbers as a sentence lists them."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def free_case_name(folder: Path, gpu_id: str, case: str) -> str:
    """`case`, or `case-2`, `case-3` and so on, whichever has no record of today yet: records are never changed.

    An interrupted run has no record, so it is taken up again under its own name.
    """
    from datetime import datetime, timezone

    from cost_model.measurement import record_path

    number, name, now = 1, case, datetime.now(timezone.utc)
    while record_path(folder, gpu_id, now, name).exists():
        number += 1
        name = f"{case}-{number}"
    return name
