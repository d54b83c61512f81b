"""Every recorded walk of a GPU, predicted by models that have and have not seen it: what the validation notebook and page show.

Three ways to hold walks out come from `cost_model.validation`. Two more stand beside them: the shipped calibration, which has seen all of these walks (its
points are in-sample), and an engine's paths, whose figures come from times that others published, so its recorded walks are new to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.measurement import NO_PROBE, read_walk_folder
from cost_model.recorded import predict_series, unchecked_of_series
from cost_model.validation import (
    DATASHEET, HELD_OUT_BATCH, HELD_OUT_VOCABULARY, Accuracy, ValidationPoint, accuracy, from_datasheet, leave_one_batch_out, leave_one_vocabulary_out, walks_of,
)
from cost_model.workload import ENGINE, OURS
from wts_lab.recordings import Stamp, measurements_root, recording_of, records_stamp

if TYPE_CHECKING:
    import pandas

    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gpu import Gpu

IN_SAMPLE, ENGINE_PATHS = "in-sample", "engine's paths"
KINDS = (HELD_OUT_VOCABULARY, HELD_OUT_BATCH, IN_SAMPLE, DATASHEET, ENGINE_PATHS)
KIND_WORDS = {
    HELD_OUT_VOCABULARY: "coefficients from the walks of all other vocabularies",
    HELD_OUT_BATCH: "coefficients from the walks of all other batches",
    IN_SAMPLE: "the shipped calibration, which has seen these walks",
    DATASHEET: "no record of this GPU: datasheet and published microbenchmarks",
    ENGINE_PATHS: "an engine's own paths, from times that others published",
}

ALL, DESCRIBED = "all walks", "walks that the model is fitted to"


@dataclass(frozen=True)
class AccuracyGoal:
    """What an accuracy must be: shares of 1; None where nothing is asked."""

    median_share: float
    worst_share: float | None
    inside_share_low: float
    inside_share_high: float
    half_width_share: float


HELD_OUT_GOAL = AccuracyGoal(0.05, 0.15, 0.90, 0.99, 0.08)
GOALS = {HELD_OUT_VOCABULARY: HELD_OUT_GOAL, HELD_OUT_BATCH: HELD_OUT_GOAL, DATASHEET: AccuracyGoal(0.15, None, 0.90, 1.0, 0.35)}
"""Of the steps of each kind of validation. What was seen has no goal, and another's implementation is not this model's to answer for."""


@dataclass(frozen=True)
class Validated:
    """All points of a GPU.

    Attributes:
        gpu_id, label: the GPU, and what was recorded of it when.
        points: one of KINDS -> its points, in the order of the records; kinds without points are left out.
        seen: notes of constants that a kind has read from these records; empty where there are none.
    """

    gpu_id: str
    label: str
    points: Mapping[str, tuple[ValidationPoint, ...]]
    seen: tuple[str, ...] = ()

    def groups(self, kind: str) -> dict[str, tuple[ValidationPoint, ...]]:
        """The points of a kind: all, those that the model is fitted to, and each group of `group_of`."""
        own = self.points[kind]
        described = tuple(point for point in own if is_described(point))
        found: dict[str, list[ValidationPoint]] = {}
        for point in own:
            found.setdefault(group_of(point), []).append(point)
        first = {ALL: own, **({DESCRIBED: described} if described and kind != ENGINE_PATHS else {})}
        return {**first, **{name: tuple(found[name]) for name in sorted(found)}}


def validated(gpu_id: str = "h200-sxm", records: Path | None = None) -> Validated:
    """Hold every recorded walk of a GPU out in turn and predict it; kept as long as the records stay as they are.

    Args:
        gpu_id: catalogue id; records: folder of recorded runs, those that ship with the lab where None.

    Raises BadInput: nothing is recorded, or the records lack the probes that a calibration needs.
    """
    return _validated(gpu_id, records, records_stamp(gpu_id, records))


@lru_cache(maxsize=2)
def _validated(gpu_id: str, records: Path | None, stamp: Stamp) -> Validated:
    """Compute it once for each stamp of the files."""
    from cost_model.fit import fit_frame
    from cost_model.validation import in_sample_constants, is_in_sample

    if not stamp:
        raise BadInput(f"nothing is recorded of {gpu_id}, so there is nothing to validate; measure on that GPU, or choose a recorded one")
    frame = read_walk_folder((measurements_root() if records is None else Path(records)) / gpu_id)
    plain, calibrated = load_gpu(gpu_id, calibrated=False), load_gpu(gpu_id)
    engine = frame[(frame["implementation"] == ENGINE) & (frame["probe"] == NO_PROBE)]
    walks = walks_of(frame)
    found = {
        HELD_OUT_VOCABULARY: leave_one_vocabulary_out(plain, frame, walks), HELD_OUT_BATCH: leave_one_batch_out(plain, frame, walks),
        IN_SAMPLE: points_of(IN_SAMPLE, calibrated, walks), DATASHEET: from_datasheet(plain, frame, walks),
        ENGINE_PATHS: points_of(ENGINE_PATHS, calibrated, fit_frame(engine)),
    }  # fmt: skip
    constants = in_sample_constants() if is_in_sample(plain) else {}
    seen = (f"{DATASHEET}: {', '.join(sorted(constants))} come from records of this GPU, so here these constants are in-sample",) if constants else ()
    return Validated(gpu_id, recording_of(frame, gpu_id).label, {kind: points for kind, points in found.items() if points}, seen)


def points_of(kind: str, gpu: Gpu, walks: Iterable[tuple[SeriesKey, StepFit]]) -> tuple[ValidationPoint, ...]:
    """Points of some fitted walks as a GPU's parameters predict them, nothing held out; walks without a fit are left out."""
    found = []
    for key, fit in walks:
        if fit.usable:
            made = predict_series(gpu, key)
            found.append(ValidationPoint(kind, None, key, fit.step_us, fit.step_us_low, fit.step_us_high, made.step_us, made.step_us_low, made.step_us_high,
                                         fit.entry_us, made.entry_us, made.entry_us_low, made.entry_us_high))
    return tuple(found)


