"""Entry and step of the fused walk (streaming or resident) as groups of overlapping terms.

A `FusedCase` holds what does not depend on parameter values. Its numbers may be arrays over many walks that share the words (kind of
head, precision, L2 state, batch rows of the kernel): `predict` sizes one walk, `sweep` thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cost_model import recurrence, terms
from cost_model.elementwise import Number, choose, larger, rate_at, rounded_up, smaller
from cost_model.figures import BandwidthCurve
from cost_model.footprint import NARROW_ROWS, QUADS_TOGETHER, Kernel, group_reads
from cost_model.fused_select import (
    drawn_ahead, group_selection, rest_parameter, second_look_us, selections, tile_rest_us,
)
from cost_model.gpu import Gpu
from cost_model.parts import Beside, Group, one_by_one, times, total_us
from cost_model.recurrence import RecurrentCase, recurrent_case
from cost_model.units import us_from_cycles

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
        quads: batch rows by fours; matrix_reads: times that a step reads each resident tile, of warpgroups once for four quads or, where tiles
            stream, for all; passes: over the resident tiles by warps.
        wide: 1 where words have 64 bits, else 0.
        streamed_bytes: bytes of W2 that the chip reads again in each step; resident_bytes: loaded once.
        logits_bytes: base logits read in a step, and step logits written where they are kept.
        stream_bytes_per_s: read curve about what is touched before a streamed byte comes round again: the streamed tiles, and the logits that wait with them.
        beyond_l2: share of that which L2 cannot hold.
        logits_bytes_per_s: read curve at what is touched before base logits come round again, in the next call: all that a call reads.
        stream_held: whether L2 holds the streamed tiles from step to step.
        load_bytes_per_s: read curve at what a short call reads, which decides where a back-to-back call finds its resident tiles.
        clock_mhz: boost clock; dense_ops_per_s_per_sm: the datasheet's int8 rate, of warpgroups; 0 of others.
        recurrent: what the head adds; None for Markov.
        logits_times_us: factor on the read curve -> time of a step's logits, as they are asked for.
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
    beyond_l2: Number
    logits_bytes_per_s: Number
    stream_held: object
    load_bytes_per_s: Number
    clock_mhz: Number
    dense_ops_per_s_per_sm: Number
    recurrent: RecurrentCase | None
    logits_times_us: dict = field(default_factory=dict, compare=False)


def fused_case(gpu: Gpu, curve: BandwidthCurve, words: WalkWords, sizes: WalkSizes) -> FusedCase:
    """Size fused walks. The last slots of a warp are the streamed ones, and absent tiles are the last of all."""
    kernel, size = words.kernel, terms.tile_bytes(sizes.rank, words.precision)
    tiles = terms.tiles_of(sizes.vocab_size)
    resident_tiles = smaller(tiles, sizes.grid_blocks * (sizes.tiles - sizes.streamed_tiles))
    streamed, matrix = (tiles - resident_tiles) * size * 1.0, tiles * size * 1.0
    read = terms.base_logits_bytes(sizes.vocab_size, sizes.batch) * 1.0
    logits = read * (2 if words.logits_kept else 1)
    quads = terms.quads_of(sizes.batch)
    touched = streamed + (STEPS_AHEAD if kernel.quads == 1 else 1) * logits
    l2_bytes = gpu.value("l2_bytes") if gpu.has("l2_bytes") else 0.0
    fade = fade_of(curve)
    away = 0.0 if kernel.head == "markov" else terms.away_share(matrix, logits * sizes.steps, l2_bytes / fade)
    recurrent = recurrent_case(kernel.head, words.precision, sizes, curve, away)
    dense = gpu.value("int8_dense_ops_per_s") / gpu.value("sm_count") if kernel.grouped else 0.0
    return FusedCase(
        words=words, sizes=sizes, quads=quads,
        matrix_reads=group_reads(kernel.quads, sizes.streamed_tiles) if kernel.grouped else quads,
        passes=1 if kernel.grouped else choose(sizes.tiles > sizes.streamed_tiles, quads, 1),
        wide=1 if kernel.sampling or kernel.rounding == "none" else choose(sizes.tiles * terms.TILE_ROWS > NARROW_ROWS, 1, 0),
        streamed_bytes=streamed, resident_bytes=matrix - streamed, logits_bytes=logits,
        stream_bytes_per_s=(rate_at(curve, touched) * rate_at(curve, touched * fade)) ** 0.5, beyond_l2=larger(0.0, 1 - l2_bytes / fade / (touched * fade)),
        logits_bytes_per_s=rate_at(curve, matrix + sizes.steps * logits), stream_held=streamed + logits <= l2_bytes,
        load_bytes_per_s=rate_at(curve, matrix + read), clock_mhz=gpu.value("boost_clock_mhz"), dense_ops_per_s_per_sm=dense, recurrent=recurrent,
    )


STEPS_AHEAD = 2
"""Steps whose logits wait in L2 while tiles stream, up to four rows (`base_logits.cuh`); with more a step's are read while its tiles stream."""

