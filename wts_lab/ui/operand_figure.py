"""On-chip room of GPUs by tier, with the matrices that should stay there; and what the walk kernel keeps in each.

See `figures` for colours and specs; the numbers come from `cost_model.operand_paths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.operand_paths import TIER_FACTS, tier_bytes
from cost_model.terms import matrix_bytes, tile_bytes
from cost_model.units import BYTES_PER_MIB, format_bytes, format_percent
from wts_lab.ui.figures import INK, LINE, PAPER, Spec, axis, draw, heading, layout
from wts_lab.ui.tier_figure import COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import plotly.graph_objects as go

    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.operand_paths import KernelPath

TIER_COLOURS = {"registers": COLOURS["registers"], "shared memory": COLOURS["shared memory"], "tensor memory": "#CC79A7"}
ROOM_WORDS = "whole chip, one block on each multiprocessor · dotted: a matrix · hatched: not used by the kernel"
KEPT_WORDS = "share of the tiles of one block, by where a step reads them · label: the instruction that multiplies"
TIERS_OF_PLACEMENT = (("registers", "register_tiles"), ("shared memory", "shared_tiles"), ("streamed", "streamed_tiles"))
ROW_PX = 27


def room_figure(gpus: Iterable[Gpu], heads: Sequence[Head], *, title: str = "Room on chip") -> go.Figure:
    """Registers, shared and tensor memory of each GPU in MiB, largest on top, beside the matrices of some heads."""
    return draw(room_spec(gpus, heads, title=title))


def room_spec(gpus: Iterable[Gpu], heads: Sequence[Head], *, title: str = "Room on chip") -> Spec:
    """The spec of `room_figure`: a trace a tier."""
    sizes = sorted(((gpu.id, tier_bytes(gpu)) for gpu in gpus), key=lambda pair: sum(pair[1].values()))
    traces = [_tier_trace(tier, sizes) for tier in TIER_FACTS]
    matrices = sorted({matrix_bytes(head.vocab_size, head.rank, precision): f"V {head.vocab_size:,}<br>{precision}" for head in heads for precision in ("bf16", "int8x2")}.items())
    lines = [
        dict(type="line", x0=size / BYTES_PER_MIB, x1=size / BYTES_PER_MIB, y0=0, y1=1, yref="paper", line=dict(color=INK, width=1.5, dash="dot"))
        for size, _ in matrices
    ]
    words = [
        dict(text=text, x=size / BYTES_PER_MIB, y=1.0, yref="paper", yanchor="bottom", showarrow=False, font=dict(size=12, color=INK))
        for size, text in matrices
    ]
    frame = layout(
        210 + ROW_PX * len(sizes), title=heading(title, ROOM_WORDS), barmode="stack", bargap=0.3, shapes=lines, annotations=words, showlegend=True,
        margin=dict(l=190, r=40, t=132, b=96), legend=dict(orientation="h", y=-0.075, x=0, traceorder="normal"),
        xaxis=axis("size [MiB]", rangemode="tozero"), yaxis=axis(type="category", showgrid=False, ticks="", categoryorder="array", categoryarray=[name for name, _ in sizes]),
    )  # fmt: skip
    return dict(data=traces, layout=frame)


def _tier_trace(tier: str, sizes: Sequence[tuple[str, dict[str, float]]]) -> Spec:
    held = [(name, size[tier]) for name, size in sizes if tier in size]
    marker: Spec = dict(color=TIER_COLOURS[tier], line=dict(color=PAPER, width=1))
    if tier == "tensor memory":
        marker["pattern"] = dict(shape="/", fgcolor=TIER_COLOURS[tier], bgcolor=PAPER, size=7, solidity=0.4)
    return dict(
        type="bar", orientation="h", name=tier, y=[name for name, _ in held], x=[size / BYTES_PER_MIB for _, size in held], marker=marker,
        hovertext=[f"{name}: {format_bytes(size)} of {tier}" for name, size in held], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def kept_figure(paths: Sequence[KernelPath], rank: int, *, title: str = "What the kernel keeps, and where") -> go.Figure:
    """Shares of a block's tiles in registers, in shared memory, and streamed, a bar a kernel; `rank` is the head's."""
    return draw(kept_spec(paths, rank, title=title))


def kept_spec(paths: Sequence[KernelPath], rank: int, *, title: str = "What the kernel keeps, and where") -> Spec:
    """The spec of `kept_figure`: a trace a tier; kernels for which nothing fits have an empty bar."""
    names = [f"{path.gpu_id}, {path.precision}, {path.rows} row{'s' if path.rows > 1 else ''}" for path in paths]
    traces = []
    for tier, field in TIERS_OF_PLACEMENT:
        counts = [0 if path.placement is None else getattr(path.placement, field) for path in paths]
        shares = [count / path.placement.tiles if path.placement else 0.0 for count, path in zip(counts, paths)]
        told = [f"{name}: {count} tiles, {format_bytes(count * tile_bytes(rank, path.precision))} a block, {tier}" for name, count, path in zip(names, counts, paths)]
        traces.append(
            dict(
                type="bar", orientation="h", name=tier, y=names, x=shares, marker=dict(color=TIER_COLOURS.get(tier, LINE), line=dict(color=PAPER, width=1)),
                text=[format_percent(share) if share else "" for share in shares], textposition="inside", insidetextanchor="middle", textfont=dict(size=12, color=INK),
                hovertext=told, hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    notes = [
        dict(text=path.instruction or "nothing fits", x=1.01, xref="paper", xanchor="left", y=name, yref="y", showarrow=False, font=dict(size=13, color=INK))
        for name, path in zip(names, paths)
    ]
    frame = layout(
        190 + ROW_PX * len(paths), title=heading(title, KEPT_WORDS), barmode="stack", bargap=0.3, annotations=notes, showlegend=True,
        margin=dict(l=230, r=110, t=96, b=88), legend=dict(orientation="h", y=-0.16, x=0, traceorder="normal"),
        xaxis=axis("share of the matrix", tickformat=".0%", range=[0, 1]), yaxis=axis(type="category", showgrid=False, ticks="", autorange="reversed"),
    )  # fmt: skip
    return dict(data=traces, layout=frame)
