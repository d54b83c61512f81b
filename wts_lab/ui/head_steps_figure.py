"""Where a step goes for each kind of head: parts measured by clocks above parts predicted by terms.

See `figures` for colours and specs; the steps come from `wts_lab.head_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_us
from wts_lab.head_steps import AGREEMENT, PARTS, PRODUCTS, REST, SELECTION, STATE
from wts_lab.ui.figures import INK, PAPER, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.fit import StepFit
    from wts_lab.head_steps import HeadStep

HEAD_WORDS = "full: measured by the kernel's clocks · hatched: predicted · diamond: measured step, with its interval"
COLOURS = {PRODUCTS: "#D55E00", SELECTION: "#F0E442", AGREEMENT: "#0072B2", STATE: "#009E73", REST: "#c9ced6"}
ROW_PX, TOP_PX, BOTTOM_PX = 74, 112, 110
MEASURED_OFFSET, PREDICTED_OFFSET, BAR = -0.18, 0.2, 0.32


def head_steps_figure(steps: Sequence[HeadStep], *, title: str = "Where a step goes, head by head") -> go.Figure:
    """Stacked bars of each head's step in microseconds, measured above predicted."""
    return draw(head_steps_spec(steps, title=title))


def head_steps_spec(steps: Sequence[HeadStep], *, title: str = "Where a step goes, head by head") -> Spec:
    """The spec of `head_steps_figure`: two traces a part (measured, predicted), and the measured steps."""
    traces = []
    for part in PARTS:
        measured = [(place, each.measured_parts_us[part]) for place, each in enumerate(steps) if part in each.measured_parts_us]
        predicted = [(place, each.predicted_parts_us[part]) for place, each in enumerate(steps) if part in each.predicted_parts_us]
        traces += [_bars(part, "measured", measured), _bars(part, "predicted", predicted)]
    fitted = [(place, each.walk.fit) for place, each in enumerate(steps) if each.walk.is_measured]
    return dict(
        data=[*traces, *_steps(fitted)],
        layout=layout(
            TOP_PX + BOTTOM_PX + ROW_PX * max(len(steps), 1),
            title=heading(title, HEAD_WORDS),
            barmode="stack",
            bargap=0,
            showlegend=True,
            margin=dict(l=220, r=60, t=TOP_PX, b=BOTTOM_PX),
            legend=dict(orientation="h", traceorder="normal", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12)),
            xaxis=axis("time of one step [µs]", rangemode="tozero"),
            yaxis=axis(
                tickvals=list(range(len(steps))),
                ticktext=[f"<b>{each.name}</b> " for each in steps],
                showgrid=False,
                ticks="",
                range=[max(len(steps), 1) - 0.45, -0.55],
            ),
        ),
    )


def _bars(part: str, basis: str, rows: list[tuple[int, float]]) -> Spec:
    """One part of every head: full where measured, hatched in the same colour where predicted."""
    is_measured, colour = basis == "measured", COLOURS[part]
    hatch = dict(shape="/", fgcolor=colour, bgcolor=PAPER, size=5, solidity=0.5)
    return dict(
        type="bar",
        orientation="h",
        name=part,
        legendgroup=part,
        showlegend=bool(rows) and is_measured != (part == REST),
        width=BAR,
        y=[place + (MEASURED_OFFSET if is_measured else PREDICTED_OFFSET) for place, _ in rows],
        x=[us for _, us in rows],
        marker=dict(color=colour, line=dict(color=PAPER if is_measured else colour, width=1), **({} if is_measured else {"pattern": hatch})),
        hovertemplate=f"{part}, {basis}: %{{x:.2f}} µs<extra></extra>",
    )


def _steps(fitted: list[tuple[int, StepFit]]) -> tuple[Spec, Spec]:
    """The measured step of every head at its bars, and its value in words right of its interval."""
    places, steps_us = [place for place, _ in fitted], [fit.step_us for _, fit in fitted]
    marks = dict(
        type="scatter",
        mode="markers",
        name="measured step",
        x=steps_us,
        y=places,
        marker=dict(symbol="diamond", size=11, color=INK, line=dict(color=PAPER, width=1.2)),
        hovertemplate="measured %{x:.2f} µs a step<extra></extra>",
        error_x=dict(
            type="data",
            symmetric=False,
            array=[fit.step_us_high - fit.step_us for _, fit in fitted],
            arrayminus=[fit.step_us - fit.step_us_low for _, fit in fitted],
            thickness=1.4,
            width=4,
            color=INK,
        ),
    )
    words = dict(
        type="scatter",
        mode="text",
        name="measured value",
        x=[fit.step_us_high for _, fit in fitted],
        y=places,
        text=[f"   {format_us(us)}" for us in steps_us],
        textposition="middle right",
        textfont=dict(size=12, color=INK),
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    return marks, words
