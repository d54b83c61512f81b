"""All panels on one page: explore, run, place, decide.  A tab opens on the walk that the tab before it showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wts_lab.ui.decider import decision_panel
from wts_lab.ui.explorer import explorer_panel
from wts_lab.ui.panels import quickstart_panel
from wts_lab.ui.placer import placement_panel
from wts_lab.ui.requests import PLANNED, DecisionRequest, ExplorerRequest, PanelRequest, PlacementRequest

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
        "Decide": lambda walk: decision_panel(DecisionRequest(**vars(walk)), records=records, out=out),
    }
    opened: dict[str, Any] = {}
    tab = widgets.Tab([widgets.VBox() for _ in TITLES], titles=TITLES)

    def show(place: int, before: int | None) -> None:
        title = TITLES[place]
        walk = PanelRequest() if before is None else walk_of(opened[TITLES[before]].form.request)
        if title in opened:
            opened[title].form.set(carried(opened[title].form.request, walk))
            return
        panel, opened[title] = builders[title](walk)
        tab.children[place].children = (panel,)

    show(0, None)
    tab.observe(lambda change: show(change["new"], change["old"]), names="selected_index")
    return tab, opened


def walk_of(request: PanelRequest) -> PanelRequest:
    """The walk that any panel's request is about."""
    return PanelRequest(**{each.name: getattr(request, each.name) for each in fields(PanelRequest)})


def carried(request: PanelRequest, walk: PanelRequest) -> PanelRequest:
    """A panel's request about another walk; a placement that was chosen for the former one gives way to the planner's."""
    changed = replace(request, **vars(walk))
    is_moved = isinstance(request, PlacementRequest) and walk_of(request) != walk
    return replace(changed, placement=PLANNED) if is_moved else changed
