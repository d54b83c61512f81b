"""The terms of a walk's latency: one bare function a term, whose docstring is its formula.

Times are in microseconds, sizes in bytes, rates in bytes or operations a second and belong to what the name says (the
whole chip, or `_per_sm` one multiprocessor). Nothing here knows a GPU or a head; `predict.py` supplies the numbers and
decides what overlaps. `docs/cost-model.md` derives each formula.
"""

from __future__ import annotations

from cost_model.units import us_from_cycles, us_from_operations, us_from_transfer

TILE_ROWS = 16
"""Rows of W2 in a tile: the rows of one `mma.sync` fragment."""

MMA_COLUMNS = 8
"""Columns of one `mma.sync`; batch rows (times two vectors in int8x2) share them."""

VECTORS_OF_PRECISION = {"int8x2": 2, "bf16": 1}
"""Columns that one batch row takes: int8x2 represents the latent by two int8 vectors."""

BYTES_OF_PRECISION = {"int8x2": 1, "bf16": 2}
"""Bytes of one element of W2."""

BYTES_OF_BF16 = 2
BYTES_OF_FP32 = 4


# --- sizes -------------------------------------------------------------------------------------------------------------


def tile_bytes(rank: int, precision: str) -> int:
    """Bytes of one tile of W2: 16 rows × rank × bytes an element."""
    return TILE_ROWS * rank * BYTES_OF_PRECISION[precision]


