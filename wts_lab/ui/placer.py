"""The placement panel: where the tiles lie, what each choice costs, and a click that takes one.

The panel holds no numerics: `wts_lab.placed` answers a request, and the figures show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.placement import PlanError
from wts_lab import compare
from wts_lab.placed import Placed, placed
from wts_lab.ui.form import side_by_side
from wts_lab.ui.handles import PanelHandles, panel_parts, take_away
from wts_lab.ui.placement_figure import placements_spec
from wts_lab.ui.requests import PLANNED, PlacementRequest, text_of_placement
from wts_lab.ui.step_figure import SHORT_BAR_WORDS, step_terms_spec
from wts_lab.ui.tables import panel_html, placements_table
from wts_lab.ui.tier_figure import memory_tiers_spec

if TYPE_CHECKING:
    import ipywidgets

FIGURES = ("placements", "step terms", "memory tiers")


@dataclass
class PlacementHandles(PanelHandles):
    """Everything in the panel that can be set, pressed or read; its figures are those of FIGURES.

    Attributes:
        table: the placements, one a row, as HTML.
        placed: what is shown, in the order of the figure's points.
    """

    table: Any
    placed: tuple[Placed, ...] = ()

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

    parts = panel_parts(request or PlacementRequest(), FIGURES, lambda asked: _show(handles, asked, records), out, "placement")
    handles = PlacementHandles(**parts, table=widgets.HTML())
    handles.form.set(handles.request)
    figures = {name: holder.widget for name, holder in handles.figures.items()}
    widget = widgets.VBox(
        [
            side_by_side([handles.form.widget], [figures["placements"], figures["step terms"]]),
            handles.table,
            figures["memory tiers"],
            *take_away(handles),
        ]
    )
    return widget, handles


def _show(handles: PlacementHandles, request: PlacementRequest, records: Path | None) -> None:
    """Answer the request and show it.  Raises BadInput before anything was changed."""
    gpu, head, workload, chosen = request.load_gpu(), request.load_head(), request.workload(), request.load_placement()
    try:
        rows = placed(gpu, head, workload, request.mode, chosen, records=records)
    except PlanError as error:
        raise error if chosen is None else BadInput(f"{error}. Set the placement to {PLANNED}, or to another one") from None
    mine = next(row for row in rows if row.is_chosen)
    walk = compare.predicted_comparison(gpu, head, workload, request.mode, request.precision, compare.OURS, placement=mine.placement)
    walk = replace(walk, fit=mine.measured)
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
