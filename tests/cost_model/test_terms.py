"""Terms against arithmetic done by hand."""

import statistics

import numpy as np
import pytest

from cost_model import terms
from cost_model.footprint import Kernel, accumulator_groups
from cost_model.gpu import load_gpu
from cost_model.measurement import read_walk
from cost_model.paths import data_root
from cost_model.placement import Placement


def test_sizes_of_the_qwen_head():
    assert terms.tile_bytes(256, "int8x2") == 4096 and terms.tile_bytes(256, "bf16") == 8192
    assert terms.tiles_of(151_936) == 9496 and terms.tiles_of(1) == 1 and terms.tiles_of(17) == 2
    assert terms.matrix_bytes(151_936, 256, "int8x2") == 38_895_616
    assert terms.base_logits_bytes(151_936, 2) == 2 * 151_936 * 2
    assert 151_936 * terms.latent_row_bytes(256, "int8x2") == 80_222_208, "the design's 80 MB latent table"


def test_a_72_tile_shard_is_576_products():
    assert terms.product_operations(72, 256, "int8x2", 1) == 576 * 2 * 16 * 8 * 32
    assert terms.product_operations(72, 256, "bf16", 1) == 1152 * 2 * 16 * 8 * 16, "twice the instructions of half the depth"


@pytest.mark.parametrize("precision", ["int8x2", "bf16"])
@pytest.mark.parametrize("batch, passes", [(1, 1), (4, 1), (5, 2), (32, 8)])
def test_batches_up_to_four_cost_the_same(batch, passes, precision):
    """In bf16, too: the kernel gives a batch row a pair of the 8 columns there as well (`csrc/walk/config.cuh`)."""
    assert terms.quads_of(batch) == passes
    assert terms.product_operations(1, 32, precision, batch) == passes * terms.product_operations(1, 32, precision, 1)


def test_products_of_the_study_take_half_a_microsecond():
    assert terms.products_us(terms.product_operations(72, 256, "int8x2", 1), 9.63e12) == pytest.approx(0.49, abs=0.005)


def test_shared_memory_of_the_study_takes_0_93_us():
    assert terms.shared_read_us(224 * 1024, 246e9) == pytest.approx(0.93, abs=0.005)


def test_latent_is_hidden_behind_the_exchange_when_it_is_pulled_ahead():
    assert terms.cold_latent_us(0.15, 0.35, 0.8) == 0.15
    assert terms.cold_latent_us(0.15, 0.35, 0.1) == pytest.approx(0.15 + 0.25)


def test_a_ring_comes_at_the_rate_of_the_memory_or_in_turns_of_a_latency():
    assert terms.stream_us(1e6, 1e12, 0.5) == pytest.approx(2.0)
    assert terms.ring_us(40e6, 10e6, 8e12, 0.3) == pytest.approx(0.3 + 5.0), "10 MB under way are more than 0.3 us at 8 TB/s"
    assert terms.ring_us(40e6, 1e6, 8e12, 0.3) == pytest.approx(0.3 + 40 * 0.3), "1 MB is less"
    times = [terms.ring_us(40e6, entries * 1e5, 8e12, 0.3) for entries in range(1, 40)]
    assert times == sorted(times, reverse=True) and terms.ring_us(0, 0, 8e12, 0.3) == 0.3


def test_slots_in_turn_hide_the_shorter_of_transfer_and_work():
    assert terms.slot_in_turn_us(0.5, 0.2) == pytest.approx(0.5) == terms.slot_in_turn_us(0.2, 0.5)
    assert terms.slot_in_turn_us(0.5, 0.4, readings=2) == pytest.approx(0.2 + 0.5), "a tile that is read twice leaves the ring late"


def test_what_l2_holds_is_waited_for_and_what_it_lacks_runs_beside_the_work():
    assert terms.after_work_us(3.0, 2.0, 0.0) == 3.0 and terms.after_work_us(3.0, 2.0, 1.0) == 1.0 and terms.after_work_us(1.0, 2.0, 0.5) == 0.5


