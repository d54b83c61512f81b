"""Figures of the lab, one function a figure: results in, a plotly figure out.

Colours are those of Okabe and Ito, told apart by colour-blind readers; marker shapes and line styles repeat every difference.
In every figure a dashed line or a pale band is a prediction, a solid line or a filled marker is a measurement, and a hollow
marker is a time that others published.
Plotly is imported when a figure is drawn, so that this module can be imported where plotly is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost_model.units import format_interval_us, format_us

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.comparison import Comparison

INK, QUIET, GRID, PAPER = "#2b2f36", "#6b7280", "#e7e9ec", "#ffffff"
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MARGIN_PX = dict(l=92, r=210, t=64, b=64)
LABEL_HEIGHT_PX = 38
TRACES_PER_SERIES = 4
STEP_TICKS = (1, 2, 4, 7, 11, 16, 24, 32)
TIME_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


@dataclass(frozen=True)
class Style:
    """How one kind of series looks wherever it appears: colour, its pale band, and marker shape."""

    colour: str
    band: str
    symbol: str


STYLES = {
    "resident-int8x2": Style("#009E73", "rgba(0,158,115,0.16)", "circle"),
    "streaming-int8x2": Style("#0072B2", "rgba(0,114,178,0.15)", "square"),
    "streaming-bf16": Style("#CC79A7", "rgba(204,121,167,0.18)", "diamond"),
    "resident-bf16": Style("#56B4E9", "rgba(86,180,233,0.20)", "hexagon"),
    "torch-stepwise": Style("#E69F00", "rgba(230,159,0,0.16)", "triangle-up"),
    "engine": Style("#D55E00", "rgba(213,94,0,0.14)", "cross"),
}
OTHER_STYLE = Style("#7f7f7f", "rgba(127,127,127,0.15)", "x")

TERM_COLOURS = {
    "latent": "#56B4E9", "products": "#D55E00", "shared_read": "#CC79A7", "stream": "#E69F00", "epilogue": "#F0E442",
    "block_reduction": "#999999", "exchange": "#0072B2", "overhead": "#c9ced6",
    "launch": "#56B4E9", "byte_floor": "#E69F00", "projection_excess": "#F3C969", "selection": "#009E73", "sampling": "#CC79A7",
}
"""Colour of each term of the cost model; a memory read is orange in every mode."""

OTHER_TERM_COLOUR = "#4b5563"


def style_of(comparison: Comparison) -> Style:
    """The Style of a series' role; grey for a role that has none."""
    return STYLES.get(comparison.role, OTHER_STYLE)


