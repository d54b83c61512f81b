"""What heads weigh against what a chip holds, an engine's step in its parts, and the head's share of a round.

See `figures` for colours and specs; the numbers come from `cost_model.head_memory`, `wts_lab.engine_step` and `wts_lab.head_shares`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.head_memory import on_chip_bytes
from cost_model.units import BYTES_PER_MIB, format_bytes, format_percent, format_us
from wts_lab.ui.figures import INK, PAPER, QUIET, STYLES, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.gpu import Gpu
    from cost_model.head_memory import HeadMemory
    from wts_lab.engine_step import EngineStep
    from wts_lab.head_shares import HeadShare

MEMORY_WORDS = "pale: what a stepwise step reads, bf16 · full: what a fused step multiplies, int8 · lines: what the chip holds"
STEP_WORDS = "coloured: kernels where a profiler saw them, else the model's terms · diamond: a step of complete calls"
SHARE_WORDS = "coloured: the head · grey: verify, backbone and base logits"
PART_COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#663300")
BETWEEN_COLOUR = "#c9ced6"
PHASE_COLOURS = {"verify": "#e3e6ea", "backbone": "#c3c9d2", "base logits": "#9aa3b0"}
ROW_PX, TOP_PX, BOTTOM_PX = 30, 112, 76


def head_memory_figure(memories: Sequence[HeadMemory], gpu: Gpu, *, title: str = "What a step reads, and what the chip holds") -> go.Figure:
    """Bytes (MiB) of each head that a step needs, beside registers and shared memory, and L2, of a GPU."""
    return draw(head_memory_spec(memories, gpu, title=title))


def head_memory_spec(memories: Sequence[HeadMemory], gpu: Gpu, *, title: str = "What a step reads, and what the chip holds") -> Spec:
    """The spec of `head_memory_figure`: two bars a head, and a line for each capacity."""
    ordered = sorted(memories, key=lambda each: each.step_read_bytes, reverse=True)
    names = [each.head.name for each in ordered]
    resident, stepwise = STYLES["resident-int8x2"], STYLES["engine"]
    bars = [
        _bar("stepwise, bf16", names, [each.step_read_bytes for each in ordered], stepwise.band, stepwise.words, 0.72),
        _bar("fused, int8x2", names, [each.resident_bytes for each in ordered], resident.colour, resident.words, 0.34),
    ]
    capacities = sorted([("L2", gpu.value("l2_bytes")), ("registers and shared memory", on_chip_bytes(gpu))], key=lambda one: one[1])
    return dict(
        data=bars,
        layout=layout(
            TOP_PX + BOTTOM_PX + ROW_PX * len(names),
            title=heading(title, MEMORY_WORDS),
            barmode="overlay",
            bargap=0.2,
            showlegend=False,
            margin=dict(l=190, r=40, t=TOP_PX + 24, b=BOTTOM_PX),
            shapes=[
                dict(
                    type="line",
                    xref="x",
                    yref="paper",
                    x0=size / BYTES_PER_MIB,
                    x1=size / BYTES_PER_MIB,
                    y0=0,
                    y1=1,
                    line=dict(color=INK, width=1.6, dash="dot"),
                )
                for _, size in capacities
            ],
            annotations=[
                dict(
                    x=size / BYTES_PER_MIB,
                    xref="x",
                    y=1.0,
                    yref="paper",
                    xanchor=anchor,
                    yanchor="bottom",
                    align=anchor,
                    showarrow=False,
                    font=dict(size=12, color=INK),
                    text=f"{name}<br>{format_bytes(size)}",
                )
                for (name, size), anchor in zip(capacities, ("right", "left"))
            ],
            xaxis=axis("read in one step [MiB]", rangemode="tozero"),
            yaxis=axis(showgrid=False, ticks="", autorange="reversed"),
        ),
    )


def _bar(name: str, heads: list[str], sizes: list[float], colour: str, line: str, width: float) -> Spec:
    """One kind of bar over all heads."""
    return dict(
        type="bar",
        orientation="h",
        name=name,
        y=heads,
        x=[size / BYTES_PER_MIB for size in sizes],
        width=width,
        marker=dict(color=colour, line=dict(color=line, width=1)),
        customdata=[format_bytes(size) for size in sizes],
        hovertemplate=f"%{{y}}, {name}: %{{customdata}}<extra></extra>",
    )


def engine_step_figure(steps: Sequence[EngineStep], *, title: str = "One step of the engine") -> go.Figure:
    """Stacked bars of each path's parts in microseconds, with the step that complete calls give."""
    return draw(engine_step_spec(steps, title=title))


