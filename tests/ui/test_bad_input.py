"""Bad input in every field of every panel: refused in place with the allowed range, and everything that was shown stays."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

ipywidgets = pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from tests.synthetic_records import write_synthetic
from wts_lab.ui.decider import decision_panel
from wts_lab.ui.decision_request import DecisionRequest
from wts_lab.ui.explorer import explorer_panel
from wts_lab.ui.fields import FieldSpec, RequestError, describe
from wts_lab.ui.handles import PanelHandles
from wts_lab.ui.panels import quickstart_panel
from wts_lab.ui.placer import placement_panel
from wts_lab.ui.requests import ExplorerRequest, PanelRequest, PlacementRequest

PANELS = {
    "explore": (ExplorerRequest, explorer_panel), "run": (PanelRequest, quickstart_panel),
    "place": (PlacementRequest, placement_panel), "decide": (DecisionRequest, decision_panel),
}  # fmt: skip
FIELDS = [(panel, name) for panel, (request, _) in PANELS.items() for name in describe(request)]


def bad_values(spec: FieldSpec) -> list[object]:
    """Values outside what a field allows, of the kinds that its control or a file can give."""
    if spec.choices is not None:
        return ["no-such-thing", None, 3]
    if spec.min is None:
        return [7, *(["x", "1:2"] if spec.check else [])]
    beyond = [spec.min - 1, spec.max + 1, float("nan"), "1", None]
    return [*beyond, *([spec.min + 0.5, True] if spec.whole else [float("inf")]), *([spec.min + 1] if spec.whole and spec.step > 1 else [])]


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PanelHandles]:
    """The handles of each panel, opened once."""
    folder = tmp_path_factory.mktemp("panels")
    records = write_synthetic(folder / "records")
    more = {"explore": {}, "run": {"is_live": False, "records": records}, "place": {"records": records}, "decide": {"records": records}}
    return {name: opened(out=folder / "out", **more[name])[1] for name, (_, opened) in PANELS.items()}


@pytest.mark.parametrize(("panel", "name"), FIELDS)
def test_a_state_with_a_bad_field_is_refused_with_the_range(panel: str, name: str) -> None:
    request_type = PANELS[panel][0]
    spec = describe(request_type)[name]
    for value in bad_values(spec):
        with pytest.raises(RequestError) as caught:
            request_type.from_values({**asdict(request_type()), "pinned": ()} | {name: value} if panel == "explore" else {**asdict(request_type()), name: value})
        assert caught.value.field_name == name and repr(value) in str(caught.value)
        assert spec.allowed in str(caught.value) or spec.check is not None


@pytest.mark.parametrize(("panel", "name"), FIELDS)
def test_a_bad_value_in_a_control_is_said_under_it_and_what_was_shown_stays(panels: dict[str, PanelHandles], panel: str, name: str) -> None:
    handles, spec = panels[panel], describe(PANELS[panel][0])[name]
    control, note, request = handles.controls[name], handles.form.notes[name], handles.request
    shown = {each: json.dumps(holder.figure.to_dict(), default=str) for each, holder in handles.figures.items()}
    if spec.choices is not None or spec.slider:  # these controls cannot leave the range
        assert (set(control.options) <= set(spec.choices)) if spec.choices is not None else (control.min, control.max) == (spec.min, spec.max)
        handles.form._changed(name, "no-such-thing")
    else:
        control.value = "x:y" if isinstance(control, ipywidgets.Text) else spec.max + 1
    if spec.choices is None and spec.min is None and spec.check is None:
        assert note.value == "" and handles.request != request  # any text is a good one
        control.value = ""
        return
    assert "role='alert'" in note.value and note.layout.display is None
    assert handles.request == request
    assert {each: json.dumps(holder.figure.to_dict(), default=str) for each, holder in handles.figures.items()} == shown
    handles.form.set(request)
    assert note.value == "" and control.value == getattr(request, name)