L2_FADE = 1.2
"""Factor on a footprint over which L2 fades: a walk's tiles, logits and table rows fall less evenly on L2's sets than one buffer read in order, as the probe
reads it. In-sample: steps at rank 512 whose streams nearly fill an H200's L2 tell it."""


def fade_of(curve: BandwidthCurve) -> float:
    """L2_FADE, or 1 where the curve was carried over from another GPU: its drop at L2's size is a convention, which nothing softens."""
    return 1.0 if curve.figures[-1].kind == "transferred" else L2_FADE


MMA_PARAMETER = {"int8x2": "mma_s8_ops_per_s_per_sm", "bf16": "mma_bf16_flops_per_s_per_sm"}
GROUP_PARAMETERS = ("group_slot_cycles", "group_quad_cycles")
"""What a warpgroup takes for a slot, and for each quad that it selects from it."""

RING_PARAMETERS = ("ring_latency_us", "ring_latency_hbm_us")
"""How long a ring of up to four rows waits for a tile."""


def step_parameters(words: WalkWords) -> tuple[str, ...]:
    """Names of the parameters that the terms of a step use."""
    kernel = words.kernel
    names = ["exchange_us", "exchange_growth", "exchange_crowding", "exchange_wide_ratio", "led_row_us", "l2_latency_us", "shared_read_bytes_per_s_per_sm", "fused_overhead_us", "stream_efficiency", "read_curve_scale"]
    names += GROUP_PARAMETERS if kernel.grouped else (MMA_PARAMETER[words.precision], "epilogue_cycles_per_accumulator")
    names += RING_PARAMETERS if kernel.quads == 1 else ()
    names += ("hbm_latency_us", "hbm_read_bytes_per_s") if words.cold_weights else ()
    names += ["hbm_latency_us"] if kernel.head != "markov" else []
    names += [rest_parameter(kernel)]
    names += ["noise_bound_instructions"] if kernel.sampling else []
    names += ["instruction_cycles"] if kernel.head != "markov" or kernel.sampling else []
    return tuple(dict.fromkeys((*names, *recurrence.step_parameters(kernel.head))))


def entry_parameters(words: WalkWords) -> tuple[str, ...]:
    """Names of the parameters that the terms of an entry use."""
    names = ("cooperative_launch_us", "graph_node_us", "hbm_read_bytes_per_s", "hbm_latency_us", "l2_latency_us", "first_step_us", "read_curve_scale")
    return (*names, *recurrence.entry_parameters(words.kernel.head))


def _any(count: Number) -> bool:
    """Whether a number, or any of an array, is not 0."""
    return bool(count.any()) if hasattr(count, "any") else bool(count)


def moving_parameters(names: Iterable[str], case: FusedCase) -> tuple[str, ...]:
    """Return those of the names that can change the time of a case at all."""
    sizes, words = case.sizes, case.words
    matters = {
        "exchange_growth": _any(sizes.batch > 1), "exchange_crowding": _any(sizes.batch > terms.SCHEDULERS_PER_SM), "exchange_wide_ratio": _any(case.wide), "led_row_us": _any(sizes.batch > sizes.warps),
        **dict.fromkeys((*RING_PARAMETERS, "stream_efficiency"), _any(case.streamed_bytes)),
        "hbm_latency_us": words.cold_weights or case.recurrent is not None, "graph_node_us": _any(sizes.launches > 1),
    }
    return tuple(name for name in names if matters.get(name, True))


