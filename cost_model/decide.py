"""decide: from predictions, fits and a round to a verdict with its reasons, and the settings to deploy.

A fair baseline is the engine's own graph-replayed path, and there are two: the one the engine takes, and its fastest. A fused
walk is worth deploying only if it beats the fastest, in the round that it is part of. "Do not deploy" is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import Gpu, require_same_gpu
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.predict import Prediction
from cost_model.round import Round, RoundGain, break_even_rest_us, round_gain
from cost_model.settings import (  # noqa: F401  (the settings' own names are part of this module's interface)
    Settings, SettingsError, SettingsMismatch, fingerprint, load_settings, read_settings, write_settings,
)
from cost_model.units import format_bytes, format_interval_us, format_percent, format_us
from cost_model.workload import OURS, REFERENCE, Workload, is_experiment

RESIDENT, STREAMING, KEEP = "deploy resident", "deploy streaming", "keep the engine's path"
SWITCH, NO_GAIN, INCONCLUSIVE = "switch the engine's path", "no material gain", "inconclusive"
VERDICTS = (RESIDENT, STREAMING, KEEP, SWITCH, NO_GAIN, INCONCLUSIVE)

PREDICTED_MARGIN = 0.10
"""Two predicted options whose errors are largely shared count as different from this relative difference on."""

LEAST_GAIN = 0.01
"""Gain for which the break-even round is stated."""


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

    @property
    def interval_us(self) -> tuple[float, float]:
        """The call's interval."""
        return self.call_us_low, self.call_us_high

    def clearly_faster_than(self, other: Option) -> bool:
        """Whether the difference is more than the intervals allow, or, if either is a prediction, more than PREDICTED_MARGIN."""
        if self.measured and other.measured:
            return self.call_us_high < other.call_us_low
        return self.call_us < (1 - PREDICTED_MARGIN) * other.call_us


