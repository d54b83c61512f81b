"""Walks along an axis: times over batch, vocabulary or walk length, measured beside predicted.

See `figures` for colours and specs; the walks come from `wts_lab.walked`, goals from `wts_lab.goals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.units import format_us
from wts_lab.ui.figures import PAPER, STYLES, TIME_TICKS, Spec, Style, axis, draw, end_label, heading, layout, spread

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wts_lab.goals import Goal
    from wts_lab.walked import Walked

WALKED_WORDS = "dashed and band: predicted · filled: measured, with its interval · hollow: published by others · bar: goal"
ALONG = {"batch": "batch rows", "vocabulary": "rows of the vocabulary", "steps": "walk length [steps]"}
"""What can be laid along the axis, with the axis' title."""

ORDER = ("resident-int8x2", "streaming-int8x2", "engine", "streaming-bf16", "torch-stepwise", "resident-bf16")
"""Styles in the order in which series take them."""

LABEL_PX, TOP_PX, BOTTOM_PX, AIR = 36, 112, 64, 0.1
LEAST_TICK_SHARE = 0.11
"""Ticks nearer than this share of the axis would write over one another."""


@dataclass(frozen=True)
class _Point:
    """A place along the axis: predicted and measured time with the ends of their intervals, or what others published (microseconds)."""

    x: int
    predicted_us: tuple[float, float, float] | None
    measured_us: tuple[float, float, float] | None
    published_us: float | None = None


def walked_figure(
    series: Mapping[str, Sequence[Walked]],
    *,
    along: str,
    call_steps: int | None = None,
    goals: Iterable[Goal] = (),
    title: str = "",
    height_px: int = 480,
) -> go.Figure:
    """Time (microseconds, logarithmic) over `along`, a line a series: of a step, or of a complete call of `call_steps`; along "steps" always of
    the complete call, one walk a series. Raises BadInput for another axis, or more series than there are styles."""
    return draw(walked_spec(series, along=along, call_steps=call_steps, goals=goals, title=title, height_px=height_px))


def walked_spec(
    series: Mapping[str, Sequence[Walked]],
    *,
    along: str,
    call_steps: int | None = None,
    goals: Iterable[Goal] = (),
    title: str = "",
    height_px: int = 480,
) -> Spec:
    """The spec of `walked_figure`. Four traces a series (band, predicted, measured, published), and one of goals."""
    if along not in ALONG:
        raise BadInput(f"along is {along!r}; choose one of {', '.join(ALONG)}")
    if len(series) > len(ORDER):
        raise BadInput(f"{len(series)} series were given; a figure tells {len(ORDER)} apart, so draw several")
    complete = along == "steps" or call_steps is not None
    points = {name: _points(walks, along, call_steps) for name, walks in series.items()}
    traces = [trace for (name, own), role in zip(points.items(), ORDER) for trace in _traces(name, own, STYLES[role])]
    traces.append(_goal_trace([goal for goal in goals if (goal.steps is not None) == complete], along, series))
    low, high = _decades([y for trace in traces for y in trace["y"]])
    what = "a complete call" if along == "steps" else f"a call of {call_steps} steps" if complete else "one step"
    ticks = sorted({point.x for own in points.values() for point in own})
    return dict(
        data=traces,
        layout=layout(
            height_px,
            title=heading(title or f"Time of {what}", WALKED_WORDS),
            showlegend=False,
            margin=dict(l=92, r=210, t=TOP_PX, b=BOTTOM_PX),
            annotations=_labels(points, (high - low) * LABEL_PX / (height_px - TOP_PX - BOTTOM_PX), high),
            xaxis=_along_axis(along, ticks),
            yaxis=axis(
                f"time of {what} [µs], log scale",
                type="log",
                range=[low, high],
                tickvals=list(TIME_TICKS),
                ticktext=[f"{tick:,}" for tick in TIME_TICKS],
            ),
        ),
    )


def _points(walks: Sequence[Walked], along: str, call_steps: int | None) -> list[_Point]:
    """The points of one series, by place."""
    if along == "steps":
        return [point for walk in walks for point in _lengths(walk)]
    found = []
    for walk in walks:
        x = walk.workload.batch if along == "batch" else walk.head.vocab_size
        published = {point.steps: point.median_us for point in walk.points}
        found.append(
            _Point(
                x,
                walk.predicted_us(call_steps),
                walk.measured_us(call_steps),
                published.get(call_steps) if call_steps else walk.published_step_us,
            )
        )
    return sorted(found, key=lambda point: point.x)


def _lengths(walk: Walked) -> list[_Point]:
    """One walk at each of its lengths: those that were timed or published, and the asked one."""
    published = {point.steps: point.median_us for point in walk.points}
    timed = walk.fit.steps if walk.is_measured else ()
    lengths = sorted({1, *timed, *published, walk.workload.steps})
    return [_Point(n, walk.predicted_us(n), walk.measured_us(n) if n in timed else None, published.get(n)) for n in lengths]


