"""Put the cost model's figures into its documentation: ``python -m benchmarks.model_tables``.

Reads the shipped records of the reference GPU and its calibration, and replaces what stands between the marks of `docs/cost-model.md`: parameters
that the records fix, accuracy on walks that are held out, and each kind of walk, measured and predicted. A test holds the document to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.files import require_writable, write_text_whole
from cost_model.gpu import CALIBRATED_PARAMETERS, Figure, load_gpu
from cost_model.measurement import read_walk_folder
from cost_model.parameters import REFERENCE_GPU, RESIDUALS
from cost_model.paths import data_root
from cost_model.recorded import class_of_series, unchecked_of_series
from cost_model.units import format_percent, format_rate, format_us
from cost_model.validation import (
    ValidationPoint, accuracy, from_datasheet, in_sample_constants, leave_one_batch_out, leave_one_vocabulary_out, leave_records_out, walks_of,
)
from cost_model.walk_class import WALK_CLASSES

DOCUMENT = Path("docs/cost-model.md")


REGIONS = ("parameters", "accuracy", "walks", "constants")
"""What of the document is filled."""


GRID = "-grid-"
"""Part of the names of records of whole grids."""


OTHER_PLACEMENTS = "-placements"
"""End of the names of records of placements that the planner would not choose; the table of walks leaves them out."""


def tables() -> dict[str, str]:
    """Name of a region of the document -> its Markdown."""
    gpu, frame = load_gpu(REFERENCE_GPU, calibrated=False), read_walk_folder(data_root() / "measurements" / REFERENCE_GPU)
    walks = walks_of(frame)
    vocabularies, batches = leave_one_vocabulary_out(gpu, frame, walks), leave_one_batch_out(gpu, frame, walks)
    grids, sheet = leave_records_out(gpu, frame, sorted({key.record for key, _ in walks if GRID in key.record}), walks), from_datasheet(gpu, frame, walks)
    return {
        "parameters": parameter_table(load_gpu(REFERENCE_GPU).figures), "accuracy": accuracy_table(vocabularies, batches, grids, sheet),
        "walks": walk_table(batches), "constants": ", ".join(f"`{name}`" for name in sorted(in_sample_constants())),
    }


def parameter_table(figures: dict[str, Figure]) -> str:
    """Parameters that records fix, and the residual coefficients."""
    meanings = {**CALIBRATED_PARAMETERS, **{name: f"residual: {what}" for name, what in RESIDUALS.items()}}
    return _table(("parameter", "what it stands for", "value"),
                  [(f"`{name}`", meaning, _value(figures[name])) for name, meaning in meanings.items() if name in figures])


def _value(figure: Figure) -> str:
    """A figure with its standard error."""
    error = figure.standard_error or 0.0
    if figure.unit in ("B/s", "op/s", "FLOP/s"):
        return f"{format_rate(figure.value).removesuffix('op/s')}{figure.unit} ± {format_percent(error / figure.value)}"
    return f"{figure.value:.3g} ± {error:.2g} {figure.unit}".replace(" us", " µs").replace(" ratio", "")


def accuracy_table(vocabularies: Sequence[ValidationPoint], batches: Sequence[ValidationPoint], grids: Sequence[ValidationPoint],
                   sheet: Sequence[ValidationPoint]) -> str:
    """Errors of each way to hold walks out; of those that the model claims to describe; and of those that no part of the same batch is recorded of."""
    unparted = [point for point in batches if point.series.batch == 2]
    groups = [
        ("a vocabulary left out", vocabularies), ("the same, walks that the model describes", _described(vocabularies)),
        ("a batch left out", batches), ("the same, walks that the model describes", _described(batches)),
        *((f"the same, {what}", _of_class(batches, name)) for name, what in WALK_CLASSES.items()),
        ("batch 2 left out, of which no part is recorded", unparted),
        ("the grids' records left out", grids), ("the same, walks that the model describes", _described(grids)), ("datasheet alone", sheet),
    ]
    rows = []
    for name, points in ((name, points) for name, points in groups if points):
        found = accuracy(points)
        rows.append((name, str(found.points), *map(format_percent, (found.median_share, found.worst_share, found.inside_share, found.half_width_share))))
    return _table(("held out", "series", "median error of a step", "worst", "in their interval", "median half-width"), rows)


def _described(points: Iterable[ValidationPoint]) -> list[ValidationPoint]:
    """Points of walks that predictions carry no note about."""
    return [point for point in points if not unchecked_of_series(point.series)]


def _of_class(points: Iterable[ValidationPoint], name: str) -> list[ValidationPoint]:
    """Described points of a class of walks."""
    return [point for point in _described(points) if class_of_series(point.series) == name]


def walk_table(points: Sequence[ValidationPoint]) -> str:
    """Each kind of walk with warm L2: measured and predicted steps by batch, or by vocabulary at batch 1; medians over records of the planner's placements."""
    warm = [point for point in points if point.series.l2_state == "warm" and not str(point.series.record).endswith(OTHER_PLACEMENTS)]

    def kind(point: ValidationPoint) -> tuple:
        key = point.series
        return key.head_kind, key.mode, key.precision, (key.temperature or 0) > 0, key.rank

    rows = []
    for each in sorted({kind(point) for point in warm}, key=lambda one: (("markov", "gated", "rnn", "domino").index(one[0]), one[3], one[1:])):
        of_kind = [point for point in warm if kind(point) == each]
        head, mode, precision, sampled, rank = each
        name = f"{head}, rank {rank}, {mode} {precision}{', sampled' if sampled else ''}"
        usual = max({point.series.vocab_size for point in of_kind}, key=lambda size: sum(point.series.vocab_size == size for point in of_kind))
        rows += _rows(name, f"batch, V {usual:,}", [point for point in of_kind if point.series.vocab_size == usual], lambda point: point.series.batch or 1)
        others = [point for point in of_kind if (point.series.batch or 1) == 1]
        if len({point.series.vocab_size for point in others}) > 1:
            rows += _rows(name, "V, batch 1", others, lambda point: point.series.vocab_size)
    return _table(("walk", "of", "", "measured", "predicted", "error"), rows)


