"""Where the gain of a step comes from: the engine's step, then fusion, precision and residency, down to the resident step.

See `figures` for colours and specs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.units import format_ratio, format_us
from wts_lab.ui.figures import INK, LINE, PAPER, STYLES, Spec, axis, draw, heading, layout, top_px

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.gain import GainSplit

GAIN_WORDS = "each bar takes away from the step before it · grey: a step that stays"
GAINS = (("fusion", "fusion_us", "streaming-bf16"), ("precision", "precision_us", "streaming-int8x2"), ("residency", "residency_us", "resident-int8x2"))
"""Name, field of GainSplit, and the style of the walk that each gain leads to."""

LOSS_COLOUR = "#D55E00"


def gain_figure(gain: GainSplit | None, *, title: str = "Where a step's gain comes from", height_px: int = 380) -> go.Figure:
    """A waterfall from the engine's fastest step to the resident one, in microseconds a step."""
    return draw(gain_spec(gain, title=title, height_px=height_px))


def gain_spec(gain: GainSplit | None, *, title: str = "Where a step's gain comes from", height_px: int = 380) -> Spec:
    """The spec of `gain_figure`; says so where a way is missing and there is nothing to split."""
    names = ["stepwise, engine's fastest", *(name for name, _, _ in GAINS), "resident int8x2"]
    frame = dict(title=heading(title, GAIN_WORDS), showlegend=False, margin=dict(l=72, r=24, t=top_px(GAIN_WORDS), b=48), bargap=0.35)
    bars = _bars(gain, names) if gain is not None else dict(x=[], y=[], base=[], text=[])
    missing = dict(text="One of the four ways cannot be predicted here.", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return dict(
        data=[dict(type="bar", name="step", textposition="outside", cliponaxis=False, hovertemplate="%{x}: %{text}<extra></extra>", **bars)],
        layout=layout(
            height_px,
            **frame,
            annotations=[] if gain is not None else [missing],
            xaxis=axis(type="category", showgrid=False, categoryorder="array", categoryarray=names),
            yaxis=axis("time of one step [µs]", rangemode="tozero"),
        ),
    )


def _bars(gain: GainSplit, names: list[str]) -> Spec:
    """Bars between the levels of neighbouring walks: base at the lower level, height the difference."""
    levels = (gain.stepwise_us, gain.streaming_bf16_us, gain.streaming_int8x2_us, gain.resident_us)
    steps_us = [getattr(gain, field) for _, field, _ in GAINS]
    colours = [STYLES[style].colour if us >= 0 else LOSS_COLOUR for us, (_, _, style) in zip(steps_us, GAINS)]
    ratios = [format_ratio(before / after) for before, after in zip(levels, levels[1:])]
    texts = [f"{'−' if us >= 0 else '+'}{format_us(abs(us))}<br>{ratio}" for us, ratio in zip(steps_us, ratios)]
    return dict(
        x=names,
        base=[0.0, *(min(pair) for pair in zip(levels, levels[1:])), 0.0],
        y=[gain.stepwise_us, *map(abs, steps_us), gain.resident_us],
        text=[format_us(gain.stepwise_us), *texts, f"{format_us(gain.resident_us)}<br>{format_ratio(gain.stepwise_us / gain.resident_us)} in all"],
        textfont=dict(size=13, color=INK),
        marker=dict(color=[LINE, *colours, LINE], line=dict(color=PAPER, width=1)),
    )
