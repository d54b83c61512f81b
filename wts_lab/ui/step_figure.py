"""Where a step's time goes: predicted terms stacked, the measured step under them, the physical floor across them.

See `figures` for colours and specs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_interval_us, format_us
from wts_lab.ui.figures import INK, PAPER, QUIET, Spec, axis, draw, heading, layout, top_px

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.comparison import Comparison

TERM_COLOURS = {
    "latent": "#56B4E9",
    "products": "#D55E00",
    "shared_read": "#CC79A7",
    "stream": "#E69F00",
    "epilogue": "#F0E442",
    "block_reduction": "#663300",
    "exchange": "#0072B2",
    "overhead": "#c9ced6",
    "launch": "#332288",
    "byte_floor": "#EE8866",
    "projection_excess": "#FFD9B3",
    "selection": "#004D40",
    "sampling": "#1A2B5F",
}
"""Colour of each term of the cost model, no two alike to normal, deuteranope or protanope eyes (the tests simulate these)."""

OTHER_TERM_COLOUR = "#4b5563"
OWN_AXIS_FROM = 4.0
"""Series whose step is this many times the shortest one get an axis of their own, or the short ones would vanish."""

BAR_WORDS = "coloured: predicted terms that add to the step · dark bar: measured, with its interval · dotted: physical floor"
SHORT_BAR_WORDS = "coloured: predicted · dark: measured · dotted: physical floor"

ROW_PX, AXIS_PX, LEGEND_ROW_PX, LEGEND_COLUMNS = 74, 64, 22, 3
"""Heights of a series, of an axis with its title and of a row of the legend; a figure half a page wide has so many names in a row."""

CHARACTERS = 58
"""Characters of a segment's text that fit beside one another along the longest bar, in a figure half a page wide."""


def step_terms_figure(comparisons: Sequence[Comparison], *, title: str = "Where a step's time goes") -> go.Figure:
    """Stacked bars of each prediction's exposed step terms (microseconds), the measured step under it, and the physical floor."""
    return draw(step_terms_spec(comparisons, title=title))


def step_terms_spec(
    comparisons: Sequence[Comparison], *, title: str = "Where a step's time goes", subtitle: str = BAR_WORDS
) -> Spec:
    """The spec of `step_terms_figure`; series without a prediction have no terms and are left out."""
    groups = _by_scale([each for each in comparisons if each.prediction is not None])
    names = {name for group in groups for each in group for name, term in each.prediction.terms["step"].items() if term.exposed_us > 0}
    entries = len(names) + 1 + any(each.is_fitted for group in groups for each in group)
    top_margin, bottom_margin = top_px(subtitle), AXIS_PX + LEGEND_ROW_PX * math.ceil(entries / LEGEND_COLUMNS)
    inner_px = sum(ROW_PX * len(group) for group in groups) + AXIS_PX * max(len(groups) - 1, 0)
    spec = dict(
        data=[],
        layout=layout(
            max(top_margin + inner_px + bottom_margin, 220),
            title=heading(title, subtitle),
            barmode="stack",
            bargap=0,
            margin=dict(l=172, r=30, t=top_margin, b=bottom_margin),
            showlegend=True,
            legend=dict(
                orientation="h", traceorder="normal", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12)
            ),
        ),
    )
    top, named = 1.0, set()
    for number, group in enumerate(groups):
        suffix = "" if number == 0 else str(number + 1)
        bottom = top - ROW_PX * len(group) / inner_px
        spec["layout"]["xaxis" + suffix] = axis(
            "time of one step [µs]", anchor="y" + suffix, range=[0, 1.16 * max(_longest_us(each) for each in group)]
        )
        spec["layout"]["yaxis" + suffix] = axis(
            anchor="x" + suffix,
            domain=[max(bottom, 0.0), top],
            tickvals=list(range(len(group))),
            showgrid=False,
            ticks="",
            ticktext=[f"<b>{each.label}</b> " for each in group],
            range=[len(group) - 0.38, -0.45],
        )
        top = bottom - AXIS_PX / inner_px
        for trace in (*_term_traces(group), *_measured_traces(group), _floor_trace(group)):
            spec["data"].append(
                {
                    **trace,
                    "xaxis": "x" + suffix,
                    "yaxis": "y" + suffix,
                    "showlegend": trace.get("showlegend", True) and trace["name"] not in named,
                }
            )
            named.add(trace["name"])
    if not groups:
        spec["layout"].update(
            xaxis=dict(visible=False),
            yaxis=dict(visible=False),
            annotations=[
                dict(
                    text="No prediction to take apart.",
                    showarrow=False,
                    font=dict(size=15, color=QUIET),
                    x=0.5,
                    y=0.5,
                    xref="paper",
                    yref="paper",
                )
            ],
        )
    return spec


