"""The break-even plot: end-to-end gain of a faster head against the time that verify and backbone take.

See `figures` for colours and specs; the curve comes from `wts_lab.decided`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_percent, format_us
from wts_lab.ui.figures import INK, PAPER, QUIET, STYLES, Spec, axis, draw, heading, layout, top_px

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.decided import BreakEven

ROUND_WORDS = "line: gain over the engine's fastest path · band: its 95 % interval · marker: your round · dashed: no gain"


def break_even_figure(curve: Sequence[BreakEven], rest_us: float, *, title: str = "What a faster head gives a round", height_px: int = 420) -> go.Figure:
    """Gain (per cent, tokens a second) over verify and backbone time (microseconds, logarithmic), joined as the schedule does, with the round at `rest_us` marked."""
    return draw(break_even_spec(curve, rest_us, title=title, height_px=height_px))


def break_even_spec(curve: Sequence[BreakEven], rest_us: float, *, title: str = "What a faster head gives a round", height_px: int = 420) -> Spec:
    """The spec of `break_even_figure`; says so where there is no curve."""
    style = STYLES["resident-int8x2"]
    xs, here = [each.rest_us for each in curve], [each for each in curve if math.isclose(each.rest_us, rest_us)]
    lows, highs = ([_percent(value) for value in ends] for ends in ([each.gain_low for each in curve], [each.gain_high for each in curve]))
    common = dict(type="scatter", hoverinfo="skip")
    missing = dict(text="There is nothing to compare, or the round takes no time.", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return dict(
        data=[
            dict(common, name="interval", mode="lines", x=xs + xs[::-1], y=highs + lows[::-1], fill="toself", fillcolor=style.band, line=dict(width=0)),
            dict(
                type="scatter",
                name="gain",
                mode="lines",
                x=xs,
                y=[_percent(each.gain) for each in curve],
                line=dict(color=style.colour, width=2.2),
                hovertemplate="%{y:.2f} % where the rest of the round takes %{x:,.0f} µs<extra></extra>",
            ),
            dict(common, name="no gain", mode="lines", x=[xs[0], xs[-1]] if xs else [], y=[0, 0] if xs else [], line=dict(color=QUIET, dash="dash", width=1.2)),
            dict(
                common,
                name="your round",
                mode="markers+text",
                x=[each.rest_us for each in here],
                y=[_percent(each.gain) for each in here],
                marker=dict(color=style.colour, size=13, symbol="diamond", line=dict(color=PAPER, width=1.5)),
                text=[f"{format_percent(each.gain)} at {format_us(each.rest_us)}" for each in here],
                textposition="top right",
                textfont=dict(size=13, color=INK),
            ),
        ],
        layout=layout(
            height_px,
            title=heading(title, ROUND_WORDS),
            showlegend=False,
            margin=dict(l=76, r=40, t=top_px(ROUND_WORDS), b=60),
            annotations=[] if curve else [missing],
            xaxis=axis("round without its head [µs], log scale", type="log", **_ticks(xs)),
            yaxis=axis("gain in tokens a second [%]"),
        ),
    )


def _ticks(xs: Sequence[float]) -> Spec:
    """1, 2 and 5 of each power of ten along an axis, in full; nothing without a curve."""
    if not xs:
        return {}
    powers = range(math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs))) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if min(xs) <= digit * 10.0**power <= max(xs)]
    return dict(tickvals=ticks, ticktext=[f"{tick:,.10g}" for tick in ticks])


def _percent(share: float) -> float:
    return 100.0 * share
