"""Placement: where the tiles of W2 lie in a block, and the planner that fills registers and shared memory.

Counts are tiles of one thread block. Tile i of a block belongs to warp i % warps, slot i // warps; a warp's slots are
ordered by tier: registers and shared memory, then streamed through the staging ring. So all counts but `tensor_tiles` are
multiples of `warps`.

What a kernel takes of registers and shared memory is in `footprint.py`, what a recurrent head keeps beside the tiles in `head_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.footprint import (  # noqa: F401  (what a kernel takes is part of this module's interface)
    GREEDY_ROW, KERNEL_ROWS, NARROW_ROWS, Kernel, RegisterClaim, accumulator_groups, fragment_registers, kernel_rows, needs_wide_words, register_cap,
    registers_claim, shared_bytes,
)
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.head_state import gru_elements, state_bytes, state_placement  # noqa: F401  (likewise)
from cost_model.parameters import ByIdentity
from cost_model.units import us_from_cycles
from cost_model.workload import ROUNDINGS, Workload, require_whole, require_word

DEFAULT_WARPS = 8
MAX_WARPS = 32

WARPGROUP_CAPABILITY = (9, 0)
"""Compute capability of the GPUs whose warpgroups multiply (`wgmma`, in the instruction set of sm_90a alone)."""

WARPGROUP_ROWS = 8
"""Batch rows from which that is faster on an H200: with 4 it was slower by an eighth, with 8 faster by a sixth (docs/kernel.md)."""

STREAMED_WARPGROUP_ROWS = 16
"""The same where tiles stream, which come a warp at a time; fewer rows are not measured."""


class PlanError(BadInput):
    """No placement fits; the message says what is needed and what there is."""


@dataclass(frozen=True)
class Placement:
    """Tiles of one block by tier.

    Attributes:
        warps: warps of the block, 1 to 32.
        register_tiles, shared_tiles: resident tiles.
        streamed_tiles: tiles read again in each step.
        staging_tiles: landing space in shared memory for streamed tiles; 0 exactly when nothing streams.
        tensor_tiles: tiles in tensor memory (sm_100 and sm_103 only).
    """

    warps: int
    register_tiles: int
    shared_tiles: int
    streamed_tiles: int
    staging_tiles: int
    tensor_tiles: int = 0

    def __post_init__(self) -> None:
        require_whole("warps", self.warps, 1, MAX_WARPS)
        for name in ("register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles", "tensor_tiles"):
            count = getattr(self, name)
            require_whole(name, count, 0, None)
            if name != "tensor_tiles" and count % self.warps:
                raise BadInput(f"{name} is {count}; it must be a multiple of warps ({self.warps}): each warp owns whole slots")
        if self.tiles == 0:
            raise BadInput("a placement holds no tile; give register, shared or streamed tiles")
        if (self.streamed_tiles == 0) != (self.staging_tiles == 0):
            raise BadInput(
                f"streamed_tiles is {self.streamed_tiles} and staging_tiles {self.staging_tiles}; "
                "streamed tiles need a staging ring, and only they do"
            )
        if self.staging_tiles > self.streamed_tiles:
            raise BadInput(f"staging_tiles is {self.staging_tiles}, above streamed_tiles {self.streamed_tiles}; nothing would use the rest")

    @property
    def tiles(self) -> int:
        """Tiles that the block can hold, all tiers."""
        return self.register_tiles + self.shared_tiles + self.tensor_tiles + self.streamed_tiles

    @property
    def slots(self) -> int:
        """Tiles of one warp."""
        return self.tiles // self.warps

    @property
    def residency(self) -> float:
        """Share of the tiles that stay on chip."""
        return 1.0 - self.streamed_tiles / self.tiles

    @property
    def register_slots(self) -> int:
        """Register tiles of one warp."""
        return self.register_tiles // self.warps

    def as_dict(self) -> dict:
        """Return the counts, slots and residency as plain values."""
        return {**asdict(self), "slots": self.slots, "residency": self.residency}


# --- what fits ------------------------------------------------------------------------------------------------------------


def capacity_problem(placement: Placement, gpu: Gpu, rank: int, precision: str, kernel: Kernel = GREEDY_ROW) -> str | None:
    """Say why a kernel with a placement does not fit the GPU, or None where it fits."""
    claim = registers_claim(placement, rank, precision, kernel)
    if not claim.fits:
        sums = "a slot" if kernel.grouped else f"{accumulator_groups(placement, kernel)} accumulators"
        return (f"{placement.register_slots} register tiles a warp and the sums of {sums}"
                f"{f' for {kernel.rows} batch rows' if kernel.rows > 1 else ''} want {claim.wanted_registers:,} registers a thread; "
                f"{register_cap(placement.warps)} are allowed at {placement.warps} warps")
    needed, available = shared_bytes(placement, rank, precision, kernel), _shared_limit(gpu)
    if needed > available:
        return f"{needed:,} bytes of shared memory are needed, {available:,} are available to a block of {gpu.id}"
    if placement.tensor_tiles:
        return "tensor memory is not used by the kernel yet; set tensor_tiles to 0"
    return None


def kernel_beside(placement: Placement, gpu: Gpu, head: Head, precision: str, *, grid_blocks: int | None = None, rows: int = 1,
                  rounding: str = "once", sampling: bool = False) -> Kernel:
    """Return the kernel of a head that goes with a placement: it keeps the block's share of the state matrices, or what the tiles leave
    room for."""
    bares = _bare_kernels(gpu, head, precision, placement.warps, rows, rounding, sampling)
    bare = next((one for one in bares if _suits(placement, one) and registers_claim(placement, head.rank, precision, one).fits), bares[-1])
    room = _shared_limit(gpu) - shared_bytes(placement, head.rank, precision, bare)
    return _keeping(bare, state_placement(head, gpu.sm_count if grid_blocks is None else grid_blocks, room))


def built_for(workload: Workload) -> dict:
    """What the kernel that walks a workload is built for, as the planner's arguments: rows, rounding, sampling."""
    return {"rows": kernel_rows(workload.batch), "rounding": workload.rounding, "sampling": workload.temperature > 0}


