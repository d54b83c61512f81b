"""Recorded rounds as stacked bars: each with the engine's head and with the resident one, and what that gains.

See `figures` for colours and specs; the rounds come from `wts_lab.recorded_rounds`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.measured_round import HEAD, PHASES, WHOLE
from cost_model.units import format_percent, format_us
from wts_lab.ui.figures import INK, PAPER, QUIET, STYLES, Spec, axis, draw, heading, layout, top_px
from wts_lab.ui.footprint_figures import PHASE_COLOURS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.measured_round import MeasuredGain, RoundComparison

ROUND_WORDS = "bars: parts, each timed alone · diamond: the whole round · words: more tokens a second at the same accepted length"
ENGINE_BAR, RESIDENT_BAR = "engine's head", "resident head"
ROW_PX, BOTTOM_PX = 25, 116


def measured_round_figure(found: RoundComparison, target: str, *, title: str = "Recorded rounds") -> go.Figure:
    """Two bars a round of one target: over the head that the engine takes, and over the resident one, in milliseconds."""
    return draw(measured_round_spec(found, target, title=title))


def measured_round_spec(found: RoundComparison, target: str, *, title: str = "Recorded rounds") -> Spec:
    """The spec of `measured_round_figure`: a trace a part, the whole rounds, and the gains; says so where there is none of the target.

    Rounds that lost most of their samples are not drawn, and the figure says how many.
    """
    gains = [gain for gain in found.over_taken(target) if gain.stands]
    hidden = len({key for key in found.lost.rounds if key.target == target} - {gain.key for gain in gains})
    words = ROUND_WORDS + (f" · not drawn: {hidden} that lost most samples to throttling" if hidden else "")
    time_us = {(one.part.key, one.part.phase, one.part.implementation): one.part.time_us for one in found.parts}
    bars = [(gain, name, way) for gain in gains for name, way in ((gain.before, ENGINE_BAR), (gain.after, RESIDENT_BAR))]
    several = len({gain.key.draft_tokens for gain in gains}) > 1
    labels = [f"<b>{gain.key.concurrency} × {gain.key.context_tokens:,}</b>, {f'{gain.key.draft_tokens} drafted, ' if several else ''}{way} " for gain, _, way in bars]
    traces = [_stack(phase.replace("_", " "), PHASE_COLOURS[phase.replace("_", " ")], labels, [time_us.get((gain.key, phase, None), 0.0) for gain, *_ in bars]) for phase in PHASES]
    for way, role in ((ENGINE_BAR, "engine"), (RESIDENT_BAR, "resident-int8x2")):
        own = [(label, time_us.get((gain.key, HEAD, name), 0.0)) for label, (gain, name, one) in zip(labels, bars) if one == way]
        traces.append(_stack(way, STYLES[role].colour, [label for label, _ in own], [time for _, time in own]))
    whole = [time_us[gain.key, WHOLE, name] for gain, name, _ in bars]
    traces.append(dict(type="scatter", name="whole round", mode="markers+text", y=labels, x=[time / 1e3 for time in whole],
                       marker=dict(color=INK, symbol="diamond", size=8, line=dict(color=PAPER, width=1)), textposition="middle right", cliponaxis=False,
                       text=[_words(gain, time, way) for (gain, _, way), time in zip(bars, whole)], textfont=dict(size=12, color=INK), hoverinfo="skip"))  # fmt: skip
    missing = dict(text=found.basis if not found.parts else f"No gain of {target} was recorded.", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return dict(
        data=traces if bars else [],
        layout=layout(
            top_px(words) + 20 + BOTTOM_PX + ROW_PX * max(len(bars), 4), title=heading(title, words), barmode="stack", bargap=0.22, showlegend=True,
            annotations=[] if bars else [missing], margin=dict(l=210, r=210, t=top_px(words) + 20, b=BOTTOM_PX),
            legend=dict(orientation="h", traceorder="normal", yref="container", y=0.01, yanchor="bottom", x=0, font=dict(size=12, color=QUIET)),
            xaxis=axis("time of a round [ms]", rangemode="tozero"), yaxis=axis(showgrid=False, ticks="", autorange="reversed"),
        ),
    )  # fmt: skip


def _stack(name: str, colour: str, labels: list[str], times_us: list[float]) -> Spec:
    """The bars of one part."""
    return dict(type="bar", orientation="h", name=name, y=labels, x=[time / 1e3 for time in times_us], marker=dict(color=colour, line=dict(color=PAPER, width=1)),
                customdata=[format_us(time) for time in times_us], hovertemplate=f"{name}: %{{customdata}}<extra></extra>")  # fmt: skip


def _words(gain: MeasuredGain, time_us: float, way: str) -> str:
    """Beside a whole round: its time, and with the resident head the gain."""
    if way == ENGINE_BAR:
        return f"  {format_us(time_us)}"
    told = "one process" if gain.gain_low is None else f"{format_percent(gain.gain_low)} to {format_percent(gain.gain_high)}"
    return f"  {format_us(time_us)}  <b>+{format_percent(gain.gain)}</b> ({told})"
