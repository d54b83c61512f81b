"""Whole-step cost tables in the formats that engines load, made from measured rounds.

    sps_table         SGLang's SpsCostTable: steps a second by the tokens of a verify batch
    additive_table    SGLang's SpsAdditiveCostTable: bias + alpha(requests) + theta(tokens), in seconds
    tensorrt_table    TensorRT-LLM's plain cost table: the same sum in milliseconds

A scheduler decides by these how many tokens to verify, so a table that is flat or falls by chance misleads it. Here it is refused. Our
fingerprint stands in the file under `FINGERPRINT_KEY`, and what the table was made of under `ORIGIN_KEY`, which these readers pass over;
TensorRT-LLM's authenticated form is not ours to sign.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from cost_model.errors import BadInput
from cost_model.files import write_text_whole
from cost_model.forms import FormMismatch, checked_fields, differing, is_number, read_object
from cost_model.measured_round import LEAST_KEPT, VERIFY, WHOLE
from cost_model.settings import ENVIRONMENT_FIELDS, Fingerprint
from cost_model.units import ms_from_us, s_from_us
from cost_model.workload import require_whole, require_word

if TYPE_CHECKING:
    import pandas

FINGERPRINT_KEY, ORIGIN_KEY = "weights_that_stay_fingerprint", "weights_that_stay_origin"
ROUND_FIELDS = ("gpu_name", "target", "context_tokens", "head_implementation", "head_mode")
"""Of a round record, what is the same in all steps of a table."""

AXES = {
    "sps": ("sample_batch_tokens", "sample_steps_per_sec"),
    "additive": ("m_probes", "theta_seconds", "bs_probes", "alpha_seconds"),
    "tensorrt": ("token_counts", "step_time_ms", "batch_sizes", "batch_overhead_ms"),
}
"""Of each format, the lists: where it was probed and what was found there, tokens first."""

SCALARS = {"sps": ("max_batch_tokens",), "additive": ("bias_seconds",), "tensorrt": ("fixed_overhead_ms",)}
MOST_MISFIT_SHARE = 0.05
"""Of a step, that a sum of parts may miss it by, where that is more than the noise."""


class StepTableRefused(BadInput):
    """A table would mislead, or is none of these formats; the message says why and what to measure."""


class StepTableMismatch(FormMismatch):
    """A table was made on another machine, or for another head."""

    about = "this table was made for something else"
    advice = "Measure rounds here and make it anew"


@dataclass(frozen=True)
class StepTime:
    """One measured step of serving: a whole round, drafting included.

    Attributes:
        requests: verified together.
        tokens: of all of them, the bonus tokens included.
        step_us: median.
        repeatability_us: by how much the medians of processes differ.
    """

    requests: int
    tokens: int
    step_us: float
    repeatability_us: float

    def __post_init__(self) -> None:
        require_whole("requests", self.requests, 1, None)
        require_whole("tokens", self.tokens, self.requests, None)
        if not (is_number(self.step_us) and self.step_us > 0 and is_number(self.repeatability_us) and self.repeatability_us >= 0):
            raise StepTableRefused(f"a step of {self.step_us!r} us that repeats within {self.repeatability_us!r} us; "
                                   "times must be finite and above 0, a repeatability finite and at least 0")  # fmt: skip


def step_times(frame: pandas.DataFrame, drafted: int | None = None, *, shorter: bool = False) -> list[StepTime]:
    """Steps of round records, by requests and tokens: whole rounds of one way of drafting.

    A step that kept fewer than LEAST_KEPT of its samples is left out: `thinned_steps` tells which.

    Args:
        frame: whole rounds of one way of drafting, and the verify passes that were recorded beside them.
        drafted: tokens of the block that is drafted, where the whole rounds are of several lengths.
        shorter: add steps that verify fewer tokens than they draft, as a scheduler may choose: the whole round with verify of a shorter recorded block in
            place of its own.

    Raises:
        StepTableRefused: no whole round, rounds of more than one GPU, target, context or head, or of several lengths where none is chosen; fewer than two
            processes a step.
    """
    whole = frame[frame["phase"] == WHOLE]
    for name in ROUND_FIELDS:
        if whole[name].nunique(dropna=False) != 1:
            raise StepTableRefused(f"a table is of one {name}; the {len(whole)} rows of whole rounds have {', '.join(sorted(map(str, whole[name].unique()))) or 'none'}; choose one")
    lengths = sorted(map(int, whole["draft_tokens"].unique()))
    chosen = lengths[0] if drafted is None and len(lengths) == 1 else drafted
    if chosen not in lengths:
        raise StepTableRefused(f"a table is of one block length, {'none' if chosen is None else chosen} was chosen and whole rounds of {', '.join(map(str, lengths))} tokens drafted are recorded; choose one of them")
    rounds, verifies = (_times(frame[frame["phase"] == phase]) for phase in (WHOLE, VERIFY))
    found = [StepTime(requests, requests * (chosen + 1), time.median_us, time.spread_us) for (requests, length), time in rounds.items() if length == chosen]
    for (requests, few), other in verifies.items() if shorter else ():
        time, own = rounds.get((requests, chosen)), verifies.get((requests, chosen))
        if few < chosen and time and own:
            spread_us = math.hypot(time.spread_us, own.spread_us, other.spread_us)
            found.append(StepTime(requests, requests * (few + 1), time.median_us - own.median_us + other.median_us, spread_us))
    return sorted(found, key=lambda step: (step.requests, step.tokens))


@dataclass(frozen=True)
class _Time:
    """Median over processes of one kind of pass, and by how much their medians differ."""

    median_us: float
    spread_us: float


def _times(rows: pandas.DataFrame) -> dict[tuple[int, int], _Time]:
    """(requests, tokens drafted) -> time, of the rows of one phase that kept enough samples. Raises StepTableRefused where one has a single process."""
    found = {}
    for (requests, drafted), group in rows.groupby(["concurrency", "draft_tokens"]):
        if _kept_share(group) < LEAST_KEPT:
            continue
        group = group[group["samples_us"].map(len) > 0]
        medians = [float(numpy.median(numpy.concatenate([*samples]))) for _, samples in group.groupby(["run_id", "process_index"])["samples_us"]]
        if len(medians) < 2:
            raise StepTableRefused(f"{requests} requests of {drafted} tokens were measured in one process; measure in two or more, so that noise is known")
        found[int(requests), int(drafted)] = _Time(float(numpy.median(medians)), max(medians) - min(medians))
    return found


def thinned_steps(frame: pandas.DataFrame, *, shorter: bool = False) -> list[str]:
    """What `step_times` leaves out, in words: whole rounds and, where `shorter`, verify passes most of whose samples were dropped because the GPU throttled."""
    groups = frame[frame["phase"].isin((WHOLE, VERIFY) if shorter else (WHOLE,))].groupby(["phase", "concurrency", "draft_tokens"])
    return [f"{phase} of {requests} requests, {drafted} tokens drafted ({_kept_share(group):.0%} of the samples kept)" for (phase, requests, drafted), group in groups if _kept_share(group) < LEAST_KEPT]


def _kept_share(rows: pandas.DataFrame) -> float:
    """Share of the samples of some rows that were kept, 0 where there are none."""
    kept = int(rows["samples_us"].map(len).sum())
    dropped = int(rows["samples_dropped"].fillna(0).sum())
    return kept / max(kept + dropped, 1)


def sps_table(steps: Sequence[StepTime], max_batch_tokens: int | None = None) -> dict[str, Any]:
    """SGLang's SpsCostTable; times that fall within the noise are levelled.

    Args:
        max_batch_tokens: the largest batch that the engine may ask for; the largest probe when None.

    Raises:
        StepTableRefused: fewer than two probes, two of the same tokens, a flat or falling series.
    """
    steps = sorted(steps, key=lambda step: step.tokens)
    tokens = [step.tokens for step in steps]
    if len(set(tokens)) != len(tokens):
        raise StepTableRefused(f"tokens {tokens} repeat; this table knows no requests: give it steps of one block length, or make an additive one")
    times_us = _rising("step times by tokens", [step.step_us for step in steps], _noise_us(steps))
    limit = tokens[-1] if max_batch_tokens is None else max_batch_tokens
    return _checked({"sample_batch_tokens": tokens, "sample_steps_per_sec": [1 / s_from_us(time) for time in times_us], "max_batch_tokens": limit})


def additive_table(steps: Sequence[StepTime]) -> dict[str, Any]:
    """SGLang's SpsAdditiveCostTable, by least squares of bias + alpha(requests) + theta(tokens); both parts start at 0.

    Raises:
        StepTableRefused: fewer than two probes; requests and tokens that were never varied apart; no sum of parts; parts that fall, or
            a theta that is flat.
    """
    bias_us, requests, alpha_us, tokens, theta_us = _parts(steps)
    return _checked({
        "bias_seconds": s_from_us(bias_us), "bs_probes": requests, "alpha_seconds": [s_from_us(part) for part in alpha_us],
        "m_probes": tokens, "theta_seconds": [s_from_us(part) for part in theta_us],
    })  # fmt: skip


def tensorrt_table(steps: Sequence[StepTime]) -> dict[str, Any]:
    """TensorRT-LLM's plain table, of the same parts; what is fixed stands in the step times, so that all of them are above 0.

    Raises:
        StepTableRefused: as `additive_table`.
    """
    bias_us, requests, alpha_us, tokens, theta_us = _parts(steps)
    return _checked({
        "token_counts": tokens, "step_time_ms": [ms_from_us(bias_us + part) for part in theta_us], "fixed_overhead_ms": 0.0,
        "batch_sizes": requests, "batch_overhead_ms": [ms_from_us(part) for part in alpha_us],
    })  # fmt: skip


def _parts(steps: Sequence[StepTime]) -> tuple[float, list[int], list[float], list[int], list[float]]:
    """Bias, requests with their alpha, tokens with their theta, all in microseconds; alpha and theta are 0 at the first."""
    noise_us = _noise_us(steps)
    requests, tokens = (sorted({getattr(step, name) for step in steps}) for name in ("requests", "tokens"))
    unknowns = 1 + len(requests) - 1 + len(tokens) - 1
    design = numpy.zeros((len(steps), unknowns))
    for row, step in enumerate(steps):
        design[row, 0] = 1.0
        for values, value, before in ((requests, step.requests, 0), (tokens, step.tokens, len(requests) - 1)):
            if place := values.index(value):
                design[row, before + place] = 1.0
    if numpy.linalg.matrix_rank(design) < unknowns:
        raise StepTableRefused(f"what requests cost and what tokens cost cannot be told apart from {len(steps)} steps of {len(requests)} numbers of "
                               f"requests and {len(tokens)} of tokens; measure several block lengths that give the same tokens for other requests, with python -m benchmarks.round --steps 7,15")  # fmt: skip
    times_us = numpy.array([step.step_us for step in steps])
    found, *_ = numpy.linalg.lstsq(design, times_us, rcond=None)
    missed_us = numpy.abs(design @ found - times_us)
    if (missed_us > numpy.maximum(noise_us, MOST_MISFIT_SHARE * times_us)).any():
        worst = steps[int(missed_us.argmax())]
        raise StepTableRefused(f"a sum of parts misses the step of {worst.requests} requests and {worst.tokens} tokens by {missed_us.max():.3g} us "
                               f"of {worst.step_us:.3g}; these times are no such sum")  # fmt: skip
    alpha_us = _rising("the part of requests", [0.0, *found[1 : len(requests)]], noise_us, flat=True)
    theta_us = _rising("the part of tokens", [0.0, *found[len(requests) :]], noise_us)
    return float(found[0]), requests, alpha_us, tokens, theta_us


def _noise_us(steps: Sequence[StepTime]) -> float:
    """By how much two measurements of one step may differ."""
    if len(steps) < 2:
        raise StepTableRefused(f"{len(steps)} steps were measured; a table needs two or more")
    return max(step.repeatability_us for step in steps)


def _rising(what: str, values_us: Sequence[float], noise_us: float, flat: bool = False) -> list[float]:
    """Values whose falls within the noise are levelled; refused where they fall further, or span no more than it."""
    levelled = [float(value) for value in numpy.maximum.accumulate(values_us)]
    fall_us = max(top - value for top, value in zip(levelled, values_us, strict=True))
    if fall_us > noise_us:
        raise StepTableRefused(f"{what} fall by {fall_us:.3g} us as the batch grows, and steps repeat within {noise_us:.3g} us, so it is no noise; "
                               "a scheduler would take more work for less. Record other batches or block lengths")  # fmt: skip
    if not flat and levelled[-1] - levelled[0] <= noise_us:
        raise StepTableRefused(f"{what} span {levelled[-1] - levelled[0]:.3g} us, not above the measured noise of {noise_us:.3g} us; "
                               "by a flat table every token looks free. Measure more processes or larger batches")  # fmt: skip
    return levelled


# --- files ----------------------------------------------------------------------------------------------------------------


def make_table(kind: str, steps: Sequence[StepTime], max_batch_tokens: int | None = None) -> dict[str, Any]:
    """The table of one of the formats, a key of `AXES`; ``max_batch_tokens`` is for ``sps`` alone. Raises as that format's function."""
    require_word("format", kind, tuple(AXES))
    if kind != "sps" and max_batch_tokens is not None:
        raise StepTableRefused(f"the largest batch is {max_batch_tokens}, which a table of format {kind} has no place for; leave it out")
    return sps_table(steps, max_batch_tokens) if kind == "sps" else {"additive": additive_table, "tensorrt": tensorrt_table}[kind](steps)


