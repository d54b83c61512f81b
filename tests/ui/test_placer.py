"""The placement panel through its handles: what is predicted, measured and planned, and how a choice is applied."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.placement import Placement, plan
from cost_model.predict import predict
from cost_model.workload import Workload
from tests.synthetic_records import synthetic_rows, write_synthetic
from wts_lab import placed as module
from wts_lab.ui.placer import PlacementHandles, placement_panel
from wts_lab.ui.placer import _clicked as clicked
from wts_lab.ui.placement_figure import placements_spec
from wts_lab.ui.requests import PLANNED, PlacementRequest, text_of_placement

GPU, HEAD = load_gpu("h200-sxm"), Head.markov(151_936, 256)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one synthetic record of V 151,936."""
    return write_synthetic(tmp_path_factory.mktemp("records"))


@pytest.fixture
def handles(records: Path, tmp_path: Path) -> PlacementHandles:
    """The handles of a fresh panel."""
    return placement_panel(records=records, out=tmp_path)[1]


def trace(handles: PlacementHandles, name: str):
    """The placement figure's trace of that name."""
    return next(each for each in handles.figures["placements"].figure.data if each.name == name)


def test_every_placement_has_its_prediction_and_one_is_planned_and_chosen(handles: PlacementHandles) -> None:
    planned = plan(GPU, HEAD, "int8x2", "resident")
    (mine,) = [row for row in handles.placed if row.is_planned]
    assert mine.placement == planned and mine.is_chosen and len(handles.placed) > 3
    for row in handles.placed:
        if row.measured is None:
            assert row.predicted_us == predict(GPU, HEAD, Workload(), "resident", placement=row.placement).step_us
    assert list(trace(handles, "planned").x) == [planned.register_slots] == list(trace(handles, "chosen").x)


def test_measured_steps_are_those_of_the_record(handles: PlacementHandles) -> None:
    measured = [row for row in handles.placed if row.measured is not None]
    row = next(each for each in synthetic_rows(l2_states=("warm",)) if each["mode"] == "resident")
    assert [each.placement.register_tiles for each in measured] == [row["register_tiles"]]
    assert measured[0].measured.step_us == pytest.approx(2.5, rel=0.02)
    assert list(trace(handles, "measured").y) == [measured[0].measured.step_us]


def test_a_choice_is_applied_to_the_request_and_the_other_figures(handles: PlacementHandles) -> None:
    before = handles.figures["memory tiers"].figure.to_json()
    place = next(place for place, row in enumerate(handles.placed) if not row.is_chosen)
    chosen = handles.placed[place]
    handles.choose(place)
    assert handles.request.load_placement() == chosen.placement
    assert handles.controls["placement"].value == text_of_placement(chosen.placement)
    assert list(trace(handles, "chosen").x) == [chosen.placement.register_slots]
    assert handles.figures["memory tiers"].figure.to_json() != before
    assert PlacementRequest.from_json(handles.request.to_json()) == handles.request
    assert handles.request.command().endswith(f"--placement {text_of_placement(chosen.placement)}")


def test_a_click_on_a_point_chooses_it(handles: PlacementHandles) -> None:
    row = next(row for row in handles.placed if not row.is_chosen and row.predicted_us is not None)
    clicked(handles, SimpleNamespace(xs=[row.placement.register_slots], ys=[row.predicted_us]))
    assert handles.request.load_placement() == row.placement


def test_a_bad_placement_is_refused_in_place_and_one_that_does_not_fit_is_explained(handles: PlacementHandles) -> None:
    before = handles.figures["placements"].figure.to_json()
    handles.controls["placement"].value = "8,41,32,0,0"
    assert "multiple of warps" in handles.form.notes["placement"].value and handles.request.placement == PLANNED
    handles.controls["placement"].value = "8,72,0,0,0"
    assert "registers a thread" in handles.form.message.value
    assert handles.figures["placements"].figure.to_json() == before
    handles.controls["placement"].value = PLANNED
    assert handles.form.message.value == ""


def test_a_choice_that_a_larger_vocabulary_outgrows_is_told_the_way_back(handles: PlacementHandles) -> None:
    handles.controls["placement"].value = "8,40,32,0,0"
    handles.controls["vocab_size"].value = 248_320
    assert "holds 72 tiles" in handles.form.message.value and "Set the placement to planned, or to another one" in handles.form.message.value
    handles.controls["placement"].value = PLANNED
    assert handles.form.message.value == "" and handles.placed[0].predicted_us is not None


def test_a_stepwise_walk_has_no_placement_and_says_so(handles: PlacementHandles) -> None:
    handles.controls["mode"].value = "stepwise"
    assert "Choose resident or streaming" in handles.form.message.value


def test_spills_are_marked() -> None:
    row = module.Placed(Placement(8, 48, 24, 0, 0), 2.0, None, 255, 128, False, True)
    spec = placements_spec([row])
    (spills,) = [each for each in spec["data"] if each["name"] == "spills"]
    assert spills["x"] == [6] and spills["y"] == [2.0] and "128 bytes spilled" in spills["hovertext"][0]


def test_records_are_read_once_until_they_change(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = module.recorded_fits(GPU, HEAD, Workload(), "resident", records)
    monkeypatch.setattr("wts_lab.recordings.read_recording", lambda *_: pytest.fail("read again"))
    assert module.recorded_fits(GPU, HEAD, Workload(), "resident", records).keys() == first.keys() and first
