"""Compare two records point by point: ``python -m benchmarks.compare BEFORE AFTER``.

A point is one configuration at one walk length. Its verdict rests on the medians of the processes on either side, the unit that
repeats; ratios are after / before:

    interval = [min after / max before, max after / min before]      centre = median after / median before
    slower       the whole interval is above 1, and the centre at least the threshold above
    faster       the whole interval is below 1, and the centre at least the threshold below
    same         the whole interval is within the threshold of 1
    ambiguous    anything else: the difference is not larger than what repeating the measurement changes
    inconclusive one side has no kept sample

Exit status: 0 nothing is slower, 1 something is, 2 the records cannot be compared.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.measurement import frame_rows, read_walk
from cost_model.units import format_ratio, format_us
from wts_lab.recordings import PLACEMENT_COLUMNS

if TYPE_CHECKING:
    import pandas

VERDICTS = ("faster", "same", "slower", "ambiguous", "inconclusive")
DEFAULT_THRESHOLD = 0.02

POINT_COLUMNS = (
    "implementation", "variant", "mode", "precision", "rounding", "head_kind", "vocab_size", "target_vocab_size", "padded_vocab_size",
    "rank", "hidden_size", "gru_size", "candidate_pool", "batch", "temperature", "logits_kept", "l2_state", "steps", "probe", "work_bytes",
)  # fmt: skip
"""What makes two rows the same point. The placement is left out: choosing a better one is a change worth comparing."""

CONFIGURATION = (*PLACEMENT_COLUMNS, "exchange")
"""What tells points apart where a record times one in several configurations."""

MUST_AGREE = ("gpu_name", "gpu_sm_count")
WORTH_TELLING = ("driver_version", "cuda_version", "torch_version", "wts_lab_version", "git_commit")


@dataclass(frozen=True)
class PointComparison:
    """One point in both records.

    Attributes:
        point: values of the columns that identify it.
        before_us, after_us: medians over processes of the medians of their samples; ``None`` where there are none.
        ratio, ratio_low, ratio_high: after / before and its interval; ``None`` where a side has no samples.
        verdict: one of VERDICTS.
    """

    point: dict[str, Any]
    before_us: float | None
    after_us: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: str


@dataclass(frozen=True)
class RecordComparison:
    """Two records compared: points in both, points in only one, and provenance that differs."""

    points: tuple[PointComparison, ...]
    only_before: int
    only_after: int
    differing: tuple[str, ...]

    def count(self, verdict: str) -> int:
        """Points with that verdict."""
        return sum(point.verdict == verdict for point in self.points)


def judge(before: Sequence[float], after: Sequence[float], threshold: float = DEFAULT_THRESHOLD) -> tuple[str, tuple[float, float, float] | None]:
    """Verdict, and (ratio, low, high), from the medians of the processes of both sides, in microseconds.

    With one process on a side nothing is known of its repeatability: the answer is ambiguous.

    Raises:
        BadInput: the threshold is not above 0 and below 1.
    """
    if not 0 < threshold < 1:
        raise BadInput(f"the threshold is {threshold}; give a share above 0 and below 1, such as 0.02")
    if not before or not after:
        return "inconclusive", None
    ratio, low, high = statistics.median(after) / statistics.median(before), min(after) / max(before), max(after) / min(before)
    if min(len(before), len(after)) < 2:
        verdict = "ambiguous"
    elif low > 1 and ratio >= 1 + threshold:
        verdict = "slower"
    elif high < 1 and ratio <= 1 - threshold:
        verdict = "faster"
    elif low >= 1 - threshold and high <= 1 + threshold:
        verdict = "same"
    else:
        verdict = "ambiguous"
    return verdict, (ratio, low, high)


def compare(before: pandas.DataFrame, after: pandas.DataFrame, threshold: float = DEFAULT_THRESHOLD) -> RecordComparison:
    """Compare two records as ``read_walk`` returns them.

    Raises:
        BadInput: they come from different GPUs, have no point in common, or one holds a point twice in a process.
    """
    differing = _differing(before, after)
    sides = _medians(before), _medians(after)
    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        raise BadInput("the records have no point in common: nothing to compare. Record the same benchmark twice")
    points = []
    for key in shared:
        medians = [list(side[key].values()) for side in sides]
        verdict, ratios = judge(*medians, threshold)
        middle = [statistics.median(one) if one else None for one in medians]
        points.append(PointComparison(dict(key), *middle, *(ratios or (None, None, None)), verdict))
    return RecordComparison(tuple(points), len(sides[0]) - len(shared), len(sides[1]) - len(shared), differing)


def _differing(before: pandas.DataFrame, after: pandas.DataFrame) -> tuple[str, ...]:
    """Provenance that differs, in words; BadInput where the GPU does."""
    found = []
    for name in (*MUST_AGREE, *WORTH_TELLING):
        values = [sorted({str(value) for value in frame[name].dropna()}) for frame in (before, after)]
        if values[0] != values[1]:
            found.append((name, f"{name}: {', '.join(values[0]) or 'n/a'} before, {', '.join(values[1]) or 'n/a'} after"))
    apart = [text for name, text in found if name in MUST_AGREE]
    if apart:
        raise BadInput(f"the records come from different GPUs ({'; '.join(apart)}); compare records of one GPU")
    return tuple(text for _, text in found)


def _medians(frame: pandas.DataFrame) -> dict[tuple, dict[int, float]]:
    """Point -> process -> median of its kept samples in microseconds; a point without samples has no process."""
    rows = frame_rows(frame)
    names = POINT_COLUMNS if not _repeats(rows, POINT_COLUMNS) else (*POINT_COLUMNS, *CONFIGURATION)
    if _repeats(rows, names):
        raise BadInput("a record holds the same point twice in one process; compare records of single runs")
    medians: dict[tuple, dict[int, float]] = {}
    for row in rows:
        of_point = medians.setdefault(tuple((name, row[name]) for name in names), {})
        if row["samples_us"]:
            of_point[row["process_index"]] = statistics.median(row["samples_us"])
    return medians


def _repeats(rows: list[dict[str, Any]], names: Sequence[str]) -> bool:
    """Whether two rows of one process are the same point by these columns."""
    keys = [(row["process_index"], *(row[name] for name in names)) for row in rows]
    return len(set(keys)) < len(keys)


def describe(point: dict[str, Any]) -> str:
    """A point in one line; what is as usual is left out."""
    if point["probe"] != "none" and point["mode"] is None:
        return " ".join(str(point[name]) for name in ("probe", "variant", "work_bytes") if point[name] is not None)
    unusual = (
        (point["head_kind"], point["head_kind"] not in (None, "markov")), (f"hidden {point['hidden_size']}", point["hidden_size"] is not None),
        (f"pool {point['candidate_pool']}", point["candidate_pool"] is not None), (f"batch {point['batch']}", point["batch"] not in (None, 1)),
        (f"temperature {point['temperature']}", bool(point["temperature"])), (f"{point['probe']} alone", point["probe"] != "none"),
    )  # fmt: skip
    shape = " ".join((f"V {point['vocab_size']:,} rank {point['rank']}", *(text for text, holds in unusual if holds)))
    return f"{point['implementation']} {point['mode']} {point['precision']} {shape} {point['l2_state']} {point['steps']} steps"


def lines(comparison: RecordComparison) -> list[str]:
    """The comparison as text: what differs, every point that is not the same, and the counts."""
    text = [f"differs: {one}" for one in comparison.differing]
    for point in comparison.points:
        if point.verdict != "same":
            interval = "n/a" if point.ratio is None else f"{format_ratio(point.ratio)} ({point.ratio_low:.3f} to {point.ratio_high:.3f})"
            text.append(f"{point.verdict:12} {describe(point.point)}: {format_us(point.before_us)} -> {format_us(point.after_us)}, {interval}")
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in VERDICTS)
    return [*text, f"{len(comparison.points)} points: {counts}; {comparison.only_before} only before, {comparison.only_after} only after"]


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Compare two records of one benchmark on one GPU.")
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    command.add_argument("--threshold", type=float, default=DEFAULT_THRESHOLD, help="share that matters (default: %(default)s)")
    given = command.parse_args(arguments)
    comparison = compare(read_walk(given.before), read_walk(given.after), given.threshold)
    print("\n".join(lines(comparison)))
    return 1 if comparison.count("slower") else 0


if __name__ == "__main__":
    raise SystemExit(main())