def _traces(name: str, points: list[_Point], style: Style) -> list[Spec]:
    """Band, prediction, measurements and published times of one series, empty where there are none."""
    predicted, measured, published = (
        [p for p in points if getattr(p, part) is not None] for part in ("predicted_us", "measured_us", "published_us")
    )
    xs = [p.x for p in predicted]
    hover = f"{name}<br>%s %%{{y:.2f}} µs at %%{{x:,}}<extra></extra>"
    return [
        dict(
            type="scatter",
            mode="lines",
            name=f"{name}, predicted band",
            x=xs + xs[::-1],
            y=[p.predicted_us[2] for p in predicted] + [p.predicted_us[1] for p in predicted][::-1],
            fill="toself",
            fillcolor=style.band,
            line=dict(width=0, color=style.colour),
            hoverinfo="skip",
        ),
        dict(
            type="scatter",
            mode="lines",
            name=f"{name}, predicted",
            x=xs,
            y=[p.predicted_us[0] for p in predicted],
            hovertemplate=hover % "predicted",
            line=dict(color=style.colour, width=2, dash="dash"),
        ),
        dict(
            type="scatter",
            mode="markers",
            name=f"{name}, measured",
            x=[p.x for p in measured],
            y=[p.measured_us[0] for p in measured],
            marker=dict(color=style.colour, size=9, symbol=style.symbol, line=dict(color=PAPER, width=1)),
            hovertemplate=hover % "measured",
            error_y=dict(
                type="data",
                symmetric=False,
                array=[p.measured_us[2] - p.measured_us[0] for p in measured],
                arrayminus=[p.measured_us[0] - p.measured_us[1] for p in measured],
                color=style.words,
                thickness=1.4,
                width=4,
            ),
        ),
        dict(
            type="scatter",
            mode="markers",
            name=f"{name}, published",
            x=[p.x for p in published],
            y=[p.published_us for p in published],
            marker=dict(color=PAPER, size=9, symbol=style.symbol, line=dict(color=style.colour, width=1.8)),
            hovertemplate=hover % "published",
        ),
    ]


def _goal_trace(goals: list[Goal], along: str, series: Mapping[str, Sequence[Walked]]) -> Spec:
    """Bars at the goals of walks that are shown, each in the colour of its walk's series."""
    shown = [
        (goal, STYLES[role]) for (_, walks), role in zip(series.items(), ORDER) for goal in goals if any(goal.is_of(walk) for walk in walks)
    ]
    place = {"batch": lambda goal: goal.workload.batch, "vocabulary": lambda goal: goal.head.vocab_size, "steps": lambda goal: goal.steps}[along]
    colours = [style.words for _, style in shown]
    return dict(
        type="scatter",
        mode="markers",
        name="goal",
        x=[place(goal) for goal, _ in shown],
        y=[goal.at_most_us for goal, _ in shown],
        marker=dict(symbol="line-ew-open", size=20, color=colours, line=dict(width=3, color=colours)),
        hovertext=[goal.what for goal, _ in shown],
        hovertemplate="goal, %{hovertext}: at most %{y} µs<extra></extra>",
    )


def _along_axis(along: str, ticks: list[float]) -> Spec:
    """Batches double, so they are laid out evenly by logarithm; vocabularies and walk lengths as they are. Ticks too near to read are left out."""
    logarithmic = along == "batch"
    places = [math.log10(tick) for tick in ticks] if logarithmic else ticks
    width = places[-1] - places[0] if len(places) > 1 else 1.0
    shown, last = [], None
    for tick, place in zip(ticks, places):
        if last is None or place - last >= LEAST_TICK_SHARE * width:
            shown.append(tick)
            last = place
    return axis(
        ALONG[along],
        type="log" if logarithmic else "linear",
        tickvals=shown,
        ticktext=[f"{tick:,}" for tick in shown],
        showgrid=False,
        range=[places[0] - 0.06 * width, places[-1] + 0.06 * width],
    )


def _decades(values: Iterable[float]) -> tuple[float, float]:
    """Range of a log axis (powers of ten) that holds every value with some air; 1 to 100 where there is none."""
    above = [value for value in values if value > 0]
    return (math.log10(min(above)) - AIR, math.log10(max(above)) + AIR) if above else (0.0, 2.0)


def _labels(points: Mapping[str, list[_Point]], apart: float, top: float) -> list[Spec]:
    """The name of each series at its right end, with the time there."""
    ends = []
    for (name, own), role in zip(points.items(), ORDER):
        known = [(point, _best(point)) for point in own if _best(point) is not None]
        if known:
            ends.append((math.log10(known[-1][1][0]), name, known[-1][1], STYLES[role]))
    ends.sort(key=lambda end: end[0])
    heights = spread([end[0] for end in ends], apart, top - apart / 2)
    return [end_label(height, style.words, name, f"{format_us(us)}, {basis}") for height, (_, name, (us, basis), style) in zip(heights, ends)]


def _best(point: _Point) -> tuple[float, str] | None:
    """The time of a point on the best basis there is."""
    if point.measured_us is not None:
        return point.measured_us[0], "measured"
    if point.published_us is not None:
        return point.published_us, "published"
    return (point.predicted_us[0], "predicted") if point.predicted_us is not None else None
