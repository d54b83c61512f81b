"""Rooflines: operations and bytes by their formulas, and no phase above a roof that it cannot pass."""

from __future__ import annotations

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.roofline import Roof, idle_us, phases, roofs
from cost_model.workload import Workload

GPU = load_gpu("h200-sxm")


def phases_of(mode: str, precision: str, vocab_size: int = 151_936, batch: int = 1):
    """Phases by name, and the prediction that they are of."""
    prediction = predict(GPU, Head.markov(vocab_size, 256), Workload(batch, precision=precision), mode)
    return {phase.name: phase for phase in phases(GPU, prediction)}, prediction


@pytest.mark.parametrize("mode, precision, intensity", [("stepwise", "bf16", 1.0), ("streaming", "bf16", 1.0), ("resident", "int8x2", 4.0)])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_projection_does_batch_operations_for_each_byte_and_four_times_that_in_two_int8_vectors(mode, precision, intensity, batch) -> None:
    found, _ = phases_of(mode, precision, batch=batch)
    assert found["projection"].intensity_ops_per_byte == pytest.approx(intensity * batch)
    assert found["selection"].intensity_ops_per_byte == 1.0  # two operations on each two-byte base logit


def test_phases_and_idle_time_are_the_whole_step() -> None:
    for way in (("stepwise", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2")):
        found, prediction = phases_of(*way)
        parts_us = found["projection"].time_us + found["selection"].time_us + idle_us(prediction)
        assert parts_us == pytest.approx(prediction.step_us) and found["whole step"].time_us == prediction.step_us
        assert found["whole step"].operations == found["projection"].operations + found["selection"].operations


def test_a_phase_says_where_its_bytes_come_from() -> None:
    assert phases_of("resident", "int8x2")[0]["projection"].tier == "registers and shared memory"
    assert phases_of("streaming", "int8x2")[0]["projection"].tier == "L2"
    assert phases_of("streaming", "bf16", 248_320)[0]["projection"].tier == "HBM"


def test_what_streams_stays_under_the_roof_of_its_memory() -> None:
    found, prediction = phases_of("streaming", "bf16", 248_320)
    by_name = {roof.name: roof for roof in roofs(GPU, "bf16", float(248_320 * 256 * 2))}
    projection = found["projection"]
    fastest = max(roof.at(projection.intensity_ops_per_byte) for roof in by_name.values() if roof.name in ("HBM", "L2"))
    assert projection.rate_ops_per_s <= fastest


def test_roofs_rise_with_intensity_or_are_flat() -> None:
    assert Roof("HBM", bytes_per_s=4e12).at(3.0) == 12e12 and Roof("tensor cores", ops_per_s=1e15).at(3.0) == 1e15
    names = [roof.name for roof in roofs(GPU, "int8x2", 20e6)]
    assert names == ["HBM", "L2", "shared memory", "int8 tensor cores"]
    assert roofs(GPU, "int8x2", 20e6)[-1].ops_per_s == GPU.value("int8_dense_ops_per_s")
