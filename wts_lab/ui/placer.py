"""The placement panel: where the tiles lie, what each choice costs, and a click that takes one.

The panel holds no numerics: `wts_lab.placed` answers a request, and the figures show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wts_lab import compare
from wts_lab.placed import Placed, placed
from wts_lab.ui.export import ExportBox, StateBox
from wts_lab.ui.form import RequestForm, side_by_side, titled
from wts_lab.ui.live_figure import FigureHolder, hold_figure
from wts_lab.ui.placement_figure import placements_spec
from wts_lab.ui.requests import PlacementRequest, text_of_placement
from wts_lab.ui.step_figure import SHORT_BAR_WORDS, step_terms_spec
from wts_lab.ui.tables import panel_html, placements_table
from wts_lab.ui.tier_figure import memory_tiers_spec

if TYPE_CHECKING:
    import ipywidgets

FIGURES = ("placements", "step terms", "memory tiers")


@dataclass
class PlacementHandles:
    """Everything in the panel that can be set, pressed or read.

    Attributes:
        form: controls and request.
        figures: name (one of FIGURES) -> the figure's holder.
        table: the placements, one a row, as HTML.
        export, state: the rows that save figures and the panel's state.
        placed: what is shown, in the order of the figure's points.
    """

    form: RequestForm
    figures: dict[str, FigureHolder]
    table: Any
    export: ExportBox
    state: StateBox
    placed: tuple[Placed, ...] = ()

    @property
    def request(self) -> PlacementRequest:
        """The panel's whole state."""
        return self.form.request

    @property
    def controls(self) -> dict[str, Any]:
        """Field name to its widget."""
        return self.form.controls

    def choose(self, place: int) -> None:
        """Take the placement of that point, as a click on it does."""
        self.controls["placement"].value = text_of_placement(self.placed[place].placement)


def placement_panel(
    request: PlacementRequest | None = None, *, records: Path | None = None, out: Path | str = "out"
) -> tuple[ipywidgets.Widget, PlacementHandles]:
    """Build the panel; returns the widget and its handles.

    Args:
        request: what to show first.
        records: folder of recorded runs; those that ship with the lab by default.
        out: folder for exported figures and saved states.
    """
    import ipywidgets as widgets

    holders = {name: hold_figure() for name in FIGURES}
    form = RequestForm(request or PlacementRequest(), lambda asked: _show(handles, asked, records))
    handles = PlacementHandles(
        form, holders, widgets.HTML(), ExportBox(holders, Path(out) / "figures"), StateBox(form, Path(out) / "placement.json")
    )
    form.set(handles.request)
    left = [form.widget]
    widget = widgets.VBox(
        [
            side_by_side(left, [holders["placements"].widget, holders["step terms"].widget]),
            handles.table,
            holders["memory tiers"].widget,
            titled("Export a figure", handles.export.widget),
            titled("Save and reload", handles.state.widget),
        ]
    )
    return widget, handles


def _show(handles: PlacementHandles, request: PlacementRequest, records: Path | None) -> None:
    """Answer the request and show it.  Raises BadInput before anything was changed."""
    gpu, head, workload, chosen = request.load_gpu(), request.load_head(), request.workload(), request.load_placement()
    rows = placed(gpu, head, workload, request.mode, chosen, records=records)
    mine = next(row for row in rows if row.is_chosen)
    walk = compare.predicted_comparison(gpu, head, workload, request.mode, request.precision, compare.OURS, placement=mine.placement)
    handles.placed = rows
    handles.figures["placements"].show(placements_spec(rows))
    handles.figures["step terms"].show(step_terms_spec([walk], subtitle=SHORT_BAR_WORDS))
    handles.figures["memory tiers"].show(memory_tiers_spec(compare.tiers_of(gpu, head, walk), height_px=600))
    handles.table.value = panel_html(placements_table(rows))
    handles.state.tell()
    _listen(handles)


def _listen(handles: PlacementHandles) -> None:
    """Let a click on a point take its placement; a figure that lost its traces has lost its listeners too."""
    figure = handles.figures["placements"].figure
    for trace in figure.data:
        trace.on_click(lambda clicked, points, _state: _clicked(handles, points))


def _clicked(handles: PlacementHandles, points: Any) -> None:
    """Take the placement whose point was clicked; points of all traces are looked up by where they are."""
    for x, y in zip(points.xs, points.ys):
        for place, row in enumerate(handles.placed):
            if row.placement.register_slots == x and y in (row.predicted_us, row.measured.step_us if row.measured else None):
                handles.choose(place)
                return