@dataclass(frozen=True)
class Decision:
    """The verdict.

    Attributes:
        verdict: one of VERDICTS.
        reasons: sentences, the deciding one first.
        settings: what to deploy, with its fingerprint.
        options: everything that was compared, fastest call first.
        taken, fastest: the engine's two paths; best: the fastest fused option; None where missing.
        saving_us, saving_us_low, saving_us_high: of `best` against `fastest`, a call.
        gain: end to end against the path that the engine takes; None without a round.
        extra_memory_bytes: device memory that the recommended mode needs beside the engine's.
    """

    verdict: str
    reasons: tuple[str, ...]
    settings: Settings
    options: tuple[Option, ...]
    taken: Option | None
    fastest: Option | None
    best: Option | None
    saving_us: float | None
    saving_us_low: float | None
    saving_us_high: float | None
    gain: RoundGain | None
    extra_memory_bytes: int

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON."""
        named = {name: asdict(one) if (one := getattr(self, name)) else None for name in ("taken", "fastest", "best")}
        return {
            "verdict": self.verdict, "reasons": list(self.reasons), **named, "options": [asdict(option) for option in self.options],
            "saving_us": self.saving_us, "saving_us_low": self.saving_us_low, "saving_us_high": self.saving_us_high,
            "gain": self.gain.as_dict() if self.gain else None, "extra_memory_bytes": self.extra_memory_bytes, "settings": self.settings.as_dict(),
        }


def extra_memory_bytes(head: Head, mode: str, precision: str | None) -> int:
    """Device memory of the fused walk beside the engine's own weights: the packed copy of W2 with its scales, and the latent
    table of W1's rows. bf16 reads W1 as it is; the engine's path needs nothing."""
    if mode == "stepwise" or precision is None:
        return 0
    tiles = terms.tiles_of(head.padded_vocab_size)
    packed = tiles * terms.tile_bytes(head.rank, precision)
    if precision == "bf16":
        return packed
    scales = tiles * terms.TILE_ROWS * terms.BYTES_OF_FP32
    return packed + scales + head.target_vocab_size * terms.latent_row_bytes(head.rank, precision)


def decide(gpu: Gpu, head: Head, workload: Workload, predictions: Iterable[Prediction], fits: Iterable[tuple[SeriesKey, StepFit]] = (),
           round: Round | None = None, *, environment: Mapping | None = None) -> Decision:
    """Decide what to run.

    Args:
        predictions: of the engine's paths and the fused modes, for this head and workload; others are passed over.
        fits: measured series; one that matches the head and workload replaces the prediction of the same option.
        round: verify, backbone and accepted length; without it the verdict is about the head's call alone, and says so.
        environment: gpu_name, gpu_sm_count, driver_version, cuda_version, kernel_hash, for the fingerprint.

    Raises:
        AnotherGpu: a series was measured on another GPU than `gpu`; names both.
        BadInput: a prediction is of another GPU.
    """
    predictions, fits = tuple(predictions), tuple(fits)
    for name, sm_count in dict.fromkeys((key.gpu_name, key.gpu_sm_count) for key, _ in fits):
        require_same_gpu(gpu, name, sm_count)
    others = sorted({prediction.gpu_id for prediction in predictions} - {gpu.id})
    if others:
        raise BadInput(f"predictions of {', '.join(others)} cannot decide about {gpu.id}; predict for {gpu.id}")
    options = tuple(sorted(_options(head, workload, predictions, fits), key=lambda option: option.call_us))
    fused = [option for option in options if option.mode != "stepwise"]
    engine = [option for option in options if option.mode == "stepwise" and option.implementation != REFERENCE]
    engine = engine or [option for option in options if option.mode == "stepwise"]
    taken, fastest = _taken(engine, predictions), engine[0] if engine else None
    best = fused[0] if fused else None
    gain = None
    if round is not None and taken and best:
        gain = round_gain(round, taken.call_us, best.call_us, taken.interval_us, best.interval_us)
    verdict, chosen, reasons = _verdict(fused, engine, taken, round)
    reasons += _context(head, chosen, taken, best, gain, round)
    memory = extra_memory_bytes(head, chosen.mode, chosen.precision) if chosen else 0
    saving = (None, None, None)
    if fastest and best:
        saving = (fastest.call_us - best.call_us, fastest.call_us_low - best.call_us_high, fastest.call_us_high - best.call_us_low)
    settings = _settings(gpu, head, workload, verdict, chosen, reasons, memory, environment)
    return Decision(verdict, tuple(reasons), settings, options, taken, fastest, best, *saving, gain, memory)


# --- the verdict ----------------------------------------------------------------------------------------------------------


def _verdict(fused: list[Option], engine: list[Option], taken: Option | None, round: Round | None) -> tuple[str, Option | None, list[str]]:
    """Return (verdict, what to run, reasons). Both lists are sorted by call time."""
    missing = [name for name, found in (("a fused walk", fused), ("a stepwise path of the engine", engine)) if not found]
    if missing or taken is None:
        return INCONCLUSIVE, taken, [f"there is neither a prediction nor a fit of {' or '.join(missing)} for this shape and workload"]
    lost = [option.name for option in (*fused, *engine) if option.status == "inconclusive"]
    if lost:
        return INCONCLUSIVE, taken, [f"the measurement of {', '.join(lost)} is inconclusive; measure again without throttling"]
    best, fastest = fused[0], engine[0]
    stay = _stay(taken, fastest)
    resident = next((option for option in fused if option.mode == "resident"), None)
    if resident and resident.step_us >= fastest.step_us:
        return *stay, [f"a resident step takes {format_us(resident.step_us)}, not below the {format_us(fastest.step_us)} of {fastest.name}"]
    if best.call_us >= fastest.call_us:
        return *stay, [f"{best.name} takes {format_us(best.call_us)} a call, not below the {format_us(fastest.call_us)} of {fastest.name}"]
    doubt = _doubt(best, fastest, taken, round)
    if doubt:
        verdict, reason = doubt
        if verdict == NO_GAIN and stay[0] == SWITCH:
            return *stay, [f"{fastest.name} is the engine's faster path", reason]
        return verdict, taken, [reason]
    return _deploy(fused, fastest)


def _stay(taken: Option, fastest: Option) -> tuple[str, Option]:
    """Keep the engine's path, or switch to its fastest where that is clearly another."""
    return (SWITCH, fastest) if fastest.clearly_faster_than(taken) else (KEEP, taken)