def products_of(gpu: Gpu, precision: str, rows: int, warps: int, sampling: bool = False) -> tuple[str, ...]:
    """Who may multiply a tile, the better first: with many greedy batch rows a Hopper has `warpgroup`s read it once for all, where their
    sums leave registers for that; a `warp` reads it once for every four rows."""
    grouped = gpu.compute_capability == WARPGROUP_CAPABILITY and precision == "int8x2" and rows >= WARPGROUP_ROWS and warps % 4 == 0 and not sampling
    return ("warpgroup", "warp") if grouped else ("warp",)


def _bare_kernels(gpu: Gpu, head: Head, precision: str, warps: int, rows: int, rounding: str, sampling: bool) -> tuple[Kernel, ...]:
    """Validate what is asked of a kernel, and return it without rows of state matrices, for each way to multiply."""
    require_word("rounding", rounding, ROUNDINGS)
    if rows not in KERNEL_ROWS:
        raise BadInput(f"rows is {rows!r}; kernels are built for {', '.join(map(str, KERNEL_ROWS))} batch rows")
    return tuple(Kernel(rows, rounding, sampling, head.kind, gru_elements(head), products=products) for products in products_of(gpu, precision, rows, warps, sampling))


def _keeping(kernel: Kernel, kept: tuple[int, int]) -> Kernel:
    """Return the kernel that keeps so many rows of the state matrix and of the projector."""
    return replace(kernel, state_rows=kept[0], projector_rows=kept[1])


def _suits(placement: Placement, kernel: Kernel) -> bool:
    """Whether who multiplies is meant for a placement, too."""
    return not (kernel.grouped and placement.streamed_tiles and kernel.rows < STREAMED_WARPGROUP_ROWS)


def _shared_limit(gpu: Gpu) -> int:
    """Shared memory that a block may have, in bytes."""
    return int(gpu.value("smem_bytes_per_block_optin"))


# --- the planner ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """What is planned for: tiles a warp and the kernel, which keeps as many rows of state matrices as it should."""

    slots: int
    rank: int
    precision: str
    mode: str
    warps: int
    kernel: Kernel