def _rows(name: str, axis: str, points: Sequence[ValidationPoint], label: Callable[[ValidationPoint], int]) -> list[tuple[str, ...]]:
    """One row: labels, and the steps at each."""
    labels = sorted({label(point) for point in points})
    of = [[point for point in points if label(point) == one] for one in labels]
    measured = [median(point.measured_us for point in some) for some in of]
    predicted = [median(point.predicted_us for point in some) for some in of]
    errors = [f"{100 * (there / here - 1):+.0f}" for here, there in zip(measured, predicted)]
    return [(name, axis, _joined(f"{one:,}" for one in labels), _joined(map(_short, measured)) + " µs", _joined(map(_short, predicted)) + " µs", _joined(errors) + " %")]


def _short(time_us: float) -> str:
    """Three digits of a time, its unit left out."""
    return format_us(time_us).removesuffix(" µs")


def _joined(texts: Iterable[str]) -> str:
    """Texts between slashes."""
    return " / ".join(texts)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines)


def filled(text: str, regions: dict[str, str]) -> str:
    """Return a document with what stands between the marks of each region replaced.

    Raises:
        BadInput: a region's marks are not there once each.
    """
    for name, content in regions.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise BadInput(f"the document must have {begin} and {end} once each; the {name} go between them")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the document and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.model_tables", description="Put the cost model's figures into its documentation.")
    command.add_argument("--document", type=Path, default=DOCUMENT, help="default: %(default)s")
    path = command.parse_args(arguments).document
    text = path.read_text("utf-8")
    filled(text, dict.fromkeys(REGIONS, ""))  # refused now, not after a minute's work
    require_writable(path)
    write_text_whole(path, filled(text, tables()))
    print(f"filled {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
