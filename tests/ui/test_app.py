"""The page of all panels: tabs open on the walk before them, and the command that serves it refuses what it cannot serve."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.errors import BadInput
from tests.synthetic_records import write_synthetic
from wts_lab import page
from wts_lab.ui.app import TITLES, lab_app, load_state
from wts_lab.ui.decision_request import DecisionRequest
from wts_lab.ui.requests import PLANNED, ExplorerRequest, PanelRequest, PlacementRequest


def test_a_tab_opens_on_the_walk_of_the_tab_before(tmp_path: Path) -> None:
    tab, opened = lab_app(ExplorerRequest(steps=7), records=write_synthetic(tmp_path / "records"), out=tmp_path)
    assert tuple(opened) == ("Explore",) and tab.titles == TITLES
    opened["Explore"].controls["batch"].value = 2
    for place, title in enumerate(TITLES[1:], start=1):
        tab.selected_index = place
        request = opened[title].form.request
        assert (request.batch, request.steps) == (2, 7) and len(tab.children[place].children) == 1
    opened["Place"].choose(0)
    chosen = opened["Place"].request.placement
    tab.selected_index = 0
    tab.selected_index = 2
    assert opened["Place"].request.placement == chosen != PLANNED  # the walk is the same
    opened["Place"].controls["steps"].value = 5
    tab.selected_index = 0
    assert opened["Explore"].request.steps == 5
    opened["Explore"].controls["batch"].value = 1
    tab.selected_index = 2
    assert opened["Place"].request.placement == PLANNED and opened["Place"].request.batch == 1


def test_the_page_is_a_notebook_of_one_cell_in_the_saved_state(tmp_path: Path) -> None:
    state = ExplorerRequest(batch=4, steps=3).save(tmp_path / "state.json")
    (cell,) = page.page_notebook(state)["cells"]
    names: dict = {}
    exec(cell["source"].rsplit("\n", 1)[0], names)
    assert names["handles"]["Explore"].request == ExplorerRequest(batch=4, steps=3)


@pytest.mark.parametrize(
    ("title", "state"),
    [("Explore", ExplorerRequest(steps=3, pinned=(PanelRequest(),))), ("Run", PanelRequest(steps=3)), ("Place", PlacementRequest(placement="8,40,32,0,0")),
     ("Decide", DecisionRequest(accepted_length="4:3:5", ranks=2))],
)  # fmt: skip
def test_every_panel_s_state_comes_back_in_its_tab(title: str, state: PanelRequest, tmp_path: Path) -> None:
    assert load_state(state.save(tmp_path / "state.json")) == state
    (cell,) = page.page_notebook(tmp_path / "state.json")["cells"]
    names: dict = {}
    exec(cell["source"].rsplit("\n", 1)[0], names)
    assert list(names["handles"]) == [title] and names["handles"][title].request == state
    assert names["page"].titles[names["page"].selected_index] == title


def test_the_tabs_about_a_saved_state_open_on_its_walk(tmp_path: Path) -> None:
    tab, opened = lab_app(DecisionRequest(steps=5, accepted_length="2"), records=write_synthetic(tmp_path / "records"), out=tmp_path)
    tab.selected_index = 0
    assert opened["Explore"].request.steps == 5 and opened["Decide"].request.accepted_length == "2"


@pytest.mark.parametrize(("text", "said"), [
    ('{"steps": 3}', None), ('{"steeps": 3}', "'steeps' is not possible; allowed: the fields that the tabs Explore, Run, Place, Decide save"),
    ('{"pinned": [], "placement": "planned"}', "the fields of one of the tabs"), ("[1]", "a JSON object"), ("{", "The text is not JSON"), ('{"steps": 99}', "1 to 32"),
])  # fmt: skip
def test_an_edited_state_is_taken_or_refused_with_what_is_allowed(text: str, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    if said is None:
        assert load_state(tmp_path / "state.json") == ExplorerRequest(steps=3)
    else:
        with pytest.raises(BadInput, match=said):
            load_state(tmp_path / "state.json")


def test_what_cannot_be_served_is_refused_and_a_missing_voila_is_told_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="a file that a panel saved"):
        page.serve(tmp_path / "missing.json", 8866, False)
    with pytest.raises(BadInput, match="port is 0; it must be from 1 to 65,535"):
        page.serve(None, 0, False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="name a free one with --port"):
            page.serve(None, port := taken.getsockname()[1], False)
    with pytest.raises(BadInput, match="Voila, which is not installed"):
        page.serve(None, port, False)


def test_a_decision_keeps_its_own_state_and_gives_none_away(tmp_path: Path) -> None:
    tab, opened = lab_app(ExplorerRequest(steps=2, mode="streaming", precision="bf16", l2_state="cold"), records=write_synthetic(tmp_path / "records"), out=tmp_path)
    tab.selected_index = 3
    decision = opened["Decide"].request
    assert (decision.steps, decision.l2_state, decision.accepted_length) == (2, "serving", "3")
    opened["Decide"].controls["steps"].value = 6
    tab.selected_index = 0
    shown = opened["Explore"].request
    assert (shown.steps, shown.mode, shown.precision, shown.l2_state) == (6, "streaming", "bf16", "cold")


def test_a_walk_too_short_for_the_accepted_length_leaves_the_decision_and_says_why(tmp_path: Path) -> None:
    tab, opened = lab_app(records=write_synthetic(tmp_path / "records"), out=tmp_path)
    tab.selected_index = 3
    tab.selected_index = 0
    opened["Explore"].controls["steps"].value = 1
    tab.selected_index = 3
    assert "numbers from 1 to 2" in opened["Decide"].form.message.value and opened["Decide"].request.steps == 16
