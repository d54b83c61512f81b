"""Validation: predictions of recorded walks by calibrations that have not seen them.

Ways to hold a walk out, each a function of a GPU and a frame of its records that returns every point:

    leave_one_vocabulary_out   coefficients from the walks of all other vocabularies
    leave_one_batch_out        coefficients from the walks of all other batches
    leave_records_out          coefficients from the walks of all other records than some, whose points are returned
    from_datasheet             no record of the GPU at all: datasheet, published microbenchmarks, transferred constants

In all but the last the probes stay, phases and parts of a step among them: they fix the primitives, and no complete walk is one. Where the last is
asked of the reference GPU, constants that were read from its own records are in-sample there; `in_sample_constants` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from cost_model.calibrate import calibrate
from cost_model.errors import BadInput
from cost_model.fit import SeriesKey, StepFit, fit_frame
from cost_model.gpu import Gpu
from cost_model.measurement import NO_PROBE, require_gpu
from cost_model.parameters import REFERENCE_GPU, published_reference
from cost_model.recorded import predict_series
from cost_model.residual_fit import fit_residuals
from cost_model.workload import FORMER_EXCHANGES, OURS, is_experiment

if TYPE_CHECKING:
    import pandas

HELD_OUT_VOCABULARY, HELD_OUT_BATCH, DATASHEET = "held-out vocabulary", "held-out batch", "datasheet only"
HELD_OUT_RECORDS = "held-out records"
KINDS = (HELD_OUT_VOCABULARY, HELD_OUT_BATCH, DATASHEET)

OWN_RECORDS = "this project's"
"""What the source of a constant that was read from this project's records says."""


@dataclass(frozen=True)
class ValidationPoint:
    """One recorded walk and what a model that has not seen it says of its step and entry. Times in microseconds.

    Attributes:
        kind: one of KINDS, or HELD_OUT_RECORDS; held_out: the vocabulary or batch that the calibration lacks; None for other kinds.
        series: the configuration, its record among it.
        measured_us, measured_us_low, measured_us_high: fitted step with its 95 % interval.
        predicted_us, predicted_us_low, predicted_us_high: predicted step with its 95 % interval.
        entry_measured_us, entry_predicted_us, entry_predicted_us_low, entry_predicted_us_high: the same of the entry.
    """

    kind: str
    held_out: int | None
    series: SeriesKey
    measured_us: float
    measured_us_low: float
    measured_us_high: float
    predicted_us: float
    predicted_us_low: float
    predicted_us_high: float
    entry_measured_us: float
    entry_predicted_us: float
    entry_predicted_us_low: float
    entry_predicted_us_high: float

    @property
    def error_share(self) -> float:
        """predicted / measured - 1 of the step."""
        return self.predicted_us / self.measured_us - 1

    @property
    def inside(self) -> bool:
        """Whether the predicted interval holds the fitted step."""
        return self.predicted_us_low <= self.measured_us <= self.predicted_us_high

    @property
    def half_width_share(self) -> float:
        """Half of the predicted interval over the prediction."""
        return (self.predicted_us_high - self.predicted_us_low) / 2 / self.predicted_us

    def as_dict(self) -> dict:
        """Return a flat row: what tells walks apart, then the numbers."""
        key = self.series
        told = {name: getattr(key, name) for name in (
            "head_kind", "vocab_size", "rank", "mode", "precision", "batch", "temperature", "logits_kept", "l2_state", "rounding", "record")}
        numbers = {name: getattr(self, name) for name in ValidationPoint.__dataclass_fields__ if name not in ("kind", "held_out", "series")}
        return {"kind": self.kind, "held_out": self.held_out, **told, **numbers, "error_share": self.error_share, "inside": self.inside,
                "half_width_share": self.half_width_share}


@dataclass(frozen=True)
class Accuracy:
    """Errors over points: how many, median and worst |error|, share of intervals that hold, median half-width."""

    points: int
    median_share: float
    worst_share: float
    inside_share: float
    half_width_share: float


def accuracy(points: Iterable[ValidationPoint]) -> Accuracy:
    """Sum up points.

    Raises:
        BadInput: there are none.
    """
    points = tuple(points)
    if not points:
        raise BadInput("no points were given; records of complete walks give them")
    errors = [abs(point.error_share) for point in points]
    return Accuracy(len(points), median(errors), max(errors), sum(point.inside for point in points) / len(points),
                    median(point.half_width_share for point in points))


def points_frame(points: Iterable[ValidationPoint]) -> pandas.DataFrame:
    """Return a row a point, with the columns of `ValidationPoint.as_dict`."""
    import pandas

    return pandas.DataFrame([point.as_dict() for point in points])


Walks = Sequence[tuple[SeriesKey, StepFit]]
"""Fitted series."""


def leave_one_vocabulary_out(gpu: Gpu, frame: pandas.DataFrame, walks: Walks | None = None) -> tuple[ValidationPoint, ...]:
    """Predict the walks of each vocabulary with coefficients from those of all others.

    Args:
        gpu: datasheet facts of the GPU that the rows were measured on.
        frame: its records, as `measurement.read_walk_folder` gives them.
        walks: `walks_of(frame)` where the caller has it already, for fitting takes longer than predicting.

    Raises:
        BadInput: as `calibrate`; or fewer than two vocabularies were walked.
    """
    return _leave_one_out(gpu, frame, walks, HELD_OUT_VOCABULARY, lambda key: key.vocab_size)


