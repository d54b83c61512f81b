"""Recorded rounds: every phase with its interval, the gain of whole rounds, and what the round model says beside them.

A round record holds phases, heads and whole rounds of the same process, interleaved. A time is the median over processes of each process's
median; a gain compares two whole rounds of the same process. Intervals are those of Student's t over processes; one process has none.

Samples that were taken while the GPU throttled are not in a record, only their number is. Where most of a part's are missing, those that are left are of the
moments before the GPU grew hot, and few: such a part is shown, but no gain that rests on it is summed up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import median, stdev
from typing import TYPE_CHECKING

from cost_model import passes
from cost_model.drafter_memory import memory_of
from cost_model.errors import BadInput
from cost_model.gpu import Gpu
from cost_model.head import load_head
from cost_model.passes import PassRates, PassWork
from cost_model.predict import predict
from cost_model.targets import Drafter, list_drafters, load_drafter, load_target
from cost_model.workload import OURS, Workload

if TYPE_CHECKING:
    import pandas

VERIFY = "verify"
PHASES = (VERIFY, "backbone", "base_logits")
HEAD, WHOLE = "head", "round"
"""Names in column `phase`: the passes of a round, its head alone, and the whole of it."""

LEAST_KEPT = 0.5
"""Share of a part's samples that must have been kept for it to stand for the part."""


class NoRounds(BadInput):
    """A record holds no usable round; the message says what is missing."""


@dataclass(frozen=True)
class RoundKey:
    """Which round: target, sequences, context and drafted tokens."""

    target: str
    concurrency: int
    context_tokens: int
    draft_tokens: int


@dataclass(frozen=True)
class MeasuredPart:
    """One phase of one round.

    Attributes:
        key: the round; phase: as recorded; implementation, mode: of the head, None for a pass.
        time_us: median over processes; time_us_low, time_us_high: 95 % interval, None for one process.
        process_us: (run, process) -> its median.
        samples: kept; dropped: because the GPU throttled.
    """

    key: RoundKey
    phase: str
    implementation: str | None
    mode: str | None
    time_us: float
    time_us_low: float | None
    time_us_high: float | None
    process_us: Mapping[tuple, float]
    samples: int
    dropped: int

    @property
    def kept_share(self) -> float:
        """Share of its samples that were kept."""
        return self.samples / (self.samples + self.dropped)


@dataclass(frozen=True)
class ComparedPart:
    """A part beside its prediction. `error`: predicted / measured − 1."""

    part: MeasuredPart
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative error of the prediction, signed."""
        return self.predicted_us / self.part.time_us - 1


@dataclass(frozen=True)
class MeasuredGain:
    """What the resident head gives a whole round, over one stepwise head.

    Attributes:
        key: the round; before, after: implementations.
        gain: tokens per second after over before, less 1, at the same accepted length: round before / round after − 1, median over processes.
        gain_low, gain_high: 95 % interval, None for one process.
        head_share: of the round before, its head timed alone.
        predicted_gain: the same from predicted times.
        kept_share: share of their samples that both rounds kept, the smaller one.
    """

    key: RoundKey
    before: str
    after: str
    gain: float
    gain_low: float | None
    gain_high: float | None
    head_share: float
    predicted_gain: float
    kept_share: float

    @property
    def stands(self) -> bool:
        """Whether enough samples were kept."""
        return self.kept_share >= LEAST_KEPT

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self.key), **{name: value for name, value in asdict(self).items() if name != "key"}}


@dataclass(frozen=True)
class LostSamples:
    """Samples of a record that were dropped because the GPU throttled.

    Attributes:
        dropped, taken: how many, and of how many; reasons: what the driver said, joined by commas.
        rounds: those that lost some; without_gain: those of them whose whole round with the resident head, or with every stepwise one, lost all.
    """

    dropped: int
    taken: int
    reasons: str
    rounds: tuple[RoundKey, ...]
    without_gain: tuple[RoundKey, ...]


@dataclass(frozen=True)
class RoundComparison:
    """A record beside the model.

    Attributes:
        gpu_id: whose; parts: in the record's order; gains: of each round, over each stepwise head.
        basis: where the passes' coefficients come from.
        lost: what was dropped.
    """

    gpu_id: str
    parts: tuple[ComparedPart, ...]
    gains: tuple[MeasuredGain, ...]
    basis: str
    lost: LostSamples

    def over_taken(self, target: str | None = None) -> list[MeasuredGain]:
        """The gain of each round, or of each of one target, over the first of its stepwise heads, which is the path that the engine takes."""
        first: dict[RoundKey, MeasuredGain] = {}
        for gain in self.gains:
            if target in (None, gain.key.target):
                first.setdefault(gain.key, gain)
        return list(first.values())

    def median_error(self, phase: str | None = None) -> float | None:
        """Median absolute error of the predictions of a phase, or of all; None where there are none."""
        errors = [abs(one.error) for one in self.parts if phase in (None, one.part.phase)]
        return median(errors) if errors else None

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON."""
        rows = [{**asdict(one.part.key), "phase": one.part.phase, "implementation": one.part.implementation, "mode": one.part.mode, "time_us": one.part.time_us,
                 "time_us_low": one.part.time_us_low, "time_us_high": one.part.time_us_high, "processes": len(one.part.process_us),
                 "samples": one.part.samples, "dropped": one.part.dropped, "predicted_us": one.predicted_us, "error": one.error} for one in self.parts]
        return {"gpu_id": self.gpu_id, "basis": self.basis, "parts": rows, "gains": [gain.as_dict() for gain in self.gains], "lost": asdict(self.lost)}


