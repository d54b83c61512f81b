"""Entry and step of the fused walk (streaming or resident) as groups of overlapping terms, and the floor that no implementation beats.

A `FusedCase` holds what does not depend on parameter values. Its numbers may be arrays over many walks that share the words (kind of
head, precision, L2 state, batch rows of the kernel): `predict` sizes one walk, `sweep` thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cost_model import recurrence, terms
from cost_model.elementwise import Number, choose, larger, rate_at, rounded_up, smaller
from cost_model.figures import BandwidthCurve
from cost_model.footprint import AHEAD_ROWS, NARROW_ROWS, Kernel
from cost_model.gpu import Gpu
from cost_model.parts import Group, one_by_one
from cost_model.recurrence import RecurrentCase, recurrent_case
from cost_model.stepwise import byte_rate
from cost_model.units import us_from_cycles

RING_STEPS = 4
"""k-steps of a part of a tile in the staging ring (`csrc/walk/config.cuh`); a tile whose k-steps are no multiple of it is one part."""

K_STEP_ELEMENTS = {"int8x2": 32, "bf16": 16}
"""Elements of the rank that one product instruction takes."""


@dataclass(frozen=True)
class WalkSizes:
    """Numbers of a fused walk; each may be an array.

    Attributes:
        vocab_size: rows of W2 as the kernel walks it (with a candidate pool, the candidates and one).
        rank, hidden_size, gru_size: of the head; 0 where it has none.
        batch: batch rows of a launch; launches: launches of a call, one a batch row with a candidate pool, else 1.
        steps: walk length.
        grid_blocks, warps: of the grid.
        register_tiles, shared_tiles, streamed_tiles, staging_tiles: of the placement.
        state_rows, projector_rows: rows of state matrices that a block keeps.
        pooled_vocab_size: rows that candidates are taken from; 0 without a pool.
    """

    vocab_size: Number
    rank: Number
    batch: Number
    steps: Number
    grid_blocks: Number
    warps: Number
    register_tiles: Number
    shared_tiles: Number
    streamed_tiles: Number
    staging_tiles: Number
    hidden_size: Number = 0
    gru_size: Number = 0
    state_rows: Number = 0
    projector_rows: Number = 0
    launches: Number = 1
    pooled_vocab_size: Number = 0

    @property
    def tiles(self) -> Number:
        """Tiles of a block."""
        return self.register_tiles + self.shared_tiles + self.streamed_tiles


@dataclass(frozen=True)
class WalkWords:
    """What a fused walk is apart from its numbers: kind of head, precision, L2 state, whether logits are kept, and the kernel (rows,
    rounding, sampling, who multiplies)."""

    precision: str
    l2_state: str
    logits_kept: bool
    kernel: Kernel

    @property
    def cold_weights(self) -> bool:
        """Whether the call finds L2 without the weights."""
        return self.l2_state != "warm"


@dataclass(frozen=True)
class FusedCase:
    """Sizes of fused walks.

    Attributes:
        words, sizes: what was asked.
        quads: batch rows by fours; matrix_reads: times that a step reads each resident tile; passes: over the tiles.
        wide: 1 where words have 64 bits, else 0.
        streamed_bytes: bytes of W2 that the chip reads again in each step; resident_bytes: loaded once.
        logits_bytes: base logits read in a step, and step logits written where they are kept.
        stream_bytes_per_s: read curve at what is touched before a streamed byte comes round again, over the whole call: the streamed
            tiles and every step's logits. It decides where they lie.
        load_bytes_per_s: read curve at what a short call reads, which decides where a back-to-back call finds its resident tiles.
        stream_in_l2: whether L2 holds the first of these footprints.
        clock_mhz: boost clock.
        recurrent: what the head adds; None for Markov.
        stream_times_us: values of STREAM_PARAMETERS -> time of the stream, as they are asked for.
    """

    words: WalkWords
    sizes: WalkSizes
    quads: Number
    matrix_reads: Number
    passes: Number
    wide: Number
    streamed_bytes: Number
    resident_bytes: Number
    logits_bytes: Number
    stream_bytes_per_s: Number
    load_bytes_per_s: Number
    stream_in_l2: object
    clock_mhz: Number
    recurrent: RecurrentCase | None
    stream_times_us: dict = field(default_factory=dict, compare=False)


def fused_case(gpu: Gpu, curve: BandwidthCurve, words: WalkWords, sizes: WalkSizes) -> FusedCase:
    """Size fused walks. The last slots of a warp are the streamed ones, and absent tiles are the last of all."""
    kernel, size = words.kernel, terms.tile_bytes(sizes.rank, words.precision)
    tiles = terms.tiles_of(sizes.vocab_size)
    resident_tiles = smaller(tiles, sizes.grid_blocks * (sizes.tiles - sizes.streamed_tiles))
    streamed, matrix = (tiles - resident_tiles) * size * 1.0, tiles * size * 1.0
    read = terms.base_logits_bytes(sizes.vocab_size, sizes.batch) * 1.0
    logits = read * (2 if words.logits_kept else 1)
    footprint = streamed + sizes.steps * logits
    quads = terms.quads_of(sizes.batch)
    recurrent = recurrent_case(kernel.head, words.precision, sizes, curve)
    return FusedCase(
        words=words, sizes=sizes, quads=quads, matrix_reads=1 if kernel.grouped else quads, passes=1 if kernel.grouped else quads,
        wide=1 if kernel.sampling or kernel.rounding == "none" else choose(sizes.tiles * terms.TILE_ROWS > NARROW_ROWS, 1, 0),
        streamed_bytes=streamed, resident_bytes=matrix - streamed, logits_bytes=logits,
        stream_bytes_per_s=rate_at(curve, footprint), load_bytes_per_s=rate_at(curve, matrix + read),
        stream_in_l2=footprint <= gpu.value("l2_bytes") if gpu.has("l2_bytes") else False, clock_mhz=gpu.value("boost_clock_mhz"), recurrent=recurrent,
    )


MMA_PARAMETER = {"int8x2": "mma_s8_ops_per_s_per_sm", "bf16": "mma_bf16_flops_per_s_per_sm"}
WGMMA_PARAMETER = "wgmma_s8_ops_per_s_per_sm"


def _rate_parameter(words: WalkWords) -> str:
    """Name of the tensor rate that a walk's products run at."""
    return WGMMA_PARAMETER if words.kernel.grouped else MMA_PARAMETER[words.precision]


