"""The memory tiers to scale, with W2 placed in them: one multiprocessor on the left, the whole chip on the right.

See `figures` for colours and axes; the numbers come from `wts_lab.tiers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import BYTES_PER_KIB, BYTES_PER_MIB, format_bytes
from wts_lab.ui.figures import GRID, INK, PAPER, QUIET, axis, heading, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.tiers import Tier

COLOURS = {"registers": "#009E73", "shared memory": "#56B4E9", "L2": "#E69F00", "HBM": "#D55E00"}
CHIP_AXIS_HEADROOM = 1.6
"""The chip axis ends at this many times its largest tier below HBM; HBM runs out of the frame and says how far it goes."""


def memory_tiers_figure(tiers: Sequence[Tier], *, title: str = "Where the matrix sits", height_px: int = 400) -> go.Figure:
    """Capacity of each tier as an outline, what a step reads from it filled, what lies there at rest hatched; lengths to scale."""
    from plotly.subplots import make_subplots

    block = [tier for tier in tiers if tier.scope == "block"]
    chip = [tier for tier in tiers if tier.scope == "chip"]
    figure = make_subplots(rows=1, cols=2, column_widths=[0.36, 0.64], horizontal_spacing=0.14,
                           subplot_titles=("one block = one multiprocessor", "whole chip"))
    block_end = max(tier.capacity_bytes for tier in block) / BYTES_PER_KIB * 1.04
    below_hbm = max(tier.capacity_bytes for tier in chip if tier.name != "HBM")
    largest_part = max(max(tier.kept_bytes, tier.at_rest_bytes) for tier in chip)
    chip_end = max(below_hbm, largest_part) / BYTES_PER_MIB * CHIP_AXIS_HEADROOM
    _draw(figure, block, BYTES_PER_KIB, block_end, 1)
    _draw(figure, chip, BYTES_PER_MIB, chip_end, 2)
    figure.update_xaxes(**axis("size [KiB]", range=[0, block_end]), row=1, col=1)
    figure.update_xaxes(**axis("size [MiB]", range=[0, chip_end]), row=1, col=2)
    figure.update_layout(**layout(height_px, barmode="overlay", showlegend=False, margin=dict(l=120, r=40, t=104, b=60), title=heading(
        title, "filled: W2 read from here in every step · hatched: at rest, read when a walk begins · dotted: landing space · outline: capacity, to scale")))
    return figure


def _draw(figure: go.Figure, tiers: Sequence[Tier], scale: int, end: float, column: int) -> None:
    """Three overlaid bar traces (capacity, at rest, kept) and a line of text above each bar."""
    import plotly.graph_objects as go

    names = [tier.name for tier in tiers]
    positions = list(range(len(tiers)))
    capacity = [min(tier.capacity_bytes / scale, end) for tier in tiers]
    colours = [COLOURS[name] for name in names]
    where = dict(row=1, col=column)
    hover = [_describe(tier) for tier in tiers]
    common = dict(orientation="h", y=positions, hovertext=hover, hovertemplate="%{hovertext}<extra></extra>")
    figure.add_trace(go.Bar(name="capacity", x=capacity, width=0.42, marker=dict(color="#f6f7f8", line=dict(color="#9aa3af", width=1.2)), **common), **where)
    figure.add_trace(go.Bar(name="at rest", x=[tier.at_rest_bytes / scale for tier in tiers], width=0.42,
                            marker=dict(color=PAPER, line=dict(color=colours, width=1), pattern=dict(shape="/", fgcolor=colours, size=7, solidity=0.35)), **common), **where)
    figure.add_trace(go.Bar(name="kept", x=[tier.kept_bytes / scale for tier in tiers], width=0.42,
                            marker=dict(color=colours, line=dict(color=PAPER, width=0.5)), **common), **where)
    figure.add_trace(go.Bar(name="landing", base=[tier.kept_bytes / scale for tier in tiers], x=[tier.landing_bytes / scale for tier in tiers], width=0.42,
                            marker=dict(color=PAPER, line=dict(color=colours, width=1), pattern=dict(shape=".", fgcolor=colours, size=6, solidity=0.3)), **common), **where)
    figure.update_yaxes(tickvals=positions, ticktext=[f"<b>{name}</b>" for name in names], range=[len(tiers) - 0.45, -0.75], showgrid=False,
                        zeroline=False, linecolor=GRID, tickfont=dict(size=13, color=INK), **where)
    for position, tier in zip(positions, tiers):
        figure.add_annotation(text=_describe(tier), x=0, y=position - 0.36, xanchor="left", showarrow=False, font=dict(size=12.5, color=QUIET), **where)
        if tier.capacity_bytes / scale > end:
            figure.add_annotation(text="continues →", x=end, y=position, xanchor="right", showarrow=False, font=dict(size=12, color=QUIET), **where)


def _describe(tier: Tier) -> str:
    """One line a tier: what of W2 is here and how large the tier is."""
    parts = [f"{format_bytes(tier.kept_bytes)} of W2 read each step"] * bool(tier.kept_bytes)
    parts += [f"{format_bytes(tier.landing_bytes)} to land streamed tiles"] * bool(tier.landing_bytes)
    parts += [f"{format_bytes(tier.at_rest_bytes)} of W2 at rest"] * bool(tier.at_rest_bytes)
    return f"{' + '.join(parts) or 'nothing of W2'}, of {format_bytes(tier.capacity_bytes)}"
