"""fit: entry and step cost of a series from complete-call times, with intervals, repeatability and a lack-of-fit check.

A series is every row of one configuration; only walk length and process differ in it. Each row is reduced to the median of
its kept samples; entry and step are intercept and slope of the least-squares line through all of them. A process is the
unit that is resampled: calls of one process share allocations and clocks and are not independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from cost_model.errors import BadInput

if TYPE_CHECKING:
    import numpy
    import pandas

MIN_STEPS = 3
"""Distinct walk lengths that a line and a check of it need."""

BOOTSTRAP_DRAWS = 2000
BOOTSTRAP_SEED = 20240817
LACK_OF_FIT_P = 0.01
CURVATURE_SHARE = 0.02
"""A departure from the line below this share of the call time is no curvature worth a name, however significant."""


class FitError(BadInput):
    """A series cannot be fitted; the message says what is missing."""


@dataclass(frozen=True)
class SeriesKey:
    """The configuration of a series: every column of a walk record that is the same in all of its rows.

    `record` is the file that the rows came from, where the frame says so; series of different records are kept apart,
    because the kernel may have changed between them.
    """

    gpu_name: str | None = None
    gpu_sm_count: int | None = None
    l2_state: str | None = None
    implementation: str | None = None
    variant: str | None = None
    mode: str | None = None
    precision: str | None = None
    rounding: str | None = None
    head_kind: str | None = None
    vocab_size: int | None = None
    target_vocab_size: int | None = None
    padded_vocab_size: int | None = None
    rank: int | None = None
    hidden_size: int | None = None
    gru_size: int | None = None
    candidate_pool: int | None = None
    batch: int | None = None
    temperature: float | None = None
    logits_kept: bool | None = None
    grid_blocks: int | None = None
    warps: int | None = None
    register_tiles: int | None = None
    shared_tiles: int | None = None
    tensor_tiles: int | None = None
    streamed_tiles: int | None = None
    staging_tiles: int | None = None
    exchange: str | None = None
    probe: str | None = None
    record: str | None = None

    def as_dict(self) -> dict:
        """Return the columns as plain values."""
        return asdict(self)

    def describe(self) -> str:
        """Name the series in one line, for messages."""
        parts = [self.implementation, self.variant, self.mode, self.precision, f"V {self.vocab_size}", f"rank {self.rank}",
                 f"batch {self.batch}", self.l2_state]
        return ", ".join(str(part) for part in parts if part is not None)


KEY_COLUMNS = tuple(field.name for field in fields(SeriesKey))


@dataclass(frozen=True)
class StepFit:
    """Fitted cost of one series. Times in microseconds; None where the data cannot say.

    Attributes:
        step_us, entry_us: slope and intercept, with 95 % intervals `_low` and `_high`.
        repeatability_us: largest difference between the slopes of two processes; None for one process.
        curved: whether the line misses the data by more than noise and more than CURVATURE_SHARE.
        lack_of_fit_p: p value of the F test; None without replicate processes.
        r_squared: share of the medians' variance that the line explains.
        processes, samples, samples_dropped: how much data, and how much was lost to throttling.
        steps: distinct walk lengths, rising.
        medians_us: walk length -> median over processes of the row medians.
        status: ok, curved or inconclusive.
        reason: why the status is not ok; empty where it is.
    """

    step_us: float | None
    step_us_low: float | None
    step_us_high: float | None
    entry_us: float | None
    entry_us_low: float | None
    entry_us_high: float | None
    repeatability_us: float | None
    curved: bool
    lack_of_fit_p: float | None
    r_squared: float | None
    processes: int
    samples: int
    samples_dropped: int
    steps: tuple[int, ...]
    medians_us: dict[int, float]
    status: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether there is a slope."""
        return self.step_us is not None

    def call_us(self, steps: int) -> float:
        """Time of a complete call: the measured median where that walk length was measured and kept, else the line's."""
        line_us = self.line_us(steps)
        return self.medians_us.get(steps, line_us)

    def line_us(self, steps: int) -> float:
        """Time of a complete call on the fitted line: entry + steps × step.

        Raises:
            FitError: the series has no fit.
        """
        if not self.usable:
            raise FitError(f"the series has no fit: {self.reason}")
        return self.entry_us + steps * self.step_us

    def distinguishable_from(self, other: StepFit) -> bool:
        """Whether two step costs differ by more than either series repeats and their intervals do not overlap."""
        if not (self.usable and other.usable):
            return False
        noise_us = max(self.repeatability_us or 0.0, other.repeatability_us or 0.0)
        apart = self.step_us_high < other.step_us_low or other.step_us_high < self.step_us_low
        return apart and abs(self.step_us - other.step_us) > noise_us

    def as_dict(self) -> dict:
        """Return the fields as plain values, ready for JSON."""
        return {**asdict(self), "steps": list(self.steps), "medians_us": {str(steps): value for steps, value in self.medians_us.items()}}