@pytest.mark.parametrize("rank, precision, parts", [(256, "int8x2", 2), (512, "int8x2", 4), (256, "bf16", 4), (96, "int8x2", 1), (64, "bf16", 1), (32, "int8x2", 1)])
def test_a_tile_takes_entries_of_four_k_steps_or_one(rank, precision, parts):
    assert terms.tile_parts(rank, precision) == parts


def test_warpgroups_select_slot_by_slot():
    assert terms.group_selection_us(9, 4, 140, 145, 1980) == pytest.approx(9 * (140 + 4 * 145) / 1980)


def test_a_second_look_is_certain_for_many_warps_and_rows():
    assert terms.second_look_share(8 * 132, 9 * 16, 32) == pytest.approx(1056 * 0.22 / 4608) and terms.second_look_share(32 * 8 * 132, 9 * 16, 8) == 1.0
    assert terms.second_look_share(8 * 132, 0, 8) <= 1.0, "no tiles, nothing to look at"


def simulated_second_looks(slots, lanes, variance):
    """Return the share of warps and batch rows whose bounds leave the winner open, a row's `lanes` lanes between them with 16 rows a slot."""
    rng, open_, tried = np.random.default_rng(slots * lanes), 0, 0
    rows = slots * 16 // lanes
    for _ in range(10):
        logits, uniform = rng.normal(0, variance**0.5, (20_000, lanes, rows)), rng.random((20_000, lanes, rows))
        values = logits - np.log(-np.log1p(-uniform))
        bounds = logits - np.log(uniform + uniform**2 / 2 + uniform**3 / 3)
        leading = np.take_along_axis(values, bounds.argmax(axis=2)[..., None], axis=2)[..., 0].max(axis=1)
        open_ += int((np.partition(bounds, -2, axis=2)[..., -2] >= leading[:, None]).any(axis=1).sum())
        tried += len(logits)
    return open_ / tried


@pytest.mark.parametrize("slots, lanes", [(9, 8), (15, 8)])
def test_second_looks_are_as_frequent_as_a_simulation_finds_them(slots, lanes):
    assert terms.SECOND_LOOKS / (slots * 16 * lanes) == pytest.approx(simulated_second_looks(slots, lanes, 2.0), rel=0.5)
    assert simulated_second_looks(slots, lanes, 1.0) < 0.5 * terms.SECOND_LOOKS / (slots * 16 * lanes)


def test_of_more_loads_the_slowest_comes_later_and_never_after_the_slowest_there_is():
    times_us = [terms.slowest_of_us(0.15, 0.35, count) for count in (1, 2, 4, 1_000_000)]
    assert times_us[0] == 0.35 and times_us == sorted(times_us) and times_us[-1] == pytest.approx(0.55, rel=1e-5)


def test_position_terms_leave_l2_once_the_matrix_and_the_logits_of_the_steps_before_fill_it():
    assert terms.away_share(30e6, 10e6, 50e6) == 0 and terms.away_share(60e6, 10e6, 50e6) == 1
    assert terms.away_share(40e6, 40e6, 50e6) == pytest.approx(0.75)


def test_a_quad_has_four_latents_at_most():
    assert [terms.operand_bytes(256, rows) for rows in (1, 2, 4, 8, 32)] == [512, 1024, 2048, 2048, 2048]


def test_epilogue_divides_by_four_schedulers():
    assert terms.epilogue_us(accumulators=3, warps=8, quads=1, cycles=43, clock_mhz=1980) == pytest.approx(3 * 8 * 43 / 4 / 1980)
    assert terms.epilogue_us(9, 8, 2, 43, 1980) == pytest.approx(6 * terms.epilogue_us(3, 8, 1, 43, 1980))


def test_an_epilogue_pays_for_what_its_kernel_does():
    def cycles(**more):
        return terms.further_cycles(**{**dict(rounding="once", wide=0, kept=False), **more})

    assert cycles() == 0 and cycles(rounding="twice") == 4 and cycles(kept=True) == 12
    assert cycles(wide=1) == 20 and cycles(wide=1, kept=True) == 32


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("slots", [1, 2, 3, 7, 9, 16])
def test_accumulators_are_those_of_the_register_claim(rows, slots):
    kernel = Kernel(rows=rows)
    assert terms.accumulators_of(slots, kernel.packed) == accumulator_groups(Placement(8, 0, 8 * slots, 0, 0), kernel)