def _by_scale(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Split into those far above the shortest step and the rest, longest steps first in each."""
    if not comparisons:
        return []
    shortest_us = min(each.prediction.step_us for each in comparisons)
    ordered = sorted(comparisons, key=lambda each: -each.prediction.step_us)
    long = [each for each in ordered if each.prediction.step_us > OWN_AXIS_FROM * shortest_us]
    return [group for group in (long, ordered[len(long) :]) if group]


def _longest_us(comparison: Comparison) -> float:
    """The longer of predicted and measured step (upper end)."""
    measured = [comparison.fit.step_us, comparison.fit.step_us_high] if comparison.is_fitted else []
    return max([comparison.prediction.step_us, *measured])


def _term_traces(group: Sequence[Comparison]) -> list[Spec]:
    """One bar trace a term name, in the order in which the terms follow one another; terms that add nothing are left out."""
    longest_us = max(each.prediction.step_us for each in group)
    traces = []
    for name in dict.fromkeys(name for each in group for name in each.prediction.terms["step"]):
        found = [(place, each.prediction.terms["step"].get(name)) for place, each in enumerate(group)]
        rows = [(place, term) for place, term in found if term is not None and term.exposed_us > 0]
        if not rows:
            continue
        words, colour = term_words(name), TERM_COLOURS.get(name, OTHER_TERM_COLOUR)
        traces.append(
            dict(
                type="bar",
                name=words,
                orientation="h",
                y=[place for place, _ in rows],
                x=[term.exposed_us for _, term in rows],
                width=0.46,
                marker=dict(color=colour, line=dict(color=PAPER, width=1.5)),
                text=[_segment_text(words, term.exposed_us, longest_us) for _, term in rows],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                textfont=dict(size=12, color=_text_on(colour)),
                customdata=[term.resource for _, term in rows],
                hovertemplate=f"{words}: %{{x:.2f}} µs<br>bound by %{{customdata}}<extra></extra>",
            )
        )
    return traces


def term_words(name: str) -> str:
    """A term's name as a reader wants it: 'latent_fetch_us' reads 'latent fetch'."""
    return name.removesuffix("_us").replace("_", " ")


def _segment_text(words: str, us: float, longest_us: float) -> str:
    """The words and time of a segment where it is wide enough for them; hovering shows the rest."""
    share = us / longest_us
    if share * CHARACTERS > max(len(words), 5):
        return f"{words}<br>{us:.2f}"
    return f"{us:.2f}" if share * CHARACTERS > 4 else ""


def _text_on(colour: str) -> str:
    """White on dark colours, ink on light ones (relative luminance of the sRGB triple, Rec. 709 weights)."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return PAPER if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 140 else INK


def _measured_traces(group: Sequence[Comparison]) -> tuple[Spec, Spec]:
    """A thin dark bar under each prediction with the fitted step and its interval, and its value in words right of it."""
    rows = [(place + 0.36, each.fit) for place, each in enumerate(group) if each.is_fitted]
    heights, steps_us = [height for height, _ in rows], [fit.step_us for _, fit in rows]
    bar = dict(
        type="bar",
        name="measured",
        orientation="h",
        base=0,
        y=heights,
        x=steps_us,
        width=0.14,
        marker=dict(color=INK),
        hovertext=[format_interval_us(fit.step_us_low, fit.step_us_high) for _, fit in rows],
        hovertemplate="measured %{x:.2f} µs a step<br>interval %{hovertext}<extra></extra>",
        error_x=dict(
            type="data",
            symmetric=False,
            thickness=1.4,
            width=4,
            color="#D55E00",
            array=[fit.step_us_high - fit.step_us for _, fit in rows],
            arrayminus=[fit.step_us - fit.step_us_low for _, fit in rows],
        ),
    )
    words = dict(
        type="scatter",
        name="measured value",
        x=[fit.step_us_high for _, fit in rows],
        y=heights,
        mode="text",
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
        text=[f"  measured {format_us(fit.step_us)}" for _, fit in rows],
        textfont=dict(size=12, color=INK),
    )
    return bar, words


def _floor_trace(group: Sequence[Comparison]) -> Spec:
    """A dotted line above and below each bar, so that its words stay free, at the step that no implementation of the mode can beat."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for place, comparison in enumerate(group):
        floor_us = comparison.prediction.floor_step_us
        xs += [floor_us, floor_us, None] * 2
        ys += [place - 0.42, place - 0.23, None, place + 0.23, place + 0.48, None]
    return dict(
        type="scatter",
        name="physical floor",
        x=xs,
        y=ys,
        mode="lines",
        line=dict(color=INK, width=2, dash="dot"),
        hovertemplate="physical floor %{x:.2f} µs<extra></extra>",
    )