def interval_of(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval about the median over processes: median ± t(0.975, n − 1) × s / √n; (None, None) for one process."""
    if len(values) < 2:
        return None, None
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return median(values) - half, median(values) + half


def kept_rows(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of round records without what was measured again because the GPU throttled: of each round those of the runs that kept the largest share of its samples.

    Rounds come in order of target, concurrency, context and length.
    """
    frame = frame.sort_values([*RoundKey.__dataclass_fields__], kind="stable", ignore_index=True)
    rounds = frame[[*RoundKey.__dataclass_fields__]].astype(str).agg("/".join, axis=1)
    counts = frame.assign(kept=frame["samples_us"].map(len), lost=frame["samples_dropped"].fillna(0)).groupby([rounds, frame["run_id"]])[["kept", "lost"]].transform("sum")
    share = (counts["kept"] / (counts["kept"] + counts["lost"])).fillna(0.0)  # no sample was taken
    return frame[share >= share.groupby(rounds).transform("max")]


def measured_parts(frame: pandas.DataFrame) -> tuple[MeasuredPart, ...]:
    """Return the parts of a frame of round records (`measurement.read_round`), in the order of first appearance.

    A row whose samples were all dropped is passed over. Raises NoRounds where none is left.
    """
    gathered: dict[tuple, dict[tuple, list[float]]] = {}
    dropped: dict[tuple, int] = {}
    for row in frame.to_dict("records"):
        group = (_key(row), row["phase"], row["head_implementation"], row["head_mode"])
        dropped[group] = dropped.get(group, 0) + _dropped(row)
        gathered.setdefault(group, {}).setdefault((row["run_id"], int(row["process_index"])), []).extend(row["samples_us"])
    found = []
    for group, processes in gathered.items():
        kept = {process: samples for process, samples in processes.items() if samples}
        if kept:
            medians = {process: median(samples) for process, samples in kept.items()}
            low, high = interval_of(list(medians.values()))
            found.append(MeasuredPart(*group, median(medians.values()), low, high, medians, sum(map(len, kept.values())), dropped[group]))
    if not found:
        raise NoRounds("the record holds no samples of a round; measure again with python -m benchmarks.round")
    return tuple(found)


def _key(row: Mapping) -> RoundKey:
    """The round of a row."""
    return RoundKey(row["target"], int(row["concurrency"]), int(row["context_tokens"]), int(row["draft_tokens"]))


def _dropped(row: Mapping) -> int:
    """Samples that a row lost; 0 where it does not know."""
    lost = row["samples_dropped"]
    return 0 if lost is None or lost != lost else int(lost)


def _lost(frame: pandas.DataFrame, gains: Iterable[MeasuredGain]) -> LostSamples:
    """What a frame of round records dropped, and which rounds that left without a gain."""
    rows = frame.to_dict("records")
    hit = [row for row in rows if _dropped(row)]
    keys, known = tuple(dict.fromkeys(map(_key, hit))), {gain.key for gain in gains}
    dropped = sum(map(_dropped, hit))
    reasons = sorted({reason for row in hit for reason in str(row.get("throttle_reasons") or "unknown").split(",")})
    return LostSamples(dropped, dropped + sum(len(row["samples_us"]) for row in rows), ", ".join(reasons), keys, tuple(key for key in keys if key not in known))


# --- predictions ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def drafter_of(target: str) -> Drafter:
    """The catalogued drafter of a target that has a Markov head: whose rounds are recorded. NoRounds where there is none."""
    for name in list_drafters():
        drafter = load_drafter(name)
        if drafter.target == target and drafter.head is not None and load_head(drafter.head).kind == "markov":
            return drafter
    raise NoRounds(f"no catalogued drafter of {target} has a Markov head, so its rounds cannot be predicted")


def work_of(key: RoundKey, phase: str) -> PassWork:
    """What a pass of a recorded round does."""
    drafter, target = drafter_of(key.target), load_target(key.target)
    if phase == "verify":
        return passes.target_work(target, key.concurrency, key.context_tokens, key.draft_tokens + 1)
    if phase == "backbone":
        return passes.backbone_work(target, drafter, memory_of(drafter, target), key.concurrency, key.context_tokens, key.draft_tokens)
    if phase == "base_logits":
        return passes.base_logits_work(target, key.concurrency, key.draft_tokens)
    raise BadInput(f"phase is {phase!r}; passes are {', '.join(PHASES)}")


@lru_cache(maxsize=256)
def _head_us(gpu_id: str, key: RoundKey, implementation: str, mode: str) -> float:
    """Predicted call of a head as it is called in a round."""
    from cost_model.gpu import load_gpu

    gpu, head = load_gpu(gpu_id), load_head(str(drafter_of(key.target).head))
    workload = Workload(key.concurrency, key.draft_tokens, precision="int8x2" if implementation == OURS else "bf16", l2_state="serving")
    if implementation == OURS:
        return predict(gpu, head, workload, mode).call_us()
    name, _, variant = implementation.partition(" ")
    return predict(gpu, head, workload, mode, name, variant=variant or None).call_us()


def predict_part(gpu: Gpu, part: MeasuredPart, rates: PassRates) -> float:
    """Predicted time of a part: a pass, a head's call, or their sum for a whole round."""
    if part.phase in PHASES:
        return passes.pass_us(gpu, work_of(part.key, part.phase), rates)
    head_us = _head_us(gpu.id, part.key, str(part.implementation), str(part.mode))
    if part.phase == HEAD:
        return head_us
    if part.phase == WHOLE:
        return head_us + sum(passes.pass_us(gpu, work_of(part.key, phase), rates) for phase in PHASES)
    raise BadInput(f"phase is {part.phase!r}; known are {', '.join((*PHASES, HEAD, WHOLE))}")


def compare_rounds(gpu: Gpu, frame: pandas.DataFrame, rates: PassRates | None = None) -> RoundComparison:
    """Set a record beside the model.

    Args:
        rates: the passes' coefficients. Where None, those of a target's rounds are fitted to the other targets of the record, so that no
            round is predicted from itself; a record of one target takes those that ship.

    Raises:
        NoRounds: nothing to compare, or one target only and no coefficients ship.
    """
    parts = measured_parts(frame)
    by_target, basis = _rates_by_target(gpu, parts, rates)
    compared = tuple(ComparedPart(part, predict_part(gpu, part, by_target[part.key.target])) for part in parts)
    gains = tuple(_gains(compared))
    return RoundComparison(gpu.id, compared, gains, basis, _lost(frame, gains))


def _rates_by_target(gpu: Gpu, parts: Sequence[MeasuredPart], rates: PassRates | None) -> tuple[dict[str, PassRates], str]:
    """Coefficients for each target's rounds, and where they come from."""
    targets = list(dict.fromkeys(part.key.target for part in parts))
    if rates is not None:
        return dict.fromkeys(targets, rates), "coefficients that were given"
    if len(targets) > 1:
        from cost_model.pass_fit import fit_passes

        others = {target: [part for part in parts if part.key.target != target] for target in targets}
        return {target: fit_passes(gpu, rest) for target, rest in others.items()}, "coefficients of each target fitted to the other targets' passes"
    shipped = passes.load_rates(gpu)
    if shipped is None:
        raise NoRounds(f"the record holds rounds of {targets[0]} alone and no coefficients ship; record a second target, which they can be fitted to")
    return dict.fromkeys(targets, shipped), "coefficients that ship"


def _gains(compared: Iterable[ComparedPart]) -> Iterable[MeasuredGain]:
    """The gain of each round over each of its stepwise heads, in the record's order."""
    by_place = {(one.part.key, one.part.phase, one.part.implementation): one for one in compared}
    for (key, phase, before), whole in by_place.items():
        after = by_place.get((key, WHOLE, OURS))
        if phase != WHOLE or whole.part.mode != "stepwise" or after is None:
            continue
        both = [process for process in whole.part.process_us if process in after.part.process_us]
        ratios = [whole.part.process_us[process] / after.part.process_us[process] - 1 for process in both]
        if not ratios:
            continue
        head = by_place.get((key, HEAD, before))
        share = head.part.time_us / whole.part.time_us if head else float("nan")
        yield MeasuredGain(key, str(before), OURS, median(ratios), *interval_of(ratios), share, whole.predicted_us / after.predicted_us - 1,
                           min(whole.part.kept_share, after.part.kept_share))


def known_phases(parts: Iterable[MeasuredPart], key: RoundKey) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Measured times of a round's passes with their intervals, by phase; NoRounds, listing the recorded rounds, where it was not recorded."""
    found, rounds = {}, []
    for part in parts:
        if part.phase in PHASES:
            rounds.append(part.key)
            if part.key == key:
                found[part.phase] = part.time_us, None if part.time_us_low is None else (max(part.time_us_low, 0.0), part.time_us_high)
    if len(found) < len(PHASES):
        known = "; ".join(f"{one.target}, {one.concurrency} x {one.context_tokens:,} tokens, {one.draft_tokens} drafted" for one in dict.fromkeys(rounds))
        raise NoRounds(f"no recorded round of {key.target} has {key.concurrency} sequences of {key.context_tokens:,} tokens and {key.draft_tokens} drafted; recorded are {known}")
    return found