def engine_step_spec(steps: Sequence[EngineStep], *, title: str = "One step of the engine") -> Spec:
    """The spec of `engine_step_figure`: a trace a part name, and the whole steps."""
    from wts_lab.engine_step import BETWEEN

    names = list(dict.fromkeys(part.name for step in steps for part in step.parts))
    coloured = [name for name in names if name != BETWEEN]
    colours = {BETWEEN: BETWEEN_COLOUR, **{name: PART_COLOURS[place % len(PART_COLOURS)] for place, name in enumerate(coloured)}}
    longest = max((step.parts_us for step in steps), default=1.0)
    traces = []
    for name in names:
        rows = [(place, part.time_us) for place, step in enumerate(steps) for part in step.parts if part.name == name]
        traces.append(
            dict(
                type="bar",
                orientation="h",
                name=name,
                y=[place for place, _ in rows],
                x=[us for _, us in rows],
                width=0.46,
                marker=dict(color=colours[name], line=dict(color=PAPER, width=1.5)),
                text=[format_us(us) if us > 0.06 * longest else "" for _, us in rows],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"{name}: %{{x:.2f}} µs<extra></extra>",
            )
        )
    whole = [(place, step) for place, step in enumerate(steps) if step.step_us is not None]
    traces.append(
        dict(
            type="scatter",
            mode="markers+text",
            name="a step of complete calls",
            x=[step.step_us for _, step in whole],
            y=[place + 0.34 for place, _ in whole],
            marker=dict(symbol=["diamond" if step.step_basis == "measured" else "diamond-open" for _, step in whole], size=11, color=INK),
            text=[f"  {format_us(step.step_us)}, {step.step_basis}" for _, step in whole],
            textposition="middle right",
            textfont=dict(size=12, color=INK),
            cliponaxis=False,
            hovertemplate="complete calls: %{x:.2f} µs a step<extra></extra>",
        )
    )
    return dict(
        data=traces,
        layout=layout(
            TOP_PX + 130 + 72 * max(len(steps), 1),
            title=heading(title, STEP_WORDS),
            barmode="stack",
            showlegend=True,
            margin=dict(l=210, r=110, t=TOP_PX, b=130),
            legend=dict(orientation="h", traceorder="normal", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12)),
            xaxis=axis("time of one step [µs]", rangemode="tozero"),
            yaxis=axis(
                tickvals=list(range(len(steps))),
                ticktext=[f"<b>{step.label.replace(', ', '</b><br>')} " for step in steps],
                showgrid=False,
                ticks="",
                range=[max(len(steps), 1) - 0.4, -0.5],
            ),
        ),
    )


def head_shares_figure(shares: Sequence[HeadShare], *, title: str = "The head's share of a round") -> go.Figure:
    """Stacked bars, in per cent of each round: phases, and the head at the end."""
    return draw(head_shares_spec(shares, title=title))


def head_shares_spec(shares: Sequence[HeadShare], *, title: str = "The head's share of a round") -> Spec:
    """The spec of `head_shares_figure`: a trace a phase, and one a kind of head; the shares of a row sum to 100."""
    from wts_lab.head_shares import ENGINE_WAY, RESIDENT_WAY

    labels = [f"<b>{each.drafter}</b>, {each.way} " for each in shares]
    bases = list(dict.fromkeys(phase.basis for each in shares for phase in each.phases.values()))
    traces = []
    for name, colour in PHASE_COLOURS.items():
        parts = [100 * each.phases[name].time_us / each.round_us for each in shares]
        traces.append(
            dict(
                type="bar",
                orientation="h",
                name=name,
                y=labels,
                x=parts,
                marker=dict(color=colour, line=dict(color=PAPER, width=1.2)),
                customdata=[format_us(each.phases[name].time_us) for each in shares],
                hovertemplate=f"{name}: %{{x:.1f}} %, %{{customdata}}<extra></extra>",
            )
        )
    for way, role in ((ENGINE_WAY, "engine"), (RESIDENT_WAY, "resident-int8x2")):
        own = [(label, each) for label, each in zip(labels, shares) if each.way == way]
        traces.append(
            dict(
                type="bar",
                orientation="h",
                name=way,
                y=[label for label, _ in own],
                x=[100 * each.of_round[0] for _, each in own],
                marker=dict(color=STYLES[role].colour, line=dict(color=PAPER, width=1.2)),
                text=[f"{format_percent(each.of_round[0])} · {format_us(each.head_us[0])}, {each.basis}" for _, each in own],
                textposition="outside",
                cliponaxis=False,
                textfont=dict(size=12, color=INK),
                hovertemplate=f"{way}: %{{x:.1f}} %<extra></extra>",
            )
        )
    return dict(
        data=traces,
        layout=layout(
            TOP_PX + 110 + 34 * max(len(shares), 1),
            title=heading(title, ", ".join([SHARE_WORDS, *bases])),
            barmode="stack",
            bargap=0.25,
            showlegend=True,
            margin=dict(l=270, r=190, t=TOP_PX, b=110),
            legend=dict(orientation="h", traceorder="normal", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12, color=QUIET)),
            xaxis=axis("share of the round [%]", range=[0, 100]),
            yaxis=axis(showgrid=False, ticks="", autorange="reversed"),
        ),
    )
