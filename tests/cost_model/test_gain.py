"""Gain splits sum; a measured head splits into parts that sum to it."""

import pytest

from cost_model.errors import BadInput
from cost_model.gain import binding_term, byte_floor_us, split_gain, split_measured_head
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, study_h200

H100 = load_gpu("h100-sxm", calibrated=False)
PEGAINFER = Head.markov(154_880, 256)


def test_fusion_precision_and_residency_sum_to_the_whole_gain():
    split = split_gain(study_h200(), QWEN, Workload(), "torch-stepwise")
    assert split.fusion_us + split.precision_us + split.residency_us == pytest.approx(split.total_us)
    assert split.precision_us > 0 and split.residency_us > 0 and split.as_dict()["total_us"] == split.total_us


def test_byte_floor_of_the_pegainfer_head():
    assert byte_floor_us(H100, PEGAINFER, 7) == pytest.approx(165.7, rel=0.001)


def test_pegainfer_head_splits_into_launch_floor_selection_and_projection():
    split = split_measured_head(H100, PEGAINFER, Workload(steps=7), graphed_us=320.0, eager_us=349.0, variant="sample")
    parts = split.launch_us + split.byte_floor_us + split.selection_us + split.projection_excess_us
    assert parts == pytest.approx(split.total_us) and split.total_us == 349
    assert split.launch_us == pytest.approx(29) and split.byte_floor_us == pytest.approx(165.7, rel=0.01)
    assert split.launch_saving_us == pytest.approx(29) and split.projection_excess_us > 0 and split.selection_us > 0


def test_a_graphed_baseline_has_no_launch_to_save():
    split = split_measured_head(H100, PEGAINFER, Workload(steps=7), graphed_us=320.0)
    assert split.launch_saving_us == 0 and 0 < split.launch_us < 29
    assert split.launch_us + split.byte_floor_us + split.selection_us + split.projection_excess_us == pytest.approx(320)


def test_a_measurement_below_the_floor_is_reported_not_edited():
    with pytest.raises(BadInput, match="floor is wrong"):
        split_measured_head(H100, PEGAINFER, Workload(steps=7), graphed_us=150.0)
    with pytest.raises(BadInput, match="not below graphed"):
        split_measured_head(H100, PEGAINFER, Workload(steps=7), graphed_us=320.0, eager_us=300.0)


def test_binding_term_is_the_largest():
    prediction = predict(study_h200(), QWEN, Workload(precision="bf16"), "streaming")
    assert binding_term(prediction) == "stream"
