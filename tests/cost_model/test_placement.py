"""The planner: invariants over random shapes and GPUs, then what is known of real ones."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.placement import (
    Placement, PlanError, capacity_problem, enumerate_placements, fragment_registers, plan, register_cap, registers_claim, shared_bytes, slots_needed,
)

GPUS = {name: load_gpu(name, calibrated=False) for name in ("h200-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm", "l4")}
SHAPES = dict(vocab=st.integers(1, 600_000), rank=st.integers(1, 16).map(lambda n: 32 * n), gpu=st.sampled_from(sorted(GPUS)),
              precision=st.sampled_from(["int8x2", "bf16"]), warps=st.sampled_from([4, 8, 16]))


@settings(max_examples=80, deadline=None)
@given(**SHAPES, mode=st.sampled_from(["resident", "streaming"]))
def test_every_plan_fits_and_places_every_tile(vocab, rank, gpu, precision, warps, mode):
    chip, head = GPUS[gpu], Head.markov(vocab, rank)
    try:
        placement = plan(chip, head, precision, mode, warps=warps)
    except PlanError as error:
        assert gpu in str(error)
        return
    blocks = chip.sm_count
    assert placement.register_tiles + placement.shared_tiles + placement.streamed_tiles == placement.tiles
    assert placement.tiles * blocks >= terms.tiles_of(vocab), "all tiles are placed"
    assert placement.tiles == slots_needed(vocab, blocks, warps) * warps, "and no slot is wasted"
    assert shared_bytes(placement, rank, precision) <= chip.value("smem_bytes_per_block_optin")
    claim = registers_claim(placement, rank, precision)
    assert not claim.spills and claim.registers_per_thread * warps * 32 * 4 <= chip.value("register_file_bytes_per_sm")
    assert capacity_problem(placement, chip, rank, precision) is None
    assert (placement.streamed_tiles == placement.tiles) == (mode == "streaming")
    assert (placement.staging_tiles > 0) == (placement.streamed_tiles > 0)


@settings(max_examples=25, deadline=None)
@given(vocab=st.integers(1000, 400_000), gpu=st.sampled_from(sorted(GPUS)))
def test_the_plan_is_among_the_placements_and_streams_least_of_those_fed(vocab, gpu):
    chip, head = GPUS[gpu], Head.markov(vocab, 256)
    placements = list(enumerate_placements(chip, head, "int8x2", "resident"))
    assume(placements)
    best = plan(chip, head, "int8x2", "resident")
    assert best in placements
    fed = [one for one in placements if one.staging_tiles * 4096 >= min(32 * 1024, one.streamed_tiles * 4096) or not one.streamed_tiles]
    if fed:
        assert best.streamed_tiles == min(one.streamed_tiles for one in fed)


def test_qwen_on_an_h200_is_fully_resident_with_shared_reads_near_the_products():
    placement = plan(GPUS["h200-sxm"], Head.markov(151_936, 256), "int8x2", "resident")
    assert (placement.slots, placement.warps, placement.residency) == (9, 8, 1.0)
    assert placement.register_slots in (5, 6), "5 or 6 of 9 tiles a warp, as the study found"


def test_small_shared_memory_leaves_more_to_stream():
    head = Head.markov(248_320, 256)
    assert plan(GPUS["rtx-4090"], head, "int8x2", "resident").residency < plan(GPUS["h200-sxm"], head, "int8x2", "resident").residency < 1


def test_bf16_at_152k_needs_513_kib_a_multiprocessor_of_a_b200():
    chip, head = GPUS["b200-sxm"], Head.markov(151_936, 256)
    needed = terms.tiles_of(151_936) * terms.tile_bytes(256, "bf16") / chip.sm_count
    assert needed / 1024 == pytest.approx(513, abs=1)
    assert plan(chip, head, "bf16", "resident").residency < 1


def test_registers_of_one_tile():
    assert fragment_registers(256, "int8x2") == 32 and fragment_registers(256, "bf16") == 64 and fragment_registers(32, "int8x2") == 4
    assert (register_cap(8), register_cap(16), register_cap(4)) == (255, 128, 255)


PTXAS_REGISTERS = {(5, 4, 0, 0): 238, (4, 5, 0, 0): 214, (5, 3, 0, 0): 242, (5, 5, 0, 0): 244, (5, 5, 5, 1): 255, (5, 4, 6, 2): 255, (0, 0, 9, 4): 124}
"""Slots a warp -> registers a thread that ptxas reported without spills: sm_90, 8 warps, rank 256, int8x2."""


@pytest.mark.parametrize("slots, registers", PTXAS_REGISTERS.items())
def test_what_ptxas_did_not_spill_is_not_claimed_to_spill(slots, registers):
    claim = registers_claim(Placement(8, *(8 * count for count in slots)), 256, "int8x2")
    assert not claim.spills and registers <= register_cap(8)
    if not slots[2]:
        assert claim.registers_per_thread == pytest.approx(registers, abs=6), "a resident walk needs what is claimed"


def test_six_register_tiles_a_warp_are_claimed_to_spill():
    assert registers_claim(Placement(8, 48, 24, 0, 0), 256, "int8x2").spills, "ptxas spills up to 52 bytes"


@pytest.mark.parametrize("vocab, precision, mode, slots", [
    (129_280, "int8x2", "resident", (5, 3, 0, 0)), (151_936, "int8x2", "resident", (5, 4, 0, 0)), (154_880, "int8x2", "resident", (5, 5, 0, 0)),
    (248_320, "int8x2", "resident", (5, 5, 5, 1)), (151_936, "int8x2", "streaming", (0, 0, 9, 4)), (151_936, "bf16", "streaming", (0, 0, 9, 2)),
])
def test_the_placements_that_were_measured_on_an_h200_are_the_planned_ones(vocab, precision, mode, slots):
    assert plan(GPUS["h200-sxm"], Head.markov(vocab, 256), precision, mode) == Placement(8, *(8 * count for count in slots))


def test_seven_tiles_a_warp_spill_at_eight_warps_and_five_do_not():
    assert registers_claim(Placement(8, 56, 16, 0, 0), 256, "int8x2").spills
    assert not registers_claim(Placement(8, 40, 32, 0, 0), 256, "int8x2").spills


def test_shared_bytes_by_hand():
    # 4 slots x 8 warps x 4,096; scales of 3 accumulator groups x 8 warps x 256; latent 512 + 16; 8 keys
    assert shared_bytes(Placement(8, 40, 32, 0, 0), 256, "int8x2") == 131_072 + 6_144 + 528 + 32


@pytest.mark.parametrize("counts, word", [
    ((8, 7, 0, 0, 0), "multiple of warps"), ((8, 0, 0, 0, 0), "no tile"), ((8, 8, 0, 8, 0), "staging ring"), ((8, 8, 0, 0, 8), "staging"),
    ((8, 0, 0, 8, 16), "above streamed_tiles"), ((0, 0, 0, 8, 8), "warps"), ((33, 33, 0, 0, 0), "warps"), ((8, -8, 8, 0, 0), "register_tiles"),
])
def test_placements_that_cannot_be_are_refused(counts, word):
    with pytest.raises(BadInput, match=word):
        Placement(*counts)


def test_what_does_not_fit_is_said_with_needed_and_available():
    chip = GPUS["rtx-4090"]
    assert "101,376" in capacity_problem(Placement(8, 0, 72, 0, 0), chip, 256, "int8x2")
    assert "registers a thread" in capacity_problem(Placement(8, 64, 8, 0, 0), chip, 256, "int8x2")
    with pytest.raises(PlanError, match="rtx-4090.*32 warps.*are allowed"):
        plan(chip, Head.markov(1_000_000, 512), "bf16", "resident", warps=32)


def test_a_smaller_grid_needs_more_slots():
    head = Head.markov(151_936, 256)
    assert plan(GPUS["h200-sxm"], head, "int8x2", "resident", grid_blocks=66).slots == 18
    with pytest.raises(PlanError, match="1,000.*h200-sxm has 132. Give at most 132"):
        plan(GPUS["h200-sxm"], head, "int8x2", "resident", grid_blocks=1000)
    with pytest.raises(PlanError, match="on 1 block of 8 warps.*accumulators.*more blocks \\(up to 132\\)"):
        plan(GPUS["h200-sxm"], Head.markov(151_936, 256), "int8x2", "resident", grid_blocks=1)
    with pytest.raises(BadInput, match="grid_blocks"):
        plan(GPUS["h200-sxm"], head, "int8x2", "resident", grid_blocks=0)


def test_planning_is_repeatable_and_as_dict_is_plain():
    head = Head.markov(100_000, 128)
    assert plan(GPUS["h200-sxm"], head, "int8x2", "resident") == plan(load_gpu("h200-sxm", calibrated=False), head, "int8x2", "resident")
    assert Placement(8, 40, 32, 0, 0).as_dict() == {"warps": 8, "register_tiles": 40, "shared_tiles": 32, "streamed_tiles": 0, "staging_tiles": 0,
                                                    "tensor_tiles": 0, "slots": 9, "residency": 1.0}


@pytest.mark.parametrize("mode", ["streaming", "resident"])
@pytest.mark.parametrize("vocab_size", [129_280, 248_320])
def test_placements_come_in_the_order_of_preference(vocab_size, mode):
    gpu, head = GPUS["h200-sxm"], Head.markov(vocab_size, 256)
    found = list(enumerate_placements(gpu, head, "int8x2", mode))
    assert found[0] == plan(gpu, head, "int8x2", mode)
    full = [placement.streamed_tiles for placement in found if placement.staging_tiles * 4096 >= 32 * 1024 or not placement.streamed_tiles]
    assert full == sorted(full)
