"""How long blocks take to agree: recorded exchanges over batch rows, and over blocks.

See `figures` for colours and specs; the times come from `wts_lab.exchange_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts_lab.ui.figures import INK, QUIET, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from wts_lab.exchange_records import ExchangeTime, ExchangeTimes

LOOKS = {
    ("spread-lines", False): ("32-bit words, a line for each unit", "#009E73", "circle", "solid"),
    ("dense-lines", False): ("32-bit words, packed", "#D55E00", "diamond", "dot"),
    ("spread-lines", True): ("64-bit words, a line for each unit", "#CC79A7", "triangle-up", "dashdot"),
}
"""(where the words lie, whether they have 64 bits) -> name, colour, marker and line."""

LEFT, RIGHT = (0.0, 0.56), (0.7, 1.0)


def exchange_figure(times: ExchangeTimes, *, title: str = "How long blocks take to agree", height_px: int = 480) -> go.Figure:
    """Time of one exchange in microseconds, over batch rows with all blocks (left), over blocks with one row (right)."""
    return draw(exchange_spec(times, title=title, height_px=height_px))


def exchange_spec(times: ExchangeTimes, *, title: str = "How long blocks take to agree", height_px: int = 480) -> Spec:
    """The spec of `exchange_figure`: a trace for each kind of word and place on the left, one on the right; says so where nothing is recorded."""
    whole = max((time.grid_blocks for time in times.times), default=0)
    traces = []
    for (exchange, wide), look in LOOKS.items():
        own = [time for time in times.times if (time.exchange, time.wide, time.grid_blocks) == (exchange, wide, whole)]
        if own:
            traces.append(_trace(own, "rows", look, "x", "y"))
    few = [time for time in times.times if (time.exchange, time.wide, time.rows) == ("spread-lines", False, 1)]
    if few:
        traces.append(_trace(few, "grid_blocks", LOOKS["spread-lines", False], "x2", "y2") | {"showlegend": False})
    top = max((time.exchange_us_high for time in times.times), default=1.0) * 1.08
    nothing = dict(text=times.source, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font=dict(size=14, color=QUIET))
    frame = layout(
        height_px, title=heading(title, times.source if traces else ""), showlegend=True, annotations=[] if traces else [nothing],
        margin=dict(l=76, r=24, t=88, b=116), legend=dict(orientation="h", y=-0.22, x=0, font=dict(size=12)),
        xaxis=axis(f"batch rows, {whole} blocks", type="log", tickvals=[1, 2, 4, 8, 16, 32], domain=list(LEFT)), yaxis=axis("one exchange [µs]", range=[0, top]),
        xaxis2=axis("blocks, one batch row", domain=list(RIGHT), rangemode="tozero", anchor="y2"),
        yaxis2=axis("one exchange [µs]", anchor="x2", range=[0, max((time.exchange_us_high for time in few), default=1.0) * 1.25]),
    )  # fmt: skip
    return dict(data=traces, layout=frame)


def _trace(own: Sequence[ExchangeTime], over: str, look: tuple[str, str, str, str], x: str, y: str) -> Spec:
    name, colour, symbol, dash = look
    own = sorted(own, key=lambda time: getattr(time, over))
    return dict(
        type="scatter", mode="lines+markers", name=name, x=[getattr(time, over) for time in own], y=[time.exchange_us for time in own], xaxis=x, yaxis=y,
        error_y=dict(type="data", symmetric=False, array=[time.exchange_us_high - time.exchange_us for time in own],
                     arrayminus=[time.exchange_us - time.exchange_us_low for time in own], color=INK, thickness=1.2, width=3),
        line=dict(color=colour, dash=dash, width=2), marker=dict(color=colour, symbol=symbol, size=9), hovertemplate=f"{name}: %{{y:.3f}} µs at %{{x}}<extra></extra>",
    )  # fmt: skip