def test_block_reduction_counts_its_cycles():
    assert terms.block_reduction_us(8, 1, 1, 0, 1000) == pytest.approx((2 * 30 + 30 + 2 * (22 + 16)) / 1000)
    assert terms.block_reduction_us(8, 8, 4, 1, 1000) == pytest.approx((8 * 2 * 2 * 30 + 4 * 30 + 2 * (22 + 16)) / 1000)


def test_a_chain_waits_for_itself_or_for_the_schedulers():
    assert terms.chain_us(800, 1, 4, 1000) == terms.chain_us(800, 16, 4, 1000) == pytest.approx(3.2), "up to four warps a scheduler run side by side"
    assert terms.chain_us(800, 32, 4, 1000) == pytest.approx(6.4), "eight take turns"


def test_warpgroups_take_as_long_for_16_rows_as_for_8():
    assert terms.group_operations(72, 256, 8) == terms.group_operations(72, 256, 16) == terms.group_operations(72, 256, 32) / 2
    clocks = terms.group_operations(4, 32, 16) / 8192
    assert clocks == 16, "one m64n32k32 at Hopper's dense 8,192 operations a clock"


def test_sizes_of_recurrent_heads():
    assert terms.state_matrix_bytes("rnn", 256, 0) == 3 * 256 * 256 * 2 and terms.state_matrix_bytes("markov", 256, 0) == 0
    assert terms.state_matrix_bytes("domino", 256, 1024) == (3 * 1024 * 1024 + 256 * 1024) * 2
    assert 151_936 * terms.token_row_bytes("rnn", 256, 0, "int8x2") == pytest.approx(233e6, rel=0.01), "the design's 233 MB table"
    assert 151_936 * terms.token_row_bytes("domino", 256, 1024, "int8x2") == pytest.approx(0.93e9, rel=0.01), "and 0.93 GB"
    assert terms.token_row_bytes("markov", 256, 0, "int8x2") == 528 and terms.token_row_bytes("gated", 256, 0, "bf16") == 1024
    assert terms.head_weight_bytes("domino", 256, 4096, 1024) == pytest.approx(31e6 + 2.6e6, rel=0.02), "a GRU of about 31 MB, and F1"
    assert terms.head_weight_bytes("rnn", 256, 2560, 0) == 768 * 3072 * 2 and terms.position_weight_bytes("rnn", 256, 2560) == 768 * 2560 * 2


def test_instructions_of_recurrent_heads():
    assert terms.dot_instructions(2, 1024, 3) == 2 * 3 * (4 * 26 + 20)
    assert terms.state_instructions("domino", 1024, 1, 8) == 4 * 117 and terms.state_instructions("domino", 1024, 3, 8) == 3 * 4 * 117
    assert terms.state_instructions("rnn", 256, 1, 8) == 2 * 78 and terms.state_instructions("rnn", 256, 3, 8) == 3 * 2 * 78
    assert terms.gate_instructions(256, 2) == 16 * 46 and terms.latent_instructions("rnn", 256, 1, 8) == 60 and terms.latent_instructions("domino", 256, 4, 8) == 2 * 142
    assert [terms.independent_sums(kind, rows) for kind, rows in (("rnn", 1), ("rnn", 8), ("domino", 1), ("domino", 8))] == [1, 4, 4, 8]
    assert terms.led_rows_us(1, 0.5) == 0 and terms.led_rows_us(4, 0.5) == 1.5 and terms.tile_rest_us(4, 0.5) == 2.0
    assert terms.everywhere_us(1e6, 8, 1e12) == pytest.approx(8.0)


def test_exchange_grows_with_the_rows_that_are_exchanged_side_by_side():
    assert terms.exchange_us(0.8, 1, 0.06, 0.1) == 0.8 and terms.exchange_us(0.8, 4, 0.06, 0.1) == pytest.approx(0.8 * 1.18)
    assert terms.exchange_us(0.8, 8, 0.06, 0.1) == pytest.approx(0.8 * 1.82), "from the fifth on two share a scheduler"


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
