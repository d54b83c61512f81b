"""The memory tiers to scale, with W2 placed in them: one multiprocessor above, the whole chip below.

See `figures` for colours and specs; the numbers come from `wts_lab.tiers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import BYTES_PER_KIB, BYTES_PER_MIB, format_bytes
from wts_lab.ui.figures import INK, PAPER, QUIET, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.tiers import Tier

COLOURS = {"registers": "#009E73", "shared memory": "#56B4E9", "L2": "#E69F00", "HBM": "#D55E00"}
CHIP_AXIS_HEADROOM = 1.6
"""The chip axis ends at this many times its largest tier below HBM; HBM runs out of the frame and says how far it goes."""

BLOCK_DOMAIN, CHIP_DOMAIN = (0.69, 1.0), (0.0, 0.5)
"""Heights of the two drawings: a block above the chip, so that each has the figure's width for its words."""

BAR_HEIGHT = 0.42
TIER_WORDS = (
    "filled: W2 read here in every step · hatched: at rest, read at the start · "
    "dotted: landing space · outline: capacity, to scale"
)


def memory_tiers_figure(tiers: Sequence[Tier], *, title: str = "Where the matrix sits", height_px: int = 620) -> go.Figure:
    """Capacity of each tier as an outline, what a step reads from it filled, what lies there at rest hatched; lengths to scale."""
    return draw(memory_tiers_spec(tiers, title=title, height_px=height_px))


def memory_tiers_spec(tiers: Sequence[Tier], *, title: str = "Where the matrix sits", height_px: int = 620) -> Spec:
    """The spec of `memory_tiers_figure`."""
    block = [tier for tier in tiers if tier.scope == "block"]
    chip = [tier for tier in tiers if tier.scope == "chip"]
    block_end = max(tier.capacity_bytes for tier in block) / BYTES_PER_KIB * 1.04
    below_hbm = max(tier.capacity_bytes for tier in chip if tier.name != "HBM")
    largest = max(below_hbm, *(max(tier.kept_bytes, tier.at_rest_bytes) for tier in chip))
    chip_end = largest / BYTES_PER_MIB * CHIP_AXIS_HEADROOM
    titles = [
        dict(
            text=text,
            x=0.0,
            y=domain[1],
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            font=dict(size=14, color=INK),
        )
        for text, domain in (("one block = one multiprocessor", BLOCK_DOMAIN), ("whole chip", CHIP_DOMAIN))
    ]
    return dict(
        data=_bars(block, BYTES_PER_KIB, block_end, "") + _bars(chip, BYTES_PER_MIB, chip_end, "2"),
        layout=layout(
            height_px,
            barmode="overlay",
            showlegend=False,
            margin=dict(l=150, r=40, t=126, b=60),
            title=heading(title, TIER_WORDS),
            annotations=titles + _notes(block, BYTES_PER_KIB, block_end, "") + _notes(chip, BYTES_PER_MIB, chip_end, "2"),
            xaxis=axis("size [KiB]", range=[0, block_end], anchor="y"),
            yaxis=_names(block, "x", BLOCK_DOMAIN),
            xaxis2=axis("size [MiB]", range=[0, chip_end], anchor="y2"),
            yaxis2=_names(chip, "x2", CHIP_DOMAIN),
        ),
    )


def _names(tiers: Sequence[Tier], anchor: str, domain: tuple[float, float]) -> Spec:
    """The axis that names the tiers, first on top."""
    return axis(
        anchor=anchor,
        domain=list(domain),
        tickvals=list(range(len(tiers))),
        ticktext=[f"<b>{tier.name}</b> " for tier in tiers],
        range=[len(tiers) - 0.45, -0.75],
        showgrid=False,
        ticks="",
    )


def _bars(tiers: Sequence[Tier], scale: int, end: float, suffix: str) -> list[Spec]:
    """Four overlaid bar traces: capacity, at rest, kept, landing space."""
    colours = [COLOURS[tier.name] for tier in tiers]
    common = dict(
        type="bar",
        orientation="h",
        y=list(range(len(tiers))),
        width=BAR_HEIGHT,
        xaxis="x" + suffix,
        yaxis="y" + suffix,
        hovertext=[_describe(tier) for tier in tiers],
        hovertemplate="%{hovertext}<extra></extra>",
    )

    def pattern(shape: str, size: int, solidity: float) -> Spec:
        return dict(
            color=PAPER,
            line=dict(color=colours, width=1),
            pattern=dict(shape=shape, fgcolor=colours, bgcolor=PAPER, size=size, solidity=solidity),
        )

    return [
        dict(
            common,
            name="capacity",
            x=[min(tier.capacity_bytes / scale, end) for tier in tiers],
            marker=dict(color="#f6f7f8", line=dict(color="#9aa3af", width=1.2)),
        ),
        dict(common, name="at rest", x=[tier.at_rest_bytes / scale for tier in tiers], marker=pattern("/", 7, 0.35)),
        dict(
            common,
            name="kept",
            x=[tier.kept_bytes / scale for tier in tiers],
            marker=dict(color=colours, line=dict(color=PAPER, width=0.5)),
        ),
        dict(
            common,
            name="landing",
            base=[tier.kept_bytes / scale for tier in tiers],
            x=[tier.landing_bytes / scale for tier in tiers],
            marker=pattern(".", 6, 0.3),
        ),
    ]


def _notes(tiers: Sequence[Tier], scale: int, end: float, suffix: str) -> list[Spec]:
    """A line of text above each bar, and 'continues' on a bar that runs out of the frame."""
    where = dict(xref="x" + suffix, yref="y" + suffix, showarrow=False)
    notes = [
        dict(where, text=_describe(tier), x=0, y=place - 0.36, xanchor="left", font=dict(size=12.5, color=QUIET))
        for place, tier in enumerate(tiers)
    ]
    return notes + [
        dict(where, text="continues →", x=end, y=place, xanchor="right", font=dict(size=12, color=QUIET))
        for place, tier in enumerate(tiers)
        if tier.capacity_bytes / scale > end
    ]


def _describe(tier: Tier) -> str:
    """One line a tier: what of W2 is here and how large the tier is."""
    parts = [f"{format_bytes(tier.kept_bytes)} of W2 read each step"] * bool(tier.kept_bytes)
    parts += [f"{format_bytes(tier.landing_bytes)} to land streamed tiles"] * bool(tier.landing_bytes)
    parts += [f"{format_bytes(tier.at_rest_bytes)} of W2 at rest"] * bool(tier.at_rest_bytes)
    return f"{' + '.join(parts) or 'nothing of W2'}, of {format_bytes(tier.capacity_bytes)}"
