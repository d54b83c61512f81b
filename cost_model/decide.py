"""decide: from predictions, fits and a round to a verdict with its reasons, and the settings to deploy.

A fair baseline is the engine's own graph-replayed path, and there are two: the one the engine takes, and its fastest. A fused
walk is worth deploying only if it beats the fastest, in the round that it is part of. "Do not deploy" is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product

from cost_model import terms
from cost_model.engines import UnknownImplementation, load_engine
from cost_model.errors import BadInput
from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import Gpu, require_same_gpu
from cost_model.head import Head, walked_shape
from cost_model.options import Option, gather_options, taken_path
from cost_model.placement import DEFAULT_WARPS, PlanError, plan
from cost_model.predict import Prediction, fused_request
from cost_model.round import Round, RoundGain, break_even_rest_us, break_even_steps, break_even_verify_us, round_gain
from cost_model.settings import (  # noqa: F401  (the settings' own names are part of this module's interface)
    INCONCLUSIVE, KEEP, MEASURED_HERE, NO_GAIN, NO_SOURCE, PREDICTED, RESIDENT, STREAMING, SWITCH, VERDICTS, Settings, SettingsError,
    SettingsMismatch, fingerprint, load_settings, read_settings, write_settings,
)
from cost_model.units import format_bytes, format_interval_us, format_percent, format_us
from cost_model.workload import OURS, PRECISIONS, Workload

FUSED_MODES = ("resident", "streaming")
FEWER_WARPS = (6, 4, 3, 2)
"""Warps of a block that leave more shared memory to each than the planner's usual number, and would be tried by hand."""

LEAST_GAIN = 0.01
"""Gain for which the break-even round is stated."""


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
        gain: end to end of `best` against `fastest`; gain_over_taken: against `taken`. None without a round.
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
    gain_over_taken: RoundGain | None
    extra_memory_bytes: int

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON."""
        named = {name: asdict(one) if (one := getattr(self, name)) else None for name in ("taken", "fastest", "best")}
        return {
            "verdict": self.verdict, "reasons": list(self.reasons), **named, "options": [asdict(option) for option in self.options],
            "saving_us": self.saving_us, "saving_us_low": self.saving_us_low, "saving_us_high": self.saving_us_high,
            "gain": self.gain.as_dict() if self.gain else None,
            "gain_over_taken": self.gain_over_taken.as_dict() if self.gain_over_taken else None, "extra_memory_bytes": self.extra_memory_bytes, "settings": self.settings.as_dict(),
        }


def extra_memory_bytes(head: Head, mode: str, precision: str | None) -> int:
    """Device memory of the fused walk beside the engine's own weights; the engine's path needs nothing.

    Packed W2, in int8x2 with its scales; the token table, a row a target token: the packed latent (Markov), latent and gate (2 r), the
    token's part of three gates (3 r, or 3 GRU sizes of Domino); and what of the state's matrices is a copy (3 r × r, r × GRU size).
    A candidate pool's matrix is gathered for one batch row at a time.
    """
    if mode == "stepwise" or precision is None:
        return 0
    tiles = terms.tiles_of(walked_shape(head).vocab_size)
    packed = tiles * terms.tile_bytes(head.rank, precision) + (tiles * terms.TILE_ROWS * terms.BYTES_OF_FP32 if precision == "int8x2" else 0)
    if head.kind == "markov":
        return packed + head.target_vocab_size * terms.latent_row_bytes(head.rank, precision)
    row = {"gated": 2 * head.rank, "rnn": 3 * head.rank, "domino": 3 * (head.gru_size or 0)}[head.kind]
    copied = {"gated": 0, "rnn": 3 * head.rank**2, "domino": head.rank * (head.gru_size or 0)}[head.kind]
    return packed + (head.target_vocab_size * row + copied) * terms.BYTES_OF_BF16


def decide(gpu: Gpu, head: Head, workload: Workload, predictions: Iterable[Prediction], fits: Iterable[tuple[SeriesKey, StepFit]] = (),
           round: Round | None = None, *, environment: Mapping | None = None, source: str = MEASURED_HERE) -> Decision:
    """Decide what to run.

    Args:
        predictions: of the engine's paths and the fused modes, for this head and workload; others are passed over.
        fits: measured series; one that matches the head and workload replaces the prediction of the same option.
        round: verify, backbone and accepted length; without it the verdict is about the head's call alone, and says so.
        environment: gpu_name, gpu_sm_count, driver_version, cuda_version, kernel_hash, for the fingerprint.
        source: where the fits come from, `measured here` or `replayed`; settings that rest on a prediction say `predicted`.

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
    options = gather_options(head, workload, predictions, fits)
    fused = [option for option in options if option.mode != "stepwise"]
    engine = [option for option in options if option.is_engine] or [option for option in options if option.mode == "stepwise"]
    taken, fastest = taken_path(engine, predictions), engine[0] if engine else None
    best = fused[0] if fused else None
    gain, over_taken = (_gain(round, baseline, best) for baseline in (fastest, taken))
    unplaced = _unplaced(gpu, head, workload, taken, fastest) if taken and fastest and not fused else None
    verdict, chosen, reasons = unplaced or _verdict(fused, engine, taken, round)
    reasons += _end_to_end(taken, fastest, best, gain, over_taken, round) + _context(head, chosen, taken, fastest, best)
    memory = extra_memory_bytes(head, chosen.mode, chosen.precision) if chosen else 0
    saving = (None, None, None)
    if fastest and best:
        saving = (fastest.call_us - best.call_us, fastest.call_us_low - best.call_us_high, fastest.call_us_high - best.call_us_low)
    settings = _settings(gpu, head, workload, verdict, chosen, reasons, memory, environment, source)
    return Decision(verdict, tuple(reasons), settings, options, taken, fastest, best, *saving, gain, over_taken, memory)


