"""One way of walking, predicted and measured side by side: what study, report, figures and panels all show.

A `Comparison` holds a cost-model `Prediction`, a `StepFit` and the measured points of one series; any of the three may be
missing, and then it is None or empty, never a stand-in.  Points of an engine may be published ones; `points_kind` says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost_model.tables import way_name
from cost_model.workload import OURS, REFERENCE

if TYPE_CHECKING:
    from cost_model.fit import StepFit
    from cost_model.predict import Prediction

MEASURED, PUBLISHED, PREDICTED = "measured", "published", "predicted"
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.95


@dataclass(frozen=True)
class MeasuredPoint:
    """Call time at one walk length: median of all kept samples, with their 5th and 95th percentile (all in microseconds)."""

    steps: int
    median_us: float
    low_us: float
    high_us: float
    samples: int


@dataclass(frozen=True)
class Comparison:
    """A series of call times over steps: how it walks, what was predicted, what was measured, and the fit."""

    implementation: str
    mode: str
    precision: str
    l2_state: str
    vocab_size: int
    rank: int
    variant: str | None = None
    prediction: Prediction | None = None
    fit: StepFit | None = None
    points: tuple[MeasuredPoint, ...] = ()
    points_kind: str = MEASURED
    placement: Any = None
    tokens_match: float | None = None

    @property
    def label(self) -> str:
        """What a legend calls this series, for instance 'resident int8x2' or 'sglang-0.5.23 greedy'."""
        return way_name(self.implementation, self.variant, self.mode, self.precision)

    @property
    def shape_label(self) -> str:
        """The head's sizes, for instance 'V 151,936, rank 256'."""
        return f"V {self.vocab_size:,}, rank {self.rank}"

    @property
    def role(self) -> str:
        """Key into the figures' palette: mode and precision for our kernels, the implementation's family otherwise."""
        if self.is_ours:
            return f"{self.mode}-{self.precision}"
        return "engine" if self.is_engine else self.implementation

    @property
    def is_ours(self) -> bool:
        """Whether one of this project's kernels walks."""
        return self.implementation == OURS

    @property
    def is_engine(self) -> bool:
        """Whether an engine's path walks: neither our kernels nor the stepwise reference."""
        return self.implementation not in (OURS, REFERENCE)

    @property
    def is_fitted(self) -> bool:
        """Whether there is a measured slope."""
        return self.fit is not None and self.fit.usable

    def call_us(self, steps: int) -> float | None:
        """Time of a complete call of `steps` steps (microseconds), on the best basis there is; see `basis`.  None: not known."""
        basis = self.basis(steps)
        if basis is None:
            return None
        if basis == PREDICTED:
            return self.prediction.call_us(steps)
        return self.fit.call_us(steps) if self._is_covered(steps) else self._point(steps).median_us

    def basis(self, steps: int) -> str | None:
        """What `call_us` rests on: 'measured' or 'published', else 'predicted', else None.

        A fit counts as a measurement only between the shortest and the longest walk that were timed: beyond them it would be
        an extrapolation, and the model's prediction is the better guess.
        """
        if self._is_covered(steps):
            return MEASURED
        if self._point(steps) is not None:
            return self.points_kind
        return PREDICTED if self.prediction is not None else None

    def _is_covered(self, steps: int) -> bool:
        return self.is_fitted and min(self.fit.steps) <= steps <= max(self.fit.steps)

    def _point(self, steps: int) -> MeasuredPoint | None:
        return next((point for point in self.points if point.steps == steps), None)


def measured_points(rows: Iterable[Mapping[str, Any]]) -> tuple[MeasuredPoint, ...]:
    """Pool the samples of rows (walk records of one series, any processes) by walk length.

    Rows whose samples were all dropped add nothing.  `samples_us` may be any sequence of floats (microseconds).
    """
    pooled: dict[int, list[float]] = {}
    for row in rows:
        samples_us = row["samples_us"]
        if samples_us is not None and len(samples_us):
            pooled.setdefault(int(row["steps"]), []).extend(float(sample) for sample in samples_us)
    return tuple(_summarise(steps, samples) for steps, samples in sorted(pooled.items()))


def _summarise(steps: int, samples_us: list[float]) -> MeasuredPoint:
    ordered = sorted(samples_us)
    return MeasuredPoint(
        steps, statistics.median(ordered), _quantile(ordered, LOW_QUANTILE), _quantile(ordered, HIGH_QUANTILE), len(ordered)
    )


def _quantile(ordered: list[float], share: float) -> float:
    """Linear interpolation between the two nearest order statistics, as numpy.quantile does by default."""
    position = share * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])
