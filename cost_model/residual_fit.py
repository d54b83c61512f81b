"""residual_fit: at most three global coefficients from recorded walks, and how far the model is from walks that did not fix them.

The coefficients are least squares of log(predicted / fitted). The error of a class of walks is read from walks that were held out: for every
vocabulary, and for every batch, the coefficients are fitted to all others and the walks left out are predicted. What is left is not in-sample, and is
what an interval has to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from cost_model.errors import CalibrationError
from cost_model.estimate import Z_95
from cost_model.fit import SeriesKey, StepFit
from cost_model.fused import FusedCase, entry_groups, step_groups
from cost_model.gpu import Figure, Gpu
from cost_model.parameters import ENTRY_ERROR, MODEL_ERROR, RELATIVE_ERROR_BY_KIND, RESIDUALS, class_error, resolve
from cost_model.parts import total_us
from cost_model.predict import unchecked_entry
from cost_model.recorded import asked_of_series, case_of_series, class_of_series, streams_of_series, unchecked_of_series
from cost_model.walk_class import WALK_CLASSES
from cost_model.workload import DEFAULT_EXCHANGE, OURS

if TYPE_CHECKING:
    import numpy

STARTS = {"fused_overhead_us": 0.5, "stream_efficiency": 0.85, "first_step_us": 2.0}
BOUNDS = {"fused_overhead_us": (0.0, 10.0), "stream_efficiency": (0.2, 1.0), "first_step_us": (0.0, 50.0)}
UNITS = {"fused_overhead_us": "us", "stream_efficiency": "ratio", "first_step_us": "us"}
ORDINARY_ERROR = 0.05
"""Relative errors beyond this count less in the fit of the coefficients: a walk that the model lacks a term for must not move the others."""

PRIOR_WALKS = 2
"""Walks that the usual error of all classes counts for in each class: with fewer the error of a class without records could not be told at all."""

LEAST_MODEL_ERROR = RELATIVE_ERROR_BY_KIND["measured"]
"""Relative error that a calibrated model keeps at least: days, boards and allocations differ by as much."""


@dataclass(frozen=True)
class RecordedWalk:
    """A fitted series and its sizes."""

    key: SeriesKey
    fit: StepFit
    case: FusedCase

    @property
    def of_class(self) -> str:
        """Its class."""
        return class_of_series(self.key)

    @property
    def shape(self) -> SeriesKey:
        """What tells walks apart whose errors are not one and the same: records and L2 states of one walk leave nearly equal ones."""
        return replace(self.key, record=None, variant=None, l2_state=None)

    def log_ratio(self, values: Mapping[str, float], part: str) -> float:
        """log(predicted / fitted) of its `step` or `entry`, with those parameter values."""
        import math

        groups_of = step_groups if part == "step" else entry_groups
        return math.log(total_us(groups_of(values, self.case)) / getattr(self.fit, f"{part}_us"))


Left = Sequence[tuple[RecordedWalk, float]]
"""Walks, and the log(predicted / fitted) that is left of each."""


def fit_residuals(gpu: Gpu, fits: Iterable[tuple[SeriesKey, StepFit]], origin: str = "") -> Gpu:
    """Return the GPU with the residual coefficients that the series can tell, and the relative errors that the model leaves of each class of walks.

    Steps fix `fused_overhead_us` and `stream_efficiency`, then entries fix `first_step_us`. Stepwise series take no part: `engine_fit` describes those.

    Raises:
        CalibrationError: no usable series.
    """
    ours = [(key, fit) for key, fit in fits if fit.usable and key.implementation == OURS and not unchecked_of_series(key)]
    walks = [RecordedWalk(key, fit, case_of_series(gpu, key)) for key, fit in ours if key.exchange in (None, DEFAULT_EXCHANGE)]
    if not walks:
        others = sorted({key.exchange for key, _ in ours})
        told = f"; those that are there exchange words by {', '.join(others)}, and the model describes {DEFAULT_EXCHANGE}" if others else ""
        raise CalibrationError(f"no usable walk series of {OURS}{told}; measure some with the present kernels, or calibrate from probes alone")
    known = resolve(gpu).values
    gpu = gpu.with_figures(_part_figures(known, walks, "step", origin))
    entered = [walk for walk in walks if walk.fit.entry_us > LEAST_TOLD * walk.fit.step_us and not unchecked_entry(asked_of_series(walk.key)[0])]
    if entered:
        gpu = gpu.with_figures(_part_figures(known, entered, "entry", origin))
    return gpu.with_figures({}, calibration="; ".join(part for part in (gpu.calibration, origin) if part))


LEAST_TOLD = 0.1
"""Steps that an intercept must be long to tell an entry: of a shorter one the rest is how straight the line of calls is."""


def _part_figures(known: Mapping[str, float], walks: Sequence[RecordedWalk], part: str, origin: str) -> dict[str, Figure]:
    """Coefficients of the `step` or `entry`, and the errors of each class."""
    import numpy as np

    found = _fitted(known, walks, part)
    relative = np.abs(np.expm1(found.left))
    source = (f"least squares over {len(walks)} walk series, {part} residuals: median {100 * float(np.median(relative)):.1f} %, "
              f"worst {100 * float(relative.max()):.1f} %; {origin}")
    figures = {name: Figure(float(value), UNITS[name], "measured", source, float(error), RESIDUALS[name])
               for name, value, error in zip(found.names, found.found, found.errors)}
    left = held_out(known, walks, part, found.values())
    for name, (error, shapes) in class_errors(left).items():
        counted = f"{shapes} walks of the class, each left out with its vocabulary and with its batch" if shapes else "no walk of the class"
        figures[class_error(MODEL_ERROR if part == "step" else ENTRY_ERROR, name)] = Figure(error, "ratio", "measured", f"{part} residuals of {counted}; {origin}")
    return figures


@dataclass(frozen=True)
class _Fitted:
    """Names, values and standard errors of coefficients, and what they leave of each walk."""

    names: Sequence[str]
    found: numpy.ndarray
    errors: numpy.ndarray
    left: numpy.ndarray

    def values(self) -> dict[str, float]:
        """Name -> value."""
        return dict(zip(self.names, map(float, self.found)))


def _fitted(known: Mapping[str, float], walks: Sequence[RecordedWalk], part: str, near: Mapping[str, float] = MappingProxyType(STARTS)) -> _Fitted:
    """Least squares of the coefficients that the walks can tell, searched from values `near`."""
    import numpy as np
    from scipy.optimize import least_squares

    names = ["first_step_us"] if part == "entry" else ["fused_overhead_us", *(["stream_efficiency"] if any(streams_of_series(walk.key) for walk in walks) else [])]

    def residuals(values: numpy.ndarray) -> numpy.ndarray:
        trial = {**known, **dict(zip(names, map(float, values)))}
        return np.array([walk.log_ratio(trial, part) for walk in walks])

    bounds = ([BOUNDS[name][0] for name in names], [BOUNDS[name][1] for name in names])
    found = least_squares(residuals, [_within(near.get(name, STARTS[name]), *BOUNDS[name]) for name in names], bounds=bounds, diff_step=1e-4, loss="soft_l1", f_scale=ORDINARY_ERROR)
    left = residuals(found.x)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * np.sum(left**2) / max(1, len(walks) - len(names))
    return _Fitted(names, found.x, np.sqrt(np.diag(covariance)), left)


def _within(value: float, low: float, high: float) -> float:
    """A value a little inside its bounds, where a search can begin."""
    margin = 0.002 * (high - low)
    return min(max(value, low + margin), high - margin)


# --- the errors of a class ---------------------------------------------------------------------------------------------------------


def held_out(known: Mapping[str, float], walks: Sequence[RecordedWalk], part: str, near: Mapping[str, float] = MappingProxyType(STARTS)) -> Left:
    """What coefficients fitted to all other vocabularies leave of each walk, and what those fitted to all other batches leave. Where there is one
    vocabulary and one batch only, nothing can be held out, and what the fit itself leaves is given. `near`: where coefficients are searched from."""
    found: list[tuple[RecordedWalk, float]] = []
    for label in ("vocab_size", "batch"):
        labels = sorted({getattr(walk.key, label) or 1 for walk in walks})
        for left_out in labels if len(labels) > 1 else ():
            others, these = ([walk for walk in walks if ((getattr(walk.key, label) or 1) == left_out) is wanted] for wanted in (False, True))
            values = {**known, **_fitted(known, others, part, near).values()}
            found += [(walk, walk.log_ratio(values, part)) for walk in these]
    return found or list(zip(walks, map(float, _fitted(known, walks, part).left)))


def class_errors(left: Left) -> dict[str, tuple[float, int]]:
    """Class -> the relative error of which 1.96 hold 95 % of what is left, and how many different walks it rests on.

    A class of n walks whose mean square is s² has the variance (n s² + m s0²) / (n + m): s0² is the mean over the recorded classes, which counts for
    m = PRIOR_WALKS walks. Since it is known from n + m walks only, it is widened from a normal's 1.96 to the 97.5 % point of a t of n + m degrees. So a class
    of many walks has its own error, and one without any the usual error with the wide t of two degrees.
    """
    from scipy.special import stdtrit

    squares: dict[str, dict[SeriesKey, list[float]]] = {}
    for walk, ratio in left:
        squares.setdefault(walk.of_class, {}).setdefault(walk.shape, []).append(ratio**2)
    known = {name: (len(shapes), _mean([_mean(some) for some in shapes.values()])) for name, shapes in squares.items()}
    usual = _mean([square for _, square in known.values()])
    errors = {}
    for name in WALK_CLASSES:
        shapes, square = known.get(name, (0, 0.0))
        variance = (shapes * square + PRIOR_WALKS * usual) / (shapes + PRIOR_WALKS)
        errors[name] = max(float(stdtrit(shapes + PRIOR_WALKS, 0.975)) / Z_95 * variance**0.5, LEAST_MODEL_ERROR), shapes
    return errors


def _mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)
