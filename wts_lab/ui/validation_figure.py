"""Parity: predicted over measured step of every recorded walk, and the tables of validation.

See `figures` for colours and specs; the points come from `wts_lab.validated`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.tables import signed_percent
from cost_model.units import UNKNOWN, format_interval_us, format_percent, format_us
from cost_model.workload import OURS
from wts_lab.ui.figures import INK, OTHER_STYLE, PAPER, QUIET, STYLES, TIME_TICKS, Spec, Style, axis, draw, heading, layout
from wts_lab.validated import GOALS, KIND_WORDS, Validated, shortfalls, summaries, walk_words

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

    from cost_model.validation import Accuracy, ValidationPoint

PARITY_WORDS = "marker: a walk, with its predicted interval · line: equal · dotted: 15 % off"
OFF_SHARE = 0.15
"""How far off the dotted lines lie: the worst that a held-out walk is allowed."""

AIR = 0.12


def style_of_point(point: ValidationPoint) -> tuple[str, Style]:
    """The name and look of the series that a point belongs to: its way of walking, or the engine."""
    key = point.series
    if key.implementation != OURS:
        return str(key.implementation), STYLES["engine"]
    return f"{key.mode} {key.precision}", STYLES.get(f"{key.mode}-{key.precision}", OTHER_STYLE)


def parity_figure(points: Sequence[ValidationPoint], *, title: str = "Predicted and measured steps", height_px: int = 620) -> go.Figure:
    """Predicted over measured step (microseconds, both logarithmic), a marker a walk."""
    return draw(parity_spec(points, title=title, height_px=height_px))


def parity_spec(points: Sequence[ValidationPoint], *, title: str = "Predicted and measured steps", height_px: int = 620) -> Spec:
    """The spec of `parity_figure`: a trace a way of walking, then the line of equality and those of OFF_SHARE."""
    low, high = decades(points)
    ends = [10**low, 10**high]
    lines = [("equal", 1.0, "solid"), ("15 % too slow", 1 + OFF_SHARE, "dot"), ("15 % too fast", 1 - OFF_SHARE, "dot")]
    ticks = dict(tickvals=list(TIME_TICKS), ticktext=[f"{tick:,}" for tick in TIME_TICKS], range=[low, high], type="log")
    return dict(
        data=[
            *(
                dict(
                    type="scatter",
                    mode="lines",
                    name=name,
                    x=ends,
                    y=[end * factor for end in ends],
                    line=dict(color=QUIET, width=1.2, dash=dash),
                    hoverinfo="skip",
                    showlegend=False,
                )
                for name, factor, dash in lines
            ),
            *(
                _trace(name, style, [point for point in points if style_of_point(point)[0] == name])
                for name, style in dict(map(style_of_point, points)).items()
            ),
        ],
        layout=layout(
            height_px,
            title=heading(title, PARITY_WORDS),
            showlegend=True,
            margin=dict(l=92, r=190, t=112, b=64),
            legend=dict(x=1.01, y=1.0, xanchor="left", yanchor="top", font=dict(size=12)),
            xaxis=axis("measured step [µs], log scale", **ticks),
            yaxis=axis("predicted step [µs], log scale", **ticks),
        ),
    )


def decades(points: Sequence[ValidationPoint]) -> tuple[float, float]:
    """Range (powers of ten) that holds all measured and predicted steps; 1 to 100 where there are none."""
    values = [us for point in points for us in (point.measured_us, point.predicted_us)]
    return (math.log10(min(values)) - AIR, math.log10(max(values)) + AIR) if values else (0.0, 2.0)


def _trace(name: str, style: Style, own: Sequence[ValidationPoint]) -> Spec:
    """The walks of one way."""
    return dict(
        type="scatter",
        mode="markers",
        name=name,
        x=[point.measured_us for point in own],
        y=[point.predicted_us for point in own],
        marker=dict(color=style.colour, symbol=style.symbol, size=8, line=dict(color=PAPER, width=0.8)),
        error_y=dict(
            type="data",
            symmetric=False,
            array=[point.predicted_us_high - point.predicted_us for point in own],
            arrayminus=[point.predicted_us - point.predicted_us_low for point in own],
            color=style.colour,
            thickness=0.8,
            width=0,
        ),
        hovertext=[
            f"{walk_words(point.series)}<br>measured {format_us(point.measured_us)}, predicted {format_us(point.predicted_us)} ({signed_percent(point.error_share)})"
            for point in own
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


SUMMARY_TITLES = ("walks", "median error", "worst error", "held", "half-width", "goal")
"""Errors are of steps, regardless of sign; held is the share of 95 % intervals that hold the measurement; a half-width is half of an interval over
the prediction, and its column has medians."""


def summary_rows(result: Validated, kind: str) -> list[tuple[str, ...]]:
    """Each group of a kind, as text: name and SUMMARY_TITLES. A goal is asked of the first two groups, all walks and those that the model is fitted to."""
    rows = []
    for place, (name, found) in enumerate(summaries(result, kind).items()):
        goal = GOALS.get(kind) if place < 2 else None
        rows.append((name, *accuracy_words(found), UNKNOWN if goal is None else goal_words(shortfalls(found, goal))))
    return rows


def goal_words(missed: Sequence[str]) -> str:
    """Whether a goal is met, or what of it is missed."""
    return f"missed: {', '.join(missed)}" if missed else "met"


def accuracy_words(found: Accuracy) -> tuple[str, ...]:
    """An accuracy as text, in the order of SUMMARY_TITLES without the goal."""
    shares = (found.median_share, found.worst_share, found.inside_share, found.half_width_share)
    return f"{found.points:,}", *(format_percent(share) for share in shares)


def goal_rows() -> list[tuple[str, ...]]:
    """What is asked of each kind that has a goal: name, and SUMMARY_TITLES without walks and verdict."""
    rows = []
    for kind, goal in GOALS.items():
        worst = UNKNOWN if goal.worst_share is None else f"≤ {format_percent(goal.worst_share)}"
        rows.append(
            (
                kind,
                f"≤ {format_percent(goal.median_share)}",
                worst,
                f"{format_percent(goal.inside_share_low)} to {format_percent(goal.inside_share_high)}",
                f"≤ {format_percent(goal.half_width_share)}",
            )
        )
    return rows


def validation_goals_table() -> pandas.DataFrame:
    """What is asked, kind by kind."""
    import pandas

    return pandas.DataFrame(goal_rows(), columns=["kind", *SUMMARY_TITLES[1:5]]).set_index("kind")


def validation_table(result: Validated, kind: str) -> pandas.DataFrame:
    """Accuracy of each group of one kind."""
    import pandas

    return pandas.DataFrame(summary_rows(result, kind), columns=["walks of", *SUMMARY_TITLES]).set_index("walks of")


def validation_summary_table(result: Validated) -> pandas.DataFrame:
    """Accuracy over all walks, and over those that the model is fitted to, of every kind, with what each kind is."""
    import pandas

    rows = [(kind, *row, KIND_WORDS[kind]) for kind in result.points for row in summary_rows(result, kind)[: 2 if kind in GOALS else 1]]
    return pandas.DataFrame(rows, columns=["kind", "walks of", *SUMMARY_TITLES, "predicted from"]).set_index(["kind", "walks of"])


def worst_table(points: Sequence[ValidationPoint], count: int = 10) -> pandas.DataFrame:
    """The walks that are furthest off, worst first."""
    import pandas

    ordered = sorted(points, key=lambda point: abs(point.error_share), reverse=True)[:count]
    rows = [
        (
            walk_words(point.series),
            format_us(point.measured_us),
            format_us(point.predicted_us),
            format_interval_us(point.predicted_us_low, point.predicted_us_high),
            signed_percent(point.error_share),
            "yes" if point.inside else "no",
            str(point.series.record),
        )
        for point in ordered
    ]
    return pandas.DataFrame(rows, columns=["walk", "measured", "predicted", "95 % interval", "error", "held", "record"]).set_index("walk")
