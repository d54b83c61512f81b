"""The toy walk as a picture: of each step every token's base logit, the correction on it, and the token that wins.

See `figures` for colours and specs; the steps come from `wts_lab.toy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts_lab.ui.figures import INK, LINE, PAPER, QUIET, STYLES, Spec, axis, draw, heading, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from wts_lab.toy import ToyStep

TOY_WORDS = "grey: base logit · coloured: correction, from the base logit to y · dot: y · star: the largest y wins"
GAIN_COLOUR, LOSS_COLOUR = STYLES["resident-int8x2"].colour, STYLES["engine"].colour
ROW_GAP = 0.09


def toy_figure(steps: Sequence[ToyStep], *, title: str = "Three steps of a walk", height_px: int = 640) -> go.Figure:
    """One row a step, first on top: logits over tokens, and which token hands its latent to the next step."""
    return draw(toy_spec(steps, title=title, height_px=height_px))


def toy_spec(steps: Sequence[ToyStep], *, title: str = "Three steps of a walk", height_px: int = 640) -> Spec:
    """The spec of `toy_figure`: three traces a step (base logits, corrections, y)."""
    height = (1 - ROW_GAP * (len(steps) - 1)) / len(steps)
    low = min(min(step.y.min(), step.base.min()) for step in steps)
    high = max(max(step.y.max(), step.base.max()) for step in steps)
    frame = layout(
        height_px, title=heading(title, TOY_WORDS), showlegend=False, barmode="overlay", bargap=0.3, annotations=[_note(step) for step in steps],
        margin=dict(l=72, r=190, t=92, b=56),
    )  # fmt: skip
    for place, step in enumerate(steps):
        top, last = 1 - place * (height + ROW_GAP), place == len(steps) - 1
        tokens = dict(anchor=_axis("y", place), dtick=1, showgrid=False, showticklabels=last)
        frame[_axis("xaxis", place)] = axis("token" if last else "", **tokens)
        frame[_axis("yaxis", place)] = axis(f"step {place + 1}: logit", domain=[max(top - height, 0.0), top], anchor=_axis("x", place), range=[float(low) - 0.3, float(high) + 0.4])
    return dict(data=[trace for place, step in enumerate(steps) for trace in _traces(place, step)], layout=frame)


def _axis(name: str, place: int) -> str:
    """Name of the axis of a row: x, x2, x3."""
    return name if place == 0 else f"{name}{place + 1}"


def _traces(place: int, step: ToyStep) -> list[Spec]:
    tokens = list(range(len(step.y)))
    where = dict(x=tokens, xaxis=_axis("x", place), yaxis=_axis("y", place))
    correction = [float(y - base) for y, base in zip(step.y, step.base, strict=True)]
    return [
        dict(where, type="bar", name=f"step {place + 1}, base", y=step.base.tolist(), width=0.7, marker=dict(color=LINE), hovertemplate="token %{x}: base logit %{y}<extra></extra>"),
        dict(
            where,
            type="bar",
            name=f"step {place + 1}, correction",
            base=step.base.tolist(),
            y=correction,
            width=0.34,
            marker=dict(color=[GAIN_COLOUR if value >= 0 else LOSS_COLOUR for value in correction], line=dict(color=PAPER, width=1)),
            hovertemplate="token %{x}: correction %{y:.4f}<extra></extra>",
        ),
        dict(
            where,
            type="scatter",
            mode="markers",
            name=f"step {place + 1}, y",
            y=step.y.tolist(),
            marker=dict(color=INK, symbol=["star" if token == step.token else "circle" for token in tokens], size=[15 if token == step.token else 5 for token in tokens]),
            hovertemplate="token %{x}: y %{y}<extra></extra>",
        ),
    ]


def _note(step: ToyStep) -> Spec:
    """What goes in and what comes out, right of the row."""
    text = f"<b>token {step.previous}</b> gives the latent<br>({', '.join(f'{value:g}' for value in step.latent)})<br><b>token {step.token}</b> wins"
    place = step.number
    return dict(
        text=text, x=1.01, xref="paper", xanchor="left", y=0.5, yref=f"{_axis('y', place)} domain", showarrow=False, align="left",
        font=dict(size=13, color=QUIET),
    )  # fmt: skip