def _doubt(best: Option, fastest: Option, taken: Option, round: Round | None) -> tuple[str, str] | None:
    """Return (verdict, reason) where the gain's interval includes 0."""
    if round is None:
        if best.call_us_high < fastest.call_us_low:
            return None
        reason = f"the calls of {best.name} ({format_interval_us(*best.interval_us)}) and {fastest.name} ({format_interval_us(*fastest.interval_us)}) overlap"
        return (NO_GAIN, reason) if best.measured else (INCONCLUSIVE, f"{reason}; measure the fused walk to tell them apart")
    for baseline in (fastest, taken):
        gain = round_gain(round, baseline.call_us, best.call_us, baseline.interval_us, best.interval_us)
        if not gain.material:
            return NO_GAIN, (f"the interval of the end-to-end gain over {baseline.name}, {format_percent(gain.gain_low)} to "
                             f"{format_percent(gain.gain_high)}, includes 0; the head is {format_percent(gain.head_share_before)} of a round")
    return None


def _deploy(fused: list[Option], fastest: Option) -> tuple[str, Option, list[str]]:
    """Choose between resident and streaming."""
    best = fused[0]
    streaming = next((option for option in fused if option.mode == "streaming"), None)
    first = f"{best.name} takes {format_us(best.call_us)} a call against {format_us(fastest.call_us)} of {fastest.name}"
    if best.mode == "streaming":
        return STREAMING, best, [first, "keeping the matrix on chip is not faster than reading it again"]
    if streaming and not best.clearly_faster_than(streaming):
        return STREAMING, streaming, [f"{best.name} and {streaming.name} are not distinguishable; streaming needs no shard load and no placement", first]
    reasons = [first]
    if streaming:
        reasons.append(f"residency saves {format_us(streaming.call_us - best.call_us)} a call over {streaming.name}")
    return RESIDENT, best, reasons


def _context(head: Head, chosen: Option | None, taken: Option | None, best: Option | None, gain: RoundGain | None, round: Round | None) -> list[str]:
    """Sentences that belong to every answer: end-to-end gain, memory, what is predicted only, what is curved."""
    reasons = []
    if gain and round:
        reasons.append(f"end to end {format_percent(gain.gain)} ({format_percent(gain.gain_low)} to {format_percent(gain.gain_high)}): the head is "
                       f"{format_percent(gain.head_share_of_draft)} of the draft round and {format_percent(gain.head_share_before)} of the whole round of "
                       f"{format_us(gain.round_us_before)} with verify {format_us(round.verify_us)} and accepted length {round.accepted_length:g}")
    elif taken and best and taken.call_us > best.call_us:
        rest = break_even_rest_us(taken.call_us, best.call_us, LEAST_GAIN)
        reasons.append(f"no round was given, so this is about the head's call; the gain falls below {format_percent(LEAST_GAIN)} where verify and backbone take over {format_us(rest)}")
    if chosen and chosen.mode != "stepwise":
        reasons.append(f"it needs {format_bytes(extra_memory_bytes(head, chosen.mode, chosen.precision))} more device memory (packed W2, scales, latent table)")
    compared = [option for option in (taken, best) if option]
    reasons += [f"{option.name} is predicted, not measured" for option in compared if not option.measured]
    reasons += [f"the series of {option.name} is curved: its slope is an average" for option in compared if option.status == "curved"]
    return reasons


# --- the options ----------------------------------------------------------------------------------------------------------


