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
from wts_lab.ui.fields import RequestError, read_values
from wts_lab.ui.panels import quickstart_panel
from wts_lab.ui.placer import placement_panel
from wts_lab.ui.requests import PLANNED, ExplorerRequest, PanelRequest, PlacementRequest

if TYPE_CHECKING:
    import ipywidgets

KINDS = {"Explore": ExplorerRequest, "Run": PanelRequest, "Place": PlacementRequest, "Decide": DecisionRequest}
"""Tab -> kind of its state."""

TITLES = tuple(KINDS)


def load_state(path: Path | str) -> PanelRequest:
    """The request that one of the tabs saved to a file: of the kind that has just its fields, or else of the first that has them all.

    Raises:
        RequestError: it cannot be read, or is no state of a tab.
    """
    values = read_values(path)
    if isinstance(values, dict):
        names = {kind: {each.name for each in fields(kind)} for kind in KINDS.values()}
        fitting = [kind for kind in names if names[kind] == set(values)] or [kind for kind in names if names[kind] >= set(values)]
        if fitting:
            return fitting[0].from_values(values)
        unknown = sorted(set(values) - set.union(*names.values()))
        if not unknown:
            raise RequestError("request", ", ".join(values), f"the fields of one of the tabs {', '.join(TITLES)}", "Save a tab's state and edit that.")
        raise RequestError("request", unknown[0], f"the fields that the tabs {', '.join(TITLES)} save", "Remove the unknown field.")
    return ExplorerRequest.from_values(values)


def lab_app(request: PanelRequest | None = None, *, records: Path | None = None, out: Path | str = "out") -> tuple[ipywidgets.Widget, dict[str, Any]]:
    """Build the page; returns its widget, and the handles of the tabs opened so far by their titles.

    Args:
        request: state of the tab that is shown first; the explorer's usual one by default.
        records: folder of recorded runs; those that ship with the lab by default.
        out: folder for what the panels write.
    """
    import ipywidgets as widgets

    builders: dict[str, Callable[[Any], tuple[Any, Any]]] = {
        "Explore": lambda state: explorer_panel(state, out=out),
        "Run": lambda state: quickstart_panel(state, records=records, out=Path(out) / "records"),
        "Place": lambda state: placement_panel(state, records=records, out=out),
        "Decide": lambda state: decision_panel(state, records=records, out=out),
    }
    opened: dict[str, Any] = {}
    tab = widgets.Tab([widgets.VBox() for _ in TITLES], titles=TITLES)
    walk = PanelRequest()
    first = next(title for title, kind in KINDS.items() if request is None or type(request) is kind)

    def opening(title: str) -> PanelRequest:
        """The state in which a tab opens: the one that was given, or the usual one about the walk."""
        if request is not None and title == first:
            return request
        return DecisionRequest.about(walk) if title == "Decide" else KINDS[title](**vars(walk))

    def show(place: int, before: int | None) -> None:
        nonlocal walk
        title = TITLES[place]
        if before is not None:
            walk = carried(walk, opened[TITLES[before]].request)
        if title not in opened:
            panel, opened[title] = builders[title](opening(title))
            tab.children[place].children = (panel,)
            return
        form = opened[title].form
        try:
            form.set(carried(form.request, walk))
        except BadInput as error:
            form.say(f"This tab stays as it was: {error}", is_error=True)

    tab.selected_index = TITLES.index(first)
    show(tab.selected_index, None)
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