def step_parameters(words: WalkWords) -> tuple[str, ...]:
    """Names of the parameters that the terms of a step use."""
    kernel = words.kernel
    names = ["exchange_us", "exchange_growth", "l2_latency_us", "shared_read_bytes_per_s_per_sm", _rate_parameter(words), "epilogue_cycles_per_accumulator",
             "fused_overhead_us", "stream_efficiency", "read_curve_scale", "hbm_latency_us", "exchange_wide_ratio"]
    return (*names, *(["instruction_cycles"] if kernel.head != "markov" or kernel.sampling else []), *recurrence.step_parameters(kernel.head))


def entry_parameters(words: WalkWords) -> tuple[str, ...]:
    """Names of the parameters that the terms of an entry use."""
    names = ("cooperative_launch_us", "graph_node_us", "hbm_read_bytes_per_s", "hbm_latency_us", "l2_latency_us", "first_step_us", "read_curve_scale")
    return (*names, *(["instruction_cycles"] if words.kernel.sampling else []), *recurrence.entry_parameters(words.kernel.head))


# --- a step ---------------------------------------------------------------------------------------------------------------


def step_groups(values: Mapping[str, float], case: FusedCase) -> list[Group]:
    """latent + tiles + block reduction + agreement + state + overhead, times the launches of a call; `read_curve_scale` multiplies the
    curve.

    The latent of a recurrent head is the trip to L2 for the token's row, position terms and state words, which travel together.
    """
    clock, sizes = case.clock_mhz, case.sizes
    one_word_us = _one_word_us(values, case)
    latent_us = terms.latent_us(values["l2_latency_us"], values["hbm_latency_us"], one_word_us, case.words.cold_weights)
    led_rows = rounded_up(sizes.batch, sizes.warps)
    reduction_us = terms.block_reduction_us(sizes.warps, case.quads, led_rows, case.wide, clock)
    groups = [{"latent": latent_us}, *_tile_groups(values, case), {"block_reduction": reduction_us}, _agreement(values, case, one_word_us)]
    if case.recurrent is not None:
        groups += one_by_one(recurrence.advance_terms(values, case.recurrent, sizes, clock))
    groups.append({"overhead": terms.overhead_us(values["fused_overhead_us"], case.passes)})
    if case.recurrent is None or not case.recurrent.pooled:
        return groups
    read_us = terms.stream_us(case.recurrent.pool_bytes, values["hbm_read_bytes_per_s"], 1.0)
    return [{name: sizes.launches * time_us for name, time_us in group.items()} for group in groups] + [{"pool_read": read_us}]


