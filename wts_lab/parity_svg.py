"""The parity picture as SVG: predicted over measured steps, for pages that load nothing."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wts_lab.ui.figures import GRID, LINE, QUIET, TIME_TICKS
from wts_lab.ui.validation_figure import OFF_SHARE, decades, style_of_point

if TYPE_CHECKING:
    from cost_model.validation import ValidationPoint

SIZE_PX, LEFT_PX, BOTTOM_PX = 380, 52, 44
LEGEND_PX, TICK_PX = 18, 16
MARKER_PX = 3.4
TICKS = tuple(tick for tick in TIME_TICKS if str(tick)[0] != "2")
"""A small picture has no room for all of them."""

SHAPES = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "cross": ((-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35), (0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35)),
}
"""Corners of the markers that are no circles, in halves of their width."""


@dataclass(frozen=True)
class _Frame:
    """A square whose both axes run over the same powers of ten."""

    low: float
    high: float

    def x_px(self, exponent: float) -> float:
        """Place along the axis of measured steps."""
        return LEFT_PX + SIZE_PX * (exponent - self.low) / (self.high - self.low)

    def y_px(self, exponent: float) -> float:
        """Place along the axis of predicted steps, which runs upwards."""
        return SIZE_PX * (self.high - exponent) / (self.high - self.low)


def parity_svg(points: Sequence[ValidationPoint], title: str) -> str:
    """Predicted over measured step in microseconds, both logarithmic and of one range: a marker a walk, the line of equality, and dotted lines at
    OFF_SHARE."""
    frame, right = _Frame(*decades(points)), LEFT_PX + SIZE_PX
    middle = SIZE_PX // 2
    words = (
        f"<text x={LEFT_PX + middle} y={SIZE_PX + 36} text-anchor=middle class=q>measured step [µs]</text>"
        f"<text transform='translate(13 {middle}) rotate(-90)' text-anchor=middle class=q>predicted step [µs]</text>"
    )
    label = html.escape(f"{title}: predicted over measured steps", quote=True)
    return (
        f"<svg width={right + 8} height={SIZE_PX + BOTTOM_PX} role=img aria-label='{label}'>"
        f"<rect x={LEFT_PX} y=0 width={SIZE_PX} height={SIZE_PX} fill=none stroke='{LINE}'/>"
        f"{_grid(frame)}{_lines(frame)}{_markers(frame, points)}{words}</svg>"
    )


def _grid(frame: _Frame) -> str:
    """Grid lines and their numbers."""
    parts = []
    for tick in TICKS:
        exponent = math.log10(tick)
        if frame.low < exponent < frame.high:
            x, y = frame.x_px(exponent), frame.y_px(exponent)
            parts.append(
                f"<path d='M{x:.1f} 0V{SIZE_PX}M{LEFT_PX} {y:.1f}H{LEFT_PX + SIZE_PX}' stroke='{GRID}'/>"
                f"<text x={x:.1f} y={SIZE_PX + TICK_PX} text-anchor=middle>{tick:,}</text>"
                f"<text x={LEFT_PX - 6} y={y + 4:.1f} text-anchor=end>{tick:,}</text>"
            )
    return "".join(parts)


def _lines(frame: _Frame) -> str:
    """The line of equality and the two at OFF_SHARE, each as far as it lies in the frame."""
    parts = []
    for factor, dash in ((1.0, ""), (1 + OFF_SHARE, " stroke-dasharray='2 4'"), (1 - OFF_SHARE, " stroke-dasharray='2 4'")):
        shift = math.log10(factor)
        begin, end = frame.low + max(0.0, -shift), frame.high - max(0.0, shift)
        places = [(frame.x_px(exponent), frame.y_px(exponent + shift)) for exponent in (begin, end)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f"<path d='M{path}' fill=none{dash} stroke='{QUIET}'/>")
    return "".join(parts)


def _markers(frame: _Frame, points: Sequence[ValidationPoint]) -> str:
    """One path a way of walking, and a legend."""
    drawn, legend = [], []
    for place, (name, style) in enumerate(dict(map(style_of_point, points)).items()):
        own = [(math.log10(point.measured_us), math.log10(point.predicted_us)) for point in points if style_of_point(point)[0] == name]
        path = "".join(_marker(frame.x_px(measured), frame.y_px(predicted), style.symbol) for measured, predicted in own)
        drawn.append(f"<path d='{path}' fill-opacity=.75 stroke-width=.5 stroke='#fff' fill='{style.colour}'/>")
        y = LEGEND_PX * (place + 1)
        legend.append(f"<path d='{_marker(LEFT_PX + 14, y - 4, style.symbol)}' fill='{style.colour}'/><text x={LEFT_PX + 24} y={y}>{html.escape(name)}</text>")
    return "".join((*drawn, *legend))


def _marker(x: float, y: float, symbol: str) -> str:
    """A closed path about a place: one of SHAPES, or a circle."""
    if symbol not in SHAPES:
        return f"M{x - MARKER_PX:.1f} {y:.1f}a{MARKER_PX} {MARKER_PX} 0 1 0 {2 * MARKER_PX} 0a{MARKER_PX} {MARKER_PX} 0 1 0 {-2 * MARKER_PX} 0z"
    corners = "L".join(f"{x + right * MARKER_PX:.1f} {y + down * MARKER_PX:.1f}" for right, down in SHAPES[symbol])
    return f"M{corners}z"
