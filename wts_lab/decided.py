"""A decision about one walk in one round, with what it was made from, and the curve that shows where it would turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.decide import Decision, decide
from cost_model.round import Round, round_gain
from cost_model.settings import REPLAYED
from wts_lab.explore import explore
from wts_lab.kernel_origin import known_environment
from wts_lab.recordings import Stamp, describe_origin, kept_recording, records_stamp, select_walks

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.predict import Prediction
    from cost_model.workload import Workload

CURVE_SPAN = 32.0
"""The break-even curve runs from this part of the round's verify and backbone time to this many times it."""

CURVE_POINTS = 61


@dataclass(frozen=True)
class BreakEven:
    """End-to-end gain at one verify and backbone time, with its interval (shares)."""

    rest_us: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class Decided:
    """An answer.

    Attributes:
        decision: verdict, reasons, options and settings.
        curve: gain of the best fused walk over the engine's fastest path against verify and backbone time; empty where one is missing.
        predictions, fits: what it was made from.
        source: GPU and dates of the recorded walks; 'predicted only' without any.
    """

    decision: Decision
    curve: tuple[BreakEven, ...]
    predictions: tuple[Prediction, ...]
    fits: tuple[tuple[SeriesKey, StepFit], ...]
    source: str


def decided(gpu: Gpu, head: Head, workload: Workload, rest: Round, *, records: Path | None = None) -> Decided:
    """Decide from the predictions of every way of walking and from the recorded walks of this shape, batch, temperature and L2 state."""
    explored = explore(gpu, head, workload, ("stepwise", "bf16"))
    predictions = tuple(each.prediction for each in explored.comparisons)
    fits, environment, source = _measured(gpu.id, head, replace(workload, precision="bf16"), records, records_stamp(gpu.id, records))
    decision = decide(gpu, head, workload, predictions, fits, rest, environment=environment, source=REPLAYED)
    return Decided(decision, break_even_curve(decision, rest), predictions, fits, source)


def break_even_curve(decision: Decision, rest: Round) -> tuple[BreakEven, ...]:
    """Gain over the engine's fastest path where verify and backbone took other times, evenly spaced in their logarithm."""
    before, after = decision.fastest, decision.best
    if before is None or after is None or "inconclusive" in (before.status, after.status) or rest.rest_us <= 0:
        return ()
    places = [CURVE_SPAN ** (2 * place / (CURVE_POINTS - 1) - 1) for place in range(CURVE_POINTS)]
    points = []
    for factor in places:
        other = Round(rest.rest_us * factor, 0.0, rest.accepted_length)
        gain = round_gain(other, before.call_us, after.call_us, before.interval_us, after.interval_us)
        points.append(BreakEven(other.rest_us, gain.gain, gain.gain_low, gain.gain_high))
    return tuple(points)


def write_decision(answer: Decided, out: Path | str) -> tuple[Path, ...]:
    """Write `settings.json` and the step-cost table as .csv, .parquet, .md and .tex into a folder; returns the files."""
    from cost_model.settings import write_settings
    from cost_model.tables import step_cost_rows, write_csv, write_latex, write_markdown, write_parquet

    out, rows = Path(out), step_cost_rows(answer.fits, answer.predictions)
    writers = (("csv", write_csv), ("parquet", write_parquet), ("md", write_markdown), ("tex", write_latex))
    return (write_settings(answer.decision.settings, out / "settings.json"), *(write(rows, out / f"step_costs.{suffix}") for suffix, write in writers))


@lru_cache(maxsize=64)
def _measured(
    gpu_id: str, head: Head, workload: Workload, records: Path | None, stamp: Stamp
) -> tuple[tuple[tuple[SeriesKey, StepFit], ...], Mapping[str, Any], str]:
    """Fits of every recorded series of this head, batch, temperature and L2 state, the machine for the fingerprint, and the source.

    Kept for each stamp of the files, so that another round does not fit again.
    """
    from cost_model.fit import FitError, fit_frame

    nothing = (), {}, "predicted only"
    recording = kept_recording(gpu_id, records, stamp)
    if recording is None:
        return nothing
    shape = dict(head_kind=head.kind, vocab_size=head.vocab_size, rank=head.rank, batch=workload.batch)
    frame = select_walks(recording, **shape, temperature=workload.temperature, l2_state=workload.l2_state)
    if frame.empty:
        return nothing
    try:
        fits = tuple(fit_frame(frame))
    except FitError:
        return nothing
    origin = describe_origin(replace(recording, frame=frame).rows)
    return fits, known_environment(origin), f"replayed: {recording.label}"
