"""All panels on one page: explore, run, place, decide.  A tab opens on the walk that the tab before it showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from wts_lab.ui.decider import decision_panel
from wts_lab.ui.decision_request import WALK, DecisionRequest
from wts_lab.ui.explorer import explorer_panel
from wts_lab.ui.panels import quickstart_panel
from wts_lab.ui.placer import placement_panel
from wts_lab.ui.requests import PLANNED, ExplorerRequest, PanelRequest, PlacementRequest

if TYPE_CHECKING:
    import ipywidgets

TITLES = ("Explore", "Run", "Place", "Decide")


def lab_app(request: ExplorerRequest | None = None, *, records: Path | None = None, out: Path | str = "out") -> tuple[ipywidgets.Widget, dict[str, Any]]:
    """Build the page; returns its widget, and the handles of the tabs opened so far by their titles.

    Args:
        request: what the explorer shows first.
        records: folder of recorded runs; those that ship with the lab by default.
        out: folder for what the panels write.
    """
    import ipywidgets as widgets

    builders: dict[str, Callable[[PanelRequest], tuple[Any, Any]]] = {
        "Explore": lambda walk: explorer_panel(request or ExplorerRequest(**vars(walk)), out=out),
        "Run": lambda walk: quickstart_panel(walk, records=records, out=Path(out) / "records"),
        "Place": lambda walk: placement_panel(PlacementRequest(**vars(walk)), records=records, out=out),
        "Decide": lambda walk: decision_panel(DecisionRequest.about(walk), records=records, out=out),
    }
    opened: dict[str, Any] = {}
    tab = widgets.Tab([widgets.VBox() for _ in TITLES], titles=TITLES)
    walk = PanelRequest()

    def show(place: int, before: int | None) -> None:
        nonlocal walk
        title = TITLES[place]
        if before is not None:
            walk = carried(walk, opened[TITLES[before]].request)
        if title not in opened:
            panel, opened[title] = builders[title](walk)
            tab.children[place].children = (panel,)
            return
        form = opened[title].form
        try:
            form.set(carried(form.request, walk))
        except BadInput as error:
            form.say(f"This tab stays as it was: {error}", is_error=True)

    show(0, None)
    tab.observe(lambda change: show(change["new"], change["old"]), names="selected_index")
    return tab, opened


def carried(request: PanelRequest, walk: PanelRequest) -> PanelRequest:
    """A request about the walk of another one; a placement that was chosen for the former one gives way to the planner's.

    A decision weighs every way of walking, in the L2 state of its round: way and state neither come from one nor go to one.
    """
    names = WALK if isinstance(request, DecisionRequest) or isinstance(walk, DecisionRequest) else tuple(each.name for each in fields(PanelRequest))
    changes = {name: getattr(walk, name) for name in names}
    is_moved = any(getattr(request, name) != value for name, value in changes.items())
    if isinstance(request, PlacementRequest) and is_moved:
        changes["placement"] = PLANNED
    return replace(request, **changes)