def _gain(round: Round | None, before: Option | None, after: Option | None) -> RoundGain | None:
    """Return the end-to-end gain of one option over another, where there is a round and both have times."""
    if round is None or before is None or after is None or "inconclusive" in (before.status, after.status):
        return None
    return round_gain(round, before.call_us, after.call_us, before.interval_us, after.interval_us)


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
    against = f"of {_baseline(fastest)}"
    if resident and resident.step_us >= fastest.step_us:
        return *stay, [f"a resident step takes {format_us(resident.step_us)} ({resident.basis}), not below the {format_us(fastest.step_us)} "
                       f"({fastest.basis}) {against}"]
    if best.call_us >= fastest.call_us:
        return *stay, [f"{best.name} takes {best.told} a call, not below the {fastest.told} {against}"]
    doubt = _doubt(best, fastest, taken, round)
    if doubt:
        verdict, reason = doubt
        if verdict == NO_GAIN and stay[0] == SWITCH:
            return *stay, [f"{_baseline(fastest)}, takes {fastest.told} a call, {taken.name}, which it takes here, {taken.told}", reason]
        return verdict, taken, [reason]
    return _deploy(fused, fastest)


def _unplaced(gpu: Gpu, head: Head, workload: Workload, taken: Option, fastest: Option) -> tuple[str, Option, list[str]] | None:
    """The same where no fused walk was predicted since none has a place on the GPU: then the engine's path stays, unless fewer warps make room for one.

    None where there is a place, or where facts are missing that tell.
    """
    asked, shortage = [replace(workload, precision=precision) for precision in reversed(PRECISIONS)], None
    for warps in (DEFAULT_WARPS, *FEWER_WARPS):
        for one, mode in product(asked, FUSED_MODES):
            try:
                request = fused_request(gpu, head, one)
                plan(gpu, request.head, one.precision, mode, grid_blocks=request.grid_blocks, warps=warps, **request.built)
            except PlanError as error:
                shortage = shortage or str(error)
            except BadInput:
                return None
            else:
                told = f"a {mode} walk in {one.precision} has a place with {warps} warps a block, which nobody predicted or measured; `wts-lab tune --warps {warps}` measures it"
                return (INCONCLUSIVE, taken, [shortage, told]) if shortage else None
    return *_stay(taken, fastest), [f"no fused walk of this shape has a place on {gpu.id}: {shortage}"]


