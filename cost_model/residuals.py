"""How well predictions meet recorded series: relative errors of step and entry, by mode and precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import Gpu
from cost_model.recorded import predict_series
from cost_model.workload import is_experiment


@dataclass(frozen=True)
class ModeErrors:
    """Errors over the series of one mode and precision.

    Attributes:
        mode, precision: of the series.
        series: how many.
        step_median_share, step_worst_share: of |predicted / fitted - 1| over steps; entry_*: of |predicted - fitted| entries over the larger of fitted entry
            and fitted step, since an intercept shorter than a step may lie anywhere near 0.
        inside_share: share of the fitted steps that lie in their predicted interval.
    """

    mode: str
    precision: str
    series: int
    step_median_share: float
    step_worst_share: float
    entry_median_share: float
    entry_worst_share: float
    inside_share: float


def errors_by_mode(gpu: Gpu, fits: Iterable[tuple[SeriesKey, StepFit]]) -> list[ModeErrors]:
    """Return the errors of a GPU's predictions for each mode and precision of the usable series that the model describes.

    Raises:
        BadInput, MissingFact: as `predict`.
    """
    groups: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    for key, fit in fits:
        if not fit.usable or is_experiment(key.exchange):
            continue
        made = predict_series(gpu, key)
        entry = abs(made.entry_us - fit.entry_us) / max(fit.entry_us, fit.step_us)
        errors = (abs(made.step_us / fit.step_us - 1), entry, made.step_us_low <= fit.step_us <= made.step_us_high)
        groups.setdefault((key.mode or "", key.precision or ""), []).append(errors)
    rows = []
    for (mode, precision), errors in sorted(groups.items()):
        steps, entries, inside = zip(*errors)
        rows.append(ModeErrors(mode, precision, len(errors), median(steps), max(steps), median(entries), max(entries), sum(inside) / len(inside)))
    return rows