def write_table(table: Mapping[str, Any], path: Path | str, fingerprint: Fingerprint, origin: Mapping[str, Any] | None = None) -> Path:
    """Write a table as the engine reads it, with the fingerprint beside it and, for people, what it was made of; whole or not at all."""
    plain = _checked(dict(table)) | {FINGERPRINT_KEY: asdict(fingerprint)} | ({} if origin is None else {ORIGIN_KEY: dict(origin)})
    return write_text_whole(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def load_table(path: Path | str, fingerprint: Fingerprint) -> dict[str, Any]:
    """Read a table for this machine and head; what is not known of the environment here is not compared.

    Raises:
        StepTableRefused: the file is missing, truncated, none of these formats, without our fingerprint, or has entries that cannot be.
        StepTableMismatch: it was made for something else; every differing field is listed.
    """
    try:
        plain = read_object(Path(path))
        if FINGERPRINT_KEY not in plain:
            raise BadInput(f"it has no {FINGERPRINT_KEY}, so nothing says where it was made")
        there = Fingerprint(**checked_fields("the fingerprint", Fingerprint, plain.pop(FINGERPRINT_KEY)))
        plain.pop(ORIGIN_KEY, None)
        table = _checked(plain)
    except BadInput as error:
        raise StepTableRefused(f"{path}: is no cost table of this tool ({error})") from error
    here = {name: value for name, value in asdict(fingerprint).items() if name not in ENVIRONMENT_FIELDS or value is not None}
    if differences := differing(asdict(there), here):
        raise StepTableMismatch(path, differences)
    return table


def _checked(table: dict[str, Any]) -> dict[str, Any]:
    """The table itself, if it is of one of the formats, finite, positive and ordered."""
    kind = next((kind for kind in AXES if set(table) == {*AXES[kind], *SCALARS[kind]}), None)
    if kind is None:
        raise StepTableRefused(f"fields {sorted(table)} are those of no format: {', '.join(AXES)}")
    lists = iter(AXES[kind])
    for probes, values in zip(lists, lists, strict=True):
        _check_axis(probes, table[probes], values, table[values], zero_is_fine=values in ("theta_seconds", "alpha_seconds", "batch_overhead_ms"))
    (scalar,) = SCALARS[kind]
    low = table["sample_batch_tokens"][-1] if kind == "sps" else 0
    if not is_number(table[scalar]) or table[scalar] < low or (kind == "additive" and table[scalar] == 0):
        raise StepTableRefused(f"{scalar} is {table[scalar]!r}; it must be finite and {'above 0' if kind == 'additive' else f'at least {low}'}")
    return table


def _check_axis(probes_name: str, probes: Any, values_name: str, values: Any, zero_is_fine: bool) -> None:
    """Probes are rising whole numbers from 1; values as many, finite, above 0 (or from 0), in one order."""
    whole = isinstance(probes, list) and all(isinstance(one, int) and not isinstance(one, bool) and one >= 1 for one in probes)
    if not whole or not probes or probes != sorted(set(probes)):
        raise StepTableRefused(f"{probes_name} is {probes!r}; it must be whole numbers of at least 1, each above the one before")
    fine = isinstance(values, list) and len(values) == len(probes) and all(is_number(one) and (one > 0 or zero_is_fine and one == 0) for one in values)
    if not fine or values != sorted(values, reverse=values_name == "sample_steps_per_sec"):
        order = "falling" if values_name == "sample_steps_per_sec" else "rising"
        raise StepTableRefused(f"{values_name} is {values!r}; it must be {len(probes)} finite numbers {'of at least' if zero_is_fine else 'above'} 0, {order}")
    if probes_name not in ("bs_probes", "batch_sizes") and (len(probes) < 2 or values[0] == values[-1]):
        raise StepTableRefused(f"{values_name} is {values!r}: flat, or of one probe; a table needs two that differ")