def slots_needed(vocab_size: int, grid_blocks: int, warps: int) -> int:
    """Tiles a warp of the busiest block: ceil(ceil(ceil(V / 16) / blocks) / warps)."""
    return -(-(-(-terms.tiles_of(vocab_size) // grid_blocks)) // warps)


def enumerate_placements(gpu: Gpu, head: Head, precision: str, mode: str, *, grid_blocks: int | None = None, warps: int = DEFAULT_WARPS,
                         rows: int = 1, rounding: str = "once", sampling: bool = False) -> Iterator[Placement]:
    """Yield every placement that fits, for the fused modes, in the planner's order of preference: `plan` returns the first.

    `resident` keeps as much as it can for each number of register slots: what does not fit streams, and each depth of the
    staging ring is a placement of its own. `streaming` keeps nothing.
    """
    for request in _requests(gpu, head, precision, mode, grid_blocks, warps, rows, rounding, sampling):
        fitting = sorted(_fitting(gpu, request), key=lambda placement: _cost(placement, gpu, request))
        yield from fitting
        if fitting:
            return


def plan(gpu: Gpu, head: Head, precision: str, mode: str, *, grid_blocks: int | None = None, warps: int = DEFAULT_WARPS, rows: int = 1,
         rounding: str = "once", sampling: bool = False) -> Placement:
    """Return the placement with the lowest predicted step.

    Streaming costs most, so the placement that takes the least time to stream wins, where a shallow ring takes longer; then the balance
    of tensor products against shared reads: registers are filled only until shared memory hides behind the products (with a tenth to
    spare), which keeps registers for the compiler. Ties go to the deeper staging ring, which holds more bytes in flight, up to
    STAGING_TARGET_BYTES. A recurrent head's matrices come before tiles; where none would fit beside them, they give way by quarters.

    Args:
        rows, rounding, sampling: what the kernel is built for; see `footprint.Kernel`.

    Raises:
        BadInput: rows for which no kernel is built, an unknown word.
        PlanError: nothing fits, with the shortage that binds.
        MissingFact: the GPU lacks sm_count or smem_bytes_per_block_optin.
    """
    requests = _requests(gpu, head, precision, mode, grid_blocks, warps, rows, rounding, sampling)
    for request in requests:
        best = _best(ByIdentity(gpu), request)
        if best is not None:
            return best
    raise PlanError(_shortage(gpu, head, requests[-1], gpu.sm_count if grid_blocks is None else grid_blocks))


@lru_cache(maxsize=1024)
def _best(key: ByIdentity, request: _Request) -> Placement | None:
    """Plan once for one Gpu object and number of tiles a warp: a vocabulary matters through that number only."""
    return min(_fitting(key.gpu, request), key=lambda placement: _cost(placement, key.gpu, request), default=None)


def _requests(gpu: Gpu, head: Head, precision: str, mode: str, grid_blocks: int | None, warps: int, rows: int, rounding: str,
              sampling: bool) -> tuple[_Request, ...]:
    """Validate, and return what to plan for: with the block's share of state matrices, then three quarters of it, down to none, for each way to multiply."""
    require_word("precision", precision, tuple(terms.BYTES_OF_PRECISION))
    require_word("mode", mode, ("streaming", "resident"))
    require_whole("warps", warps, 1, MAX_WARPS)
    bares = _bare_kernels(gpu, head, precision, warps, rows, rounding, sampling)
    gpu.require(["sm_count", "smem_bytes_per_block_optin"])
    blocks = gpu.sm_count if grid_blocks is None else grid_blocks
    require_grid(gpu, blocks)
    slots = slots_needed(head.padded_vocab_size, blocks, warps)
    share = state_placement(head, blocks)
    kernels = dict.fromkeys(_keeping(bare, (share[0] * quarters // 4, share[1] * quarters // 4)) for bare in bares for quarters in range(4, -1, -1))
    return tuple(_Request(slots, head.rank, precision, mode, warps, kernel) for kernel in kernels)


def _fitting(gpu: Gpu, request: _Request) -> Iterator[Placement]:
    """Yield the placements of that many tiles a warp: for each number of register and staging slots the one that keeps the most."""
    slots, resident = request.slots, request.mode == "resident"
    fit = _shared_slots(gpu, request)
    for register_slots in range(slots + 1 if resident else 1):
        if resident and _spills_whatever_streams(request, register_slots):
            return
        left = slots - register_slots
        for staging_slots in range(min(left, fit) + 1):
            most = min(fit - staging_slots, left - (1 if staging_slots else 0)) if resident else 0
            candidates = (_placement(request, register_slots, shared_slots, staging_slots) for shared_slots in range(most, -1, -1))
            fitting = (one for one in candidates if one and _suits(one, request.kernel) and capacity_problem(one, gpu, request.rank, request.precision, request.kernel) is None)
            yield from islice(fitting, 1)


def _spills_whatever_streams(request: _Request, register_slots: int) -> bool:
    """Whether that many register slots, and any more, spill however the rest is kept: sums of one quad, or of warpgroups, do not depend on what
    streams, and a stream only takes more registers."""
    kernel = request.kernel
    if kernel.quads > 1 and not kernel.grouped:
        return False
    whole = Placement(request.warps, register_slots * request.warps, (request.slots - register_slots) * request.warps, 0, 0)
    return not registers_claim(whole, request.rank, request.precision, kernel).fits


def _placement(request: _Request, register_slots: int, shared_slots: int, staging_slots: int) -> Placement | None:
    """The placement that streams the rest, or None where the ring contradicts that or a resident walk would keep nothing."""
    streamed_slots = request.slots - register_slots - shared_slots
    if (streamed_slots == 0) != (staging_slots == 0) or staging_slots > streamed_slots or request.mode == "resident" and streamed_slots == request.slots:
        return None
    counts = (register_slots, shared_slots, streamed_slots, staging_slots)
    return Placement(request.warps, *(count * request.warps for count in counts))


STAGING_TARGET_BYTES = 128 * 1024
"""Bytes in flight a multiprocessor beyond which a deeper ring is not expected to gain: three times latency × bandwidth of the
fastest L2 (0.8 µs under load × 50 bytes a ns). No record varies the ring yet."""

NOMINAL_STREAM_BYTES_A_CYCLE = 30
"""L2 feeds one multiprocessor of a busy chip so many bytes a cycle: 32 KiB in 0.55 µs of an H200, whose streaming walk took that for
each of its 9 slots (`2026-11-30-walks`). Orders placements only."""

NOMINAL_STREAM_LATENCY_CYCLES = 800
"""From asking for bytes to having them under load: with a ring that waited for whole tiles, one a warp, each streamed slot of an H200
took 0.9 µs, 0.35 above its bytes. Orders placements only."""

SHARED_HEADROOM = 0.9
"""Shared reads may take this share of the products' time and still hide."""

NOMINAL_SHARED_BYTES_A_CYCLE = 128
"""Shared memory of every architecture from sm_80 on feeds 128 bytes a cycle (Luo et al. 2024)."""

UNKNOWN_CLOCK_MHZ = 1000.0

NOMINAL_MMA_SHARE = 0.65
"""Share of the dense tensor rate that `mma.sync` reaches on Hopper (Luo et al. 2024: 62.9 to 67.8 %; `wgmma` reaches all of it); balance only."""


def _cost(placement: Placement, gpu: Gpu, request: _Request) -> tuple:
    """Order of preference of placements; smaller is better. Needs only datasheet facts."""
    staged = min(placement.staging_tiles * terms.tile_bytes(request.rank, request.precision), STAGING_TARGET_BYTES)
    excess = _shared_excess_us(placement, gpu, request) if placement.shared_tiles else 0.0
    return round(_stream_us(placement, gpu, request), 6), round(excess, 6), -staged, placement.register_tiles, placement.staging_tiles


def _stream_us(placement: Placement, gpu: Gpu, request: _Request) -> float:
    """Streaming of a step: streamed slots × max(slot / rate, (latency + half a slot / rate) / staging slots).

    An entry of the ring, half a tile, is asked for again as soon as it has been multiplied, and comes a latency and its own bytes
    later; so many of them as there are entries are on their way together, but not faster than the rate.
    """
    if not placement.streamed_tiles:
        return 0.0
    slot_cycles = placement.warps * terms.tile_bytes(request.rank, request.precision) / NOMINAL_STREAM_BYTES_A_CYCLE
    waits = max(slot_cycles, (NOMINAL_STREAM_LATENCY_CYCLES + slot_cycles / 2) * placement.warps / placement.staging_tiles)
    return us_from_cycles(placement.streamed_tiles / placement.warps * waits, _clock_mhz(gpu))


def _shared_excess_us(placement: Placement, gpu: Gpu, request: _Request) -> float:
    """Shared-memory reads of a step that the products do not hide. By warps resident tiles are read once a quad, streamed ones once for
    four quads; by warpgroups resident tiles once for four quads, streamed ones once, and for each reading of four tiles their operand, too.

    Of a GPU whose tensor rate is not known (one that is in no catalogue, say) half of the tiles are taken to hide, at a clock of 1 GHz
    where that is not known either: that orders placements, and says nothing about time.
    """
    kernel, size = request.kernel, terms.tile_bytes(request.rank, request.precision)
    if kernel.grouped:
        reads, streamed_reads, share = kernel.group_reads(placement), 1, 1.0
        operand = terms.group_operand_bytes(placement.tiles, request.rank, kernel.rows)
    else:
        reads, streamed_reads, share, operand = kernel.quads, -(-kernel.quads // 4), NOMINAL_MMA_SHARE, 0.0
    read = (placement.shared_tiles * reads + placement.streamed_tiles * streamed_reads) * size + operand
    rate = "int8_dense_ops_per_s" if request.precision == "int8x2" else "bf16_dense_flops_per_s"
    clock_mhz = _clock_mhz(gpu)
    if not (gpu.has(rate) and gpu.has("boost_clock_mhz")):
        hidden = kernel.quads * placement.tiles * size / 2
        return max(0.0, us_from_cycles((read - hidden) / NOMINAL_SHARED_BYTES_A_CYCLE, clock_mhz))
    shared_us = us_from_cycles(read / NOMINAL_SHARED_BYTES_A_CYCLE, clock_mhz)
    operations = kernel.quads * terms.product_operations(placement.tiles, request.rank, request.precision, 1)
    return max(0.0, shared_us - SHARED_HEADROOM * terms.products_us(operations, gpu.value(rate) / gpu.sm_count * share))


def _clock_mhz(gpu: Gpu) -> float:
    """Clock of the GPU, 1 GHz where it is not known."""
    return gpu.value("boost_clock_mhz") if gpu.has("boost_clock_mhz") else UNKNOWN_CLOCK_MHZ


def require_grid(gpu: Gpu, grid_blocks: int) -> None:
    """Raise PlanError unless all blocks of a grid can be resident at once, one a multiprocessor: blocks that wait for each other must be."""
    require_whole("grid_blocks", grid_blocks, 1, None)
    if grid_blocks > gpu.sm_count:
        raise PlanError(f"grid_blocks is {grid_blocks:,}; the blocks of a walk wait for each other, one on each multiprocessor, and {gpu.id} has "
                        f"{gpu.sm_count}. Give at most {gpu.sm_count}, or leave it out")


def _shared_slots(gpu: Gpu, request: _Request) -> int:
    """Slots a warp, resident or staging, that shared memory can hold at most, beside what is fixed; -1 where that alone does not fit."""
    slot_bytes = request.warps * terms.tile_bytes(request.rank, request.precision)
    bare = Placement(request.warps, 0, 0, request.slots * request.warps, request.warps)
    room = _shared_limit(gpu) - (shared_bytes(bare, request.rank, request.precision, request.kernel) - slot_bytes)
    return room // slot_bytes if room >= 0 else -1


def _shortage(gpu: Gpu, head: Head, request: _Request, blocks: int) -> str:
    """Explain why no placement fits, with needed and available bytes."""
    warps, slots, rows = request.warps, request.slots, request.kernel.rows
    more = f"more blocks (up to {gpu.sm_count}), " if blocks < gpu.sm_count else ""
    problem = capacity_problem(Placement(warps, 0, 0, slots * warps, warps), gpu, head.rank, request.precision, request.kernel)
    return (f"no {request.mode} placement of {head.name} in {request.precision} fits {gpu.id} on {blocks} block{'s' if blocks > 1 else ''} of {warps} warps "
            f"with {slots:,} tiles a warp{f' for {rows} batch rows' if rows > 1 else ''}: "
            f"{problem or 'no combination of registers and shared memory fits'}. "
            f"Use {more}fewer warps, {'a smaller batch, ' if rows > 1 else ''}a smaller rank or int8x2")
