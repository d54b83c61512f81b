"""Rooflines of a round's phases by hand, and the published rounds that say how far engines stay from them."""

import pytest

from cost_model import phases
from cost_model.drafter_memory import DrafterMemory, memory_of
from cost_model.gpu import Gpu, MissingFact, load_gpu
from cost_model.phases import Demand, published_excess, published_rounds
from cost_model.targets import load_drafter, load_target
from cost_model.units import US_PER_S

TARGET, DRAFTER, GPU = load_target("qwen3-8b"), load_drafter("dspark-qwen3-8b"), load_gpu("h200-sxm")
LAYER = 2 * 4096 * 128 * 40 + 3 * 4096 * 12288
OUTPUT = 151_936 * 4096


def test_verify_by_hand():
    demand = phases.target_demand(TARGET, 4, 1000, 8)
    assert demand.work_bytes == 2 * (36 * LAYER + OUTPUT) + 4 * 1000 * 36 * 4096
    assert demand.operations == 4 * 8 * (2 * (36 * LAYER + OUTPUT) + 4 * 36 * 32 * 128 * 1000)


def test_the_backbone_by_hand_and_over_boundaries():
    memory = memory_of(DRAFTER, TARGET)
    weights = 5 * LAYER + 5 * 4096**2
    one = phases.backbone_demand(TARGET, DRAFTER, memory, 2, 100, 7)
    assert one.work_bytes == 2 * weights + 2 * 100 * 5 * 4096
    assert one.operations == 2 * 7 * (2 * weights + 4 * 5 * 32 * 128 * 100)
    every = phases.backbone_demand(TARGET, DRAFTER, memory, 2, 100, 7, boundaries=8)
    assert every.operations == 8 * one.operations and every.work_bytes == one.work_bytes


def test_a_window_bounds_the_work_of_attention():
    memory = DrafterMemory("window", 4096, 5, window_tokens=64)
    short, long = (phases.backbone_demand(TARGET, DRAFTER, memory, 1, context, 7) for context in (64, 100_000))
    assert short == long


def test_base_logits_by_hand_and_over_a_draft_vocabulary():
    assert phases.base_logits_demand(TARGET, 2, 7) == Demand(2 * (OUTPUT + 14 * 151_936), 2 * 14 * OUTPUT)
    assert phases.base_logits_demand(TARGET, 2, 7, vocab_size=32_000) == Demand(2 * (32_000 * 4096 + 14 * 32_000), 2 * 14 * 32_000 * 4096)


def test_a_roofline_is_the_longer_of_bytes_and_operations():
    bandwidth, rate = GPU.value("dram_bandwidth_bytes_per_s"), GPU.value("bf16_dense_flops_per_s")
    assert Demand(bandwidth, rate / 2).roofline_us(GPU) == pytest.approx(US_PER_S)
    assert Demand(bandwidth / 2, rate).roofline_us(GPU) == pytest.approx(US_PER_S)


def test_published_rounds_lie_above_their_rooflines():
    rounds = published_rounds()
    assert len(rounds) >= 2
    for each in rounds:
        assert each.round_us > each.roofline_us() and each.source.startswith("https://")
    one = rounds[0]
    assert one.round_us * one.tokens_per_s == pytest.approx(one.concurrency * one.accepted_length * US_PER_S)


def test_an_estimate_reaches_from_the_roofline_to_what_was_published():
    phase = phases.estimated(Demand(1e9, 0.0), GPU)
    assert phase.time_us_low == Demand(1e9, 0.0).roofline_us(GPU) and phase.basis == phases.ESTIMATED
    assert phase.time_us_high / phase.time_us_low == pytest.approx(published_excess())
    assert phase.time_us**2 == pytest.approx(phase.time_us_low * phase.time_us_high)
    assert 1.5 < published_excess() < 10


def test_a_given_time_has_the_interval_it_came_with():
    assert phases.given(5.0).interval_us == (5.0, 5.0) and phases.given(5.0, (4.0, 7.0)).interval_us == (4.0, 7.0)


def test_a_gpu_without_its_bandwidth_is_refused_by_name():
    bare = Gpu("bare", "Bare", (), (9, 0), {})
    with pytest.raises(MissingFact, match="dram_bandwidth_bytes_per_s"):
        phases.estimated(Demand(1.0, 1.0), bare)
