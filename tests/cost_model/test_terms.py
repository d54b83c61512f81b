"""Terms against arithmetic done by hand."""

import statistics

import pytest

from cost_model import terms
from cost_model.measurement import read_walk
from cost_model.paths import data_root


def test_sizes_of_the_qwen_head():
    assert terms.tile_bytes(256, "int8x2") == 4096 and terms.tile_bytes(256, "bf16") == 8192
    assert terms.tiles_of(151_936) == 9496 and terms.tiles_of(1) == 1 and terms.tiles_of(17) == 2
    assert terms.matrix_bytes(151_936, 256, "int8x2") == 38_895_616
    assert terms.base_logits_bytes(151_936, 2) == 2 * 151_936 * 2
    assert 151_936 * terms.latent_row_bytes(256, "int8x2") == 80_222_208, "the design's 80 MB latent table"


def test_a_72_tile_shard_is_576_products():
    assert terms.product_operations(72, 256, "int8x2", 1) == 576 * 2 * 16 * 8 * 32
    assert terms.product_operations(72, 256, "bf16", 1) == 1152 * 2 * 16 * 8 * 16, "twice the instructions of half the depth"


@pytest.mark.parametrize("batch, passes", [(1, 1), (4, 1), (5, 2), (32, 8)])
def test_int8x2_batches_up_to_four_cost_the_same(batch, passes):
    assert terms.product_operations(1, 32, "int8x2", batch) == passes * terms.product_operations(1, 32, "int8x2", 1)


def test_products_of_the_study_take_half_a_microsecond():
    assert terms.products_us(terms.product_operations(72, 256, "int8x2", 1), 9.63e12) == pytest.approx(0.49, abs=0.005)


def test_shared_memory_of_the_study_takes_0_93_us():
    assert terms.shared_read_us(224 * 1024, 246e9) == pytest.approx(0.93, abs=0.005)


def test_latent_is_hidden_behind_the_exchange_when_it_is_pulled_ahead():
    assert terms.latent_us(0.15, 0.35, 0.8, cold=False) == 0.15
    assert terms.latent_us(0.15, 0.35, 0.8, cold=True) == 0.15
    assert terms.latent_us(0.15, 0.35, 0.1, cold=True) == pytest.approx(0.15 + 0.25)


def test_a_ring_covers_the_latency_that_its_other_slots_outlast():
    assert terms.stream_us(1e6, 1e12, 0.5) == pytest.approx(2.0)
    assert terms.ring_wait_us(5, 1, 4e6, 8e12, 0.15) == pytest.approx(5 * 0.15), "one slot: nothing is in flight meanwhile"
    assert terms.ring_wait_us(9, 2, 0.8e6, 8e12, 0.15) == pytest.approx(9 * 0.05), "a wave of 0.1 us covers two thirds"
    assert terms.ring_wait_us(9, 4, 4e6, 8e12, 0.15) == 0 == terms.ring_wait_us(0, 1, 4e6, 8e12, 0.15)


def test_epilogue_divides_by_four_schedulers():
    assert terms.epilogue_us(slots=9, warps=8, batch=1, cycles_per_tile=28, clock_mhz=1980) == pytest.approx(72 * 28 / 4 / 1980)
    assert terms.epilogue_us(9, 8, 3, 28, 1980) == pytest.approx(3 * terms.epilogue_us(9, 8, 1, 28, 1980))


def test_block_reduction_counts_its_cycles():
    assert terms.block_reduction_us(8, 1, 1000) == pytest.approx((2 * 30 + 30 + 2 * (22 + 16)) / 1000)


@pytest.fixture(scope="module")
def probed_exchange_us():
    """Return the medians of the recorded exchange probe by words a block: 16 warps that poll one array again and again."""
    frame = read_walk(data_root() / "measurements" / "h200-sxm" / "2026-11-30-probes.parquet")
    rows = frame[(frame["probe"] == "exchange") & frame["variant"].str.fullmatch(r"warp16-r1-repoll(-rows\d+)?") & (frame["grid_blocks"] == 132)]
    return {int(batch): statistics.median(statistics.median(samples) for samples in group["samples_us"]) for batch, group in rows.groupby("batch")}


def test_exchange_grows_with_the_batch_as_the_records_say(probed_exchange_us):
    assert sorted(probed_exchange_us) == [1, 2, 4, 8, 16, 32]
    assert terms.exchange_us(0.8, 1) == 0.8
    for batch, measured_us in probed_exchange_us.items():
        assert terms.exchange_us(probed_exchange_us[1], batch) == pytest.approx(measured_us, rel=0.10), batch


def test_floor_of_an_exchange_is_two_trips_to_l2():
    assert terms.exchange_floor_us(0.146) == pytest.approx(0.292), "the design study measured 0.29 for 2 to 8 blocks"


def test_step_floor_overlaps_the_stream_with_the_serial_chain():
    assert terms.step_floor_us(5.0, 0.1, 0.3, 0.2, 0.3) == 5.0
    assert terms.step_floor_us(0.1, 0.1, 0.3, 0.2, 0.3) == pytest.approx(0.7)
    assert terms.step_floor_us(0.1, 0.1, 0.2, 0.4, 0.3) == pytest.approx(0.8)


def test_first_pass_is_only_what_a_later_one_saves():
    assert terms.first_pass_us(1e6, 1e12, 2e12) == pytest.approx(0.5)
    assert terms.first_pass_us(1e6, 2e12, 1e12) == 0


def test_stepwise_parts():
    assert terms.launch_us(4, 0.5) == 2
    assert terms.first_launch_us(2.5, 0.7) == pytest.approx(1.8) and terms.first_launch_us(0.2, 0.5) == 0
    assert terms.projection_excess_us(20, 0.8) == pytest.approx(5)
    assert terms.selection_us(9, 6, 500_000) == pytest.approx(12)