def tiles_of(vocab_size: int) -> int:
    """Tiles of the vocabulary: ceil(V / 16)."""
    return -(-vocab_size // TILE_ROWS)


def matrix_bytes(vocab_size: int, rank: int, precision: str) -> int:
    """Bytes of W2 that one step needs: V × rank × bytes an element (scales stay on chip and are not counted)."""
    return vocab_size * rank * BYTES_OF_PRECISION[precision]


def base_logits_bytes(vocab_size: int, batch: int) -> int:
    """Bytes of base logits read in one step: batch × V × 2 (bf16)."""
    return batch * vocab_size * BYTES_OF_BF16


def latent_row_bytes(rank: int, precision: str) -> int:
    """Bytes of one row of the latent table: two int8 vectors and 16 bytes of scales, or bf16 elements."""
    return 2 * rank + 16 if precision == "int8x2" else BYTES_OF_BF16 * rank


def product_operations(tiles: int, rank: int, precision: str, batch: int) -> float:
    """Operations that the tensor unit runs for `tiles` tiles: 2 × 16 rows × rank × 8 columns × ceil(batch × vectors / 8).

    All 8 columns are computed whether used or not: int8x2 batch 1 to 4 cost the same.
    """
    passes = -(-batch * VECTORS_OF_PRECISION[precision] // MMA_COLUMNS)
    return 2.0 * TILE_ROWS * rank * MMA_COLUMNS * passes * tiles


# --- one step of the fused walk -------------------------------------------------------------------------------------------


def latent_us(l2_latency_us: float, hbm_latency_us: float, exchange_us: float, cold: bool) -> float:
    """Fetch of the winner's latent row.

    Warm: l2_latency. Cold: l2_latency + max(0, hbm_latency − exchange), because each block pulls its own winner's row
    into L2 while it waits for the exchange, and the global winner is one of those rows.
    """
    return l2_latency_us + (max(0.0, hbm_latency_us - exchange_us) if cold else 0.0)


def products_us(operations_per_sm: float, operations_per_s_per_sm: float) -> float:
    """Tensor products of the busiest block: its operations / rate of one multiprocessor."""
    return us_from_operations(operations_per_sm, operations_per_s_per_sm)


def shared_read_us(shared_bytes_per_sm: float, bytes_per_s_per_sm: float) -> float:
    """Tiles read from shared memory by one block (resident there, or landed in the staging ring): bytes / rate."""
    return us_from_transfer(shared_bytes_per_sm, bytes_per_s_per_sm)


def stream_us(streamed_bytes: float, bytes_per_s: float, efficiency: float) -> float:
    """Bytes fetched by the whole chip in a step / (bandwidth(footprint) × efficiency of the walk's access pattern)."""
    return us_from_transfer(streamed_bytes, bytes_per_s * efficiency)


def ring_wait_us(streamed_slots: int, staging_slots: int, wave_bytes: float, bytes_per_s: float, latency_us: float) -> float:
    """Latency that the staging ring does not cover: streamed slots × max(0, latency − (staging slots − 1) × wave / bandwidth).

    A warp multiplies one slot while the other `staging_slots - 1` are on their way; a wave is one tile of every warp of the
    chip, and so what one more slot keeps in flight. With one slot a warp nothing is in flight while it multiplies.
    """
    covered_us = (staging_slots - 1) * us_from_transfer(wave_bytes, bytes_per_s)
    return streamed_slots * max(0.0, latency_us - covered_us)


def epilogue_us(slots: int, warps: int, batch: int, cycles_per_tile: float, clock_mhz: float) -> float:
    """Scaling, base logits, rounding and comparison: batch × slots × warps tiles × issue cycles a tile, over 4 schedulers."""
    return us_from_cycles(batch * slots * warps * cycles_per_tile / SCHEDULERS_PER_SM, clock_mhz)


SCHEDULERS_PER_SM = 4
"""Warp schedulers of a multiprocessor on every architecture from sm_80 on."""


def block_reduction_us(warps: int, batch: int, clock_mhz: float) -> float:
    """Best of a block: two warp reductions (30 cycles each, batch times), a round through shared memory (30), and two barriers
    of 22 + 2 × warps cycles."""
    cycles = batch * 2 * WARP_REDUCTION_CYCLES + SHARED_LATENCY_CYCLES + 2 * (22 + 2 * warps)
    return us_from_cycles(cycles, clock_mhz)


WARP_REDUCTION_CYCLES = 30
"""`redux.sync` issue-to-use on sm_80 and newer, rounded; derived from the spike's phase clocks."""

SHARED_LATENCY_CYCLES = 30
"""Load from shared memory: 28 to 30 cycles (Luo et al. 2024, table of load latencies)."""


def exchange_us(one_word_us: float, batch: int) -> float:
    """All blocks agree on `batch` winners: one_word × (1 + 0.05 × (batch − 1)).

    Each further word costs a twentieth of the first. Within 10 % of what an H200's probe took for 2 to 32 words a block, over
    its one word (a test reads the records).
    """
    return one_word_us * (1.0 + EXCHANGE_GROWTH * (batch - 1))


EXCHANGE_GROWTH = 0.05


# --- the physical floor ---------------------------------------------------------------------------------------------------


def exchange_floor_us(l2_latency_us: float) -> float:
    """Agreement of blocks that share nothing nearer than L2: one trip to L2 to publish, one to read = 2 × l2_latency.

    The design study measured 0.29 µs for two to eight blocks of an H200, whose L2 latency is 0.146 µs.
    """
    return 2.0 * l2_latency_us


def step_floor_us(stream_floor_us: float, latent_floor_us: float, products_floor_us: float, shared_floor_us: float,
                  agreement_floor_us: float) -> float:
    """max(stream, latent + max(products, shared) + agreement).

    Reading W2 does not depend on the token and may overlap everything; the products need the latent, the agreement needs
    the products.
    """
    return max(stream_floor_us, latent_floor_us + max(products_floor_us, shared_floor_us) + agreement_floor_us)


def read_floor_us(bytes_: float, bytes_per_s: float) -> float:
    """Bytes that must move / the best rate at which they can."""
    return us_from_transfer(bytes_, bytes_per_s)


# --- entry of the fused walk ----------------------------------------------------------------------------------------------


def shard_load_us(resident_bytes: float, bytes_per_s: float) -> float:
    """Resident part of W2 loaded once: bytes / bandwidth of where they lie (L2 when warm, HBM when not)."""
    return us_from_transfer(resident_bytes, bytes_per_s)


def first_pass_us(bytes_: float, cold_bytes_per_s: float, warm_bytes_per_s: float) -> float:
    """What the first streaming of cold bytes costs above a later one: max(0, bytes / cold rate − bytes / warm rate)."""
    return max(0.0, us_from_transfer(bytes_, cold_bytes_per_s) - us_from_transfer(bytes_, warm_bytes_per_s))


# --- one step of a stepwise path ------------------------------------------------------------------------------------------


def launch_us(nodes: int, graph_node_us: float) -> float:
    """Gaps between the kernels of a step in a replayed graph: nodes × graph_node."""
    return nodes * graph_node_us


def first_launch_us(graph_launch_us: float, graph_node_us: float) -> float:
    """Launch that a stepwise entry pays: a graph of one kernel, less one gap, since the steps count a gap for every kernel."""
    return max(0.0, graph_launch_us - graph_node_us)


def projection_excess_us(byte_floor_us: float, efficiency: float) -> float:
    """What a kernel of that read efficiency adds to its byte floor: floor × (1 / efficiency − 1)."""
    return byte_floor_us * (1.0 / efficiency - 1.0)


def selection_us(fixed_us: float, us_per_million: float, elements: float) -> float:
    """Kernels that add, sample and select: their floor, and a rate over the batch × V elements."""
    return fixed_us + us_per_million * elements / ELEMENTS_PER_MILLION


ELEMENTS_PER_MILLION = 1e6
