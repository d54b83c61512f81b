"""The planner: invariants over random shapes and GPUs, then what is known of real ones."""

from dataclasses import replace

import pandas
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.footprint import own_code_slots
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.measurement import read_walk_folder
from cost_model.paths import data_root
from cost_model.placement import (
    KERNEL_ROWS, Kernel, Placement, PlanError, accumulator_groups, capacity_problem, enumerate_placements, fragment_registers, kernel_beside, kernel_rows,
    needs_wide_words, plan, register_cap, registers_claim, shared_bytes, slots_needed, state_placement,
)
from cost_model.tables import PLACEMENT_COLUMNS

GPUS = {name: load_gpu(name, calibrated=False) for name in ("h200-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm", "l4")}
SHAPES = dict(vocab=st.integers(1, 600_000), rank=st.integers(1, 16).map(lambda n: 32 * n), gpu=st.sampled_from(sorted(GPUS)),
              precision=st.sampled_from(["int8x2", "bf16"]), warps=st.sampled_from([4, 8, 16]))


KERNELS = dict(rows=st.sampled_from(KERNEL_ROWS), rounding=st.sampled_from(["once", "twice", "none"]), sampling=st.booleans())


def head_of(kind: str, vocab: int, rank: int) -> Head:
    """A head of that kind; states of Domino are as wide as those of the released ones."""
    return replace(Head.markov(vocab, rank), kind=kind, hidden_size=2560, gru_size=1024 if kind == "domino" else None)


@settings(max_examples=150, deadline=None)
@given(**SHAPES, **KERNELS, kind=st.sampled_from(["markov", "gated", "rnn", "domino"]), mode=st.sampled_from(["resident", "streaming"]))
def test_every_plan_fits_and_places_every_tile(vocab, rank, gpu, precision, warps, rows, rounding, sampling, kind, mode):
    chip, head, built = GPUS[gpu], head_of(kind, vocab, rank), dict(rows=rows, rounding=rounding, sampling=sampling)
    try:
        placement = plan(chip, head, precision, mode, warps=warps, **built)
    except PlanError as error:
        assert gpu in str(error)
        return
    blocks = chip.sm_count
    assert placement.register_tiles + placement.shared_tiles + placement.streamed_tiles == placement.tiles
    assert placement.tiles * blocks >= terms.tiles_of(vocab), "all tiles are placed"
    assert placement.tiles == slots_needed(vocab, blocks, warps) * warps, "and no slot is wasted"
    kernel = kernel_beside(placement, chip, head, precision, **built)
    assert shared_bytes(placement, rank, precision, kernel) <= chip.value("smem_bytes_per_block_optin")
    claim = registers_claim(placement, rank, precision, kernel)
    assert claim.fits and claim.registers_per_thread * warps * 32 * 4 <= chip.value("register_file_bytes_per_sm")
    assert capacity_problem(placement, chip, rank, precision, kernel) is None
    assert (placement.streamed_tiles == placement.tiles) == (mode == "streaming")
    assert (placement.staging_tiles > 0) == (placement.streamed_tiles > 0)


@settings(max_examples=40, deadline=None)
@given(vocab=st.integers(1000, 400_000), gpu=st.sampled_from(sorted(GPUS)), rows=st.sampled_from(KERNEL_ROWS))
def test_the_plan_is_among_the_placements_and_streams_only_what_must(vocab, gpu, rows):
    chip, head = GPUS[gpu], Head.markov(vocab, 256)
    placements = list(enumerate_placements(chip, head, "int8x2", "resident", rows=rows))
    assume(placements)
    best = plan(chip, head, "int8x2", "resident", rows=rows)
    assert best == placements[0]
    deep = [one.streamed_tiles for one in placements if one.staging_tiles >= best.staging_tiles]
    assert best.streamed_tiles == min(deep), "of rings as deep none streams less"


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


def slots(warps: int, *counts: int) -> Placement:
    """A placement from slots a warp by tier."""
    return Placement(warps, *(count * warps for count in counts))