def fit_steps(frame: pandas.DataFrame) -> StepFit:
    """Fit one series.

    Args:
        frame: rows of one configuration with `steps`, `samples_us`, and where known `run_id`, `process_index`,
            `samples_dropped`.

    Raises:
        FitError: a column is missing, or fewer than three walk lengths were measured.
    """
    rows = _rows(frame)
    measured = sorted({steps for _, steps, _ in rows})
    if len(measured) < MIN_STEPS:
        raise FitError(
            f"the series has {len(measured)} walk length{'s' if len(measured) != 1 else ''} ({', '.join(map(str, measured)) or 'none'}); "
            f"a fit needs at least {MIN_STEPS}, for example 1, 7 and 16. Measure the missing ones"
        )
    dropped = int(frame["samples_dropped"].dropna().sum()) if "samples_dropped" in frame else 0
    kept = [(process, steps, samples) for process, steps, samples in rows if len(samples)]
    left = sorted({steps for _, steps, _ in kept})
    if len(left) < MIN_STEPS:
        return _inconclusive(kept, dropped, f"samples are left for {len(left)} of {len(measured)} walk lengths; {dropped} were dropped as throttled")
    return _fit(kept, dropped)


def fit_frame(frame: pandas.DataFrame, probe: str = "none") -> list[tuple[SeriesKey, StepFit]]:
    """Fit every walk series of a frame of records, in the order of first appearance; rows of other probes are passed over.

    Args:
        frame: rows of walk records.
        probe: which rows: of complete walks, or of a probe that walks with parts left out.

    Raises:
        FitError: a series has too few walk lengths; names the series.
    """
    if "probe" in frame:
        frame = frame[frame["probe"].fillna("none") == probe]
    results = []
    for key, group in series_of(frame):
        try:
            results.append((key, fit_steps(group)))
        except FitError as error:
            raise FitError(f"{key.describe()}: {error}") from error
    return results


def series_of(frame: pandas.DataFrame) -> list[tuple[SeriesKey, pandas.DataFrame]]:
    """Split a frame of records into its series, in the order of first appearance."""
    columns = [name for name in KEY_COLUMNS if name in frame]
    return [(SeriesKey(**{name: _plain(name, value) for name, value in zip(columns, values)}), group)
            for values, group in frame.groupby(columns, sort=False, dropna=False)]


# --- the parts ------------------------------------------------------------------------------------------------------------


def _rows(frame: pandas.DataFrame) -> list[tuple[object, int, numpy.ndarray]]:
    """Return (process, steps, samples) for each row."""
    import numpy as np

    missing = [name for name in ("steps", "samples_us") if name not in frame]
    if missing:
        raise FitError(f"the frame lacks {', '.join(missing)}; give rows of a walk record")
    runs = list(frame["run_id"]) if "run_id" in frame else [None] * len(frame)
    indices = list(frame["process_index"]) if "process_index" in frame else [0] * len(frame)
    samples = [np.asarray([] if one is None else one, dtype=float) for one in frame["samples_us"]]
    if any(not np.all(np.isfinite(one)) for one in samples):
        raise FitError("a sample is not a finite number; unknown samples must be left out and counted in samples_dropped")
    return [((run, int(index)), int(steps), one) for run, index, steps, one in zip(runs, indices, frame["steps"], samples)]


def _fit(kept: list, dropped: int) -> StepFit:
    """Fit rows that all have samples."""
    import numpy as np

    processes = list(dict.fromkeys(process for process, _, _ in kept))
    cluster = np.array([processes.index(process) for process, _, _ in kept])
    x = np.array([steps for _, steps, _ in kept], dtype=float)
    y = np.array([np.median(samples) for _, _, samples in kept])
    slope, intercept = _line(np.ones((1, len(x))), x, y)
    slope, intercept = float(slope[0]), float(intercept[0])
    draws = _draw_processes(cluster, len(processes), x, y) if len(processes) > 1 else _draw_samples(kept, x)
    step_low, step_high = _interval(slope, draws[0], len(processes))
    entry_low, entry_high = _interval(intercept, draws[1], len(processes))
    p, departure = _lack_of_fit(x, y, slope, intercept, len(processes))
    curved = departure > CURVATURE_SHARE and (p is None or p < LACK_OF_FIT_P)
    spread = float(((y - y.mean()) ** 2).sum())
    own = [_line(np.ones((1, int((cluster == c).sum()))), x[cluster == c], y[cluster == c])[0][0]
           for c in range(len(processes)) if len(set(x[cluster == c])) > 1]
    return StepFit(
        slope, step_low, step_high, intercept, entry_low, entry_high, float(max(own) - min(own)) if len(own) > 1 else None, curved, p,
        1.0 - float(((y - intercept - slope * x) ** 2).sum()) / spread if spread > 0 else None,
        len(processes), sum(len(samples) for _, _, samples in kept), dropped, tuple(sorted({int(steps) for steps in x})),
        _medians(kept), "curved" if curved else "ok",
        f"call time leaves the line by up to {100 * departure:.1f} % (p {'unknown' if p is None else f'{p:.2g}'}); the slope is an average, not a step cost" if curved else "",
    )


