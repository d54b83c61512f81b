"""Figures of the lab, one function a figure: results in, a plotly figure out.

Each figure is first a *spec*: plain data (`{"data": [...], "layout": {...}}`, plotly's own JSON form).  `draw` turns a spec into a
plotly figure; a live panel keeps the spec and sends only what changed.  Plotly is imported when the first is drawn.

Colours are those of Okabe and Ito, told apart by colour-blind readers; marker shapes and line styles repeat every difference.
In every figure a dashed line or a pale band is a prediction, a solid line or a filled marker is a measurement, and a hollow
marker is a time that others published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost_model.units import format_us
from cost_model.workload import REFERENCE
from wts_lab.ui.plotly_import import graph_objects

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.comparison import Comparison

Spec = dict[str, Any]

INK, QUIET, GRID, LINE, PAPER = "#2b2f36", "#6b7280", "#e7e9ec", "#c9ced6", "#ffffff"
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MARGIN_PX = dict(l=92, r=270, t=92, b=64)
MODEBAR_REMOVED = ("select2d", "lasso2d", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d")
LABEL_HEIGHT_PX = 38
SUBTITLE_CHARACTERS = 72
"""A subtitle line of this many fits into a figure 700 pixels wide."""

TRACES_PER_SERIES = 4
LINE_WORDS = (
    "dashed: predicted, with its band · solid: fit of measured calls · bars: 5th to 95th percentile · hollow: published by others"
)
SHORT_LINE_WORDS = "dashed: predicted · solid: fit · hollow: published"
STEP_TICKS = (1, 2, 4, 7, 11, 16, 24, 32)
TIME_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


@dataclass(frozen=True)
class Style:
    """How one kind of series looks wherever it appears: colour, its pale band, marker shape, and the darker shade of its words."""

    colour: str
    band: str
    symbol: str
    words: str


STYLES = {
    "resident-int8x2": Style("#009E73", "rgba(0,158,115,0.16)", "circle", "#00724F"),
    "streaming-int8x2": Style("#0072B2", "rgba(0,114,178,0.15)", "square", "#005A8E"),
    "streaming-bf16": Style("#CC79A7", "rgba(204,121,167,0.18)", "diamond", "#97457A"),
    "resident-bf16": Style("#56B4E9", "rgba(86,180,233,0.20)", "hexagon", "#1F6F9E"),
    REFERENCE: Style("#E69F00", "rgba(230,159,0,0.16)", "triangle-up", "#8A5F00"),
    "engine": Style("#D55E00", "rgba(213,94,0,0.14)", "cross", "#A84A00"),
}
OTHER_STYLE = Style("#7f7f7f", "rgba(127,127,127,0.15)", "x", "#4b5563")


def style_of(comparison: Comparison) -> Style:
    """The Style of a series' role; grey for a role that has none."""
    return STYLES.get(comparison.role, OTHER_STYLE)


def draw(spec: Spec) -> go.Figure:
    """The plotly figure of a spec."""
    return graph_objects().Figure(spec)


def layout(height_px: int, **more: Any) -> Spec:
    """The layout that all figures share; `more` adds to it or overrides it."""
    base = dict(
        height=height_px,
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        template="none",
        font=dict(family=FONT, size=14, color=INK),
        margin=MARGIN_PX,
        hovermode="closest",
        hoverlabel=dict(bgcolor=PAPER, bordercolor=LINE, font=dict(family=FONT, size=13, color=INK)),
        uirevision="keep",
        modebar=dict(bgcolor="rgba(255,255,255,0.6)", color="#b6bcc6", activecolor=INK, remove=list(MODEBAR_REMOVED)),
    )
    return {**base, **more}


def axis(title: str = "", **more: Any) -> Spec:
    """The look that all axes share: a title with its unit, pale grid, no box."""
    base = dict(
        title=dict(text=title, font=dict(size=14, color=QUIET), standoff=12),
        gridcolor=GRID,
        zeroline=False,
        linecolor=LINE,
        showline=True,
        ticks="outside",
        tickcolor=LINE,
        ticklen=5,
        tickfont=dict(size=13, color=INK),
    )
    return {**base, **more}


def heading(title: str, subtitle: str = "") -> Spec:
    """A left-aligned title with a quiet line under it."""
    lines = wrapped(subtitle) if subtitle else []
    small = "".join(f"<br><span style='font-size:13px;color:{QUIET}'>{line}</span>" for line in lines)
    return dict(
        text=f"<b>{title}</b>{small}",
        x=0.0,
        xref="paper",
        xanchor="left",
        y=1.0,
        yref="container",
        yanchor="top",
        pad=dict(t=16),
        font=dict(size=17),
    )