# --- a step ---------------------------------------------------------------------------------------------------------------


def step_groups(values: Mapping[str, float], case: FusedCase) -> list[Group | Beside]:
    """latent + tiles + block reduction + agreement + state + overhead, times the launches of a call; `read_curve_scale` multiplies the
    curve.

    The latent of a recurrent head is the trip to L2 for the token's row, position terms and state words, which travel together.
    """
    clock, sizes, kernel = case.clock_mhz, case.sizes, case.words.kernel
    one_word_us = _one_word_us(values, case)
    led_rows, agreement = rounded_up(sizes.batch, sizes.warps), _agreement(values, case, one_word_us)
    latent: Group = {"latent": _latent_us(values, case, led_rows, agreement.get("state_products", 0.0)), **drawn_ahead(values, case)}
    reduction: Group = {"block_reduction": terms.block_reduction_us(sizes.warps, case.quads, led_rows, case.wide, clock)}
    serial: list[Group] = [{"led_rows": terms.led_rows_us(led_rows, values["led_row_us"])}, {"tile_rest": tile_rest_us(values, case)}, {"overhead": values["fused_overhead_us"]}]
    tiles = _resident_groups(values, case)
    selection = _joint_selection(values, case)
    if _any(sizes.streamed_tiles):
        tiles += _streamed_tiles(values, case, total_us([latent, reduction, *serial, *tiles, *selection, agreement]))
    advance = [] if case.recurrent is None else one_by_one(recurrence.advance_terms(values, case.recurrent, sizes, kernel.rows, clock))
    groups = [latent, *tiles, *selection, reduction, agreement, serial[0], *advance, *serial[1:]]
    if case.recurrent is None or not case.recurrent.pooled:
        return groups
    read_us = terms.stream_us(case.recurrent.pool_bytes, values["hbm_read_bytes_per_s"], 1.0)
    return [*times(groups, sizes.launches), {"pool_read": read_us}]


def _joint_selection(values: Mapping[str, float], case: FusedCase) -> list[Group]:
    """Selection from all tiles where one quad is, and second looks; where tiles stream beside that, most of these stand with the stream."""
    kernel, sizes = case.words.kernel, case.sizes
    found = selections(values, case, sizes.tiles, alone=False) if kernel.quads == 1 else []
    if not kernel.sampling:
        return found
    look_us = second_look_us(values, case)
    return [*found, {"noise": choose(sizes.streamed_tiles > 0, 1 - LOOKS_BESIDE_STREAM, 1.0) * look_us if kernel.quads == 1 else look_us}]


def _latent_us(values: Mapping[str, float], case: FusedCase, led_rows: Number, products_us: Number) -> Number:
    """Rows of the winners. Cold, every block has pulled its own winners' rows since it published them: the last to publish has two trips to L2 for that,
    the further rows of a leader, the products of the states that it makes meanwhile, and others' second looks."""
    sizes, words = case.sizes, case.words
    if not words.cold_weights:
        return values["l2_latency_us"]
    pulled_bytes = sizes.grid_blocks * sizes.batch * terms.token_row_bytes(words.kernel.head, sizes.rank, sizes.gru_size, words.precision) * 1.0
    slowest_us = terms.slowest_of_us(values["l2_latency_us"], values["hbm_latency_us"], sizes.batch)
    hidden_us = terms.exchange_floor_us(values["l2_latency_us"]) + terms.led_rows_us(led_rows, values["led_row_us"]) + products_us
    if words.kernel.sampling:
        hidden_us = hidden_us + second_look_us(values, case)
    return terms.cold_latent_us(values["l2_latency_us"], slowest_us + terms.stream_us(pulled_bytes, values["hbm_read_bytes_per_s"], 1.0), hidden_us)


def _one_word_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """Agreement on one winner, in words of the walk's width."""
    return values["exchange_us"] * (1 + case.wide * (values["exchange_wide_ratio"] - 1))


