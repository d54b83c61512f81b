"""Measured points: medians and percentiles by walk length; labels; rows matched to their way."""

from __future__ import annotations

import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.workload import Workload
from tests.synthetic_records import synthetic_rows
from wts_lab.compare import ALL_WAYS, predicted_comparisons, published_points, with_fits, with_points
from wts_lab.comparison import Comparison, measured_points


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40))
def test_a_point_is_the_median_with_the_5th_and_95th_percentile(samples: list[float]) -> None:
    (point,) = measured_points([{"steps": 4, "samples_us": samples}])
    assert point.median_us == statistics.median(samples) and point.samples == len(samples)
    assert (point.low_us, point.high_us) == pytest.approx(tuple(numpy.quantile(samples, [0.05, 0.95])))


def test_processes_are_pooled_and_lengths_rise() -> None:
    points = measured_points(
        [{"steps": 7, "samples_us": [10, 12]}, {"steps": 1, "samples_us": [3]}, {"steps": 7, "samples_us": [14]}]
    )
    assert [(point.steps, point.median_us, point.samples) for point in points] == [(1, 3, 1), (7, 12, 3)]


def test_rows_that_lost_all_samples_give_no_point() -> None:
    assert measured_points([{"steps": 7, "samples_us": []}, {"steps": 8, "samples_us": None}]) == ()


@pytest.mark.parametrize(
    "fields, label, role",
    [
        (("wts", "resident", "int8x2"), "resident int8x2", "resident-int8x2"),
        (("wts", "streaming", "bf16"), "streaming bf16", "streaming-bf16"),
        (("torch-stepwise", "stepwise", "bf16"), "stepwise torch", "torch-stepwise"),
        (("sglang-0.5.23", "stepwise", "bf16"), "sglang-0.5.23", "engine"),
    ],
)
def test_labels_and_roles(fields: tuple[str, str, str], label: str, role: str) -> None:
    series = Comparison(*fields, "warm", 151_936, 256)
    assert (series.label, series.role, series.shape_label) == (label, role, "V 151,936, rank 256")


def test_a_call_is_measured_only_within_the_walks_that_were_timed() -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(151_936, 256)
    rows = synthetic_rows(l2_states=("warm",), ways=[("wts", "resident", "resident", "int8x2")])
    (resident,) = with_fits(predicted_comparisons(gpu, head, Workload(), (("resident", "int8x2"),)), rows)
    assert [resident.basis(steps) for steps in (1, 9, 16, 17, 100)] == ["measured"] * 3 + ["predicted"] * 2
    assert resident.call_us(16) == resident.fit.medians_us[16] and resident.call_us(9) == resident.fit.line_us(9)
    assert resident.call_us(100) == resident.prediction.call_us(100) != resident.fit.call_us(100)


def test_a_published_call_says_so_and_an_unknown_one_is_none() -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(151_936, 256)
    sample = predicted_comparisons(gpu, head, Workload(), (("stepwise", "bf16"),))[-1]
    assert (sample.call_us(16), sample.basis(16), sample.basis(9)) == (476.1, "published", "predicted")
    bare = Comparison("wts", "resident", "int8x2", "warm", 151_936, 256)
    assert (bare.call_us(16), bare.basis(16)) == (None, None)


def test_rows_go_to_their_own_way_and_published_points_stay() -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(151_936, 256)
    rows = synthetic_rows(l2_states=("warm", "cold"), ways=[("wts", "resident", "resident", "int8x2")])
    merged = with_points(predicted_comparisons(gpu, head, Workload(), ALL_WAYS), rows)
    counts = {each.label: sum(point.samples for point in each.points) for each in merged}
    assert counts["resident int8x2"] == 7 * 3 * 15  # the cold rows belong to another state
    assert counts["streaming int8x2"] == 0 and counts["sglang-0.5.23 sample"] == 300


def test_published_points_belong_to_one_gpu_shape_and_state() -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(151_936, 256)
    assert [(point.steps, point.median_us) for point in published_points(gpu, head, Workload(), "sample")] == [
        (1, 35.5),
        (7, 212.2),
        (16, 476.1),
    ]
    assert published_points(gpu, head, Workload(l2_state="serving"), "sample") == ()
    assert published_points(load_gpu("h100-sxm"), head, Workload(), "sample") == ()
    assert published_points(gpu, Head.markov(151_936, 128), Workload(), "sample") == ()
