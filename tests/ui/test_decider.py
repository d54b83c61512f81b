"""The decision panel through its handles: verdict, curve, exports, refusals."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pandas
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.passes import rates_path
from cost_model.phases import ESTIMATED
from cost_model.round import round_gain
from cost_model.round_phases import MODELLED
from cost_model.settings import read_settings
from tests.synthetic_records import GPU_NAME, write_synthetic
from wts_lab import decided as module
from wts_lab.ui.decider import DecisionHandles, decision_panel
from wts_lab.ui.decision_request import DecisionRequest


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one synthetic record of V 151,936."""
    return write_synthetic(tmp_path_factory.mktemp("records"))


@pytest.fixture
def handles(records: Path, tmp_path: Path) -> DecisionHandles:
    """The handles of a fresh panel."""
    return decision_panel(records=records, out=tmp_path)[1]


def test_the_verdict_rests_on_the_record_and_says_so(handles: DecisionHandles) -> None:
    decision = handles.answer.decision
    assert decision.verdict in handles.verdict.value and f"replayed: {GPU_NAME}" in handles.verdict.value
    assert decision.best.measured and decision.best.step_us == pytest.approx(2.5, rel=0.02)
    assert "best fused" in handles.table.value and "resident int8x2" in handles.table.value


def test_the_marked_point_of_the_curve_is_the_gain_of_the_round(handles: DecisionHandles) -> None:
    decision, curve, rest = handles.answer.decision, handles.answer.curve, handles.request.round()
    middle = curve[len(curve) // 2]
    assert middle.rest_us == pytest.approx(rest.rest_us) and middle.gain == pytest.approx(decision.gain.gain)
    assert (middle.gain_low, middle.gain_high) == pytest.approx((decision.gain.gain_low, decision.gain.gain_high))
    assert all(before.gain > after.gain for before, after in zip(curve, curve[1:]))
    marked = next(each for each in handles.figures["break-even"].figure.data if each.name == "your round")
    expected = round_gain(rest, decision.fastest.call_us, decision.best.call_us).gain
    assert list(marked.y) == [pytest.approx(100 * expected)] and list(marked.x) == [pytest.approx(rest.rest_us)]


def test_a_long_round_makes_the_gain_small(handles: DecisionHandles) -> None:
    before = handles.answer.decision.gain.gain
    handles.controls["verify_us"].value = "1000000"
    assert 0 < handles.answer.decision.gain.gain < before / 20


def test_another_round_fits_nothing_anew(handles: DecisionHandles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "select_walks", lambda *_, **__: pytest.fail("fitted again"))
    handles.controls["accepted_length"].value = "2"
    assert handles.answer.decision.gain.tokens_per_s_before == pytest.approx(2.0 / handles.answer.decision.gain.round_us_before * 1e6)


def test_a_round_out_of_range_is_refused_in_place(handles: DecisionHandles) -> None:
    verdict = handles.verdict.value
    handles.controls["accepted_length"].value = "0.5"
    assert "numbers from 1 to 33" in handles.form.notes["accepted_length"].value and handles.verdict.value == verdict
    assert handles.request.accepted_length == "4"


def test_settings_and_tables_are_written_and_read_back(handles: DecisionHandles, tmp_path: Path) -> None:
    handles.write_button.click()
    assert {path.name for path in tmp_path.iterdir()} == {"settings.json", "decision.md", *(f"step_costs.{suffix}" for suffix in ("csv", "parquet", "md", "tex"))}
    assert read_settings(tmp_path / "settings.json") == handles.answer.decision.settings
    table = pandas.read_csv(tmp_path / "step_costs.csv")
    assert len(table) == len(pandas.read_parquet(tmp_path / "step_costs.parquet")) > 4
    handles.folder.value = str(tmp_path / "settings.json")
    handles.write_button.click()
    assert "Name another folder" in handles.written.value


def test_without_a_record_the_answer_is_predicted_only(records: Path, tmp_path: Path) -> None:
    _, handles = decision_panel(DecisionRequest(vocab_size=129_280, target="a <b>model"), records=records, out=tmp_path)
    assert "predicted only" in handles.verdict.value and "a &lt;b&gt;model" in handles.verdict.value
    assert DecisionRequest.load(handles.request.save(tmp_path / "d.json")) == handles.request


def test_a_decision_is_that_of_its_command_line(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    from tests.command_line import run

    (tmp_path / "h100-sxm").mkdir()  # a folder without records of this GPU
    asked = dict(steps=7, batch=4, verify_us="9000:8500:9600", backbone_us="900", base_logits_us="100", accepted_length="3:2:4")
    for more in ({}, {"schedule": "overlapped", "hidden_share": 0.5}, {"temperature": 0.7}, {"drafter": "dspark-qwen3-8b", "head": "dspark-qwen3-8b"}):
        request = DecisionRequest(**asked, **more)
        _, handles = decision_panel(request, records=tmp_path, out=tmp_path)
        said = json.loads(run(*request.command().split()[1:], "--json").stdout)
        decision = handles.answer.decision
        told = said.get("decision", said)
        assert told["verdict"] == decision.verdict and told["gain"]["gain"] == pytest.approx(decision.gain.gain), request.command()
        assert told["gain"]["round_us_after"] == pytest.approx(decision.gain.round_us_after)


def test_a_released_drafter_brings_its_shapes_and_what_is_left_empty_is_modelled(handles: DecisionHandles, tmp_path: Path) -> None:
    handles.controls["drafter"].value = "dspark-qwen3-8b"
    request = handles.request
    assert (request.head, request.target, request.steps) == ("dspark-qwen3-8b", "qwen3-8b", 7) and handles.controls["steps"].value == 7
    given_us = handles.answer.rest.rest_us
    assert given_us > 22_000  # base logits are estimated, too
    for name in ("verify_us", "backbone_us"):
        handles.controls[name].value = ""
    phases = handles.answer.round_answer.phases
    basis = MODELLED if rates_path().is_file() else ESTIMATED
    assert {phase.basis for phase in phases.values()} == {basis}
    assert handles.answer.rest.rest_us == pytest.approx(sum(phase.time_us for phase in phases.values()))
    assert handles.answer.rest.rest_us < given_us
    assert "Device memory" in handles.table.value and basis in handles.table.value
    handles.write_button.click()
    assert (tmp_path / "decision.md").read_text().startswith("# dspark-qwen3-8b")
    handles.controls["drafter"].value = "own round"
    assert "choose a drafter" in handles.form.notes["verify_us"].value and handles.request.drafter == "dspark-qwen3-8b"


def test_concurrency_is_the_batch_of_the_walk_and_of_the_round(handles: DecisionHandles) -> None:
    handles.controls["batch"].value = 8
    gain, rest = handles.answer.decision.gain, handles.answer.rest
    assert handles.controls["batch"].description == "Concurrency [sequences]" and rest.concurrency == 8
    assert gain.tokens_per_s_after == pytest.approx(8 * 4 / gain.round_us_after * 1e6)
    assert {prediction.workload.batch for prediction in handles.answer.predictions} == {8}


def test_an_overlapped_round_hides_the_share_that_is_said(handles: DecisionHandles) -> None:
    serial_us = handles.answer.rest.rest_us
    handles.controls["schedule"].value = "overlapped"
    assert handles.answer.rest.rest_us == pytest.approx(serial_us - 2_000)
    handles.controls["hidden_share"].value = 0.25
    assert handles.answer.rest.rest_us == pytest.approx(serial_us - 500)
    assert handles.answer.curve[len(handles.answer.curve) // 2].rest_us == pytest.approx(serial_us - 500)


def test_substitutes_stand_side_by_side(handles: DecisionHandles) -> None:
    names = [each.name for each in handles.answer.substitutes]
    assert [each.approximate for each in handles.answer.substitutes].count(True) == 4
    for name in names:
        assert html.escape(name) in handles.table.value
    handles.controls["ranks"].value = 4
    assert handles.answer.alternatives.ranks == 4 and len(handles.answer.shards) == 2 and "Tensor parallelism over 4 GPUs" in handles.table.value
    handles.controls["top_k"].value = 0
    assert not any("pruning" in each.name for each in handles.answer.substitutes)
    handles.controls["vocab_size"].value = 16_000  # smaller than the draft vocabulary, which so is left out
    assert handles.request.draft_vocab_size == 0 and not any(each.approximate for each in handles.answer.substitutes)