PTXAS = [
    (8, (2, 2, 5, 1), 256, "bf16", Kernel(), 210, 0),
    (8, (3, 1, 5, 1), 256, "bf16", Kernel(), 248, 0),
    (8, (2, 2, 5, 1), 256, "bf16", Kernel(4), 254, 0),
    (8, (3, 1, 5, 1), 256, "bf16", Kernel(4), 255, 328),
    (8, (2, 2, 5, 1), 256, "bf16", Kernel(8), 236, 0),
    (8, (3, 1, 5, 1), 256, "bf16", Kernel(8), 255, 52),
    (8, (2, 2, 5, 1), 256, "bf16", Kernel(32), 255, 0),
    (8, (3, 1, 5, 1), 256, "bf16", Kernel(32), 255, 856),
    (8, (2, 2, 5, 1), 256, "bf16", Kernel(4, sampling=True), 250, 0),
    (8, (3, 1, 5, 1), 256, "bf16", Kernel(4, sampling=True), 255, 320),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(head="domino"), 242, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(head="domino"), 255, 108),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(2, head="domino"), 248, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(2, head="domino"), 255, 124),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(4, head="domino"), 254, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(4, head="domino"), 255, 116),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8, head="domino"), 255, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(8, head="domino"), 255, 352),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(head="gated"), 243, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(head="gated"), 255, 64),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8, head="gated"), 255, 24),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(8, head="gated"), 255, 460),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(), 244, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(), 255, 12),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(2), 246, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(2), 255, 36),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(4, rounding="none"), 255, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(4), 253, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(4, rounding="none"), 255, 96),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(4), 255, 100),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(8, rounding="none"), 255, 12),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8), 255, 20),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8, rounding="none"), 255, 156),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(8), 255, 432),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(16), 246, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(16), 255, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(32), 248, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(32), 255, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(sampling=True), 254, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(sampling=True), 255, 60),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(2, sampling=True), 246, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(2, sampling=True), 255, 212),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(4, sampling=True), 244, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(4, sampling=True), 255, 80),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(8, sampling=True), 244, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(8, sampling=True), 255, 72),
    (8, (2, 7, 0, 0), 256, "int8x2", Kernel(32, sampling=True), 240, 0),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(32, sampling=True), 247, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(head="rnn"), 238, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(head="rnn"), 255, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8, head="rnn"), 255, 0),
    (8, (6, 3, 0, 0), 256, "int8x2", Kernel(8, head="rnn"), 255, 472),
    (8, (5, 4, 6, 2), 256, "int8x2", Kernel(head="domino"), 244, 0),
    (8, (6, 3, 6, 2), 256, "int8x2", Kernel(head="domino"), 255, 180),
    (8, (4, 5, 6, 2), 256, "int8x2", Kernel(4, head="domino"), 255, 0),
    (8, (5, 4, 6, 2), 256, "int8x2", Kernel(4, head="domino"), 255, 360),
    (8, (5, 4, 6, 2), 256, "int8x2", Kernel(), 243, 0),
    (8, (6, 3, 6, 2), 256, "int8x2", Kernel(), 255, 20),
    (16, (1, 3, 0, 0), 256, "int8x2", Kernel(), 120, 0),
    (16, (2, 2, 0, 0), 256, "int8x2", Kernel(), 128, 0),
    (12, (3, 3, 0, 0), 256, "int8x2", Kernel(), 159, 0),
    (12, (4, 2, 0, 0), 256, "int8x2", Kernel(), 168, 164),
    (16, (1, 3, 0, 0), 256, "int8x2", Kernel(4), 118, 0),
    (12, (2, 4, 0, 0), 256, "int8x2", Kernel(4), 164, 0),
    (16, (2, 2, 0, 0), 256, "int8x2", Kernel(4), 128, 0),
    (12, (3, 3, 0, 0), 256, "int8x2", Kernel(4), 168, 0),
    (16, (1, 3, 0, 0), 256, "int8x2", Kernel(8), 118, 0),
    (12, (2, 4, 0, 0), 256, "int8x2", Kernel(8), 168, 0),
    (16, (2, 2, 0, 0), 256, "int8x2", Kernel(8), 128, 0),
    (12, (3, 3, 0, 0), 256, "int8x2", Kernel(8), 168, 12),
    (8, (11, 3, 0, 0), 128, "int8x2", Kernel(), 251, 0),
    (8, (12, 2, 0, 0), 128, "int8x2", Kernel(), 255, 0),
    (8, (9, 5, 0, 0), 128, "int8x2", Kernel(4), 251, 0),
    (8, (10, 4, 0, 0), 128, "int8x2", Kernel(4), 254, 0),
    (8, (2, 3, 0, 0), 512, "int8x2", Kernel(8), 224, 0),
    (8, (9, 5, 0, 0), 128, "int8x2", Kernel(8), 255, 16),
    (8, (10, 4, 0, 0), 128, "int8x2", Kernel(8), 255, 364),
    (8, (8, 6, 0, 0), 128, "int8x2", Kernel(32), 255, 44),
    (8, (9, 5, 0, 0), 128, "int8x2", Kernel(32), 255, 260),
    (8, (8, 6, 0, 0), 128, "int8x2", Kernel(4, sampling=True), 255, 24),
    (8, (9, 5, 0, 0), 128, "int8x2", Kernel(4, sampling=True), 255, 244),
    (8, (5, 9, 0, 0), 128, "int8x2", Kernel(8, sampling=True), 247, 0),
    (8, (6, 8, 0, 0), 128, "int8x2", Kernel(8, sampling=True), 255, 48),
    (8, (5, 3, 6, 2), 128, "int8x2", Kernel(8, sampling=True), 221, 0),
    (8, (6, 2, 6, 2), 128, "int8x2", Kernel(8, sampling=True), 226, 0),
    (8, (4, 0, 6, 2), 128, "int8x2", Kernel(32, sampling=True), 222, 0),
    (8, (2, 4, 9, 2), 256, "int8x2", Kernel(32, sampling=True), 240, 0),
    (8, (0, 0, 9, 4), 256, "int8x2", Kernel(32, sampling=True), 156, 0),
    (8, (2, 4, 9, 2), 256, "int8x2", Kernel(16, sampling=True), 212, 0),
    (8, (3, 4, 8, 2), 256, "int8x2", Kernel(8, sampling=True), 226, 0),
    (8, (1, 1, 13, 1), 512, "int8x2", Kernel(32, sampling=True), 222, 0),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup"), 239, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup"), 253, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup"), 255, 48),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup"), 245, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup"), 254, 0),
    (8, (5, 4, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup"), 255, 208),
    (8, (3, 4, 8, 2), 256, "int8x2", Kernel(16, products="warpgroup"), 255, 0),
    (8, (0, 0, 9, 4), 256, "int8x2", Kernel(16, products="warpgroup"), 132, 0),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(32, products="warpgroup"), 246, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(32, products="warpgroup"), 255, 84),
    (8, (0, 4, 11, 2), 256, "int8x2", Kernel(32, products="warpgroup"), 245, 0),
    (8, (1, 4, 4, 2), 256, "int8x2", Kernel(32, products="warpgroup"), 255, 48),
    (8, (0, 0, 9, 4), 256, "int8x2", Kernel(32, products="warpgroup"), 234, 0),
    (8, (1, 2, 6, 1), 512, "int8x2", Kernel(16, products="warpgroup"), 237, 0),
    (8, (0, 1, 8, 1), 512, "int8x2", Kernel(32, products="warpgroup"), 219, 0),
    (8, (2, 3, 0, 0), 512, "int8x2", Kernel(8, products="warpgroup"), 255, 0),
    (8, (9, 5, 0, 0), 128, "int8x2", Kernel(8, products="warpgroup"), 247, 0),
    (8, (8, 6, 0, 0), 128, "int8x2", Kernel(16, products="warpgroup"), 254, 0),
    (8, (7, 7, 0, 0), 128, "int8x2", Kernel(32, products="warpgroup"), 255, 32),
    (8, (8, 6, 0, 0), 128, "int8x2", Kernel(32, products="warpgroup"), 255, 260),
    (8, (4, 6, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup"), 255, 16),
    (8, (4, 6, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup"), 255, 96),
    (8, (0, 4, 12, 2), 256, "int8x2", Kernel(32, products="warpgroup"), 240, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup", head="gated"), 249, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup", head="gated"), 252, 0),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup", head="rnn"), 255, 40),
    (8, (4, 5, 0, 0), 256, "int8x2", Kernel(16, products="warpgroup", head="rnn"), 255, 80),
    (8, (3, 6, 0, 0), 256, "int8x2", Kernel(8, products="warpgroup", rounding="none"), 255, 64),
]
"""Warps, slots a warp by tier, rank, precision, kernel -> registers a thread and bytes spilled, as ptxas of CUDA 13.0 reported for sm_90a."""


def test_no_recorded_walk_spills_where_the_claim_says_none():
    chip = GPUS["h200-sxm"]
    columns = ["head_kind", "vocab_size", "rank", "hidden_size", "gru_size", "batch", "temperature", "rounding", "precision", *PLACEMENT_COLUMNS, "spill_bytes"]
    frame = read_walk_folder(data_root() / "measurements" / chip.id)
    walks = frame[(frame["implementation"] == "wts") & (frame["probe"] == "none") & frame["spill_bytes"].notna()][columns].drop_duplicates()
    assert len(walks) > 100
    for row in walks.to_dict("records"):
        wide = {name: None if pandas.isna(row[name]) else int(row[name]) for name in ("hidden_size", "gru_size")}
        head = Head("recorded", row["head_kind"], *[int(row["vocab_size"])] * 3, int(row["rank"]), wide["hidden_size"], wide["gru_size"])
        place = Placement(**{name: int(row[name]) for name in PLACEMENT_COLUMNS})
        kernel = kernel_beside(place, chip, head, row["precision"], rows=kernel_rows(int(row["batch"])), rounding=row["rounding"], sampling=row["temperature"] > 0)
        claim = registers_claim(place, head.rank, row["precision"], kernel)
        assert claim.spills or not row["spill_bytes"], (row, claim)


@pytest.mark.parametrize("warps, counts, rank, precision, kernel, registers, spill_bytes", PTXAS)
def test_claims_against_what_ptxas_reported(warps, counts, rank, precision, kernel, registers, spill_bytes):
    claim = registers_claim(slots(warps, *counts), rank, precision, kernel)
    if spill_bytes:
        assert claim.spills, "what is called fitting does not spill"
    elif claim.spills:
        assert registers >= register_cap(warps) - 16, "only what nearly fills the registers is refused"
    else:
        assert registers <= register_cap(warps)


def test_six_register_tiles_a_warp_are_claimed_to_spill():
    assert registers_claim(slots(8, 6, 3, 0, 0), 256, "int8x2").spills, "ptxas spills, whatever the rest"


@pytest.mark.parametrize("vocab, precision, mode, counts", [
    (129_280, "int8x2", "resident", (5, 3, 0, 0)), (151_936, "int8x2", "resident", (5, 4, 0, 0)), (154_880, "int8x2", "resident", (5, 5, 0, 0)),
    (151_936, "int8x2", "streaming", (0, 0, 9, 4)), (151_936, "bf16", "streaming", (0, 0, 9, 2)),
])
def test_the_placements_that_were_measured_on_an_h200_are_the_planned_ones(vocab, precision, mode, counts):
    assert plan(GPUS["h200-sxm"], Head.markov(vocab, 256), precision, mode) == slots(8, *counts)


def test_a_partial_placement_has_room_for_two_staging_slots_a_warp():
    placement = plan(GPUS["h200-sxm"], Head.markov(248_320, 256), "int8x2", "resident")
    assert placement.staging_tiles == 2 * placement.warps, "a ring of one half-empties while a tile is multiplied"
    assert placement.residency > 0.5


def test_bf16_at_152k_keeps_four_of_nine_tiles_a_warp():
    placement = plan(GPUS["h200-sxm"], Head.markov(151_936, 256), "bf16", "resident")
    assert placement == slots(8, 2, 2, 5, 1), "two fragments of 64 registers, three slots of 64 KiB, one of them the ring"


@pytest.mark.parametrize("batch, rows", [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16), (16, 16), (17, 32), (32, 32)])
def test_a_batch_is_walked_by_the_next_kernel(batch, rows):
    assert kernel_rows(batch) == rows


def test_rows_for_which_no_kernel_is_built_are_refused():
    with pytest.raises(BadInput, match="rows is 3; kernels are built for 1, 2, 4, 8, 16, 32"):
        plan(GPUS["h200-sxm"], Head.markov(1000, 256), "int8x2", "resident", rows=3)
    with pytest.raises(BadInput, match="batch"):
        kernel_rows(33)


@pytest.mark.parametrize("rows, counts, groups", [
    (1, (5, 4, 0, 0), 3), (1, (1, 1, 0, 0), 2), (1, (5, 5, 5, 1), 4), (2, (5, 4, 0, 0), 5), (4, (5, 4, 0, 0), 9), (4, (2, 2, 5, 1), 9),
    (8, (3, 6, 0, 0), 9), (8, (2, 2, 5, 1), 4), (32, (0, 0, 9, 4), 0),
])
def test_slots_share_accumulators_where_batch_rows_leave_columns(rows, counts, groups):
    assert accumulator_groups(slots(8, *counts), Kernel(rows)) == groups


def test_more_rows_leave_fewer_registers_to_tiles():
    chip, head = GPUS["h200-sxm"], Head.markov(151_936, 256)
    kept = [plan(chip, head, "int8x2", "resident", rows=rows).register_slots for rows in KERNEL_ROWS]
    assert kept == [5, 5, 5, 4, 4, 3]
    assert kept[-1] > 0, "and even 32 rows keep some"


@pytest.mark.parametrize("tiles, rounding, sampling, wide", [
    (128, "once", False, False), (136, "once", False, True), (72, "twice", False, False), (72, "none", False, True), (72, "once", True, True),
])
def test_words_are_wide_where_rows_or_values_need_it(tiles, rounding, sampling, wide):
    assert needs_wide_words(Placement(8, 0, tiles, 0, 0), rounding=rounding, sampling=sampling) is wide


def test_shares_of_state_matrices_by_hand():
    rnn, domino = head_of("rnn", 151_936, 256), head_of("domino", 151_936, 256)
    assert state_placement(Head.markov(1000, 256), 132) == state_placement(head_of("gated", 1000, 256), 132) == (0, 0)
    assert state_placement(rnn, 132) == (6, 0), "768 rows over 132 blocks"
    assert state_placement(domino, 132) == (24, 2), "3,072 and 256 rows over 132 blocks"
    assert state_placement(domino, 132, 10 * 2048 + 2047) == (8, 2), "ten rows of 2,048 bytes, the projector's first"
    assert state_placement(domino, 132, 2048) == (0, 1) and state_placement(domino, 132, -1) == (0, 0)
    with pytest.raises(BadInput, match="gru_size is 1001.*8"):
        state_placement(replace(domino, gru_size=1001), 132)


def test_a_states_matrices_give_way_only_where_no_tile_fits_beside_them():
    domino = head_of("domino", 151_936, 256)
    h200, ada = GPUS["h200-sxm"], GPUS["rtx-4090"]
    kept = kernel_beside(plan(h200, domino, "int8x2", "resident"), h200, domino, "int8x2")
    assert (kept.state_rows, kept.projector_rows, kept.gru) == (24, 2, 1024)
    many = kernel_beside(plan(ada, domino, "int8x2", "resident", rows=8), ada, domino, "int8x2", rows=8)
    assert many.state_rows < 24 and many.projector_rows == 2, "99 KiB hold 24 KiB of eight states, a ring of 32 KiB, and part of 52 KiB"


def test_seven_tiles_a_warp_spill_at_eight_warps_and_five_do_not():
    assert registers_claim(slots(8, 7, 2, 0, 0), 256, "int8x2").spills
    assert not registers_claim(slots(8, 5, 4, 0, 0), 256, "int8x2").spills


def test_shared_bytes_by_hand():
    # 4 slots x 8 warps x 4,096; scales of 3 accumulators x 4 slots x (8 warps x 64 + 32); a latent of 512 + 16, to 128, and 64; two keys; token
    # and halt flag, to 16
    fixed = 131_072 + 12 * 544 + 704
    assert shared_bytes(slots(8, 5, 4, 0, 0), 256, "int8x2") == fixed + 16 + 16
    # sampling: wide keys of 8 warps; a temperature
    assert shared_bytes(slots(8, 5, 4, 0, 0), 256, "int8x2", Kernel(sampling=True)) == fixed + 64 + 16
    # domino, four rows: scales of 9 slots, to 128; four latents, tokens, states, u of 1,024 bytes with 16 of magnitudes; 26 matrix rows
    domino = Kernel(4, head="domino", gru=1024, state_rows=24, projector_rows=2)
    assert shared_bytes(slots(8, 5, 4, 0, 0), 256, "int8x2", domino) == 131_072 + 4_992 + 2_816 + 32 + 32 + 4 * (2048 + 1024 + 16) + 26 * 2048


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
@pytest.mark.parametrize("rows, sampling", [(1, False), (2, True), (8, False)])
@pytest.mark.parametrize("vocab_size", [129_280, 248_320])
def test_placements_come_in_the_order_of_preference(vocab_size, mode, rows, sampling):
    gpu, head = GPUS["h200-sxm"], Head.markov(vocab_size, 256)
    found = list(enumerate_placements(gpu, head, "int8x2", mode, rows=rows, sampling=sampling))
    assert found[0] == plan(gpu, head, "int8x2", mode, rows=rows, sampling=sampling) and len(set(found)) == len(found)
    deep = [placement.streamed_tiles for placement in found if placement.staging_tiles == 16]
    assert deep == sorted(deep)


@pytest.mark.parametrize("gpu, precision, rows, warps, expected", [
    ("h200-sxm", "int8x2", 8, 8, "warpgroup"), ("h100-pcie", "int8x2", 32, 4, "warpgroup"), ("h200-sxm", "int8x2", 4, 8, "warp"),
    ("h200-sxm", "bf16", 32, 8, "warp"), ("h200-sxm", "int8x2", 32, 6, "warp"), ("b200-sxm", "int8x2", 32, 8, "warp"), ("a100-sxm-80gb", "int8x2", 16, 8, "warp"),
])
def test_warpgroups_multiply_int8_for_many_rows_on_a_hopper_alone(gpu, precision, rows, warps, expected):
    placement = Placement(warps, warps, warps, 0, 0)
    assert kernel_beside(placement, load_gpu(gpu), Head.markov(4_000, 64), precision, rows=rows).products == expected


def test_sampled_rows_are_multiplied_by_warps_and_so_are_greedy_ones_where_a_warpgroup_lacks_the_registers():
    gpu, head = GPUS["h200-sxm"], Head.markov(151_936, 512)
    sampled, greedy = (plan(gpu, head, "int8x2", "resident", rows=32, sampling=sampling) for sampling in (True, False))
    assert kernel_beside(greedy, gpu, head, "int8x2", rows=32).products == "warpgroup"
    assert kernel_beside(greedy, gpu, head, "int8x2", rows=32, sampling=True).products == "warp"
    assert kernel_beside(sampled, gpu, head, "int8x2", rows=32).products == "warp", "it keeps more tiles in registers than a warpgroup's sums leave"


@pytest.mark.parametrize(("register", "shared", "streamed", "rank", "rows", "own"), [
    (0, 4, 12, 256, 32, 4), (0, 4, 11, 256, 32, 5), (0, 0, 11, 256, 32, 1), (0, 0, 12, 256, 32, 2), (0, 4, 6, 256, 32, 10), (0, 0, 1, 512, 32, 1),
    (0, 0, 2, 512, 32, 2), (0, 0, 3, 512, 32, 1), (0, 1, 1, 512, 32, 2), (0, 1, 2, 512, 32, 1), (0, 1, 15, 512, 16, 16), (8, 6, 0, 128, 32, 14),
])
def test_streamed_slots_of_eight_quads_are_a_loop_above_ten_slots_and_above_rank_256(register, shared, streamed, rank, rows, own):
    """`turns` of csrc/walk/config.cuh: two slots a turn after the first slot; what is left over, and what is resident, has code of its own."""
    assert own_code_slots(slots(8, register, shared, streamed, 1 if streamed else 0), rank, Kernel(rows, products="warpgroup")) == own
