"""The decision panel through its handles: verdict, curve, exports, refusals."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from cost_model.round import round_gain
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
