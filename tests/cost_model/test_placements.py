"""Placements side by side: all that the planner allows, each as predicted, in the order of the call."""

import pytest

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.placement import PlanError, enumerate_placements, plan
from cost_model.placements import best_placement, predict_placements
from cost_model.predict import predict
from cost_model.workload import Workload
from tests.cost_model.test_predict_heads import HEADS
from tests.cost_model.walk_examples import QWEN, study_h200

STUDY = study_h200()


@pytest.mark.parametrize("kind, workload", [("markov", Workload()), ("markov", Workload(batch=8)), ("rnn", Workload()), ("domino", Workload(batch=4)), ("pool", Workload(batch=2))])
def test_every_placement_is_there_once_and_costs_what_predict_says(kind, workload):
    head = HEADS[kind]
    found = predict_placements(STUDY, head, workload)
    assert [one.rank for one in found] == list(range(1, len(found) + 1)) and len({one.placement for one in found}) == len(found)
    calls = [one.call_us for one in found]
    assert calls == sorted(calls)
    for one in found[:3]:
        again = predict(STUDY, head, workload, "resident", placement=one.placement, grid_blocks=one.prediction.grid_blocks)
        assert one.call_us == again.call_us()
    planned = [one for one in found if one.planned]
    assert len(planned) == 1 and planned[0].placement == predict(STUDY, head, workload, "resident").placement


def test_all_that_the_planner_allows_is_there():
    allowed = set(enumerate_placements(STUDY, QWEN, "int8x2", "resident"))
    assert {one.placement for one in predict_placements(STUDY, QWEN, Workload())} == allowed and len(allowed) > 5


def test_bytes_add_up_to_the_shard():
    for one in predict_placements(STUDY, Head.markov(248_320, 256), Workload()):
        row = one.as_row()
        assert row["register_bytes"] + row["shared_bytes_resident"] + row["streamed_bytes"] == one.placement.tiles * 4096
        assert row["shared_bytes_resident"] + row["staging_bytes"] <= row["shared_bytes"] <= 232_448
        assert row["registers_per_thread"] <= 255 and row["binding"] in ("products", "shared_read", "stream", "epilogue")
        assert row["residency"] == pytest.approx(1 - row["streamed_bytes"] / (one.placement.tiles * 4096))


def test_other_numbers_of_warps_are_laid_out_too():
    found = predict_placements(STUDY, Head.markov(32_000, 256), Workload(), warps=(4, 8, 16))
    assert {one.placement.warps for one in found} == {4, 8, 16}
    assert sum(one.planned for one in found) == 1


def test_the_best_is_resident_where_that_is_faster_and_streaming_where_nothing_can_stay():
    best = best_placement(STUDY, QWEN, Workload())
    assert best.prediction.mode == "resident" and best.placement == plan(STUDY, QWEN, "int8x2", "resident")
    assert best.call_us <= predict(STUDY, QWEN, Workload(), "streaming").call_us()


def test_what_fits_nowhere_is_said():
    with pytest.raises(PlanError, match="no resident placement of markov-151936-r512 in bf16 fits rtx-4090 with 8 warps"):
        predict_placements(load_gpu("rtx-4090"), Head.markov(151_936, 512), Workload(precision="bf16"))
    with pytest.raises(BadInput, match="mode is 'stepwise'"):
        predict_placements(STUDY, QWEN, Workload(), "stepwise")