def _resident_groups(values: Mapping[str, float], case: FusedCase) -> list[Group | Beside]:
    """Resident tiles: products beside the step's logits where nothing streams, and, with several quads, their selection, which warpgroups have beside products."""
    sizes, kernel = case.sizes, case.words.kernel
    resident = sizes.tiles - sizes.streamed_tiles
    logits_us = choose(sizes.streamed_tiles > 0, 0.0, _logits_us(values, case))
    products = {**_products(values, case, resident, sizes.shared_tiles, case.matrix_reads, sizes.warps), "stream": logits_us}
    if kernel.grouped:
        return [{**products, **group_selection(values, case, resident)}]
    return [products, *(selections(values, case, resident, alone=False) if kernel.quads > 1 else [])]


def _products(values: Mapping[str, float], case: FusedCase, tiles: Number, from_shared: Number, reads: Number, operands: Number) -> Group:
    """Products of so many of a block's tiles, beside their reads from shared memory and those of the latents: by warps `operands` of a quad's, by warpgroups
    those of all rows for every four tiles."""
    kernel, sizes, precision = case.words.kernel, case.sizes, case.words.precision
    read_bytes = from_shared * terms.tile_bytes(sizes.rank, precision) * reads
    if kernel.grouped:
        operations, rate = terms.group_operations(tiles, sizes.rank, kernel.rows), case.dense_ops_per_s_per_sm
        read_bytes = read_bytes + terms.group_operand_bytes(tiles, sizes.rank, kernel.rows)
    else:
        operations, rate = terms.product_operations(tiles, sizes.rank, precision, sizes.batch), values[MMA_PARAMETER[precision]]
        read_bytes = read_bytes + operands * terms.operand_bytes(sizes.rank, kernel.rows) * case.quads
    return {"products": terms.products_us(operations, rate), "shared_read": terms.shared_read_us(read_bytes, values["shared_read_bytes_per_s_per_sm"])}


HELD_RING_SHARE = 0.75
"""Share of a ring's time that the rest of the step hides where the ring holds all streamed tiles: they are asked for together, and words wait behind them.
In-sample: placements with such rings tell it."""


SAMPLED_STREAM_HIDDEN = 0.5
"""Share of what their stream leaves that runs on beside the noise of sampled rows, for one reading of each tile: with two, a part leaves the ring with the second,
and the first hides nothing. In-sample: streams of 8 to 32 sampled rows tell it."""

LOOKS_BESIDE_STREAM = 0.75
"""Share of second looks beside which the stream of up to four rows goes on. In-sample: four sampled rows at ranks 256 and 512 tell it."""


def _streamed_tiles(values: Mapping[str, float], case: FusedCase, serial_us: Number) -> list[Group | Beside]:
    """Streamed tiles: their products, with several quads their selection, and what of the stream these and the rest of the step do not hide.

    Up to four rows the ring fills during the rest of the step (`serial_us`), as far as it is long, but not during what a recurrent head adds, since it is full
    by then; and the stream goes on beside the products of its tiles and second looks. Slots of more greedy rows take their turns, each the longer of
    transfer and work.
    Warpgroups, and warps of sampled rows, have the stream before or after their work, but for what comes from beyond L2; beside noise a share of the rest
    runs on, too, and each part of a tile is waited for.
    """
    kernel, sizes = case.words.kernel, case.sizes
    reads = 1 if kernel.grouped else rounded_up(case.quads, QUADS_TOGETHER)
    products = _products(values, case, sizes.streamed_tiles, sizes.streamed_tiles, reads, sizes.streamed_tiles)
    rate, logits_us, ring_bytes, slots = _stream_rate(values, case), _logits_us(values, case), _ring_bytes(case), sizes.streamed_tiles / sizes.warps
    if kernel.quads == 1:
        latency_us = choose(case.stream_held, values["ring_latency_us"], values["ring_latency_hbm_us"])
        whole_us = terms.ring_us(case.streamed_bytes, ring_bytes, rate, latency_us) + logits_us
        filled_us = smaller(serial_us, terms.stream_us(ring_bytes, rate, 1.0)) * choose(ring_bytes >= case.streamed_bytes, HELD_RING_SHARE, 1.0)
        looks = [{"noise": choose(sizes.streamed_tiles > 0, LOOKS_BESIDE_STREAM * second_look_us(values, case), 0.0)}] if kernel.sampling else []
        return [Beside((products, *looks), "stream", choose(sizes.streamed_tiles > 0, whole_us - smaller(whole_us, filled_us), 0.0))]
    work = _grouped_work(values, case, products) if kernel.grouped else [products, *selections(values, case, sizes.streamed_tiles, alone=True)]
    if kernel.grouped or kernel.sampling:
        left_us = terms.stream_us(larger(case.streamed_bytes - ring_bytes, 0.0), rate, 1.0) + choose(sizes.streamed_tiles > 0, logits_us, 0.0)
        left_us = terms.after_work_us(left_us, total_us(work), case.beyond_l2)
        if kernel.sampling:
            parts = slots * terms.tile_parts(sizes.rank, case.words.precision) * reads
            work = [*work, {"products": us_from_cycles(parts * terms.WARP_PART_CYCLES, case.clock_mhz)}]
            left_us = left_us * (1 - SAMPLED_STREAM_HIDDEN / reads)
        return [*work, {"stream": left_us}]
    turns = larger(slots, 1)
    one_us = terms.slot_in_turn_us((terms.stream_us(case.streamed_bytes, rate, 1.0) + logits_us) / turns, total_us(work) / turns, reads)
    return [Beside(tuple(work), "stream", slots * one_us)]