def is_described(point: ValidationPoint) -> bool:
    """Whether the model claims to be fitted to a walk of this kind; others are predicted with wider intervals."""
    return point.series.implementation == OURS and not unchecked_of_series(point.series)


def group_of(point: ValidationPoint) -> str:
    """What walks are summed up together: way or kind of head, and load."""
    key = point.series
    head = "" if key.head_kind in (None, "markov") else f"{key.head_kind} heads, "
    way = f"{key.mode} {key.precision}" if key.implementation == OURS else str(key.variant)
    load = "sampled" if key.temperature else "greedy, batch 1" if (key.batch or 1) == 1 else "greedy, more rows"
    return f"{head}{way}, {load}"


def shortfalls(found: Accuracy, goal: AccuracyGoal) -> tuple[str, ...]:
    """What of a goal an accuracy misses, in words; empty where it meets all."""
    missed = {
        "median": found.median_share > goal.median_share,
        "worst": goal.worst_share is not None and found.worst_share > goal.worst_share,
        "held": not goal.inside_share_low <= found.inside_share <= goal.inside_share_high,
        "half-width": found.half_width_share > goal.half_width_share,
    }
    return tuple(name for name, is_missed in missed.items() if is_missed)


def summaries(result: Validated, kind: str) -> dict[str, Accuracy]:
    """Accuracy of each group of a kind."""
    return {name: accuracy(points) for name, points in result.groups(kind).items()}


def walk_words(key: SeriesKey) -> str:
    """A recorded walk in a few words: head, shape, way, load, L2 state."""
    head = key.head_kind or "markov"
    pool = f" of {key.candidate_pool:,} candidates" if key.candidate_pool else ""
    hidden = f", hidden {key.hidden_size:,}" if key.hidden_size and head != "markov" else ""
    way = f"{key.mode} {key.precision}" if key.implementation == OURS else str(key.variant)
    load = f"batch {key.batch or 1}, {'sampled' if key.temperature else 'greedy'}"
    rounding = f", rounding {key.rounding}" if key.implementation == OURS and key.rounding not in (None, "once") else ""
    return f"{head}{pool}, V {key.vocab_size:,}, rank {key.rank}{hidden}, {way}{rounding}, {load}, {key.l2_state}"
