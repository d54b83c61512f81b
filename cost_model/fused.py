"""Entry and step of the fused walk (streaming or resident) as named terms, and the floor that no implementation beats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.gpu import BandwidthCurve, Gpu
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.stepwise import Parts, byte_rate
from cost_model.units import us_from_cycles
from cost_model.workload import Workload


@dataclass(frozen=True)
class FusedCase:
    """Sizes of one fused walk; everything that does not depend on parameter values.

    Attributes:
        placement: tiles of a block.
        grid_blocks: blocks, one a multiprocessor.
        batch, cold_weights, cold_logits: from the workload.
        precision: of W2.
        tile_operations: tensor operations of one tile in a step.
        tile_bytes: of one tile.
        streamed_bytes: bytes of W2 that the chip reads again in each step.
        resident_bytes: bytes of W2 loaded once.
        logits_bytes: base logits read in a step.
        stream_footprint_bytes: what is touched before a streamed byte comes round again, over the whole call: the streamed
            tiles and every step's base logits. It decides where they lie.
        load_footprint_bytes: what a short call reads, which decides where a back-to-back call finds its resident tiles.
        l2_bytes: capacity of L2; None where the GPU's is not known.
        clock_mhz: boost clock.
    """

    placement: Placement
    grid_blocks: int
    batch: int
    cold_weights: bool
    cold_logits: bool
    precision: str
    tile_operations: float
    tile_bytes: int
    streamed_bytes: float
    resident_bytes: float
    logits_bytes: float
    stream_footprint_bytes: float
    load_footprint_bytes: float
    l2_bytes: float | None
    clock_mhz: float


def fused_case(gpu: Gpu, head: Head, workload: Workload, placement: Placement, grid_blocks: int) -> FusedCase:
    """Size one fused walk. The last slots of a warp are the streamed ones, and absent tiles are the last of all."""
    size = terms.tile_bytes(head.rank, workload.precision)
    tiles = terms.tiles_of(head.padded_vocab_size)
    resident_tiles = min(tiles, grid_blocks * (placement.tiles - placement.streamed_tiles))
    streamed = float((tiles - resident_tiles) * size)
    logits = float(terms.base_logits_bytes(head.padded_vocab_size, workload.batch))
    matrix = float(tiles * size)
    return FusedCase(
        placement=placement, grid_blocks=grid_blocks, batch=workload.batch, cold_weights=workload.l2_state != "warm",
        cold_logits=workload.l2_state == "cold", precision=workload.precision,
        tile_operations=terms.product_operations(1, head.rank, workload.precision, workload.batch), tile_bytes=size,
        streamed_bytes=streamed, resident_bytes=matrix - streamed, logits_bytes=logits,
        stream_footprint_bytes=streamed + workload.steps * logits, load_footprint_bytes=matrix + logits,
        l2_bytes=gpu.value("l2_bytes") if gpu.has("l2_bytes") else None, clock_mhz=gpu.value("boost_clock_mhz"),
    )


MMA_PARAMETER = {"int8x2": "mma_s8_ops_per_s_per_sm", "bf16": "mma_bf16_flops_per_s_per_sm"}


def fused_parameters(precision: str) -> tuple[str, ...]:
    """Names of the parameters that the fused terms of a precision use."""
    return (
        "exchange_us", "l2_latency_us", "hbm_latency_us", "shared_read_bytes_per_s_per_sm", MMA_PARAMETER[precision],
        "cooperative_launch_us", "graph_launch_us", "hbm_read_bytes_per_s", "epilogue_cycles_per_tile", "fused_overhead_us",
        "stream_efficiency", "first_step_us", "read_curve_scale",
    )


def fused_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> tuple[Parts, Parts]:
    """Return (entry, step) terms for parameter values; `read_curve_scale` multiplies the curve."""
    return _entry_terms(values, curve, case), _step_terms(values, curve, case)


def _step_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> Parts:
    """latent + resident tiles + streamed tiles + epilogue + block reduction + exchange + overhead.

    Of each group of tiles the slowest resource is exposed and the others hide behind it. Base logits come with the stream.
    """
    one_word_us = values["exchange_us"]
    place = case.placement
    rate = values[MMA_PARAMETER[case.precision]]
    shared_rate = values["shared_read_bytes_per_s_per_sm"]

    def tiles(count: int, from_shared: int) -> dict[str, float]:
        return {"products": terms.products_us(count * case.tile_operations, rate),
                "shared_read": terms.shared_read_us(float(from_shared * case.tile_bytes), shared_rate)}

    def epilogue(slots: int) -> float:
        return terms.epilogue_us(slots, place.warps, case.batch, values["epilogue_cycles_per_tile"], case.clock_mhz)

    resident_tiles, streamed_slots = place.tiles - place.streamed_tiles, place.streamed_tiles // place.warps
    stream = {"stream": _stream_us(values, curve, case)}
    if streamed_slots:
        groups = [tiles(resident_tiles, place.shared_tiles),
                  {**stream, **tiles(place.streamed_tiles, place.streamed_tiles), "epilogue": epilogue(streamed_slots)}]
    else:
        groups = [{**tiles(resident_tiles, place.shared_tiles), **stream}]
    parts: Parts = {"latent": (terms.latent_us(values["l2_latency_us"], values["hbm_latency_us"], one_word_us, case.cold_weights), 0.0, "L2 latency")}
    for group in [*groups, {"epilogue": epilogue(place.slots - streamed_slots)}]:
        _overlap(parts, group)
    return {
        **parts, "block_reduction": (terms.block_reduction_us(place.warps, case.batch, case.clock_mhz), 0.0, "latency"),
        "exchange": (terms.exchange_us(one_word_us, case.batch), 0.0, "exchange"), "overhead": (values["fused_overhead_us"], 0.0, "latency"),
    }


RESOURCE_OF_TERM = {"products": "tensor cores", "shared_read": "shared memory", "stream": "memory", "epilogue": "issue"}


def _overlap(parts: Parts, group: Mapping[str, float]) -> None:
    """Add a group of overlapping times to the parts: the longest is exposed, the others are hidden."""
    binding = max(group, key=lambda name: group[name])
    for name, time_us in group.items():
        exposed, hidden, resource = parts.get(name, (0.0, 0.0, RESOURCE_OF_TERM[name]))
        parts[name] = (exposed + time_us, hidden, resource) if name == binding else (exposed, hidden + time_us, resource)


def _stream_us(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> float:
    """Time in which the chip fetches a step's streamed tiles and base logits, with the latency that the ring leaves open."""
    place = case.placement
    rate = curve.at(case.stream_footprint_bytes) * values["read_curve_scale"] * min(values["stream_efficiency"], 1.0)
    transfer_us = terms.stream_us(case.streamed_bytes + case.logits_bytes, rate, 1.0)
    if not place.streamed_tiles:
        return transfer_us
    in_l2 = case.l2_bytes is not None and case.stream_footprint_bytes <= case.l2_bytes
    wave_bytes = float(place.warps * case.grid_blocks * case.tile_bytes)
    return transfer_us + terms.ring_wait_us(place.streamed_tiles // place.warps, place.staging_tiles // place.warps, wave_bytes, rate,
                                            values["l2_latency_us" if in_l2 else "hbm_latency_us"])