def _grouped_work(values: Mapping[str, float], case: FusedCase, products: Group) -> list[Group]:
    """Streamed tiles of warpgroups: each part of a tile but the last is multiplied before the next is waited for; then selection, as of resident tiles."""
    sizes = case.sizes
    parts = terms.tile_parts(sizes.rank, case.words.precision)
    turns_us = us_from_cycles(sizes.streamed_tiles / sizes.warps * parts * terms.PART_CYCLES, case.clock_mhz)
    return [{name: time_us * (parts - 1) / parts + turns_us for name, time_us in products.items()}, group_selection(values, case, sizes.streamed_tiles)]


def _ring_bytes(case: FusedCase) -> Number:
    """Bytes of the rings of all blocks."""
    return case.sizes.staging_tiles * terms.tile_bytes(case.sizes.rank, case.words.precision) * case.sizes.grid_blocks * 1.0


def _stream_rate(values: Mapping[str, float], case: FusedCase) -> Number:
    """Bytes a second of the streamed tiles."""
    return case.stream_bytes_per_s * (values["read_curve_scale"] * smaller(values["stream_efficiency"], 1.0))


def _logits_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """Time in which the chip moves a step's logits; kept in the case, where few parameters change it."""
    scale = values["read_curve_scale"]
    if scale not in case.logits_times_us:
        case.logits_times_us[scale] = terms.stream_us(case.logits_bytes, case.logits_bytes_per_s * scale, 1.0)
    return case.logits_times_us[scale]


def _agreement(values: Mapping[str, float], case: FusedCase, one_word_us: Number) -> Group:
    """The exchange, and what warps that do not exchange words do meanwhile: noise of the next step, products of the state."""
    kernel, sizes = case.words.kernel, case.sizes
    group: dict[str, Number] = {"exchange": terms.exchange_us(one_word_us, smaller(sizes.batch, sizes.warps), values["exchange_growth"], values["exchange_crowding"])}
    idle = idle_warps(kernel, sizes.warps)
    if case.recurrent is not None and case.recurrent.state_size is not None:
        group["state_products"] = recurrence.state_products_us(values, case.recurrent, sizes, kernel.rows, idle, case.clock_mhz)
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
        "first_pass": choose(case.stream_held, terms.first_pass_us(case.streamed_bytes, hbm, case.stream_bytes_per_s * values["read_curve_scale"]), 0.0)
        if words.cold_weights else 0.0,
        "first_step": values["first_step_us"],
    }
    found = {name: sizes.launches * time_us for name, time_us in found.items()}
    found = {"launch": values["cooperative_launch_us"] + (sizes.launches - 1) * values["graph_node_us"], **found}
    if case.recurrent is not None:
        found |= recurrence.entry_terms(values, case.recurrent)
    return one_by_one(found)