def _one_word_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """Agreement on one winner, in words of the walk's width."""
    return values["exchange_us"] * (1 + case.wide * (values["exchange_wide_ratio"] - 1))


def _tile_groups(values: Mapping[str, float], case: FusedCase) -> list[Group]:
    """Resident tiles, streamed tiles, and what follows them.

    Of each group the slowest resource is exposed. The stream runs beside the streamed tiles, or, where none streams, brings base logits
    beside the resident ones. Sums of resident tiles are selected from after their products: by clocks, warpgroups gain nothing where they
    multiply one slot while they select from the one before.
    """
    kernel, sizes = case.words.kernel, case.sizes
    rate, shared_rate = values[_rate_parameter(case.words)], values["shared_read_bytes_per_s_per_sm"]
    size = terms.tile_bytes(sizes.rank, case.words.precision)

    def tiles(count: Number, from_shared: Number, reads: Number) -> dict[str, Number]:
        operations = (terms.group_operations(count, sizes.rank, kernel.rows) if kernel.grouped
                      else terms.product_operations(count, sizes.rank, case.words.precision, sizes.batch))
        return {"products": terms.products_us(operations, rate), "shared_read": terms.shared_read_us(from_shared * size * reads, shared_rate)}

    streams = sizes.streamed_tiles > 0
    resident_tiles, stream_us = sizes.tiles - sizes.streamed_tiles, _stream_us(values, case)
    resident = {**tiles(resident_tiles, sizes.shared_tiles, case.matrix_reads), "stream": choose(streams, 0.0, stream_us)}
    streamed_reads = 1 if kernel.grouped else rounded_up(case.quads, QUADS_TOGETHER)
    streamed = {**tiles(sizes.streamed_tiles, sizes.streamed_tiles, streamed_reads), "epilogue": _epilogue_us(values, case, sizes.streamed_tiles),
                "stream": choose(streams, stream_us, 0.0)}
    return [resident, streamed, {"epilogue": _epilogue_us(values, case, resident_tiles)}]


QUADS_TOGETHER = 4
"""Quads that a warp multiplies with one reading of a streamed tile."""

def _epilogue_us(values: Mapping[str, float], case: FusedCase, tiles: Number) -> Number:
    """Selection from so many of a block's tiles: their share of the accumulators, for every quad."""
    kernel, sizes = case.words.kernel, case.sizes
    slots = sizes.tiles / sizes.warps
    accumulators = slots if kernel.grouped or kernel.quads > 1 else terms.accumulators_of(slots, kernel.packed)
    cycles = terms.epilogue_cycles(values["epilogue_cycles_per_accumulator"], rounding=kernel.rounding, wide=case.wide, sampled=kernel.sampling,
                                   drawn=kernel.sampling and kernel.rows > AHEAD_ROWS, kept=case.words.logits_kept)
    return terms.epilogue_us(accumulators * tiles / sizes.tiles, sizes.warps, case.quads, cycles, case.clock_mhz)