def leave_one_batch_out(gpu: Gpu, frame: pandas.DataFrame, walks: Walks | None = None) -> tuple[ValidationPoint, ...]:
    """Predict the walks of each batch with coefficients from those of all others. Arguments and errors as for vocabularies."""
    return _leave_one_out(gpu, frame, walks, HELD_OUT_BATCH, lambda key: key.batch or 1)


def leave_records_out(gpu: Gpu, frame: pandas.DataFrame, records: Iterable[str], walks: Walks | None = None) -> tuple[ValidationPoint, ...]:
    """Predict the walks of some records, such as those made last, with coefficients from the walks of all others.

    Args:
        records: stems of their files; others as for vocabularies.

    Raises:
        BadInput: as `calibrate`; or a record holds no walk, or no other does.
    """
    left_out, walks = set(records), _walks(frame, walks)
    unknown = left_out - {key.record for key, _ in walks}
    if unknown or not left_out:
        raise BadInput(f"records without walks: {', '.join(sorted(unknown)) or 'none were given'}; there are {', '.join(sorted({str(key.record) for key, _ in walks}))}")
    trained = fit_residuals(_probed(gpu, frame), [pair for pair in walks if pair[0].record not in left_out])
    return tuple(_point(HELD_OUT_RECORDS, None, trained, key, fit) for key, fit in walks if key.record in left_out)


def from_datasheet(gpu: Gpu, frame: pandas.DataFrame, walks: Walks | None = None) -> tuple[ValidationPoint, ...]:
    """Predict every walk from what is known of the GPU without its records.

    Args:
        gpu: the GPU without a calibration (`load_gpu(id, calibrated=False)`).
        frame, walks: as for vocabularies.

    Raises:
        BadInput: the rows are of another GPU, or the GPU is a calibrated one.
    """
    if gpu.calibration:
        raise BadInput(f"{gpu.id} was given with its calibration; load it with calibrated=False")
    require_gpu(frame, gpu)
    return tuple(_point(DATASHEET, None, gpu, key, fit) for key, fit in _walks(frame, walks))


def in_sample_constants() -> dict[str, str]:
    """Constants of `from_datasheet` that were read from records of the reference GPU: name -> source. There they are in-sample; on every other
    GPU they are transferred."""
    return {name: figure.source for name, figure in published_reference()[0].items() if figure.kind == "transferred" and OWN_RECORDS in figure.source}


def is_in_sample(gpu: Gpu) -> bool:
    """Whether `in_sample_constants` come from records of this GPU."""
    return gpu.id == REFERENCE_GPU


def walks_of(frame: pandas.DataFrame) -> list[tuple[SeriesKey, StepFit]]:
    """Return the usable series of this project's walks, without experiments that no settings can ask for."""
    walks = frame[frame["probe"].isna() | (frame["probe"] == NO_PROBE)]
    return [(key, fit) for key, fit in fit_frame(walks[walks["implementation"] == OURS]) if fit.usable and is_described(key)]


def is_described(key: SeriesKey) -> bool:
    """Whether the model describes the walk: its exchange is the default one."""
    return not is_experiment(key.exchange) and key.exchange not in FORMER_EXCHANGES


def _walks(frame: pandas.DataFrame, walks: Walks | None) -> Walks:
    """The walks given, or those of the frame."""
    return walks_of(frame) if walks is None else walks


def _probed(gpu: Gpu, frame: pandas.DataFrame) -> Gpu:
    """Calibrate from probes alone."""
    return calibrate(gpu, frame[frame["probe"].notna() & (frame["probe"] != NO_PROBE)])


def _leave_one_out(gpu: Gpu, frame: pandas.DataFrame, walks: Walks | None, kind: str, label: Callable[[SeriesKey], int]) -> tuple[ValidationPoint, ...]:
    """Calibrate once from probes, then for each label from the walks that have another."""
    probed = _probed(gpu, frame)
    walks = _walks(frame, walks)
    labels = sorted({label(key) for key, _ in walks})
    if len(labels) < 2:
        raise BadInput(f"{kind}: the walks have {len(labels)} of them ({', '.join(map(str, labels)) or 'none'}); at least two are needed")
    points: list[ValidationPoint] = []
    for left_out in labels:
        trained = fit_residuals(probed, [pair for pair in walks if label(pair[0]) != left_out])
        points += [_point(kind, left_out, trained, key, fit) for key, fit in walks if label(key) == left_out]
    return tuple(points)


def _point(kind: str, held_out: int | None, gpu: Gpu, key: SeriesKey, fit: StepFit) -> ValidationPoint:
    """Predict one series."""
    made = predict_series(gpu, key)
    return ValidationPoint(
        kind, held_out, key, fit.step_us, fit.step_us_low, fit.step_us_high, made.step_us, made.step_us_low, made.step_us_high,
        fit.entry_us, made.entry_us, made.entry_us_low, made.entry_us_high,
    )