def _line(weights: numpy.ndarray, x: numpy.ndarray, y: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Weighted least-squares lines: weights [draws, points] -> (slopes [draws], intercepts [draws]).

    slope = (Σw Σwxy − Σwx Σwy) / (Σw Σwx² − (Σwx)²); NaN where a draw has fewer than two walk lengths.
    """
    import numpy as np

    n, sx, sy, sxx, sxy = (weights @ column for column in (np.ones_like(x), x, y, x * x, x * y))
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = n * sxx - sx * sx
        slope = np.where(determinant > 0, (n * sxy - sx * sy) / determinant, np.nan)
        return slope, (sy - slope * sx) / n


def _draw_processes(cluster: numpy.ndarray, processes: int, x: numpy.ndarray, y: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Cluster bootstrap: whole processes drawn with replacement."""
    import numpy as np

    counts = np.random.default_rng(BOOTSTRAP_SEED).multinomial(processes, [1 / processes] * processes, size=BOOTSTRAP_DRAWS)
    return _line(counts[:, cluster].astype(float), x, y)


def _draw_samples(kept: list, x: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Bootstrap within one process: samples of each row drawn with replacement. Knows nothing of other processes."""
    import numpy as np

    rng = np.random.default_rng(BOOTSTRAP_SEED)
    medians = np.stack([np.median(samples[rng.integers(0, len(samples), (BOOTSTRAP_DRAWS, len(samples)))], axis=1) for _, _, samples in kept], axis=1)
    centred = x - x.mean()
    slopes = medians @ centred / (centred @ centred)
    return slopes, medians.mean(axis=1) - slopes * x.mean()


def _interval(estimate: float, draws: numpy.ndarray, processes: int) -> tuple[float, float]:
    """95 % interval: the draws' percentiles about the estimate, widened for few processes.

    A bootstrap of C clusters understates the error by sqrt(C / (C − 1)), and takes a normal for a t of C − 1 degrees.
    """
    import numpy as np
    from scipy.special import ndtri, stdtrit

    low, high = np.nanpercentile(draws, [2.5, 97.5])
    factor = 1.0 if processes < 2 else (processes / (processes - 1)) ** 0.5 * float(stdtrit(processes - 1, 0.975) / ndtri(0.975))
    return float(estimate + factor * min(0.0, low - estimate)), float(estimate + factor * max(0.0, high - estimate))


def _lack_of_fit(x: numpy.ndarray, y: numpy.ndarray, slope: float, intercept: float, processes: int) -> tuple[float | None, float]:
    """Return (p, largest departure as a share of the call time).

    F = (Σ n_s (mean_s − line_s)² / (m − 2)) / (Σ (y − mean_s)² / (N − m)), m walk lengths, N row medians. The pure error
    comes from processes at the same walk length; without replicates p is None.
    """
    import numpy as np
    from scipy.special import fdtrc

    levels, index = np.unique(x, return_inverse=True)
    count = np.bincount(index)
    means = np.bincount(index, weights=y) / count
    line = intercept + slope * levels
    departure = float(np.max(np.abs(means - line) / np.abs(means)))
    m, n = len(levels), len(y)
    if processes < 2 or n <= m or m <= 2:
        return None, departure
    pure = float(((y - means[index]) ** 2).sum()) / (n - m)
    lack = float((count * (means - line) ** 2).sum()) / (m - 2)
    if pure == 0:
        return (0.0 if lack > 1e-18 * float(np.max(means)) ** 2 else 1.0), departure
    return float(fdtrc(m - 2, n - m, lack / pure)), departure


def _medians(kept: Iterable) -> dict[int, float]:
    """Median over processes of the row medians, by walk length."""
    import numpy as np

    by_steps: dict[int, list[float]] = {}
    for _, steps, samples in kept:
        by_steps.setdefault(steps, []).append(float(np.median(samples)))
    return {steps: float(np.median(values)) for steps, values in sorted(by_steps.items())}


def _inconclusive(kept: list, dropped: int, reason: str) -> StepFit:
    """Return the fit of a series that lost its samples."""
    steps = tuple(sorted({steps for _, steps, _ in kept}))
    processes = len({process for process, _, _ in kept})
    samples = sum(len(values) for _, _, values in kept)
    return StepFit(None, None, None, None, None, None, None, False, None, None, processes, samples, dropped, steps, _medians(kept), "inconclusive", reason)


_WHOLE = {field.name for field in fields(SeriesKey) if str(field.type).startswith("int")}
_FLAGS = {field.name for field in fields(SeriesKey) if str(field.type).startswith("bool")}


def _plain(name: str, value: object) -> object:
    """Turn a group's value into the type of its field; unknown becomes None."""
    import pandas

    if value is None or pandas.isna(value):
        return None
    return int(value) if name in _WHOLE else bool(value) if name in _FLAGS else float(value) if name == "temperature" else str(value)
