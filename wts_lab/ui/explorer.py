"""The explorer: one configuration seen from all sides at once, with up to two others pinned beside it.

The panel holds no numerics.  A change of a control becomes a request, `explore` answers it, and each figure shows its part.
What did not change is neither computed nor sent again: answers are kept, and a figure whose spec is the same stays as it is.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.units import format_us
from wts_lab.explore import Exploration, explore
from wts_lab.ui.figures import QUIET, SHORT_LINE_WORDS, Spec, call_time_spec
from wts_lab.ui.form import halves, side_by_side
from wts_lab.ui.gain_figure import gain_spec
from wts_lab.ui.handles import PanelHandles, panel_parts, take_away
from wts_lab.ui.requests import MAX_PINS, ExplorerRequest, PanelRequest
from wts_lab.ui.roofline_figure import roofline_spec
from wts_lab.ui.step_figure import SHORT_BAR_WORDS, step_terms_spec
from wts_lab.ui.tables import configurations, rows_html
from wts_lab.ui.tier_figure import memory_tiers_spec
from wts_lab.ui.timeline_figure import timeline_spec

if TYPE_CHECKING:
    import ipywidgets

FIGURES = ("call time", "step terms", "timeline", "gain", "memory tiers", "roofline")
PIN_NAMES = ("A", "B")


@dataclass
class ExplorerHandles(PanelHandles):
    """Everything in the explorer that can be set, pressed or read; its figures are those of FIGURES.

    Attributes:
        pin_button, unpin_button: keep the configuration shown beside later ones; drop all kept ones.
        table: the configurations side by side, as HTML.
        notes: what the reader must know of the prediction, as HTML.
        exploration: what is shown.
    """

    pin_button: Any
    unpin_button: Any
    table: Any
    notes: Any
    exploration: Exploration | None = None


def explorer_panel(
    request: ExplorerRequest | PanelRequest | None = None, *, out: Path | str = "out"
) -> tuple[ipywidgets.Widget, ExplorerHandles]:
    """Build the explorer; returns the widget and its handles.

    Args:
        request: what to show first.
        out: folder for exported figures and saved states.
    """
    import ipywidgets as widgets

    if not isinstance(request, ExplorerRequest):
        request = ExplorerRequest(**(vars(request) if request is not None else {}))
    handles = ExplorerHandles(
        **panel_parts(request, FIGURES, lambda asked: _show(handles, asked), out, "explorer"),
        pin_button=widgets.Button(description="Pin", icon="thumb-tack", tooltip=f"Keep this configuration beside later ones (up to {MAX_PINS})"),
        unpin_button=widgets.Button(description="Unpin all", tooltip="Drop the kept configurations"),
        table=widgets.HTML(),
        notes=widgets.HTML(),
    )
    handles.pin_button.on_click(lambda _button: _pin(handles, (*handles.request.pinned, handles.request.shown)))
    handles.unpin_button.on_click(lambda _button: _pin(handles, ()))
    handles.form.set(request)
    return _arrange(handles), handles


def explored(request: PanelRequest) -> Exploration:
    """The answer to a request.  Raises BadInput where the chosen walk cannot be predicted."""
    return explore(request.load_gpu(), request.load_head(), request.workload(), request.way)


def explorer_specs(shown: Exploration, pinned: Sequence[tuple[str, Exploration]] = ()) -> dict[str, Spec]:
    """The spec of each figure of an answer, by its name in FIGURES."""
    label, steps = shown.chosen.label, shown.workload.steps
    return {
        "call time": call_time_spec(
            shown.comparisons,
            steps=steps,
            height_px=460,
            subtitle=SHORT_LINE_WORDS,
            pinned=[(name, each.chosen) for name, each in pinned],
        ),
        "step terms": step_terms_spec(shown.comparisons, subtitle=SHORT_BAR_WORDS),
        "timeline": timeline_spec(shown.spans, title=f"The walk in time: {label}"),
        "gain": gain_spec(shown.gain, height_px=440),
        "memory tiers": memory_tiers_spec(shown.tiers, title=f"Where the matrix sits: {label}", height_px=600),
        "roofline": roofline_spec(shown.phases, shown.roofs, height_px=600),
    }


def _show(handles: ExplorerHandles, request: ExplorerRequest) -> None:
    """Answer the request and its pins, then show all of it.  Raises BadInput before anything was changed."""
    shown = explored(request)
    pinned = [(name, explored(each)) for name, each in zip(PIN_NAMES, request.pinned)]
    for name, spec in explorer_specs(shown, pinned).items():
        handles.figures[name].show(spec)
    handles.exploration = shown
    handles.table.value = rows_html(*configurations([("shown", shown), *pinned]))
    handles.notes.value = _notes_html(shown)
    handles.pin_button.disabled = len(request.pinned) == MAX_PINS
    handles.unpin_button.disabled = not request.pinned
    handles.state.tell()


def _pin(handles: ExplorerHandles, pinned: tuple[PanelRequest, ...]) -> None:
    """Keep these configurations beside the one shown."""
    handles.form.set(replace(handles.request, pinned=pinned[:MAX_PINS]))


def _notes_html(shown: Exploration) -> str:
    """The predicted call in a line, and what weakens the prediction."""
    prediction = shown.chosen.prediction
    first = f"<b>{format_us(prediction.call_us())}</b> for {shown.workload.steps} steps, {html.escape(shown.chosen.label)} (predicted)"
    more = "".join(f"<li>{html.escape(note)}</li>" for note in (*prediction.notes, *shown.notes))
    return f"<div style='line-height:1.4;max-width:350px'>{first}<ul style='color:{QUIET};margin:4px 0;padding-left:1.2em'>{more}</ul></div>"


def _arrange(handles: ExplorerHandles) -> ipywidgets.Widget:
    """Controls on the left, times on the right; below them the other figures in pairs, the table, and what takes things away."""
    import ipywidgets as widgets

    figures = {name: holder.widget for name, holder in handles.figures.items()}
    left = [handles.form.widget, widgets.HBox([handles.pin_button, handles.unpin_button]), handles.notes]
    return widgets.VBox(
        [
            side_by_side(left, [figures["call time"], figures["step terms"]]),
            handles.table,
            halves(figures["timeline"], figures["gain"]),
            halves(figures["memory tiers"], figures["roofline"]),
            *take_away(handles),
        ]
    )