def top_px(subtitle: str) -> int:
    """Height of the space over a plot that holds its heading."""
    return 48 + 20 * len(wrapped(subtitle))


def wrapped(subtitle: str) -> list[str]:
    """A subtitle as lines of at most SUBTITLE_CHARACTERS, broken where its parts meet; plotly breaks no lines by itself."""
    lines: list[str] = []
    for part in subtitle.split(" · "):
        if lines and len(lines[-1]) + len(part) + 3 <= SUBTITLE_CHARACTERS:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def call_time_figure(
    comparisons: Sequence[Comparison], *, steps: int, title: str = "Time of a complete call", height_px: int = 540
) -> go.Figure:
    """Call time (log scale, microseconds) over walk length (steps): prediction with band, measured points, fit."""
    return draw(call_time_spec(comparisons, steps=steps, title=title, height_px=height_px))


def call_time_spec(
    comparisons: Sequence[Comparison],
    *,
    steps: int,
    title: str = "Time of a complete call",
    height_px: int = 540,
    subtitle: str = LINE_WORDS,
    pinned: Sequence[tuple[str, Comparison]] = (),
) -> Spec:
    """The spec of `call_time_figure`; `pinned` adds the predicted line of other configurations, each under a name of its own.

    Every series has TRACES_PER_SERIES traces in the same order (band, prediction, fit, points), empty where there is nothing,
    so that a live figure can be updated in place.
    """
    traces = [trace for comparison in comparisons for trace in _call_time_traces(comparison, steps)]
    traces += [_pinned_trace(name, comparison, steps) for name, comparison in pinned]
    last = max(steps, 2)
    low, high = _decades(traces)
    margin = {**MARGIN_PX, "t": top_px(subtitle)}
    apart = (high - low) * LABEL_HEIGHT_PX / (height_px - margin["t"] - margin["b"])
    labels = _end_labels(comparisons, last, apart, high - apart / 2)
    return dict(
        data=traces,
        layout=layout(
            height_px,
            title=heading(title, subtitle),
            margin=margin,
            showlegend=False,
            annotations=labels,
            xaxis=axis(
                "walk length [steps]", tickvals=[n for n in STEP_TICKS if n <= last], range=[0.4, last + 0.4], showgrid=False
            ),
            yaxis=axis(
                "time of a complete call [µs], log scale",
                type="log",
                range=[low, high],
                tickvals=list(TIME_TICKS),
                ticktext=[f"{tick:,}" for tick in TIME_TICKS],
            ),
        ),
    )


def _call_time_traces(comparison: Comparison, steps: int) -> list[Spec]:
    """Band, prediction, fit and points of one series; the four are present even when empty.

    The fit's line ends with the walks that were timed: beyond them it would look like a measurement and be none.
    """
    style, label, points = style_of(comparison), comparison.label, comparison.points
    lengths = _lengths(steps)
    low, high, middle = _predicted_lines(comparison.prediction, lengths)
    timed = [n for n in lengths if min(comparison.fit.steps) <= n <= max(comparison.fit.steps)] if comparison.is_fitted else []
    line = dict(type="scatter", mode="lines", legendgroup=label)
    hover = f"{label}<br>%s %%{{y:.1f}} µs at %%{{x}} steps%s<extra></extra>"
    return [
        dict(
            line,
            name=f"{label}, predicted band",
            x=lengths + lengths[::-1] if low else [],
            y=high + low[::-1],
            fill="toself",
            line=dict(width=0, color=style.colour),
            fillcolor=style.band,
            hoverinfo="skip",
        ),
        dict(
            line,
            name=f"{label}, predicted",
            x=lengths if middle else [],
            y=middle,
            line=dict(color=style.colour, width=2, dash="dash"),
            hovertemplate=hover % ("predicted", ""),
        ),
        dict(
            line,
            name=f"{label}, fit",
            x=timed,
            y=[comparison.fit.line_us(n) for n in timed],
            line=dict(color=style.colour, width=2.2),
            hovertemplate=hover % ("fit", ""),
        ),
        dict(
            type="scatter",
            mode="markers",
            legendgroup=label,
            name=f"{label}, {comparison.points_kind}",
            x=[p.steps for p in points],
            y=[p.median_us for p in points],
            marker=_marker(style, comparison.points_kind == "published"),
            customdata=[p.samples for p in points],
            error_y=dict(
                type="data",
                symmetric=False,
                array=[p.high_us - p.median_us for p in points],
                arrayminus=[p.median_us - p.low_us for p in points],
                thickness=1.2,
                width=3,
                color=style.colour,
            ),
            hovertemplate=hover % (comparison.points_kind, ", %{customdata} samples"),
        ),
    ]


