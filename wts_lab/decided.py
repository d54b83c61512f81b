"""A decision about one walk in one round, with what it was made from, and the curve that shows where it would turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.decide import Decision, decide
from cost_model.round import Round, round_gain
from cost_model.serving import ask_round
from cost_model.settings import REPLAYED
from cost_model.substitutes import Alternatives, substitutes
from cost_model.units import format_us
from wts_lab import round_views
from wts_lab.explore import explore
from wts_lab.kernel_origin import known_environment
from wts_lab.recordings import Stamp, describe_origin, kept_recording, records_stamp, select_walks

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.predict import Prediction
    from cost_model.serving import RoundAnswer, RoundRequest
    from cost_model.substitutes import ShardChoice, Substitute
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
        rest: the round but for its head.
        alternatives: what else was priced; substitutes, shards: its answers, shards where there are several ranks.
        round_answer: everything about the round of a released drafter, phases and memory among it; None for a round of the user's own.
    """

    decision: Decision
    curve: tuple[BreakEven, ...]
    predictions: tuple[Prediction, ...]
    fits: tuple[tuple[SeriesKey, StepFit], ...]
    source: str
    rest: Round
    alternatives: Alternatives = Alternatives()
    substitutes: tuple[Substitute, ...] = ()
    shards: tuple[ShardChoice, ...] = ()
    round_answer: RoundAnswer | None = None


def decided(
    gpu: Gpu, head: Head, workload: Workload, rest: Round, alternatives: Alternatives = Alternatives(), *, records: Path | None = None
) -> Decided:
    """Decide from the predictions of every way of walking and from the recorded walks of this shape, batch, temperature and L2 state.

    Raises BadInput where nothing can be predicted, or an alternative does not fit the head.
    """
    explored = explore(gpu, head, workload, ("stepwise", "bf16"))
    predictions = tuple(each.prediction for each in explored.comparisons)
    fits, environment, source = _measured(gpu.id, head, replace(workload, precision="bf16"), records, records_stamp(gpu.id, records))
    decision = decide(gpu, head, workload, predictions, fits, rest, environment=environment, source=REPLAYED)
    priced = substitutes(gpu, head, workload, alternatives, rest, decision.options)
    return Decided(decision, break_even_curve(decision, rest), predictions, fits, source, rest, alternatives, *priced)


def decided_drafter(gpu: Gpu, asked: RoundRequest, *, records: Path | None = None) -> Decided:
    """The same about the round of a released drafter, with phases that nobody timed estimated from its shapes.  Raises BadInput as `ask_round`."""
    head, workload = asked.head, asked.workload
    predictions = tuple(each.prediction for each in explore(gpu, head, workload, ("stepwise", "bf16")).comparisons)
    fits, environment, source = _measured(gpu.id, head, replace(workload, precision="bf16"), records, records_stamp(gpu.id, records))
    answer = ask_round(gpu, asked, fits, environment, source=REPLAYED)
    curve = break_even_curve(answer.decision, answer.round)
    return Decided(answer.decision, curve, predictions, fits, source, answer.round, asked.alternatives, answer.substitutes, answer.shards, answer)


def break_even_curve(decision: Decision, rest: Round) -> tuple[BreakEven, ...]:
    """Gain over the engine's fastest path where verify and backbone took other times, evenly spaced in their logarithm."""
    before, after = decision.fastest, decision.best
    if before is None or after is None or "inconclusive" in (before.status, after.status) or rest.rest_us <= 0:
        return ()
    places = [CURVE_SPAN ** (2 * place / (CURVE_POINTS - 1) - 1) for place in range(CURVE_POINTS)]
    points = []
    for factor in places:
        other = _stretched(rest, factor)
        gain = round_gain(other, before.call_us, after.call_us, before.interval_us, after.interval_us)
        points.append(BreakEven(other.rest_us, gain.gain, gain.gain_low, gain.gain_high))
    return tuple(points)


def _stretched(rest: Round, factor: float) -> Round:
    """The same round with all its times so many times as long."""
    times = {name: getattr(rest, name) * factor for name in ("verify_us", "backbone_us", "base_logits_us")}
    intervals = {name: getattr(rest, name) for name in ("verify_interval_us", "backbone_interval_us", "base_logits_interval_us")}
    ends = {name: (pair[0] * factor, pair[1] * factor) for name, pair in intervals.items() if pair is not None}
    return replace(rest, **times, **ends)


def write_decision(answer: Decided, out: Path | str) -> tuple[Path, ...]:
    """Write `settings.json`, the report `decision.md` and the step-cost table as .csv, .parquet, .md and .tex into a folder; returns the files."""
    from cost_model.files import write_text_whole
    from cost_model.settings import write_settings
    from cost_model.tables import step_cost_rows, write_csv, write_latex, write_markdown, write_parquet

    out, rows = Path(out), step_cost_rows(answer.fits, answer.predictions)
    writers = (("csv", write_csv), ("parquet", write_parquet), ("md", write_markdown), ("tex", write_latex))
    tables = (write(rows, out / f"step_costs.{suffix}") for suffix, write in writers)
    return write_settings(answer.decision.settings, out / "settings.json"), write_text_whole(out / "decision.md", report(answer)), *tables


def report(answer: Decided) -> str:
    """The answer as a Markdown page."""
    if answer.round_answer is not None:
        return round_views.markdown(answer.round_answer)
    settings, rest = answer.decision.settings, answer.rest
    about = settings.fingerprint
    shown = [round_views.options_table(answer.decision), round_views.substitutes_table(answer.substitutes)]
    before = (f"A round takes {format_us(rest.rest_us)} without its head ({rest.schedule}) and yields {rest.accepted_length:.4g} tokens a sequence. "
              f"L2 state {settings.l2_state}; {answer.source}.")
    title = f"V {about.vocab_size:,}, rank {about.rank} on {about.gpu_id}: {rest.concurrency} x {settings.steps} tokens drafted, {rest.schedule}"
    return round_views.page(title, [*shown, *round_views.shard_tables(answer.shards, answer.alternatives)], [before], answer.decision)


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
