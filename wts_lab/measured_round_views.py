"""How recorded rounds look: tables and sentences for the terminal and for Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.measured_round import HEAD, LEAST_KEPT, PHASES, WHOLE, MeasuredPart
from cost_model.published import load_claims
from cost_model.tables import signed_percent
from cost_model.units import format_count, format_percent, format_us

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost_model.measured_round import ComparedPart, MeasuredGain, RoundComparison, RoundKey

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, columns and rows of text."""

PUBLISHED = "throughput_gain_max"

THIN = " *"
"""After a figure that rests on few of its samples."""


def tables(found: RoundComparison) -> list[Table]:
    """Whole rounds, their phases for each target, and how far the model is off."""
    return [_gains(found), *_phases(found), _errors(found)]


def sentences(found: RoundComparison) -> list[str]:
    """What was measured, and what others published, side by side."""
    lines = [f"Predictions of passes: {found.basis}; of heads: the GPU's calibration."]
    taken = [gain for gain in found.over_taken() if gain.stands]
    if taken:
        most = max(taken, key=lambda gain: gain.gain)
        lines.append(f"At the same accepted length the resident head gives {format_percent(min(gain.gain for gain in taken))} to {format_percent(most.gain)} more tokens per "
                     f"second than the path that the engine takes, the most with {_named(found, most.key)}: {_interval(most)}.")
        fastest = [min(gain.gain for gain in found.gains if gain.key == one.key and gain.stands) for one in taken]
        lines.append(f"Over the fastest path that the engine has for each round it is {format_percent(min(fastest))} to {format_percent(max(fastest))}.")
    claim = next(claim for claim in load_claims() if claim.id == PUBLISHED)
    lines.append(f"Published: up to {claim.value:g} {claim.unit} ({claim.source}; {claim.claim[0].lower()}{claim.claim[1:]}), in an engine, with its host's work between passes.")
    return [*lines, *_lost(found)]


def markdown(found: RoundComparison) -> str:
    """The same as a Markdown page."""
    parts = [f"# Rounds on {found.gpu_id}, measured and predicted"]
    for title, columns, rows in tables(found):
        lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] + ["---:"] * (len(columns) - 1), *rows)]
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, *sentences(found)]) + "\n"


def _lost(found: RoundComparison) -> list[str]:
    """What was dropped, of which rounds, and what that leaves; nothing where nothing was."""
    lost = found.lost
    if not lost.dropped:
        return []
    lines = [f"{format_count(lost.dropped)} of {format_count(lost.taken)} samples were dropped because the GPU throttled ({lost.reasons}): of {_rounds(found, lost.rounds)}. "
             f"A figure marked with{THIN} keeps fewer than {format_percent(LEAST_KEPT)} of its samples, those of moments when the driver named no reason; such gains are not among those above."]
    if lost.without_gain:
        lines.append(f"No gain was measured of {_rounds(found, lost.without_gain)}: no process kept samples of the round with both heads.")
    return lines


def _rounds(found: RoundComparison, keys: Iterable[RoundKey]) -> str:
    """Rounds in words."""
    return ", ".join(_named(found, key) for key in keys)


def _named(found: RoundComparison, key: RoundKey) -> str:
    """A round in words, with its block length where the rounds have several."""
    several = len({one.part.key.draft_tokens for one in found.parts}) > 1
    return f"{key.target} {_place(key)}" + (f", {key.draft_tokens} drafted" if several else "")


def _place(key: RoundKey) -> str:
    """Sequences and context."""
    return f"{key.concurrency} × {key.context_tokens:,}"


def _interval(gain: MeasuredGain) -> str:
    """A gain with its interval, marked where it rests on few samples."""
    told = "one process" if gain.gain_low is None else f"{format_percent(gain.gain_low)} to {format_percent(gain.gain_high)}"
    return f"{format_percent(gain.gain)} ({told}){'' if gain.stands else THIN}"


def _time(part: MeasuredPart) -> str:
    """A time with the half-width of its interval, marked where it rests on few samples."""
    half = "" if part.time_us_low is None else f" ± {format_percent((part.time_us_high - part.time_us) / part.time_us)}"
    return format_us(part.time_us) + half + ("" if part.kept_share >= LEAST_KEPT else THIN)


def _gains(found: RoundComparison) -> Table:
    """Whole rounds with both heads."""
    whole = {(one.part.key, one.part.implementation): one.part for one in found.parts if one.part.phase == WHOLE}
    rows = [(f"{gain.key.target}, {_place(gain.key)}", str(gain.key.draft_tokens), gain.before, _time(whole[gain.key, gain.before]), format_percent(gain.head_share), _time(whole[gain.key, gain.after]),
             _interval(gain), format_percent(gain.predicted_gain)) for gain in found.gains]
    return ("Whole rounds: the resident head over a stepwise one, at the same accepted length",
            ("round", "drafted", "stepwise head", "round with it", "its share", "round, resident", "gain", "predicted gain"), rows)


def _phases(found: RoundComparison) -> list[Table]:
    """For each target and block length, every phase and head: measured, and the prediction's error."""
    by_block: dict[tuple[str, int], dict[RoundKey, list[ComparedPart]]] = {}
    for one in found.parts:
        by_block.setdefault((one.part.key.target, one.part.key.draft_tokens), {}).setdefault(one.part.key, []).append(one)
    tables = []
    for (target, drafted), rounds in by_block.items():
        heads = list(dict.fromkeys(one.part.implementation for parts in rounds.values() for one in parts if one.part.phase == HEAD))
        columns = [(phase, None) for phase in PHASES] + [(HEAD, name) for name in heads]
        rows = []
        for key, parts in rounds.items():
            cells = {(one.part.phase, one.part.implementation): f"{_time(one.part)}, {signed_percent(one.error)}" for one in parts}
            rows.append((_place(key), *(cells.get(column, "") for column in columns)))
        names = tuple(phase.replace("_", " ") if head is None else f"head: {head}" for phase, head in columns)
        tables.append((f"{target}, {drafted} drafted: phases and heads, with the prediction's error", ("sequences × context", *names), rows))
    return tables


def _errors(found: RoundComparison) -> Table:
    """Median and largest error of each phase."""
    rows = []
    for phase in (*PHASES, HEAD, WHOLE):
        errors = [abs(one.error) for one in found.parts if one.part.phase == phase]
        if errors:
            rows.append((phase.replace("_", " "), str(len(errors)), format_percent(found.median_error(phase)), format_percent(max(errors))))
    return "How far the round model is off", ("phase", "times", "median error", "largest error"), rows