STREAM_PARAMETERS = ("read_curve_scale", "stream_efficiency", "l2_latency_us", "hbm_latency_us")
"""What the time of a stream depends on; it is kept for them, since most parameters of a step leave it as it is."""


def _stream_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """Time in which the chip fetches a step's streamed tiles through the ring, and moves its logits."""
    key = tuple(values[name] for name in STREAM_PARAMETERS)
    if key not in case.stream_times_us:
        case.stream_times_us[key] = _streamed_us(*key, case)
    return case.stream_times_us[key]


def _streamed_us(curve_scale: float, efficiency: float, l2_latency_us: float, hbm_latency_us: float, case: FusedCase) -> Number:
    """Compute it once."""
    sizes = case.sizes
    rate = case.stream_bytes_per_s * (curve_scale * smaller(efficiency, 1.0))
    k_steps = sizes.rank // K_STEP_ELEMENTS[case.words.precision]
    share = choose(k_steps % RING_STEPS == 0, RING_STEPS / k_steps, 1.0)
    latency = choose(case.stream_in_l2, l2_latency_us, hbm_latency_us)
    wave_bytes = sizes.warps * sizes.grid_blocks * terms.tile_bytes(sizes.rank, case.words.precision) * 1.0
    waves, entries = case.streamed_bytes / wave_bytes, sizes.staging_tiles / sizes.warps / share
    moved_us = terms.stream_us(case.logits_bytes, rate, 1.0)
    return choose(sizes.streamed_tiles > 0, terms.ring_us(waves, share, entries, wave_bytes, rate, latency) + moved_us, moved_us)


def _agreement(values: Mapping[str, float], case: FusedCase, one_word_us: Number) -> Group:
    """The exchange, and what warps that do not exchange words do meanwhile: noise of the next step, products of the state."""
    kernel, sizes = case.words.kernel, case.sizes
    group: dict[str, Number] = {"exchange": terms.exchange_us(one_word_us, sizes.batch, values["exchange_growth"])}
    idle = idle_warps(kernel, sizes.warps)
    if kernel.sampling and kernel.rows <= AHEAD_ROWS:
        drawn = terms.noise_instructions(sizes.batch, sizes.tiles * terms.TILE_ROWS)
        group["noise"] = terms.issue_us(terms.NOISE_CHAIN * drawn, idle, values["instruction_cycles"], case.clock_mhz)
    if case.recurrent is not None and case.recurrent.state_size is not None:
        group["state_products"] = recurrence.state_products_us(values, case.recurrent, sizes, idle, case.clock_mhz)
    return group


def idle_warps(kernel: Kernel, warps: Number) -> Number:
    """Warps that do not exchange words; all of them where every warp does, since a leader has done its share before it looks."""
    return choose(kernel.rows < warps, warps - kernel.rows, warps)


# --- an entry -------------------------------------------------------------------------------------------------------------


