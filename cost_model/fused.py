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
        operations_per_sm: tensor operations of the busiest block in a step.
        shared_bytes_per_sm: tile bytes that it reads from shared memory in a step.
        streamed_bytes: bytes of W2 that the chip reads again in each step.
        resident_bytes: bytes of W2 loaded once.
        logits_bytes: base logits read in a step.
        staging_bytes: landing space of the whole chip.
        stream_footprint_bytes: what is read again and again in a step, which decides where it lies.
        call_footprint_bytes: what one call reads, which decides where a back-to-back call finds it.
        clock_mhz: boost clock.
    """

    placement: Placement
    grid_blocks: int
    batch: int
    cold_weights: bool
    cold_logits: bool
    precision: str
    operations_per_sm: float
    shared_bytes_per_sm: float
    streamed_bytes: float
    resident_bytes: float
    logits_bytes: float
    staging_bytes: float
    stream_footprint_bytes: float
    call_footprint_bytes: float
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
        operations_per_sm=terms.product_operations(placement.tiles, head.rank, workload.precision, workload.batch),
        shared_bytes_per_sm=float((placement.shared_tiles + placement.streamed_tiles) * size),
        streamed_bytes=streamed, resident_bytes=matrix - streamed, logits_bytes=logits,
        staging_bytes=float(placement.staging_tiles * size * grid_blocks), stream_footprint_bytes=streamed + logits,
        call_footprint_bytes=matrix + workload.steps * logits, clock_mhz=gpu.value("boost_clock_mhz"),
    )


MMA_PARAMETER = {"int8x2": "mma_s8_ops_per_s_per_sm", "bf16": "mma_bf16_flops_per_s_per_sm"}


def fused_parameters(precision: str) -> tuple[str, ...]:
    """Names of the parameters that the fused terms of a precision use."""
    return (
        "exchange_us", "l2_latency_us", "hbm_latency_us", "shared_read_bytes_per_s_per_sm", MMA_PARAMETER[precision],
        "cooperative_launch_us", "graph_launch_us", "hbm_read_bytes_per_s", "epilogue_cycles_per_tile", "fused_overhead_us",
        "stream_efficiency", "read_curve_scale",
    )


def fused_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> tuple[Parts, Parts]:
    """Return (entry, step) terms for parameter values; `read_curve_scale` multiplies the curve."""
    return _entry_terms(values, curve, case), _step_terms(values, curve, case)


def _step_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> Parts:
    """latent + max(products, shared reads, what is left of the stream) + epilogue + reduction + exchange + overhead."""
    one_word_us = values["exchange_us"]
    warps = case.placement.warps
    serial: Parts = {
        "latent": (terms.latent_us(values["l2_latency_us"], values["hbm_latency_us"], one_word_us, case.cold_weights), 0.0, "L2 latency"),
        "epilogue": (terms.epilogue_us(case.placement.slots, warps, case.batch, values["epilogue_cycles_per_tile"], case.clock_mhz), 0.0, "issue"),
        "block_reduction": (terms.block_reduction_us(warps, case.batch, case.clock_mhz), 0.0, "latency"),
        "exchange": (terms.exchange_us(one_word_us, case.batch), 0.0, "exchange"),
        "overhead": (values["fused_overhead_us"], 0.0, "latency"),
    }
    idle_us = sum(exposed for exposed, _, _ in serial.values())
    rate = curve.at(case.stream_footprint_bytes) * values["read_curve_scale"]
    efficiency = min(values["stream_efficiency"], 1.0)
    bytes_ = case.streamed_bytes + case.logits_bytes
    stream_us = terms.stream_us(bytes_, rate, efficiency)
    ahead_us = terms.prefetched_us(case.staging_bytes + case.logits_bytes, bytes_, rate, efficiency, idle_us)
    overlapping = {
        "products": (terms.products_us(case.operations_per_sm, values[MMA_PARAMETER[case.precision]]), 0.0, "tensor cores"),
        "shared_read": (terms.shared_read_us(case.shared_bytes_per_sm, values["shared_read_bytes_per_s_per_sm"]), 0.0, "shared memory"),
        "stream": (stream_us - ahead_us, ahead_us, "memory"),
    }
    binding = max(overlapping, key=lambda name: overlapping[name][0])
    grouped = {name: (time if name == binding else 0.0, hidden + (0.0 if name == binding else time), resource)
               for name, (time, hidden, resource) in overlapping.items()}
    return {"latent": serial.pop("latent"), **grouped, **serial}


def _entry_terms(values: Mapping[str, float], curve: BandwidthCurve, case: FusedCase) -> Parts:
    """launch + shard load + first latent + what the first, cold pass of the stream adds.

    A term of the steady state that the first step lacks (nothing was prefetched for it) is in `first_fill`.
    """
    hbm = values["hbm_read_bytes_per_s"]
    warm = curve.at(case.call_footprint_bytes) * values["read_curve_scale"]
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
    }


# --- the floor ------------------------------------------------------------------------------------------------------------


def fused_floor(gpu: Gpu, values: Mapping[str, float], curve: BandwidthCurve, head: Head, workload: Workload, mode: str) -> tuple[float, float]:
    """Return (entry, step) floors in microseconds of a mode, whatever the kernel and its placement.

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
    load_rate = byte_rate(gpu, curve, matrix) if workload.l2_state == "warm" else gpu.value("dram_bandwidth_bytes_per_s")
    entry = values["graph_launch_us"] + terms.read_floor_us(matrix - streamed, load_rate)
    return entry, step


SHARED_BYTES_A_CYCLE = 128
"""Shared memory feeds 128 bytes a cycle to one multiprocessor (Luo et al. 2024, B300 measured 127.7)."""
