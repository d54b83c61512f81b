"""One step of an engine, part by part: its kernels as a profiler saw them where that was recorded, else the model's terms.

The record is `python -m benchmarks.engine_kernels`: probe rows, one for each kernel of a step in the order in which they run, and one for the time
in which none runs. Beside the parts stands the whole step as complete calls give it, with no profiler near: the slope of recorded calls,
else of those that others published.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.engines import EnginePath, load_engine
from cost_model.errors import BadInput
from cost_model.measurement import frame_rows
from cost_model.predict import predict
from cost_model.workload import ENGINE, Workload
from wts_lab.comparison import MEASURED, PREDICTED, PUBLISHED
from wts_lab.recorded_probes import matching_rows, newest, probe_rows
from wts_lab.recordings import kept_recording, records_stamp
from wts_lab.walked import Walked, walked

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from cost_model.head import Head

KERNEL_PROBE = "engine_kernel"
BETWEEN = "between kernels"
"""The part of a step in which no kernel runs."""

_TERMS = {
    "launch": "between kernels",
    "byte_floor": "read of W2 at the best rate",
    "projection_excess": "projection, beyond that read",
    "selection": "look-up, sum and selection",
    "sampling": "noise",
}
"""What a term of the model stands for in a step."""


@dataclass(frozen=True)
class StepPart:
    """One part of a step: its name, and its time in microseconds with the 5th and 95th percentile where it was measured."""

    name: str
    time_us: float
    time_us_low: float | None = None
    time_us_high: float | None = None


@dataclass(frozen=True)
class EngineStep:
    """One path of an engine at one shape.

    Attributes:
        path: the path; workload: at batch, temperature and L2 state.
        parts: in the order in which they run; basis: 'measured' where a profiler saw them, else 'predicted'.
        step_us: the whole step as complete calls give it, None where there are none; step_basis: 'measured' or 'published'.
        source: of parts and whole, in words.
    """

    path: EnginePath
    workload: Workload
    parts: tuple[StepPart, ...]
    basis: str
    step_us: float | None
    step_basis: str | None
    source: str

    @property
    def parts_us(self) -> float:
        """Sum of the parts."""
        return sum(part.time_us for part in self.parts)

    @property
    def label(self) -> str:
        """The path and what it does, for instance 'MarkovSampleStep, sampled'."""
        return f"{self.path.kernel}, {'sampled' if self.workload.temperature else 'greedy'}"


def engine_steps(gpu: Gpu, head: Head, workload: Workload, *, records: Path | None = None) -> tuple[EngineStep, ...]:
    """Every path of the engine that serves the workload, part by part, the one that it takes first.

    Args:
        records: folder of recorded runs; those that ship with the lab where None.

    Raises BadInput where the model cannot answer; UnknownImplementation where no path serves it.
    """
    asked = replace(workload, precision="bf16")
    paths = load_engine(ENGINE).serving(asked, head.kind)
    rows = _kernel_rows(gpu, head, asked, records)
    return tuple(_step(gpu, head, asked, path, rows, records) for path in paths)


def _step(gpu: Gpu, head: Head, workload: Workload, path: EnginePath, rows: list[dict[str, Any]], records: Path | None) -> EngineStep:
    """One path: recorded kernels or the model's terms, and the whole step beside them."""
    walk = walked(gpu, head, workload, "stepwise", ENGINE, variant=path.kernel, records=records)
    recording = kept_recording(gpu.id, records, records_stamp(gpu.id, records))
    parts, whole = (
        parts_of(row for row in rows if row["variant"].startswith(f"{path.kernel}/")),
        _whole(walk, recording.label if recording else ""),
    )
    basis, words = MEASURED, f"kernels: profiled on {gpu.name}, {_date(rows)}"
    if not parts:
        predicted = predict(gpu, head, workload, "stepwise", ENGINE, variant=path.variant)
        parts = tuple(
            StepPart(_TERMS.get(name, name.replace("_", " ")), term.exposed_us)
            for name, term in predicted.terms["step"].items()
            if term.exposed_us > 0
        )
        basis, words = PREDICTED, "kernels: not recorded, so the model's terms"
    return EngineStep(path, workload, parts, basis, *whole[:2], f"{words}; step: {whole[2]}")


def parts_of(rows: Iterable[Mapping[str, Any]]) -> tuple[StepPart, ...]:
    """Kernels of one path from their rows, in order, and what lies between them last; a time is the median of its samples."""
    found = []
    for row in rows:
        _, place, name = split_variant(row["variant"])
        ordered = sorted(row["samples_us"])
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.95))
        found.append((place, StepPart(name, statistics.median(ordered), low, high)))
    return tuple(part for _, part in sorted(found, key=lambda one: one[0]))


def join_variant(kernel: str, place: int, name: str) -> str:
    """The variant of a row: path, place in the step, and what runs there."""
    return f"{kernel}/{place}/{name}"


def split_variant(variant: str) -> tuple[str, int, str]:
    """Path, place and name of a row's variant. Raises BadInput for another form."""
    path, _, rest = variant.partition("/")
    place, _, name = rest.partition("/")
    if not (path and place.isdigit() and name):
        raise BadInput(f"{variant!r} names no kernel of a step; the form is path/place/name, as python -m benchmarks.engine_kernels writes it")
    return path, int(place), name


def _kernel_rows(gpu: Gpu, head: Head, workload: Workload, records: Path | None) -> list[dict[str, Any]]:
    """Rows of the newest kernel record of a shape, batch and temperature; none where there is none."""
    wanted = {
        "probe": KERNEL_PROBE,
        "head_kind": head.kind,
        "vocab_size": head.vocab_size,
        "rank": head.rank,
        "batch": workload.batch,
        "temperature": workload.temperature,
    }
    return frame_rows(newest(matching_rows(probe_rows(gpu, records), wanted)))


def _date(rows: list[dict[str, Any]]) -> str:
    return str(rows[0]["recorded_at_utc"])[:10] if rows else ""


def _whole(walk: Walked, label: str) -> tuple[float | None, str | None, str]:
    """Step of complete calls: recorded, else published; with basis and source."""
    if walk.is_measured:
        return walk.fit.step_us, MEASURED, f"slope of recorded calls, {label}"
    if walk.published_step_us is None:
        return None, None, "no complete calls recorded or published"
    return walk.published_step_us, PUBLISHED, "slope of published calls (data/published)"