def layout(height_px: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share; `more` adds to it or overrides it."""
    base = dict(height=height_px, paper_bgcolor=PAPER, plot_bgcolor=PAPER, template="none",
                font=dict(family=FONT, size=14, color=INK), margin=MARGIN_PX, hovermode="closest",
                hoverlabel=dict(bgcolor=PAPER, bordercolor=GRID, font=dict(family=FONT, size=13, color=INK)),
                legend=dict(font=dict(size=13), bgcolor="rgba(255,255,255,0.7)"), uirevision="keep")
    return {**base, **more}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """The look that all axes share: a title with its unit, pale grid, no box."""
    base = dict(title=dict(text=title, font=dict(size=14, color=QUIET), standoff=12), gridcolor=GRID, zeroline=False, linecolor="#c9ced6",
                ticks="outside", tickcolor="#c9ced6", ticklen=5, tickfont=dict(size=13, color=INK))
    return {**base, **more}


def call_time_figure(comparisons: Sequence[Comparison], *, steps: int, title: str = "Time of a complete call", height_px: int = 540) -> go.Figure:
    """Call time (log scale, microseconds) over walk length (steps): prediction with band, measured points, fit.

    Every series has TRACES_PER_SERIES traces in the same order (band, prediction, fit, measured), empty where there is
    nothing, so that a live figure can be updated in place.
    """
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout(height_px, title=heading(title, "dashed: predicted with its band · solid: fit of measured calls · "
                                                              "bars: 5th to 95th percentile · hollow: published by others")))
    for comparison in comparisons:
        figure.add_traces(_call_time_traces(comparison, steps))
    last = max(steps, 2)
    low, high = _decades(figure)
    apart = (high - low) * LABEL_HEIGHT_PX / (height_px - MARGIN_PX["t"] - MARGIN_PX["b"])
    labels = _end_labels(comparisons, last, apart)
    high = max([high, *(label["y"] + apart / 2 for label in labels)])
    figure.update_xaxes(**axis("walk length [steps]", tickvals=[n for n in STEP_TICKS if n <= last], range=[0.4, last + 0.4], showgrid=False))
    figure.update_yaxes(**axis("time of a complete call [µs], log scale", type="log", range=[low, high], tickvals=TIME_TICKS,
                               ticktext=[f"{tick:,}" for tick in TIME_TICKS]))
    figure.update_layout(annotations=labels, showlegend=False)
    return figure


def _decades(figure: go.Figure) -> tuple[float, float]:
    """Range of a log axis (powers of ten) that holds every y of a figure with some air; 10 to 100 where there is none."""
    values = [y for trace in figure.data for y in trace.y if y is not None and y > 0]
    return (math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.1) if values else (1.0, 2.0)


def _lengths(steps: int) -> list[float]:
    """Walk lengths at which lines are drawn: quarters of a step from 1 to `steps`, for straight lines are curves on a log axis."""
    return [1 + quarter / 4 for quarter in range(4 * (max(steps, 2) - 1) + 1)]


def _call_time_traces(comparison: Comparison, steps: int) -> list[go.Scatter]:
    """Band, prediction, fit and measured points of one series; the four are present even when empty."""
    import plotly.graph_objects as go

    style, label = style_of(comparison), comparison.label
    lengths = _lengths(steps)
    prediction, fit, points = comparison.prediction, comparison.fit, comparison.points
    low, high, middle = _predicted_lines(prediction, lengths)
    fitted = [fit.entry_us + fit.step_us * n for n in lengths] if fit is not None and fit.step_us is not None else []
    common = dict(legendgroup=label, meta=dict(series=label))
    return [
        go.Scatter(name=f"{label}, predicted band", x=lengths + lengths[::-1] if low else [], y=high + low[::-1], fill="toself", mode="lines",
                   line=dict(width=0, color=style.colour), fillcolor=style.band, hoverinfo="skip", showlegend=False, **common),
        go.Scatter(name=f"{label}, predicted", x=lengths if middle else [], y=middle, mode="lines",
                   line=dict(color=style.colour, width=2, dash="dash"), hovertemplate=f"{label}<br>predicted %{{y:.1f}} µs at %{{x}} steps<extra></extra>", **common),
        go.Scatter(name=f"{label}, fit", x=lengths if fitted else [], y=fitted, mode="lines", line=dict(color=style.colour, width=2.2),
                   hovertemplate=f"{label}<br>fit %{{y:.1f}} µs at %{{x}} steps<extra></extra>", **common),
        go.Scatter(name=f"{label}, {comparison.points_kind}", x=[p.steps for p in points], y=[p.median_us for p in points], mode="markers",
                   error_y=dict(type="data", symmetric=False, array=[p.high_us - p.median_us for p in points],
                                arrayminus=[p.median_us - p.low_us for p in points], thickness=1.2, width=3, color=style.colour),
                   marker=_marker(style, comparison.points_kind == "published"),
                   customdata=[p.samples for p in points],
                   hovertemplate=f"{label}<br>{comparison.points_kind} %{{y:.1f}} µs at %{{x}} steps, %{{customdata}} samples<extra></extra>", **common),
    ]


def _marker(style: Style, is_published: bool) -> dict[str, Any]:
    """A filled marker for what was measured by the lab, a hollow one for what was published by others."""
    if is_published:
        return dict(color=PAPER, size=9, symbol=style.symbol, line=dict(color=style.colour, width=2))
    return dict(color=style.colour, size=9, symbol=style.symbol, line=dict(color=PAPER, width=1))


def _predicted_lines(prediction: Any, lengths: Sequence[int]) -> tuple[list[float], list[float], list[float]]:
    """Low, high and middle call times of a prediction at each length; three empty lists without one."""
    if prediction is None:
        return [], [], []
    low = [prediction.entry_us_low + prediction.step_us_low * n for n in lengths]
    high = [prediction.entry_us_high + prediction.step_us_high * n for n in lengths]
    return low, high, [prediction.call_us(n) for n in lengths]


def _end_labels(comparisons: Sequence[Comparison], last: int, apart: float) -> list[dict[str, Any]]:
    """A label at the right end of each series, at least `apart` (powers of ten) from the one below."""
    ends = sorted(((math.log10(_end_value(c, last)), c) for c in comparisons if _end_value(c, last)), key=lambda pair: pair[0])
    labels, previous = [], -math.inf
    for height, comparison in ends:
        height = max(height, previous + apart)
        previous = height
        labels.append(dict(x=1.01, xref="paper", y=height, yref="y", xanchor="left", showarrow=False, align="left",
                           text=f"<b>{comparison.label}</b><br><span style='font-size:12px'>{_end_text(comparison)}</span>",
                           font=dict(color=style_of(comparison).colour, size=13)))
    return labels


def _end_value(comparison: Comparison, last: int) -> float | None:
    if comparison.fit is not None and comparison.fit.step_us is not None:
        return comparison.fit.entry_us + comparison.fit.step_us * last
    if comparison.prediction is not None:
        return comparison.prediction.call_us(last)
    return comparison.points[-1].median_us if comparison.points else None


def _end_text(comparison: Comparison) -> str:
    if comparison.fit is not None and comparison.fit.step_us is not None:
        return f"{format_us(comparison.fit.step_us)} a step, measured"
    return f"{format_us(comparison.prediction.step_us)} a step, predicted" if comparison.prediction is not None else "measured"


def heading(title: str, subtitle: str = "") -> dict[str, Any]:
    """A left-aligned title with a quiet line under it."""
    small = f"<br><span style='font-size:13px;color:{QUIET}'>{subtitle}</span>" if subtitle else ""
    return dict(text=f"<b>{title}</b>{small}", x=0.0, xref="paper", xanchor="left", y=0.97, yanchor="top", font=dict(size=17))


def step_terms_figure(comparisons: Sequence[Comparison], *, title: str = "Where a step's time goes", height_px: int | None = None) -> go.Figure:
    """Stacked bars of each prediction's exposed step terms, the measured step under it, and the physical floor.

    Series whose step is more than four times the shortest get an axis of their own, or the short ones would vanish.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    shown = [c for c in comparisons if c.prediction is not None]
    groups = _by_scale(shown)
    figure = make_subplots(rows=max(len(groups), 1), cols=1, row_heights=[len(g) + 0.35 for g in groups] or [1], vertical_spacing=0.24 / max(len(groups), 1))
    named: set[str] = set()
    for row, group in enumerate(groups, start=1):
        for trace in (*_term_traces(group), *_measured_step_traces(group), _floor_trace(group)):
            trace.showlegend = trace.showlegend is not False and trace.name not in named
            named.add(trace.name)
            figure.add_trace(trace, row=row, col=1)
        figure.update_yaxes(tickvals=list(range(len(group))), ticktext=[f"<b>{c.label}</b> " for c in group],
                            range=[len(group) - 0.35, -0.5], linecolor="#c9ced6", tickfont=dict(size=13), showgrid=False, zeroline=False, row=row, col=1)
        figure.update_xaxes(**axis("time of one step [µs]", range=[0, 1.16 * max(_longest_step(c) for c in group)]), row=row, col=1)
    figure.update_layout(**layout(height_px or 210 + 74 * len(shown) + 60 * len(groups), barmode="stack", bargap=0, title=heading(
        title, "coloured: predicted terms that add to the step · dark bar: measured, with its interval · dotted: physical floor"),
        margin=dict(l=190, r=40, t=72, b=100), legend=dict(orientation="h", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12))))
    return figure if shown else _empty(go.Figure(), "No prediction to take apart.")


