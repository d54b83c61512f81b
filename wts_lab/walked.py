"""Walks along an axis, each predicted and, where it was recorded, measured: a batch that grows, vocabularies, kinds of heads.

`walked` answers about one walk of exactly the asked head, batch, temperature and L2 state. A recorded walk is predicted as it ran, with
its own placement; one that was not recorded is predicted as the planner would place it, and has no fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.predict import predict
from cost_model.published import load_published_times
from cost_model.recorded import predict_series
from cost_model.tables import way_name
from cost_model.workload import DEFAULT_EXCHANGE, ENGINE, OURS, is_experiment
from wts_lab.compare import PUBLISHED_SAMPLES, published_points
from wts_lab.comparison import MeasuredPoint
from wts_lab.recorded_probes import matching_rows, walk_columns
from wts_lab.recordings import Stamp, kept_recording, records_stamp

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.predict import Prediction
    from cost_model.workload import Workload

SAMPLED = {"temperature": 1.0, "logits_kept": True}
"""What a sampled walk is in the records: temperature 1, with the step logits kept for the acceptance test."""


@dataclass(frozen=True)
class Walked:
    """One walk.

    Attributes:
        head, workload, mode: what walks; implementation: `wts` or an engine; variant: an engine's path, None for ours.
        prediction: of the recorded configuration, or of the planner's; None where the model refuses, which `note` says.
        fit: of the recorded calls; None where there are none.
        points: call times that others published; only of an engine, and only where nothing was recorded.
        note: why something is missing; empty where nothing is.
    """

    head: Head
    workload: Workload
    mode: str
    implementation: str
    variant: str | None
    prediction: Prediction | None
    fit: StepFit | None
    points: tuple[MeasuredPoint, ...] = ()
    note: str = ""

    @property
    def label(self) -> str:
        """The way of walking, for instance 'resident int8x2'."""
        return way_name(self.implementation, self.variant, self.mode, self.workload.precision)

    @property
    def is_measured(self) -> bool:
        """Whether there is a measured slope."""
        return self.fit is not None and self.fit.usable

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less 1; None where either is missing."""
        return self.prediction.step_us / self.fit.step_us - 1 if self.is_measured and self.prediction is not None else None

    @property
    def holds(self) -> bool | None:
        """Whether the predicted interval holds the measured step; None where either is missing."""
        if not self.is_measured or self.prediction is None:
            return None
        return self.prediction.step_us_low <= self.fit.step_us <= self.prediction.step_us_high

    @property
    def published_step_us(self) -> float | None:
        """Slope of the published calls over their walk lengths, in microseconds; None where there are not two of them."""
        return slope_us(self.points)

    def measured_us(self, steps: int | None) -> tuple[float, float, float] | None:
        """Measured time with the ends of its interval: of a step (`steps` None), or of a complete call of a walk length that was timed.

        A call's interval is that of a sum of fitted entry and step, both at the same end; None where it was not measured.
        """
        if not self.is_measured:
            return None
        fit = self.fit
        if steps is None:
            return fit.step_us, fit.step_us_low, fit.step_us_high
        if not min(fit.steps) <= steps <= max(fit.steps):
            return None
        middle = fit.call_us(steps)
        half = [abs(end - fit.line_us(steps)) for end in (fit.entry_us_low + steps * fit.step_us_low, fit.entry_us_high + steps * fit.step_us_high)]
        return middle, middle - half[0], middle + half[1]

    def predicted_us(self, steps: int | None) -> tuple[float, float, float] | None:
        """The same of the prediction, for any walk length."""
        made = self.prediction
        if made is None:
            return None
        if steps is None:
            return made.step_us, made.step_us_low, made.step_us_high
        return made.call_us(steps), made.entry_us_low + steps * made.step_us_low, made.entry_us_high + steps * made.step_us_high


def walked(gpu: Gpu, head: Head, workload: Workload, mode: str, implementation: str | None = None, *, variant: str | None = None,
           records: Path | None = None) -> Walked:
    """One walk; `implementation` is ours for the fused modes and the engine for stepwise where None.

    Args:
        workload: its precision is the walk's; `steps` are those that an engine's fastest path is chosen for.
        variant: an engine's path by its kernel's name; the one it takes where None.
        records: folder of recorded runs; those that ship with the lab where None.
    """
    implementation = implementation or (ENGINE if mode == "stepwise" else OURS)
    asked, note = None, ""
    try:
        asked = predict(gpu, head, workload, mode, implementation, variant=variant)
    except BadInput as error:
        note = str(error)
    path = _kernel_of(asked) if implementation == ENGINE else None
    own = _fastest(gpu, head, workload, mode, implementation, path or variant, records)
    if own is None:
        points = _published(gpu, head, workload, asked.variant) if path is not None and asked is not None else ()
        return Walked(head, workload, mode, implementation, path or variant, asked, None, points, note or "not recorded")
    key, fit = own
    try:
        made, note = predict_series(gpu, key, workload.steps), ""
    except BadInput as error:
        made, note = None, str(error)
    return Walked(head, workload, mode, implementation, path or variant, made, fit, (), note)


