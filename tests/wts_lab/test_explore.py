"""Explorations: what they hold is what the model says, and what did not change is not computed again."""

from __future__ import annotations

import pytest

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.workload import Workload
from wts_lab import explore as module
from wts_lab.explore import explore

GPU, HEAD = load_gpu("h200-sxm"), Head.markov(151_936, 256)


def test_the_chosen_walk_and_the_gain_are_the_models() -> None:
    found = explore(GPU, HEAD, Workload(2), ("resident", "int8x2"))
    assert found.chosen.prediction == predict(GPU, HEAD, Workload(2), "resident")
    assert found.gain.resident_us == found.chosen.prediction.step_us
    engine_us = min(each.prediction.step_us for each in found.comparisons if each.is_engine)
    assert found.gain.total_us == pytest.approx(engine_us - found.chosen.prediction.step_us)
    assert found.spans[-1].step == 16 and {each.label for each, _ in found.phases} >= {"resident int8x2", "streaming bf16"}


def test_a_stepwise_choice_is_the_engines_path() -> None:
    assert explore(GPU, HEAD, Workload(precision="bf16"), ("stepwise", "bf16")).chosen.is_engine


def test_a_way_that_cannot_be_predicted_is_noted_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, whole = ("streaming", "int8x2"), module.predicted_comparisons

    def without(gpu, head, workload, ways):
        if lost in ways:
            raise BadInput("no placement fits")
        return whole(gpu, head, workload, ways)

    monkeypatch.setattr(module, "predicted_comparisons", without)
    found = explore(GPU, HEAD, Workload(steps=13), ("resident", "int8x2"))
    assert found.notes == ("streaming int8x2: no placement fits",) and found.gain is None
    assert lost not in {(each.mode, each.precision) for each in found.comparisons}
    with pytest.raises(BadInput, match="no placement fits"):
        explore(GPU, HEAD, Workload(steps=13), lost)


def test_another_mode_or_an_earlier_question_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    explore(GPU, HEAD, Workload(steps=9), ("resident", "int8x2"))
    monkeypatch.setattr(module, "predicted_comparisons", lambda *_: pytest.fail("computed again"))
    for way in (("streaming", "int8x2"), ("streaming", "bf16"), ("stepwise", "bf16"), ("resident", "int8x2")):
        assert explore(GPU, HEAD, Workload(steps=9, precision=way[1]), way).chosen.mode == way[0]