def _stay(taken: Option, fastest: Option) -> tuple[str, Option]:
    """Keep the engine's path, or switch to its fastest where that is clearly another."""
    return (SWITCH, fastest) if fastest.clearly_faster_than(taken) else (KEEP, taken)


def _doubt(best: Option, fastest: Option, taken: Option, round: Round | None) -> tuple[str, str] | None:
    """Return (verdict, reason) where the gain's interval includes 0."""
    if round is None:
        if best.call_us_high < fastest.call_us_low:
            return None
        reason = (f"the calls of {best.name} ({best.basis}, {format_interval_us(*best.interval_us)}) and of {_baseline(fastest)} ({fastest.basis}, "
                  f"{format_interval_us(*fastest.interval_us)}) overlap")
        return (NO_GAIN, reason) if best.measured else (INCONCLUSIVE, f"{reason}; measure the fused walk to tell them apart")
    for baseline in (fastest, taken):
        gain = round_gain(round, baseline.call_us, best.call_us, baseline.interval_us, best.interval_us)
        if not gain.material:
            return NO_GAIN, (f"the interval of the end-to-end gain over {baseline.name} ({baseline.basis}), {format_percent(gain.gain_low)} to "
                             f"{format_percent(gain.gain_high)}, includes 0; the head is {format_percent(gain.head_share_before)} of a round")
    return None


def _deploy(fused: list[Option], fastest: Option) -> tuple[str, Option, list[str]]:
    """Choose between resident and streaming."""
    best = fused[0]
    streaming = next((option for option in fused if option.mode == "streaming"), None)
    first = f"{best.name} takes {best.told} a call; {_baseline(fastest)}, takes {fastest.told}"
    if best.mode == "streaming":
        return STREAMING, best, [first, "keeping the matrix on chip is not faster than reading it again"]
    if streaming and not best.clearly_faster_than(streaming):
        return STREAMING, streaming, [f"{best.name} and {streaming.name} are not distinguishable; streaming needs no shard load and no placement", first]
    reasons = [first]
    if streaming:
        reasons.append(f"residency saves {format_us(streaming.call_us - best.call_us)} a call over {streaming.name} ({streaming.basis})")
    return RESIDENT, best, reasons


def _baseline(fastest: Option) -> str:
    """Name the baseline by its part."""
    return f"the engine's fastest path, {fastest.name}" if fastest.is_engine else f"the reference, {fastest.name}"


def _short(fastest: Option) -> str:
    """The same once it has been named in full."""
    return f"the engine's fastest path ({fastest.variant})" if fastest.is_engine else "the reference"