def _entry_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> Parts:
    """launch + shard load + first latent + first fill + first pass + first step.

    `first_pass`: the first, cold streaming of what L2 then keeps. `first_step`: what the first step costs beside that
    (instructions not yet in the caches, scales, the anchor), a residual coefficient.
    """
    hbm = values["hbm_read_bytes_per_s"]
    warm = curve.at(case.load_footprint_bytes) * values["read_curve_scale"]
    stream_rate = curve.at(case.stream_footprint_bytes) * values["read_curve_scale"]
    load_rate = min(hbm, warm) if case.cold_weights else warm
    first = values["hbm_latency_us"] if case.cold_weights else values["l2_latency_us"]
    fill_us = values["hbm_latency_us"] if case.cold_logits else values["l2_latency_us"]
    cold_us = terms.first_pass_us(case.streamed_bytes, hbm, stream_rate) if case.cold_weights else 0.0
    return {
        "launch": (values["cooperative_launch_us"], 0.0, "launch"),
        "shard_load": (terms.shard_load_us(case.resident_bytes, load_rate), 0.0, "memory"),
        "first_latent": (2 * first, 0.0, "L2 latency"),
        "first_fill": (fill_us, 0.0, "memory latency"),
        "first_pass": (cold_us, 0.0, "memory"),
        "first_step": (values["first_step_us"], 0.0, "latency"),
    }


# --- the floor ------------------------------------------------------------------------------------------------------------


def fused_floor(gpu: Gpu, values: Mapping[str, float], curve: BandwidthCurve, head: Head, workload: Workload, mode: str,
                resident_bytes: float) -> tuple[float, float]:
    """Return (entry, step) floors in microseconds: of a mode's step whatever the kernel and its placement, and of an entry that
    loads `resident_bytes`.

    `streaming` reads W2 in every step. `resident` reads only what registers and shared memory of all multiprocessors
    together cannot hold. Tensor rate: the datasheet's dense one, over the columns that are used. Shared memory: what the
    register file cannot hold, at 128 bytes a cycle.
    """
    sms, clock = gpu.value("sm_count"), gpu.value("boost_clock_mhz")
    matrix = float(terms.matrix_bytes(head.padded_vocab_size, head.rank, workload.precision))
    registers, shared = gpu.value("register_file_bytes_per_sm"), gpu.value("smem_bytes_per_sm")
    on_chip = sms * (registers + shared + (gpu.value("tmem_bytes_per_sm") if gpu.has("tmem_bytes_per_sm") else 0.0))
    streamed = matrix if mode == "streaming" else max(0.0, matrix - on_chip)
    logits = float(terms.base_logits_bytes(head.padded_vocab_size, workload.batch))
    rate = byte_rate(gpu, curve, max(streamed + logits, 1.0))
    operations = 2.0 * head.padded_vocab_size * head.rank * workload.batch * terms.VECTORS_OF_PRECISION[workload.precision]
    dense = gpu.value("int8_dense_ops_per_s" if workload.precision == "int8x2" else "bf16_dense_flops_per_s")
    from_shared = 0.0 if mode == "streaming" else max(0.0, min(matrix / sms, registers + shared) - registers)
    step = terms.step_floor_us(
        terms.read_floor_us(streamed + logits, rate), values["l2_latency_us"], terms.products_us(operations, dense),
        us_from_cycles(from_shared / SHARED_BYTES_A_CYCLE, clock), terms.exchange_floor_us(values["l2_latency_us"]),
    )
    load_rate = byte_rate(gpu, curve, max(resident_bytes, 1.0)) if workload.l2_state == "warm" else gpu.value("dram_bandwidth_bytes_per_s")
    return values["graph_launch_us"] + terms.read_floor_us(resident_bytes, load_rate), step


SHARED_BYTES_A_CYCLE = 128
"""Shared memory feeds 128 bytes a cycle to one multiprocessor (Luo et al. 2024, B300 measured 127.7)."""
