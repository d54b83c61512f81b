"""What number formats do to weights, logits and tokens: levels against weights, rounding errors, logit errors, equal steps.

See `figures` for colours and specs; levels come from `wts_lab.levels`, rows from `wts_lab.accuracy_view`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_model.units import format_percent
from wts_lab.accuracy import FORMAT_NAMES, QUANTILES, below_fourteenth
from wts_lab.accuracy_view import equal_share_interval
from wts_lab.levels import LEVELS, crossing, share_below, spacing
from wts_lab.ui.figures import INK, PAPER, QUIET, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.accuracy_view import AccuracyStudy

LEVEL_WORDS = "steps: positive levels of a format · grey: weights of each head · dotted: 1/14 of the maximum"
ROUNDING_WORDS = "half of the distance between the two levels around a weight · dotted: 1/14 of the maximum"
ERROR_WORDS = "difference from the reference's logit · quantiles, and the largest"
EQUAL_WORDS = "share of steps with the reference's token, given its history · bars: 95 % interval (Wilson)"
WEIGHT_DASHES = ("solid", "dash", "dot", "dashdot")
FEWEST = 1e-4
"""Errors of 0 stand at the foot of a log axis."""


@dataclass(frozen=True)
class FormatStyle:
    """How a format looks wherever it appears."""

    colour: str
    symbol: str
    dash: str


FORMAT_STYLES = {
    "bf16": FormatStyle("#E69F00", "triangle-up", "dashdot"),
    "int8x2": FormatStyle("#009E73", "circle", "solid"),
    "int8": FormatStyle("#0072B2", "square", "dash"),
    "fp8-e4m3": FormatStyle("#D55E00", "diamond", "dot"),
}


def levels_figure(study: AccuracyStudy, *, title: str = "Where the levels are, and where the weights are", height_px: int = 460) -> go.Figure:
    """Cumulative shares over level / highest level and |w| / max|w| of the row."""
    return draw(levels_spec(study, title=title, height_px=height_px))


def levels_spec(study: AccuracyStudy, *, title: str = "Where the levels are, and where the weights are", height_px: int = 460) -> Spec:
    """The spec of `levels_figure`: a trace a format, then one a head."""
    weights = {head: next(row["magnitude_shares"] for row in study.rows if row["head_name"] == head) for head in study.heads}
    traces = [
        dict(
            type="scatter", mode="lines", name=f"levels of {name}", x=[0.0, *(levels / levels[-1]).tolist()], y=[0.0, *(np.arange(1, len(levels) + 1) / len(levels)).tolist()],
            line=dict(shape="hv", color=FORMAT_STYLES[name].colour, dash=FORMAT_STYLES[name].dash, width=2.5), hovertemplate="%{y:.1%} of the levels up to %{x:.3f}<extra></extra>",
        )
        for name, levels in LEVELS.items()
    ]  # fmt: skip
    traces += [
        dict(
            type="scatter", mode="lines", name=f"weights of {head}", x=np.linspace(0, 1, len(shares) + 1).tolist(), y=[0.0, *np.cumsum(shares).tolist()],
            line=dict(color=QUIET, width=1.8, dash=dash), hovertemplate=f"{head}: %{{y:.1%}} of the weights below %{{x:.3f}}<extra></extra>",
        )
        for (head, shares), dash in zip(weights.items(), itertools.cycle(WEIGHT_DASHES))
    ]  # fmt: skip
    lowest, highest = (format_percent(found(below_fourteenth(shares) for shares in weights.values())) for found in (min, max))
    told = lowest if lowest == highest else f"{lowest} to {highest}"
    text = f"Left of 1/14 lie<br>{format_percent(share_below(LEVELS['fp8-e4m3'], crossing()))} of E4M3's levels,<br>{format_percent(share_below(LEVELS['int8'], crossing()))} of int8's,<br>{told} of the weights"
    axes = dict(xaxis=axis("level / highest level, or |w| / max|w| of the row", range=[0, 1]), yaxis=axis("cumulative share", range=[0, 1.02], tickformat=".0%"))
    return _frame(traces, title, LEVEL_WORDS, height_px, shapes=[_fourteenth()], annotations=[_word(text, x=0.62, y=0.26)], **axes)


def rounding_figure(*, title: str = "What rounding can cost a weight", height_px: int = 400) -> go.Figure:
    """Largest rounding error over the size of a weight, both as shares of the row's maximum."""
    return draw(rounding_spec(title=title, height_px=height_px))


