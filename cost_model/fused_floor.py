"""The physical floor of the fused walk: what no implementation of a mode beats, whatever its kernel and placement. Numbers or arrays, as in `fused.py`."""

from __future__ import annotations

from dataclasses import dataclass

from cost_model import terms
from cost_model.elementwise import Number, larger, smaller
from cost_model.figures import BandwidthCurve
from cost_model.fused import FusedCase, fade_of
from cost_model.gpu import Gpu
from cost_model.stepwise import byte_rate
from cost_model.units import us_from_cycles


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
    together cannot hold. Bytes: the best rate over which L2 may fade. Tensor rate: the datasheet's dense one, over the columns that are
    used. Shared memory: what the register file cannot hold, at 128 bytes a cycle. States are left out: what they need may overlap the agreement before.
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
        terms.read_floor_us(moved, byte_rate(gpu, facts.curve, larger(moved / fade_of(facts.curve), 1.0))), facts.l2_latency_us, terms.products_us(operations, dense),
        us_from_cycles(from_shared / SHARED_BYTES_A_CYCLE, clock), terms.exchange_floor_us(facts.l2_latency_us),
    )
    warm = case.words.l2_state == "warm"
    load_rate = byte_rate(gpu, facts.curve, larger(case.resident_bytes, 1.0)) if warm else gpu.value("dram_bandwidth_bytes_per_s")
    return facts.graph_launch_us + terms.read_floor_us(case.resident_bytes, load_rate), sizes.launches * step


SHARED_BYTES_A_CYCLE = 128
"""Shared memory feeds 128 bytes a cycle to one multiprocessor (Luo et al. 2024, B300 measured 127.7)."""