RECURRENT_TABLE = "sglang-0.5.23-h200-recurrent"
RECURRENT_NAMES = {("rnn", None): "dspark-rnn", ("domino", None): "domino-pool0", ("domino", 2048): "domino-pool2048"}
"""What the published table of recurrent heads calls a kind and its candidate pool."""


def _published(gpu: Gpu, head: Head, workload: Workload, variant: str) -> tuple[MeasuredPoint, ...]:
    """Call times of an engine that others published for this GPU, head and load; a published time is a median, so its ends are the median itself."""
    if head.kind == "markov":
        return published_points(gpu, head, workload, variant)
    table, name = load_published_times(RECURRENT_TABLE), RECURRENT_NAMES.get((head.kind, head.candidate_pool))
    told = ("gpu", "vocab_size", "hidden_size", "batch", "temperature", "l2_state")
    if tuple(table.provenance[key] for key in told) != (gpu.id, head.vocab_size, head.hidden_size, workload.batch, workload.temperature, workload.l2_state):
        return ()
    times = ((row["steps"], row["median_us"]) for row in table.rows if row["head"] == name)
    return tuple(MeasuredPoint(steps, time_us, time_us, time_us, PUBLISHED_SAMPLES) for steps, time_us in times)


def _kernel_of(prediction: Prediction | None) -> str | None:
    """The name by which records and published tables call an engine's path."""
    from cost_model.engines import load_engine

    if prediction is None or prediction.variant is None:
        return None
    return load_engine(prediction.implementation).path(prediction.workload, prediction.variant, prediction.head.kind).kernel


def _fastest(gpu: Gpu, head: Head, workload: Workload, mode: str, implementation: str, variant: str | None, records: Path | None) -> tuple | None:
    """Key and fit of the recorded configuration whose calls of `workload.steps` are shortest; walks of the present exchange before former ones."""
    found = recorded_series(gpu.id, records, records_stamp(gpu.id, records), head, workload, mode, implementation, variant)
    present = [one for one in found if one[0].exchange in (None, DEFAULT_EXCHANGE)] or found
    return min(present, key=lambda one: one[1].line_us(workload.steps), default=None)


@lru_cache(maxsize=512)
def recorded_series(gpu_id: str, records: Path | None, stamp: Stamp, head: Head, workload: Workload, mode: str, implementation: str,
                    variant: str | None) -> tuple[tuple[SeriesKey, StepFit], ...]:
    """Every recorded series of one walk with its fit, made once for each stamp of the files. Experimental exchanges, and what has too few walk
    lengths for a fit or lost its samples, are left out."""
    from cost_model.fit import KEY_COLUMNS, MIN_STEPS, fit_frame

    recording = kept_recording(gpu_id, records, stamp)
    if recording is None:
        return ()
    way = {"mode": mode, "implementation": implementation, **({} if variant is None else {"variant": variant})}
    rounds = {} if mode == "stepwise" else {"rounding": workload.rounding}
    frame = matching_rows(recording.frame, {**way, **rounds, **walk_columns(head, workload)})
    frame = frame[~frame["exchange"].map(is_experiment).astype(bool)]
    columns = [name for name in KEY_COLUMNS if name in frame]
    lengths = frame.groupby(columns, dropna=False)["steps"].transform("nunique") if len(frame) else frame["steps"]
    return tuple((key, fit) for key, fit in fit_frame(frame[lengths >= MIN_STEPS]) if fit.usable)


def slope_us(points: Sequence[MeasuredPoint]) -> float | None:
    """Least-squares slope of call times over walk length, in microseconds a step; None for fewer than two lengths."""
    if len({point.steps for point in points}) < 2:
        return None
    middle, mean = (statistics.fmean(values) for values in ([point.steps for point in points], [point.median_us for point in points]))
    return sum((point.steps - middle) * (point.median_us - mean) for point in points) / sum((point.steps - middle) ** 2 for point in points)


def notes_of(walks: Iterable[Walked]) -> tuple[str, ...]:
    """What of some walks is missing, one line each; empty where all are measured and predicted."""
    return tuple(f"{each.label}, V {each.head.vocab_size:,}, batch {each.workload.batch}, {'sampled' if each.workload.temperature else 'greedy'}: {each.note}"
                 for each in walks if each.note)
