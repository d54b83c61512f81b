"""Tables of accuracy for notebooks, from the cells that reports are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.units import format_percent
from wts_lab.accuracy import FORMAT_NAMES
from wts_lab.accuracy_report import accuracy_tables
from wts_lab.accuracy_view import equal_share_interval
from wts_lab.levels import LEVELS, crossing, share_below

if TYPE_CHECKING:
    import pandas

    from wts_lab.accuracy_view import AccuracyStudy


def levels_table() -> pandas.DataFrame:
    """How many positive levels a format has, and how many of them lie below 1/14 of the highest."""
    import pandas

    rows = [
        (name, len(levels), f"{levels[0]:g} to {levels[-1]:g}", int((levels < crossing() * levels[-1]).sum()), format_percent(share_below(levels, crossing())))
        for name, levels in LEVELS.items()
    ]
    return pandas.DataFrame(rows, columns=["format", "positive levels", "from, to", "below 1/14 of the highest", "share of them"]).set_index("format")


def errors_table(study: AccuracyStudy) -> pandas.DataFrame:
    """Errors of weights, corrections and logits by head and format, as the report has them."""
    import pandas

    _, titles, cells = accuracy_tables(study.rows)[1]
    return pandas.DataFrame(cells, columns=titles).set_index(list(titles[:2]))


def equality_table(study: AccuracyStudy) -> pandas.DataFrame:
    """Share of equal steps with its 95 % interval for each head (rows) and format (columns), and how many steps each rests on."""
    import pandas

    rows = [
        (head, study.row(head, "bf16")["walks"] * study.row(head, "bf16")["steps"], *(_share(study.row(head, name)) for name in FORMAT_NAMES))
        for head in study.heads
    ]
    return pandas.DataFrame(rows, columns=["head", "steps", *FORMAT_NAMES]).set_index("head")


def _share(row: dict) -> str:
    low, high = equal_share_interval(row)
    return f"{format_percent(row['equal_step_share'])} ({format_percent(low)} to {format_percent(high)})"
