"""Options of a decision: each way to run a head, measured where a series matches and predicted where none does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cost_model.engines import UnknownImplementation, load_engine, short_variant
from cost_model.errors import BadInput
from cost_model.fit import SeriesKey, StepFit
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.predict import Prediction
from cost_model.units import format_us
from cost_model.workload import OURS, REFERENCE, Workload, is_experiment

PREDICTED_MARGIN = 0.10
"""Two predicted options whose errors are largely shared count as different from this relative difference on."""


@dataclass(frozen=True)
class Option:
    """One way to run the head, for the workload's steps.

    Attributes:
        name: in words.
        mode, precision, implementation, variant, placement: what it is.
        call_us, call_us_low, call_us_high: complete call with its 95 % interval.
        step_us, entry_us: slope and intercept.
        measured: whether a fit stands behind it; else a prediction.
        status: of the fit (`ok`, `curved`, `inconclusive`), or `ok`.
        extrapolated: whether the call is longer than any that was measured.
    """

    name: str
    mode: str
    precision: str | None
    implementation: str
    variant: str | None
    placement: Placement | None
    call_us: float
    call_us_low: float
    call_us_high: float
    step_us: float
    entry_us: float
    measured: bool
    status: str = "ok"
    extrapolated: bool = False

    @property
    def basis(self) -> str:
        """Where the times come from, in a word."""
        return "predicted" if not self.measured else "extrapolated" if self.extrapolated else "measured"

    @property
    def told(self) -> str:
        """Time of the call with its basis, for sentences."""
        return f"{format_us(self.call_us)} ({self.basis})"

    @property
    def is_engine(self) -> bool:
        """Whether it is a path of an engine, not a fused walk and not this project's reference."""
        return self.mode == "stepwise" and self.implementation != REFERENCE

    @property
    def interval_us(self) -> tuple[float, float]:
        """The call's interval."""
        return self.call_us_low, self.call_us_high

    def clearly_faster_than(self, other: Option) -> bool:
        """Whether the difference is more than the intervals allow, or, if either is a prediction, more than PREDICTED_MARGIN."""
        if self.measured and other.measured:
            return self.call_us_high < other.call_us_low
        return self.call_us < (1 - PREDICTED_MARGIN) * other.call_us


def gather_options(head: Head, workload: Workload, predictions: Iterable[Prediction], fits: Iterable[tuple[SeriesKey, StepFit]]) -> tuple[Option, ...]:
    """Return the options, fastest call first: fits where there are any, predictions for the rest; of several placements the fastest.

    Walks with an experimental exchange are passed over: nobody can deploy them.
    """
    found: dict[tuple, Option] = {}
    for key, fit in fits:
        if not _matches(head, workload, key) or is_experiment(key.exchange):
            continue
        option = _fitted(key, fit, workload)
        place = _place(option.mode, option.precision, option.implementation, option.variant)
        if place not in found or found[place].status == "inconclusive" or option.call_us < found[place].call_us and option.status != "inconclusive":
            found[place] = option
    for prediction in predictions:
        if prediction.head != head or _asked(prediction.workload) != _asked(workload):
            continue
        place = _place(prediction.mode, prediction.precision, prediction.implementation, prediction.variant)
        option = predicted_option(prediction, workload)
        if place not in found or not found[place].measured and option.call_us < found[place].call_us:
            found[place] = option
    return tuple(sorted(found.values(), key=lambda option: option.call_us))


def _asked(workload: Workload) -> tuple:
    """What must agree between a prediction's workload and the one decided about."""
    return workload.batch, workload.temperature, workload.l2_state


def _place(mode: str | None, precision: str | None, implementation: str | None, variant: str | None) -> tuple:
    """What makes two series the same option; a fused walk has no variant, nor has the reference."""
    engine = mode == "stepwise" and implementation != REFERENCE
    return mode, precision, implementation, variant if engine else None


def _matches(head: Head, workload: Workload, key: SeriesKey) -> bool:
    """Whether a series is about this head and workload."""
    known = (key.head_kind in (None, head.kind), key.temperature in (None, workload.temperature), key.batch in (None, workload.batch))
    return all(known) and (key.vocab_size, key.rank, key.l2_state) == (head.vocab_size, head.rank, workload.l2_state)


def _fitted(key: SeriesKey, fit: StepFit, workload: Workload) -> Option:
    """Turn a fit into an option. Half-widths of entry and slope add in quadrature."""
    placement = None
    if key.warps is not None:
        counts = (key.register_tiles, key.shared_tiles, key.streamed_tiles, key.staging_tiles, key.tensor_tiles)
        placement = Placement(key.warps, *(count or 0 for count in counts))
    fields = (key.mode, key.precision, key.implementation, short_variant(key.implementation, key.variant), placement)
    name = _name(*fields[:4])
    if not fit.usable:
        return Option(name, *fields, *(float("inf"),) * 5, True, fit.status)
    call = fit.call_us(workload.steps)
    low = ((workload.steps * (fit.step_us - fit.step_us_low)) ** 2 + (fit.entry_us - fit.entry_us_low) ** 2) ** 0.5
    high = ((workload.steps * (fit.step_us_high - fit.step_us)) ** 2 + (fit.entry_us_high - fit.entry_us) ** 2) ** 0.5
    return Option(name, *fields, call, max(0.0, call - low), call + high, fit.step_us, fit.entry_us, True, fit.status,
                  bool(fit.steps) and workload.steps > max(fit.steps))


def predicted_option(prediction: Prediction, workload: Workload) -> Option:
    """Turn a prediction into an option; the errors of entry and slope are shared, so their ends add."""
    steps = workload.steps
    return Option(
        _name(prediction.mode, prediction.precision, prediction.implementation, prediction.variant), prediction.mode, prediction.precision,
        prediction.implementation, prediction.variant, prediction.placement, prediction.call_us(steps),
        prediction.entry_us_low + steps * prediction.step_us_low, prediction.entry_us_high + steps * prediction.step_us_high,
        prediction.step_us, prediction.entry_us, False,
    )


def _name(mode: str | None, precision: str | None, implementation: str | None, variant: str | None) -> str:
    """Name an option for people; an engine's path by its kernel, such as `sglang-0.5.23 MarkovSampleStep (sample)`."""
    if implementation == OURS:
        return f"{mode} {precision}"
    if implementation == REFERENCE or not variant:
        return f"{implementation}"
    try:
        kernel = next((path.kernel for path in load_engine(str(implementation)).paths if path.variant == variant), None)
    except UnknownImplementation:
        kernel = None
    return f"{implementation} {kernel} ({variant})" if kernel else f"{implementation} ({variant})"


def taken_path(engine: list[Option], predictions: Iterable[Prediction]) -> Option | None:
    """Return the path that the engine takes: the first stepwise prediction that was made without asking for a variant is it,
    else the slowest of those known."""
    if not engine:
        return None
    for prediction in predictions:
        if prediction.mode == "stepwise" and prediction.implementation == engine[0].implementation:
            try:
                path = load_engine(prediction.implementation).path(prediction.workload, head_kind=prediction.head.kind)
            except BadInput:
                break
            return next((option for option in engine if option.variant == path.variant), engine[-1])
    return engine[-1]
