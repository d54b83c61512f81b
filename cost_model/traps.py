"""traps: what catches those who carry a placement from one GPU to another, and whether it decides for a given walk.

A trap decides where the walk would be placed or timed otherwise without it. Each says which facts of the GPU it read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from cost_model import terms
from cost_model.elementwise import Number
from cost_model.gpu import Figure, Gpu
from cost_model.head import Head
from cost_model.placement import Placement, PlanError, plan
from cost_model.predict import FusedRequest, fused_request, predict
from cost_model.units import format_bytes, format_percent, format_ratio, format_us
from cost_model.workload import Workload

DATA_CENTRE_SHARED_BYTES = 232_448
"""Shared memory that a block may have on sm_90 and sm_100: 227 KiB."""

INT8_OVER_BF16 = 2.0
"""Tensor rate of int8 over bf16 on GPUs that have both in full."""

LEAST_DIFFERENCE = 0.05
"""A trap decides about time from this share of the step on."""


@dataclass(frozen=True)
class Trap:
    """One trap of a GPU.

    Attributes:
        name: block-shared-memory, int8-rate, l2-holds-matrix or tensor-memory.
        decides: whether it changes what is best, or how long it takes, for the walk that was asked about.
        says: what it is, and what it does here.
        facts: facts of the GPU that it read -> values.
    """

    name: str
    decides: bool
    says: str
    facts: Mapping[str, Number]

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self), "facts": dict(self.facts)}


def find_traps(gpu: Gpu, head: Head, workload: Workload) -> tuple[Trap, ...]:
    """Return the traps that this GPU has, those that decide first; a trap whose facts are not known is left out.

    Raises:
        BadInput: the walk cannot be asked about, as `predict` says.
    """
    found = [trap for look in TRAPS if (trap := look(gpu, head, workload)) is not None]
    return tuple(sorted(found, key=lambda trap: not trap.decides))


def _facts(gpu: Gpu, *names: str) -> dict[str, float] | None:
    """Return the named facts, or None where one is not known."""
    return {name: gpu.value(name) for name in names} if all(gpu.has(name) for name in names) else None


def _with(gpu: Gpu, **values: float) -> Gpu:
    """Return the GPU with other facts; figures keep their units."""
    return gpu.with_figures({name: Figure(value, gpu.figure(name).unit, "derived", "what if") for name, value in values.items()})


def _resident(gpu: Gpu, request: FusedRequest, precision: str) -> Placement | None:
    """The planner's resident placement, or None where nothing fits."""
    try:
        return plan(gpu, request.head, precision, "resident", grid_blocks=request.grid_blocks, **request.built)
    except PlanError:
        return None


def _streamed(placement: Placement | None) -> str:
    """Say how much of a placement streams."""
    return "nothing fits" if placement is None else f"{format_percent(1 - placement.residency)} of the tiles stream"


def block_shared_memory(gpu: Gpu, head: Head, workload: Workload) -> Trap | None:
    """A block may have 99 KiB of shared memory on sm_86, sm_89 and sm_120, not the 227 KiB of a Hopper."""
    facts = _facts(gpu, "smem_bytes_per_block_optin", "sm_count")
    if facts is None or facts["smem_bytes_per_block_optin"] >= DATA_CENTRE_SHARED_BYTES:
        return None
    request = fused_request(gpu, head, workload)
    here = _resident(gpu, request, workload.precision)
    there = _resident(_with(gpu, smem_bytes_per_block_optin=DATA_CENTRE_SHARED_BYTES), request, workload.precision)
    kept = 0.0 if here is None else here.residency
    decides = there is not None and kept < there.residency
    return Trap("block-shared-memory", decides, f"a block has {format_bytes(facts['smem_bytes_per_block_optin'])} of shared memory here, "
                f"{format_bytes(DATA_CENTRE_SHARED_BYTES)} on data-centre GPUs since Hopper: {_streamed(here)}; with that much, {_streamed(there)}", facts)