def rounding_spec(*, title: str = "What rounding can cost a weight", height_px: int = 400) -> Spec:
    """The spec of `rounding_figure`: a trace a format."""
    sizes = np.linspace(0, 1, 4480, endpoint=False)
    traces = [
        dict(
            type="scatter", mode="lines", name=name, x=sizes.tolist(), y=(spacing(levels, sizes) / 2).tolist(),
            line=dict(shape="hv", color=FORMAT_STYLES[name].colour, dash=FORMAT_STYLES[name].dash, width=2.5),
            hovertemplate=f"{name}: at %{{x:.3f}} up to %{{y:.5f}} of the maximum<extra></extra>",
        )
        for name, levels in LEVELS.items()
    ]  # fmt: skip
    axes = dict(
        xaxis=axis("|w| / max|w| of the row", range=[0, 1]),
        yaxis=axis("largest error / max|w|, log scale", type="log", exponentformat="power", dtick=1),
    )
    words = [_word("← E4M3 is finer", x=crossing() + 0.01, y=-4.6), _word("int8 is finer →", x=crossing() + 0.01, y=-3.3)]
    return _frame(traces, title, ROUNDING_WORDS, height_px, shapes=[_fourteenth()], annotations=words, **axes)


def logit_error_figure(study: AccuracyStudy, head: str | None = None, *, title: str = "How far a logit moves", height_px: int = 440) -> go.Figure:
    """Quantiles of the logit error of every format on one head, the record's first where none is named."""
    return draw(logit_error_spec(study, head, title=title, height_px=height_px))


def logit_error_spec(study: AccuracyStudy, head: str | None = None, *, title: str = "How far a logit moves", height_px: int = 440) -> Spec:
    """The spec of `logit_error_figure`: a trace a format; a quantile that rests on too few errors is left out."""
    head, traces = head or study.heads[0], []
    names = [*(f"{share * 100:g} %" for share in QUANTILES.values()), "largest"]
    for format_name in FORMAT_NAMES:
        row, style = study.row(head, format_name), FORMAT_STYLES[format_name]
        values = [row[f"logit_error_{end}"] for end in (*QUANTILES, "max")]
        traces.append(
            dict(
                type="scatter", mode="lines+markers", name=format_name, x=names, y=[None if value is None else max(value, FEWEST) for value in values], customdata=values,
                line=dict(color=style.colour, dash=style.dash, width=2), marker=dict(symbol=style.symbol, size=10, color=style.colour, line=dict(color=PAPER, width=1)),
                hovertemplate=f"{format_name}, %{{x}}: %{{customdata:.4f}}<extra></extra>",
            )
        )  # fmt: skip
    axes = dict(xaxis=axis("quantile of the error", type="category", showgrid=False), yaxis=axis("|y − reference| [logits], log scale", type="log", exponentformat="power", dtick=1))
    note = _word(f"an error of 0 stands at {FEWEST:g}", x=0.0, y=np.log10(FEWEST) - 0.12, xanchor="left", yanchor="top")
    return _frame(traces, f"{title}: {head}", ERROR_WORDS, height_px, annotations=[note], **axes)


def equal_steps_figure(study: AccuracyStudy, *, title: str = "Tokens that stay", height_px: int = 460) -> go.Figure:
    """Share of equal steps of every head and format, with intervals."""
    return draw(equal_steps_spec(study, title=title, height_px=height_px))


def equal_steps_spec(study: AccuracyStudy, *, title: str = "Tokens that stay", height_px: int = 460) -> Spec:
    """The spec of `equal_steps_figure`: a trace a format, a point a head."""
    traces, lowest = [], 1.0
    for format_name in FORMAT_NAMES:
        rows, style = [study.row(head, format_name) for head in study.heads], FORMAT_STYLES[format_name]
        shares, intervals = [row["equal_step_share"] for row in rows], [equal_share_interval(row) for row in rows]
        lowest = min(lowest, *(low for low, _ in intervals))
        bars = dict(type="data", symmetric=False, array=[high - share for share, (_, high) in zip(shares, intervals)], arrayminus=[share - low for share, (low, _) in zip(shares, intervals)], thickness=1.6, width=5)
        traces.append(
            dict(
                type="scatter", mode="markers", name=format_name, offsetgroup=format_name, x=list(study.heads), y=shares, error_y=bars,
                marker=dict(symbol=style.symbol, size=11, color=style.colour), hovertemplate=f"{format_name}, %{{x}}: %{{y:.2%}}<extra></extra>",
            )
        )  # fmt: skip
    low = max(0.0, lowest - 0.02)
    axes = dict(xaxis=axis("head", type="category", showgrid=False), yaxis=axis("equal steps", tickformat=".1%", range=[low, 1 + (1 - low) * 0.08]))
    return _frame(traces, title, EQUAL_WORDS, height_px, scattermode="group", **axes)


def _frame(traces: list[Spec], title: str, words: str, height_px: int, **more: object) -> Spec:
    """A figure with its legend on the right."""
    legend = dict(x=1.01, y=1.0, xanchor="left", yanchor="top", font=dict(size=12))
    return dict(data=traces, layout=layout(height_px, title=heading(title, words), showlegend=True, legend=legend, margin=dict(l=84, r=170, t=104, b=64), **more))


def _fourteenth() -> Spec:
    """A dotted line where the two formats change places."""
    return dict(type="line", x0=crossing(), x1=crossing(), y0=0, y1=1, yref="paper", line=dict(color=INK, width=1.5, dash="dot"))


def _word(text: str, **where: object) -> Spec:
    return dict(dict(text=text, showarrow=False, xanchor="left", align="left", font=dict(size=13, color=INK)), **where)