def _options(head: Head, workload: Workload, predictions: Iterable[Prediction], fits: Iterable[tuple[SeriesKey, StepFit]]) -> list[Option]:
    """Return the options: fits where there are any, predictions for the rest; of several placements the fastest.

    Walks with an experimental exchange are passed over: nobody can deploy them.
    """
    found: dict[tuple, Option] = {}
    for key, fit in fits:
        if not _matches(head, workload, key) or is_experiment(key.exchange):
            continue
        option, place = _fitted(key, fit, workload), _place(key.mode, key.precision, key.implementation, key.variant)
        if place not in found or found[place].status == "inconclusive" or option.call_us < found[place].call_us and option.status != "inconclusive":
            found[place] = option
    for prediction in predictions:
        if prediction.head != head or _asked(prediction.workload) != _asked(workload):
            continue
        place = _place(prediction.mode, prediction.precision, prediction.implementation, prediction.variant)
        option = _predicted(prediction, workload)
        if place not in found or not found[place].measured and option.call_us < found[place].call_us:
            found[place] = option
    return list(found.values())


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
    fields = (key.mode, key.precision, key.implementation, key.variant, placement)
    name = _name(*fields[:4])
    if not fit.usable:
        return Option(name, *fields, *(float("inf"),) * 5, True, fit.status)
    call = fit.call_us(workload.steps)
    low = ((workload.steps * (fit.step_us - fit.step_us_low)) ** 2 + (fit.entry_us - fit.entry_us_low) ** 2) ** 0.5
    high = ((workload.steps * (fit.step_us_high - fit.step_us)) ** 2 + (fit.entry_us_high - fit.entry_us) ** 2) ** 0.5
    return Option(name, *fields, call, max(0.0, call - low), call + high, fit.step_us, fit.entry_us, True, fit.status)


def _predicted(prediction: Prediction, workload: Workload) -> Option:
    """Turn a prediction into an option; the errors of entry and slope are shared, so their ends add."""
    steps = workload.steps
    return Option(
        _name(prediction.mode, prediction.precision, prediction.implementation, prediction.variant), prediction.mode, prediction.precision,
        prediction.implementation, prediction.variant, prediction.placement, prediction.call_us(steps),
        prediction.entry_us_low + steps * prediction.step_us_low, prediction.entry_us_high + steps * prediction.step_us_high,
        prediction.step_us, prediction.entry_us, False,
    )


def _name(mode: str | None, precision: str | None, implementation: str | None, variant: str | None) -> str:
    """Name an option for people."""
    if implementation == OURS:
        return f"{mode} {precision}"
    return f"{implementation} ({variant})" if variant else f"{implementation}"


def _taken(engine: list[Option], predictions: Iterable[Prediction]) -> Option | None:
    """Return the path that the engine takes: the first stepwise prediction that was made without asking for a variant is it,
    else the slowest of those known."""
    from cost_model.engines import load_engine

    if not engine:
        return None
    for prediction in predictions:
        if prediction.mode == "stepwise" and prediction.implementation == engine[0].implementation:
            try:
                path = load_engine(prediction.implementation).path(prediction.workload)
            except BadInput:
                break
            return next((option for option in engine if option.variant == path.variant), engine[-1])
    return engine[-1]


def _settings(gpu: Gpu, head: Head, workload: Workload, verdict: str, chosen: Option | None, reasons: list[str], memory: int,
              environment: Mapping | None) -> Settings:
    """Write the answer down."""
    fused = chosen is not None and chosen.mode != "stepwise"
    precision, placement = (chosen.precision, chosen.placement) if fused else (None, None)
    path = None if fused or chosen is None else chosen.name
    source = "none" if chosen is None else "measured" if chosen.measured else "predicted"
    return Settings(verdict, chosen.mode if chosen else "stepwise", precision, placement, path, workload.batch, workload.steps, workload.temperature,
                    workload.rounding, workload.l2_state, tuple(reasons), source, memory, fingerprint(gpu, head, precision, placement, environment))
