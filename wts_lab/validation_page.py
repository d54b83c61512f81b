"""The validation page: one small HTML file with every recorded walk, measured and predicted, for those who open no notebook.

`python -m wts_lab.validation_page --out docs/validation.html` writes it from the shipped records. It loads nothing:
pictures are SVG (`wts_lab.parity_svg`), and there is no script. The same records give the same file, which a test holds the committed one to.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.files import write_text_whole
from cost_model.gpu import load_gpu
from cost_model.tables import signed_percent
from cost_model.units import format_us
from wts_lab.parity_svg import parity_svg
from wts_lab.ui.validation_figure import SUMMARY_TITLES, goal_rows, summary_rows
from wts_lab.validated import KIND_WORDS, Validated, validated, walk_words

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey
    from cost_model.validation import ValidationPoint

OUT = Path("docs/validation.html")
STYLE = """
:root { --ink:#2b2f36; --quiet:#6b7280; --line:#e3e6ea; }
body { margin:0; color:var(--ink); font:16px/1.5 Inter,'Segoe UI','Helvetica Neue',Arial,sans-serif; }
main { max-width:1380px; margin:0 auto; padding:32px 24px 64px; }
h1 { font-size:28px; margin:0 0 8px; } h2 { font-size:20px; margin:40px 0 8px; }
p { max-width:52em; margin:8px 0; } .quiet { color:var(--quiet); font-size:14.5px; }
table { border-collapse:collapse; font-size:13px; font-variant-numeric:tabular-nums; margin:10px 0; }
th, td { text-align:left; padding:3px 9px 3px 0; border-bottom:1px solid var(--line); vertical-align:top; }
th { font-weight:600; } td.n, th.n { text-align:right; }
.wide { overflow-x:auto; } .pair { display:flex; flex-wrap:wrap; gap:20px; align-items:flex-start; }
.out { color:#A84A00; font-weight:600; }
svg text { font-size:12px; fill:var(--ink); } svg .q { fill:var(--quiet); } span.q { color:var(--quiet); }
"""

ABOUT = (
    "Each walk was recorded on the GPU named above, with at least three walk lengths; its step is the slope of complete calls. "
    "A prediction is the model's, from parameters that each section names. Held means that the predicted 95 % interval holds the measured step. "
    "Only walks with the exchange that settings can ask for are here; experiments with others are not what the model describes."
)
ABOUT_WALKS = (
    "One row a recorded walk: its measured step with the 95 % interval, and for each kind of prediction the predicted step, half of its 95 % "
    "interval, and the error. <span class=out>Marked</span> where the interval does not hold the measurement."
)


def render(result: Validated) -> str:
    """The page as text."""
    name = load_gpu(result.gpu_id, calibrated=False).name
    sections = [_section(result, kind) for kind in result.points]
    notes = "".join(f"<p class=quiet>{html.escape(note)}.</p>" for note in result.seen)
    goals = _table(("of a step", *SUMMARY_TITLES[1:5]), goal_rows())
    body = [
        f"<h1>Validation on {html.escape(name)}</h1>",
        f"<p class=quiet>{html.escape(result.label)}. Times in microseconds (µs).</p>",
        f"<p>{ABOUT}</p>",
        "<h2>What is asked</h2>",
        goals,
        notes,
        *sections,
        "<h2>Every walk</h2>",
        f"<p>{ABOUT_WALKS}</p>",
        _walks(result),
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>Validation on {html.escape(name)}</title>\n<style>{STYLE}</style>"
    return f"<!doctype html>\n<html lang=en>\n<head>{head}</head>\n<body><main>\n" + "\n".join(body) + "\n</main></body>\n</html>\n"


def _section(result: Validated, kind: str) -> str:
    """One kind of prediction: what it rests on, its picture, and the accuracy of each group."""
    title = kind[0].upper() + kind[1:]
    table = _table(("walks of", *SUMMARY_TITLES), summary_rows(result, kind))
    return (
        f"<h2>{html.escape(title)}</h2><p>Predicted from: {html.escape(KIND_WORDS[kind])}.</p>\n"
        f"<div class=pair>{parity_svg(result.points[kind], title)}\n<div class=wide>{table}</div></div>"
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], cells_are_html: bool = False) -> str:
    """A table whose first column is left-aligned and whose others are numbers."""
    words = (lambda text: text) if cells_are_html else html.escape
    head = "".join(f"<th{'' if place == 0 else ' class=n'}>{html.escape(title)}" for place, title in enumerate(titles))
    lines = ["<tr>" + "".join(f"<td{'' if place == 0 else ' class=n'}>{words(cell)}" for place, cell in enumerate(row)) for row in rows]
    return f"<table><thead><tr>{head}</thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table>"


def _walks(result: Validated) -> str:
    """Every walk in a row, and every kind in a column."""
    kinds = list(result.points)
    walks: dict[SeriesKey, dict[str, ValidationPoint]] = {}
    for kind, points in result.points.items():
        for point in points:
            walks.setdefault(point.series, {})[kind] = point
    rows = []
    for key, found in sorted(walks.items(), key=lambda one: _order(one[0])):
        any_point = next(iter(found.values()))
        measured = f"{format_us(any_point.measured_us)} <span class=q>({_ends(any_point)})</span>"
        rows.append((html.escape(walk_words(key)), measured, *(_predicted(found.get(kind)) for kind in kinds), html.escape(str(key.record))))
    return f"<div class=wide>{_table(('walk', 'measured step', *kinds, 'record'), rows, cells_are_html=True)}</div>"


def _order(key: SeriesKey) -> tuple:
    """Heads together, then ways, loads and L2 states."""
    head = (key.head_kind or "markov", key.vocab_size, key.rank, key.hidden_size or 0, key.candidate_pool or 0)
    way = (str(key.implementation), str(key.mode), str(key.precision), str(key.variant))
    return *head, *way, key.temperature or 0.0, key.batch or 1, str(key.l2_state), str(key.rounding), str(key.record), repr(key)


def _ends(point: ValidationPoint) -> str:
    """The measured interval without its unit."""
    low, high = (format_us(end).removesuffix(" µs") for end in (point.measured_us_low, point.measured_us_high))
    return f"{low} to {high}"


def _predicted(point: ValidationPoint | None) -> str:
    """Predicted step, half of its interval, and error; marked where the interval does not hold."""
    if point is None:
        return ""
    text = f"{format_us(point.predicted_us).removesuffix(' µs')} ± {round(100 * point.half_width_share)} %, {signed_percent(point.error_share)}"
    return text if point.inside else f"<span class=out>{text}</span>"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and return the exit status: 0 written, 2 the request cannot be used."""
    command = argparse.ArgumentParser(
        prog="python -m wts_lab.validation_page", description="Write every recorded walk, measured and predicted, as one HTML page."
    )
    command.add_argument("--out", type=Path, default=OUT, help="the page (default: %(default)s)")
    command.add_argument("--gpu", default="h200-sxm", metavar="ID", help="catalogue id of a recorded GPU (default: %(default)s)")
    command.add_argument(
        "--records", type=Path, metavar="FOLDER", help="folder of records, with a folder for each GPU; those that ship if left out"
    )
    given = command.parse_args(arguments)
    try:
        path = write_text_whole(given.out, render(validated(given.gpu, given.records)))
    except (BadInput, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