def entry_groups(values: Mapping[str, float], case: FusedCase) -> list[Group]:
    """launch + shard load + first latent + first fill + first pass + first step, and what the head adds.

    `first_pass`: the first, cold streaming of what L2 then keeps. `first_step`: what the first step costs beside that
    (instructions not yet in the caches, scales, the anchor), a residual coefficient.
    """
    sizes, words = case.sizes, case.words
    hbm, warm = values["hbm_read_bytes_per_s"], case.load_bytes_per_s * values["read_curve_scale"]
    first = values["hbm_latency_us"] if words.cold_weights else values["l2_latency_us"]
    state_bytes = 0.0 if case.recurrent is None else case.recurrent.matrix_bytes
    found: dict[str, Number] = {
        "shard_load": terms.shard_load_us(case.resident_bytes + state_bytes, smaller(hbm, warm) if words.cold_weights else warm),
        "first_latent": 2 * first,
        "first_fill": values["hbm_latency_us"] if words.l2_state == "cold" else values["l2_latency_us"],
        "first_pass": terms.first_pass_us(case.streamed_bytes, hbm, case.stream_bytes_per_s * values["read_curve_scale"]) if words.cold_weights else 0.0,
        "first_step": values["first_step_us"],
    }
    if words.kernel.sampling and words.kernel.rows <= AHEAD_ROWS:
        drawn = terms.noise_instructions(sizes.batch, sizes.tiles * terms.TILE_ROWS)
        found["first_noise"] = terms.issue_us(terms.NOISE_CHAIN * drawn, sizes.warps, values["instruction_cycles"], case.clock_mhz)
    found = {name: sizes.launches * time_us for name, time_us in found.items()}
    found = {"launch": values["cooperative_launch_us"] + (sizes.launches - 1) * values["graph_node_us"], **found}
    if case.recurrent is not None:
        found |= recurrence.entry_terms(values, case.recurrent)
    return one_by_one(found)


# --- the floor ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FloorFacts:
    """What a floor needs of a GPU and its parameters."""

    gpu: Gpu
    curve: BandwidthCurve
    l2_latency_us: float
    graph_launch_us: float


def fused_floor(facts: FloorFacts, mode: str, case: FusedCase) -> tuple[Number, Number]:
    """Return (entry, step) floors in microseconds: of a mode's step whatever the kernel and its placement, and of an entry that
    loads what the case keeps.

    `streaming` reads W2 in every step. `resident` reads only what registers and shared memory of all multiprocessors
    together cannot hold. Tensor rate: the datasheet's dense one, over the columns that are used. Shared memory: what the
    register file cannot hold, at 128 bytes a cycle. States are left out: what they need may overlap the agreement before.
    """
    gpu, sizes, precision = facts.gpu, case.sizes, case.words.precision
    sms, clock = gpu.value("sm_count"), gpu.value("boost_clock_mhz")
    matrix = terms.matrix_bytes(sizes.vocab_size, sizes.rank, precision) * 1.0
    registers, shared = gpu.value("register_file_bytes_per_sm"), gpu.value("smem_bytes_per_sm")
    on_chip = sms * (registers + shared + (gpu.value("tmem_bytes_per_sm") if gpu.has("tmem_bytes_per_sm") else 0.0))
    streamed = matrix if mode == "streaming" else larger(0.0, matrix - on_chip)
    moved = streamed + case.logits_bytes
    operations = 2.0 * sizes.vocab_size * sizes.rank * sizes.batch * terms.VECTORS_OF_PRECISION[precision]
    dense = gpu.value("int8_dense_ops_per_s" if precision == "int8x2" else "bf16_dense_flops_per_s")
    from_shared = 0.0 if mode == "streaming" else larger(0.0, smaller(matrix / sms, registers + shared) - registers)
    step = terms.step_floor_us(
        terms.read_floor_us(moved, byte_rate(gpu, facts.curve, larger(moved, 1.0))), facts.l2_latency_us, terms.products_us(operations, dense),
        us_from_cycles(from_shared / SHARED_BYTES_A_CYCLE, clock), terms.exchange_floor_us(facts.l2_latency_us),
    )
    warm = case.words.l2_state == "warm"
    load_rate = byte_rate(gpu, facts.curve, larger(case.resident_bytes, 1.0)) if warm else gpu.value("dram_bandwidth_bytes_per_s")
    return facts.graph_launch_us + terms.read_floor_us(case.resident_bytes, load_rate), sizes.launches * step


SHARED_BYTES_A_CYCLE = 128
"""Shared memory feeds 128 bytes a cycle to one multiprocessor (Luo et al. 2024, B300 measured 127.7)."""
