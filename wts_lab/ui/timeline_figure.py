"""The walk on a time axis: the whole call above, one step enlarged below with a lane for each term.

See `figures` for colours and specs; the spans come from `cost_model.timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.units import format_us
from wts_lab.ui.figures import INK, PAPER, QUIET, Spec, axis, draw, heading, layout
from wts_lab.ui.step_figure import OTHER_TERM_COLOUR, TERM_COLOURS, term_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.timeline import Span

TIMELINE_WORDS = "filled: adds to the call · hatched: runs beside it and adds nothing"
CALL_DOMAIN, STEP_DOMAIN = (0.80, 1.0), (0.0, 0.56)
STEP_COLOURS = ("#8fb8de", "#c7dcf0")
ENTRY_COLOUR = "#9aa3af"
ROOM_FOR_WORDS = 0.3
"""Share of the width that the words beside a bar take."""


def timeline_figure(spans: Sequence[Span], *, title: str = "The walk in time", height_px: int = 440) -> go.Figure:
    """The call as entry and steps, and its last step enlarged, one lane a term; time in microseconds."""
    return draw(timeline_spec(spans, title=title, height_px=height_px))


def timeline_spec(spans: Sequence[Span], *, title: str = "The walk in time", height_px: int = 440) -> Spec:
    """The spec of `timeline_figure`."""
    last = max(span.step for span in spans)
    step = [span for span in spans if span.step == last]
    start_us = min(span.start_us for span in step)
    lanes = list(dict.fromkeys(span.term for span in sorted(step, key=lambda span: span.start_us)))
    shown_us = max(span.end_us for span in step) - start_us
    head = dict(x=0.0, xref="paper", yref="paper", xanchor="left", yanchor="bottom", showarrow=False, font=dict(size=14, color=INK))
    words = (("the whole call", CALL_DOMAIN), (f"step {last} enlarged", STEP_DOMAIN))
    return dict(
        data=[_call_trace(spans, last), *(_step_trace(step, lanes, start_us, hidden) for hidden in (False, True)), _words_trace(step, lanes, start_us, shown_us)],
        layout=layout(
            height_px,
            title=heading(title, TIMELINE_WORDS),
            barmode="overlay",
            showlegend=False,
            margin=dict(l=150, r=24, t=112, b=56),
            annotations=[dict(head, text=text, y=domain[1]) for text, domain in words],
            xaxis=axis(anchor="y", side="bottom"),
            yaxis=axis(domain=list(CALL_DOMAIN), tickvals=[], showgrid=False, ticks="", range=[-0.5, 0.5]),
            xaxis2=axis("time [µs]", anchor="y2", range=[0, shown_us * 1.02]),
            yaxis2=axis(
                anchor="x2",
                domain=list(STEP_DOMAIN),
                tickvals=list(range(len(lanes))),
                ticktext=[f"{term_words(lane)} " for lane in lanes],
                range=[len(lanes) - 0.4, -0.6],
                showgrid=False,
                ticks="",
            ),
        ),
    )


def _call_trace(spans: Sequence[Span], last: int) -> Spec:
    """A bar for the entry and one for each step, end to end."""
    added = [[span for span in spans if span.step == number and not span.hidden] for number in range(last + 1)]
    starts = [own[0].start_us for own in added]
    lengths = [own[-1].end_us - own[0].start_us for own in added]
    names = ["entry", *(f"step {number}" for number in range(1, last + 1))]
    widest = sum(lengths)
    return dict(
        type="bar",
        name="call",
        orientation="h",
        y=[0] * (last + 1),
        base=starts,
        x=lengths,
        width=0.8,
        marker=dict(color=[ENTRY_COLOUR, *(STEP_COLOURS[number % 2] for number in range(last))], line=dict(color=PAPER, width=1)),
        text=[name.removeprefix("step ") if us / widest > 0.02 else "" for name, us in zip(names, lengths)],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont=dict(size=12, color=INK),
        hovertext=[f"{name}: {format_us(us)} from {format_us(start)}" for name, us, start in zip(names, lengths, starts)],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _step_trace(step: Sequence[Span], lanes: Sequence[str], start_us: float, hidden: bool) -> Spec:
    """Bars of the exposed or of the hidden spans of a step, each on its lane."""
    mine = [span for span in step if span.hidden == hidden]
    colours = [TERM_COLOURS.get(span.term, OTHER_TERM_COLOUR) for span in mine]
    marker = dict(color=colours, line=dict(color=PAPER, width=1))
    if hidden:
        marker = dict(color=PAPER, line=dict(color=colours, width=1), pattern=dict(shape="/", fgcolor=colours, bgcolor=PAPER, size=6))
    return dict(
        type="bar",
        name="hidden" if hidden else "exposed",
        orientation="h",
        xaxis="x2",
        yaxis="y2",
        y=[lanes.index(span.term) for span in mine],
        base=[span.start_us - start_us for span in mine],
        x=[span.length_us for span in mine],
        width=0.62,
        marker=marker,
        hovertext=[_said(span) for span in mine],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _words_trace(step: Sequence[Span], lanes: Sequence[str], start_us: float, shown_us: float) -> Spec:
    """Time and resource of each lane, beside its bar: on the right of it, or on the left where the right has no room."""
    rows = []
    for place, lane in enumerate(lanes):
        mine = [span for span in step if span.term == lane]
        begin, end = min(span.start_us for span in mine) - start_us, max(span.end_us for span in mine) - start_us
        is_right = shown_us - end > min(begin, ROOM_FOR_WORDS * shown_us)
        rows.append((end if is_right else begin, place, "middle right" if is_right else "middle left", "; ".join(map(_said, mine))))
    xs, ys, positions, texts = zip(*rows)
    return dict(
        type="scatter",
        mode="text",
        name="words",
        xaxis="x2",
        yaxis="y2",
        x=xs,
        y=ys,
        text=[f" {text} " for text in texts],
        textposition=positions,
        textfont=dict(size=12, color=QUIET),
        cliponaxis=False,
        hoverinfo="skip",
    )


def _said(span: Span) -> str:
    """What a span is, in words."""
    return f"{format_us(span.length_us)}, {span.resource}" + (", hidden" if span.hidden else "")