def _longest_step(comparison: Comparison) -> float:
    """The longer of predicted and measured step (upper end), microseconds."""
    fit = comparison.fit
    measured = [us for us in (fit.step_us, fit.step_us_high) if us is not None] if fit is not None else []
    return max([comparison.prediction.step_us, *measured])


def _by_scale(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Split into those within four times the shortest step and the rest, longest steps first in each."""
    if not comparisons:
        return []
    shortest = min(c.prediction.step_us for c in comparisons)
    ordered = sorted(comparisons, key=lambda c: -c.prediction.step_us)
    long = [c for c in ordered if c.prediction.step_us > 4 * shortest]
    short = [c for c in ordered if c.prediction.step_us <= 4 * shortest]
    return [group for group in (long, short) if group]


def _term_traces(group: Sequence[Comparison]) -> Iterable[go.Bar]:
    """One bar trace a term name, in the order in which the terms follow one another."""
    import plotly.graph_objects as go

    names = list(dict.fromkeys(name for c in group for name in c.prediction.terms["step"]))
    longest = max(c.prediction.step_us for c in group)
    for name in names:
        colour = TERM_COLOURS.get(name, OTHER_TERM_COLOUR)
        rows = [(y, c.prediction.terms["step"].get(name)) for y, c in enumerate(group)]
        rows = [(y, term) for y, term in rows if term is not None and term.exposed_us > 0]
        if not rows:
            continue
        words = term_words(name)
        yield go.Bar(name=words, orientation="h", y=[y for y, _ in rows], x=[term.exposed_us for _, term in rows], width=0.5,
                     marker=dict(color=colour, line=dict(color=PAPER, width=1.5)), meta=dict(term=name),
                     text=[_segment_text(words, term.exposed_us, longest) for _, term in rows], textposition="inside", insidetextanchor="middle",
                     textangle=0, constraintext="none", textfont=dict(size=12, color=_text_on(colour)), customdata=[term.resource for _, term in rows],
                     hovertemplate=f"{words}: %{{x:.2f}} µs<br>bound by %{{customdata}}<extra></extra>")


def term_words(name: str) -> str:
    """A term's name as a reader wants it: 'latent_fetch_us' reads 'latent fetch'."""
    return name.removesuffix("_us").replace("_", " ")


def _segment_text(words: str, us: float, longest_us: float) -> str:
    """The words and time of a segment where it is wide enough for them; hovering shows the rest."""
    share = us / longest_us
    if share * 120 >= max(len(words), 8):
        return f"{words}<br>{us:.2f}"
    return f"{us:.2f}" if share > 0.045 else ""


def _text_on(colour: str) -> str:
    """White on dark colours, ink on light ones (relative luminance of the sRGB triple, Rec. 709 weights)."""
    red, green, blue = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return PAPER if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 140 else INK


def _measured_step_traces(group: Sequence[Comparison]) -> tuple[go.Bar, go.Scatter]:
    """A thin dark bar under each prediction with the fitted step and its interval, and its value in words right of it."""
    import plotly.graph_objects as go

    rows = [(y + 0.36, c.fit) for y, c in enumerate(group) if c.fit is not None and c.fit.step_us is not None]
    heights, steps_us = [y for y, _ in rows], [fit.step_us for _, fit in rows]
    lows = [fit.step_us if fit.step_us_low is None else fit.step_us_low for _, fit in rows]
    highs = [fit.step_us if fit.step_us_high is None else fit.step_us_high for _, fit in rows]
    intervals = [format_interval_us(fit.step_us_low, fit.step_us_high) for _, fit in rows]
    bar = go.Bar(name="measured", orientation="h", base=0, y=heights, x=steps_us, width=0.14, marker=dict(color=INK), hovertext=intervals,
                 hovertemplate="measured %{x:.2f} µs a step<br>interval %{hovertext}<extra></extra>",
                 error_x=dict(type="data", symmetric=False, thickness=1.4, width=4, color="#D55E00",
                              array=[high - middle for high, middle in zip(highs, steps_us)],
                              arrayminus=[middle - low for low, middle in zip(lows, steps_us)]))
    words = go.Scatter(name="measured value", x=highs, y=heights, mode="text", textposition="middle right", cliponaxis=False, hoverinfo="skip", showlegend=False,
                       text=[f"  measured {format_us(fit.step_us)}" for _, fit in rows], textfont=dict(size=12, color=INK))
    return bar, words


def _floor_trace(group: Sequence[Comparison]) -> go.Scatter:
    import plotly.graph_objects as go

    xs: list[float | None] = []
    ys: list[float | None] = []
    for y, comparison in enumerate(group):
        floor_us = comparison.prediction.floor_step_us
        xs += [floor_us, floor_us, None]
        ys += [y - 0.36, y + 0.48, None]
    return go.Scatter(name="physical floor", x=xs, y=ys, mode="lines", line=dict(color=INK, width=2, dash="dot"),
                      hovertemplate="physical floor %{x:.2f} µs<extra></extra>")


def _empty(figure: go.Figure, message: str) -> go.Figure:
    figure.update_layout(**layout(220, xaxis=dict(visible=False), yaxis=dict(visible=False)))
    figure.add_annotation(text=message, showarrow=False, font=dict(size=15, color=QUIET), x=0.5, y=0.5, xref="paper", yref="paper")
    return figure