def _pinned_trace(name: str, comparison: Comparison, steps: int) -> Spec:
    """The predicted line of a configuration that is kept for comparison, with its name on it."""
    lengths = _lengths(steps)
    return dict(
        type="scatter",
        mode="lines+text",
        name=f"{name}: {comparison.label}",
        x=lengths,
        y=[comparison.prediction.call_us(n) for n in lengths],
        line=dict(color=INK, width=1.6, dash="dashdot"),
        text=[f"<b>{name}</b>" if place == len(lengths) // 2 else "" for place in range(len(lengths))],
        textposition="top center",
        textfont=dict(size=13, color=INK),
        hovertemplate=f"{name}: {comparison.label}<br>predicted %{{y:.1f}} µs at %{{x}} steps<extra></extra>",
    )


def _marker(style: Style, is_published: bool) -> Spec:
    """A filled marker for what was measured by the lab, a hollow one for what was published by others."""
    if is_published:
        return dict(color=PAPER, size=8, symbol=style.symbol, line=dict(color=style.colour, width=1.8))
    return dict(color=style.colour, size=9, symbol=style.symbol, line=dict(color=PAPER, width=1))


def _lengths(steps: int) -> list[float]:
    """Walk lengths at which lines are drawn: quarters of a step from 1 to `steps`, for straight lines are curves on a log axis."""
    return [1 + quarter / 4 for quarter in range(4 * (max(steps, 2) - 1) + 1)]


def _predicted_lines(prediction: Any, lengths: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """Low, high and middle call times of a prediction at each length; three empty lists without one."""
    if prediction is None:
        return [], [], []
    low = [prediction.entry_us_low + prediction.step_us_low * n for n in lengths]
    high = [prediction.entry_us_high + prediction.step_us_high * n for n in lengths]
    return low, high, [prediction.call_us(n) for n in lengths]


def _decades(traces: Sequence[Spec]) -> tuple[float, float]:
    """Range of a log axis (powers of ten) that holds every y with some air; 10 to 100 where there is none."""
    values = [y for trace in traces for y in trace["y"] if y > 0]
    return (math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.1) if values else (1.0, 2.0)


def _end_labels(comparisons: Sequence[Comparison], last: int, apart: float, top: float) -> list[Spec]:
    """A label at the right end of each series, `apart` (powers of ten) from the next, none above `top`."""
    ends = sorted(((math.log10(_end_us(c, last)), c) for c in comparisons if _end_us(c, last)), key=lambda pair: pair[0])
    heights = spread([height for height, _ in ends], apart, top)
    return [end_label(height, style_of(comparison).words, comparison.label, _end_text(comparison)) for height, (_, comparison) in zip(heights, ends)]


def end_label(height: float, colour: str, name: str, words: str) -> Spec:
    """A series' name and words under it, right of its end, at a height of the axis (powers of ten where that is logarithmic)."""
    return dict(
        x=1.01,
        xref="paper",
        y=height,
        yref="y",
        xanchor="left",
        showarrow=False,
        align="left",
        font=dict(color=colour, size=13),
        text=f"<b>{name}</b><br><span style='font-size:12px'>{words}</span>",
    )


def spread(rising: Sequence[float], apart: float, top: float) -> list[float]:
    """Move rising heights as little as needed so that neighbours are `apart` and the last is at most `top`: up, then down."""
    placed: list[float] = []
    for height in rising:
        placed.append(max(height, placed[-1] + apart) if placed else height)
    limit = top
    for place in range(len(placed) - 1, -1, -1):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - apart
    return placed


def _end_us(comparison: Comparison, last: int) -> float | None:
    """Where a series ends at the right: its call at the last length, else its last point."""
    us = comparison.call_us(last)
    return us if us is not None or not comparison.points else comparison.points[-1].median_us


def _end_text(comparison: Comparison) -> str:
    if comparison.is_fitted:
        return f"{format_us(comparison.fit.step_us)} a step, measured"
    return (
        f"{format_us(comparison.prediction.step_us)} a step, predicted"
        if comparison.prediction is not None
        else comparison.points_kind
    )
