"""Registers against shared memory: the step cost of every placement of a shape, predicted and measured.

See `figures` for colours and specs; the rows come from `wts_lab.placed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_us
from wts_lab.ui.figures import INK, PAPER, STYLES, Spec, axis, draw, heading, layout, top_px

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.placed import Placed

PLACEMENT_WORDS = "hollow: predicted · filled: measured, with its interval · cross: the compiler spilled · star: planned · ring: chosen"
SPILL_COLOUR = "#D55E00"


def placements_figure(placed: Sequence[Placed], *, title: str = "Registers or shared memory", height_px: int = 460) -> go.Figure:
    """Step cost (microseconds) of each placement over its register tiles a warp."""
    return draw(placements_spec(placed, title=title, height_px=height_px))


def placements_spec(placed: Sequence[Placed], *, title: str = "Registers or shared memory", height_px: int = 460) -> Spec:
    """The spec of `placements_figure`.  Point n of the first trace is placement n: a click on it can be looked up."""
    measured = [each for each in placed if each.measured is not None]
    spilled = [each for each in placed if each.spill_bytes]
    marked = (
        ("planned", "star-open", 24, "#B26A00", [each for each in placed if each.is_planned]),
        ("chosen", "circle-open", 26, INK, [each for each in placed if each.is_chosen]),
    )
    resident = STYLES["resident-int8x2"]
    return dict(
        data=[
            _points("predicted", placed, [each.predicted_us for each in placed], dict(color=PAPER, size=11, line=dict(color=resident.colour, width=2))),
            {
                **_points("measured", measured, [each.measured.step_us for each in measured], dict(color=resident.colour, size=10)),
                "error_y": dict(
                    type="data",
                    symmetric=False,
                    array=[each.measured.step_us_high - each.measured.step_us for each in measured],
                    arrayminus=[each.measured.step_us - each.measured.step_us_low for each in measured],
                    color=resident.words,
                    width=4,
                ),
            },
            _points("spills", spilled, [_best_us(each) for each in spilled], dict(color=SPILL_COLOUR, size=15, symbol="x-thin", line=dict(color=SPILL_COLOUR, width=3))),
            *(_points(name, own, [_best_us(each) for each in own], dict(color=colour, size=size, symbol=symbol, line=dict(width=2))) for name, symbol, size, colour, own in marked),
        ],
        layout=layout(
            height_px,
            title=heading(title, PLACEMENT_WORDS),
            showlegend=True,
            clickmode="event",
            margin=dict(l=76, r=150, t=top_px(PLACEMENT_WORDS), b=60),
            legend=dict(x=1.01, y=1.0, xanchor="left", yanchor="top", font=dict(size=12), itemsizing="constant"),
            xaxis=axis("register tiles of a warp [tiles]", dtick=1, showgrid=False),
            yaxis=axis("time of one step [µs]", rangemode="tozero"),
        ),
    )


def _points(name: str, own: Sequence[Placed], ys_us: Sequence[float | None], marker: Spec) -> Spec:
    return dict(
        type="scatter",
        mode="markers",
        name=name,
        x=[each.placement.register_slots for each in own],
        y=list(ys_us),
        marker=marker,
        hovertext=[describe(each) for each in own],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _best_us(each: Placed) -> float | None:
    """Where a mark goes: the measured step, else the predicted one."""
    return each.measured.step_us if each.measured is not None else each.predicted_us


def describe(each: Placed) -> str:
    """A placement in words: tiles by tier, what was predicted, measured and spilled."""
    placement = each.placement
    parts = [
        f"{placement.warps} warps; tiles of a block: {placement.register_tiles} in registers, {placement.shared_tiles} in shared memory"
        + (f", {placement.streamed_tiles} streamed through {placement.staging_tiles}" if placement.streamed_tiles else "")
    ]
    if each.predicted_us is not None:
        parts.append(f"predicted {format_us(each.predicted_us)}")
    if each.measured is not None:
        parts.append(f"measured {format_us(each.measured.step_us)}")
    if each.registers_per_thread is not None:
        parts.append(f"{each.registers_per_thread} registers a thread, {each.spill_bytes} bytes spilled")
    return "<br>".join(parts)