def int8_rate(gpu: Gpu, head: Head, workload: Workload) -> Trap | None:
    """int8 products run far below bf16's and fp8's on B300 (1/29 of fp8): int8x2 is then bound by them, where it saves bytes elsewhere."""
    facts = _facts(gpu, "int8_dense_ops_per_s", "bf16_dense_flops_per_s")
    if facts is None or facts["int8_dense_ops_per_s"] >= facts["bf16_dense_flops_per_s"]:
        return None
    if gpu.has("fp8_dense_flops_per_s"):
        facts["fp8_dense_flops_per_s"] = gpu.value("fp8_dense_flops_per_s")
    compared = facts.get("fp8_dense_flops_per_s", facts["bf16_dense_flops_per_s"])
    asked = replace(workload, precision="int8x2")
    says = (f"int8 products run at {format_ratio(facts['int8_dense_ops_per_s'] / compared)} the rate of {'fp8' if 'fp8_dense_flops_per_s' in facts else 'bf16'}")
    mode = "resident" if _resident(gpu, fused_request(gpu, head, asked), "int8x2") is not None else "streaming"
    fair = _with(gpu, int8_dense_ops_per_s=INT8_OVER_BF16 * facts["bf16_dense_flops_per_s"])
    slow, fast = (predict(one, head, asked, mode).step_us for one in (gpu, fair))
    decides = slow > (1 + LEAST_DIFFERENCE) * fast
    return Trap("int8-rate", decides, f"{says}: a {mode} int8x2 step takes {format_us(slow)}, and would take {format_us(fast)} at twice the rate of bf16", facts)


def l2_holds_matrix(gpu: Gpu, head: Head, workload: Workload) -> Trap | None:
    """An L2 that holds the matrix between steps is a fast baseline already: residency then saves trips to L2, not to DRAM.

    Asked of what the step reads again: W2 in the workload's precision, and the walk's base logits that pass through.
    """
    facts = _facts(gpu, "l2_bytes", "dram_bandwidth_bytes_per_s")
    if facts is None:
        return None
    request = fused_request(gpu, head, workload)
    rows = request.head.padded_vocab_size
    held = terms.matrix_bytes(rows, head.rank, workload.precision)
    passing = workload.steps * terms.base_logits_bytes(rows, workload.batch // request.launches)
    decides = held + passing <= facts["l2_bytes"]
    verb = "holds" if decides else "does not hold"
    floor = terms.read_floor_us(held, facts["dram_bandwidth_bytes_per_s"])
    return Trap("l2-holds-matrix", decides, f"L2 ({format_bytes(facts['l2_bytes'])}) {verb} the {workload.precision} matrix ({format_bytes(held)}) and the walk's base "
                f"logits ({format_bytes(passing)}): a walk that reads the matrix again {'can beat' if decides else 'cannot beat'} DRAM's {format_us(floor)} a step", facts)


def tensor_memory(gpu: Gpu, head: Head, workload: Workload) -> Trap | None:
    """sm_100 and sm_103 have 256 KiB of tensor memory a multiprocessor, which the kernel does not use: bf16 at 152k would need it."""
    facts = _facts(gpu, "tmem_bytes_per_sm", "sm_count")
    if facts is None or not facts["tmem_bytes_per_sm"]:
        return None
    request = fused_request(gpu, head, workload)
    here = _resident(gpu, request, workload.precision)
    size = terms.tile_bytes(head.rank, workload.precision)
    left = terms.tiles_of(request.head.padded_vocab_size) if here is None else here.streamed_tiles * request.grid_blocks
    decides = left > 0
    room = int(facts["tmem_bytes_per_sm"]) // size * request.grid_blocks
    more = f"tensor memory would hold {format_percent(min(1.0, room / left))} of them" if decides else "tensor memory is not needed"
    return Trap("tensor-memory", decides, f"{format_bytes(facts['tmem_bytes_per_sm'])} of tensor memory a multiprocessor, not used by the kernel yet: {_streamed(here)}; {more}", facts)


TRAPS: tuple[Callable[[Gpu, Head, Workload], Trap | None], ...] = (block_shared_memory, int8_rate, l2_holds_matrix, tensor_memory)
"""All traps that are known."""
