"""Roofline: how many operations each phase of a step does for a byte, how fast, and which roof hangs over it.

See `figures` for colours and specs; phases and roofs come from `cost_model.roofline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_bandwidth, format_rate, format_us
from wts_lab.ui.figures import PAPER, QUIET, Spec, axis, draw, heading, layout, style_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.roofline import Phase, Roof
    from wts_lab.comparison import Comparison

ROOFLINE_WORDS = "filled: projection · hollow: the whole step · small: selection · lines: what a memory or the tensor cores allow"
SYMBOLS = {"projection": "circle", "selection": "circle", "whole step": "circle-open"}
SIZES_PX = {"projection": 12, "selection": 7, "whole step": 14}
ROOF_DASHES = {"HBM": "dot", "L2": "dash", "shared memory": "longdashdot"}
AIR = 0.35
"""Powers of ten beyond the outermost points."""


def roofline_figure(
    phases: Sequence[tuple[Comparison, Sequence[Phase]]], roofs: Sequence[Roof], *, title: str = "Roofline of a step", height_px: int = 430
) -> go.Figure:
    """Operations a second over operations a byte, both logarithmic: phases of each way, under the roofs."""
    return draw(roofline_spec(phases, roofs, title=title, height_px=height_px))


def roofline_spec(
    phases: Sequence[tuple[Comparison, Sequence[Phase]]], roofs: Sequence[Roof], *, title: str = "Roofline of a step", height_px: int = 430
) -> Spec:
    """The spec of `roofline_figure`."""
    points = [phase for _, own in phases for phase in own]
    low = min(phase.intensity_ops_per_byte for phase in points) / 10**AIR
    bandwidths = [roof.bytes_per_s for roof in roofs if roof.bytes_per_s is not None]
    rates = [roof.ops_per_s for roof in roofs if roof.ops_per_s is not None]
    ridge = max(rates) / min(bandwidths) if rates else max(phase.intensity_ops_per_byte for phase in points)
    high, ceiling = ridge * 10**AIR, max([*rates, *(phase.rate_ops_per_s for phase in points)])
    floor = min(phase.rate_ops_per_s for phase in points) / 10**AIR
    return dict(
        data=[*(_roof_trace(roof, low, high, ceiling) for roof in roofs), *(_phase_trace(each, own) for each, own in phases)],
        layout=layout(
            height_px,
            title=heading(title, ROOFLINE_WORDS),
            showlegend=True,
            legend=dict(orientation="v", x=1.01, y=1.0, xanchor="left", yanchor="top", font=dict(size=12)),
            margin=dict(l=92, r=240, t=106, b=60),
            xaxis=axis("operations for each byte", type="log", range=[math.log10(low), math.log10(high)], exponentformat="power"),
            yaxis=axis(
                "operations a second", type="log", range=[math.log10(floor), math.log10(ceiling) + AIR], exponentformat="power"
            ),
        ),
    )


def _roof_trace(roof: Roof, low: float, high: float, ceiling: float) -> Spec:
    """A roof from the left edge to the right one, or to where it meets the highest rate."""
    end = high if roof.bytes_per_s is None else min(high, ceiling / roof.bytes_per_s)
    said = format_rate(roof.ops_per_s) if roof.bytes_per_s is None else format_bandwidth(roof.bytes_per_s)
    return dict(
        type="scatter",
        mode="lines",
        name=f"{roof.name}, {said}",
        x=[low, end],
        y=[roof.at(low), roof.at(end)],
        line=dict(color=QUIET, width=1.4, dash=ROOF_DASHES.get(roof.name, "solid")),
        hovertemplate=f"{roof.name}: {said}<extra></extra>",
    )


def _phase_trace(comparison: Comparison, own: Sequence[Phase]) -> Spec:
    """The phases of one way, joined to the step that they are part of."""
    colour = style_of(comparison).colour
    return dict(
        type="scatter",
        mode="markers",
        name=comparison.label,
        x=[phase.intensity_ops_per_byte for phase in own],
        y=[phase.rate_ops_per_s for phase in own],
        marker=dict(
            color=colour,
            symbol=[SYMBOLS[phase.name] for phase in own],
            size=[SIZES_PX[phase.name] for phase in own],
            line=dict(color=[colour if phase.name == "whole step" else PAPER for phase in own], width=[2 if phase.name == "whole step" else 1 for phase in own]),
        ),
        hovertext=[
            f"{comparison.label}: {phase.name}<br>{format_us(phase.time_us)}, {format_rate(phase.rate_ops_per_s)}, bytes from {phase.tier}" for phase in own
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