def _end_to_end(taken: Option | None, fastest: Option | None, best: Option | None, gain: RoundGain | None, over_taken: RoundGain | None,
                round: Round | None) -> list[str]:
    """Say what the answer means for a round, against the engine's fastest path and, where it takes another, against that; nothing where one of them has
    lost its samples."""
    if not (taken and fastest and best) or not all(math.isfinite(option.call_us) for option in (taken, fastest, best)):
        return []
    reasons = []
    if taken != fastest:
        reasons.append(f"here the engine takes {taken.name}: {taken.told}; its {fastest.variant} path is meant for other workloads, but runs this one too")
    if gain and over_taken and round:
        other = "" if taken == fastest else f", {format_percent(over_taken.gain)} over the path it takes ({taken.variant})"
        reasons.append(f"end to end {format_percent(gain.gain)} ({format_percent(gain.gain_low)} to {format_percent(gain.gain_high)}) over {_short(fastest)}{other}; "
                       f"with {_short(fastest)} the head is {format_percent(gain.head_share_of_draft)} of the draft round and "
                       f"{format_percent(gain.head_share_before)} of the whole round of {format_us(gain.round_us_before)}")
        if gain.gain > 0:
            reasons.append(_break_even(round, fastest, best, gain))
    elif round is None and fastest.call_us > best.call_us:
        rest, rest_taken = (format_us(break_even_rest_us(option.call_us, best.call_us, LEAST_GAIN)) for option in (fastest, taken))
        other = "" if taken == fastest else f"; the gain over the path it takes ({taken.variant}), where they take over {rest_taken}"
        reasons.append(f"no round was given, so this is about the head's call; the gain over {_short(fastest)} falls below {format_percent(LEAST_GAIN)} where "
                       f"verify and backbone take over {rest}{other}")
    return reasons


def _break_even(round: Round, fastest: Option, best: Option, gain: RoundGain) -> str:
    """Say where the gain over the engine's fastest path ends, in each of verify time, accepted length and steps."""
    verify = break_even_verify_us(round, fastest.call_us, best.call_us, LEAST_GAIN)
    steps = break_even_steps((fastest.entry_us, fastest.step_us), (best.entry_us, best.step_us))
    told = "for any verify" if verify is None else f"where verify takes over {format_us(verify)} (here {format_us(round.verify_us)})"
    longer = "at no walk length" if steps is None else "at every walk length" if steps == 1 else f"from {steps} steps on"
    return (f"that gain is below {format_percent(LEAST_GAIN)} {told}; the call is shorter {longer}; drafting worse would use it up at an accepted length of "
            f"{gain.break_even_length:.4g} (here {round.accepted_length:.4g})")


def _context(head: Head, chosen: Option | None, taken: Option | None, fastest: Option | None, best: Option | None) -> list[str]:
    """Sentences that belong to every answer: memory, what is predicted and from what, what is extrapolated, what is curved."""
    reasons = []
    if chosen and chosen.mode != "stepwise":
        reasons.append(f"it needs {format_bytes(extra_memory_bytes(head, chosen.mode, chosen.precision))} more device memory (packed W2, scales, token table)")
    compared = list(dict.fromkeys(option for option in (fastest, taken, best) if option))
    reasons += list(dict.fromkeys(_origin(option) for option in compared if not option.measured))
    reasons += [f"{option.name} was not measured at this walk length: its call is extrapolated from shorter ones" for option in compared if option.extrapolated]
    reasons += [f"the series of {option.name} is curved: its step is an average, its call is as {option.basis}" for option in compared if option.status == "curved"]
    return reasons


def _origin(option: Option) -> str:
    """Say what a predicted option rests on."""
    if option.implementation == OURS:
        return f"{option.name} is predicted, not measured"
    try:
        fitted_to = load_engine(option.implementation).fitted_to.split(";")[0]
    except UnknownImplementation:
        return f"{option.name} is predicted, not measured"
    return f"times of {option.implementation} are predicted, not measured here: its efficiencies were fitted to {fitted_to}"


def _settings(gpu: Gpu, head: Head, workload: Workload, verdict: str, chosen: Option | None, reasons: list[str], memory: int,
              environment: Mapping | None, source: str) -> Settings:
    """Write the answer down."""
    fused = chosen is not None and chosen.mode != "stepwise"
    precision, placement = (chosen.precision, chosen.placement) if fused else (None, None)
    path = None if fused or chosen is None else chosen.name
    basis = NO_SOURCE if chosen is None else source if chosen.measured else PREDICTED
    return Settings(verdict, chosen.mode if chosen else "stepwise", precision, placement, path, workload.batch, workload.steps, workload.temperature,
                    workload.rounding, workload.l2_state, tuple(reasons), basis, memory, fingerprint(gpu, head, precision, placement, environment))
