"""Placement: where the tiles of W2 lie in a block, and the planner that fills registers and shared memory.

Counts are tiles of one thread block. Tile i of a block belongs to warp i % warps, slot i // warps; a warp's slots are
ordered by tier: registers, shared memory, then streamed through the staging ring. So all counts but `tensor_tiles` are
multiples of `warps`.

What the compiler allows is a small model (`KernelLimits`), checked against ptxas for every placement that is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parameters import ByIdentity
from cost_model.units import us_from_cycles
from cost_model.workload import require_whole, require_word

DEFAULT_WARPS = 8
THREADS_A_WARP = 32
REGISTER_BYTES = 4
MAX_WARPS = 32
ROWS_A_BLOCK = 1 << 16
"""A row's index in its block has 16 bits in the kernel."""


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


# --- what the kernel and the compiler take --------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelLimits:
    """The compiler's behaviour on the walk kernel, as few numbers; fitted to ptxas for sm_90 (tests/cost_model/test_placement.py).

    Attributes:
        overhead_registers: registers of a thread beside tiles: addresses, loop state, running best, base logits.
        in_flight_registers: fragments that are on their way from shared memory to the tensor cores.
        max_registers: the instruction set's limit for a thread.
        spill_margin: registers below the limit at which ptxas starts to spill.
    """

    overhead_registers: int = 48
    in_flight_registers: int = 20
    max_registers: int = 255
    spill_margin: int = 0


LIMITS = KernelLimits()
REGISTER_GRANULE = 8
"""The hardware gives a warp registers in steps of 8 a thread (256 a warp)."""


@dataclass(frozen=True)
class RegisterClaim:
    """What the planner expects of ptxas.

    Attributes:
        registers_per_thread: estimate, capped at what the launch bounds allow. Where registers are not scarce (few or no
            register tiles) ptxas unrolls loads and takes more, up to the cap.
        wanted_registers: estimate before the cap.
        spills: whether the cap binds. False is a promise: ptxas reports no spilled byte and at most the cap. True only says
            that some were seen to spill (6 register tiles a warp: 0 to 52 bytes, and slower).
    """

    registers_per_thread: int
    wanted_registers: int
    spills: bool


def fragment_registers(rank: int, precision: str) -> int:
    """Registers of a thread that hold one tile: tile bytes / 32 lanes / 4 (rank / 8 in int8, rank / 4 in bf16)."""
    return terms.tile_bytes(rank, precision) // THREADS_A_WARP // REGISTER_BYTES


def accumulator_groups(slots: int) -> int:
    """Accumulators of a thread: up to four slots share one, at least three keep the tensor cores busy."""
    return -(-slots // 4) if slots > 12 else min(slots, 3)


def register_cap(warps: int, register_file_bytes: int = 65536 * REGISTER_BYTES, limits: KernelLimits = LIMITS) -> int:
    """Registers of a thread that one resident block of `warps` may use: the file's share, in granules, at most 255."""
    share = register_file_bytes // REGISTER_BYTES // (warps * THREADS_A_WARP)
    return min(limits.max_registers, share // REGISTER_GRANULE * REGISTER_GRANULE)


def registers_claim(placement: Placement, rank: int, precision: str, limits: KernelLimits = LIMITS) -> RegisterClaim:
    """Estimate registers a thread and whether ptxas will spill.

    wanted = register slots × fragment + 4 × accumulator groups + one register of base logits a group + overhead, and the
    fragments in flight where tiles come from shared memory.
    """
    groups = accumulator_groups(placement.slots)
    fed = limits.in_flight_registers if placement.shared_tiles or placement.staging_tiles else 0
    wanted = placement.register_slots * fragment_registers(rank, precision) + 5 * groups + limits.overhead_registers + fed
    cap = register_cap(placement.warps, limits=limits)
    return RegisterClaim(min(wanted, cap), wanted, wanted > cap - limits.spill_margin)


def shared_bytes(placement: Placement, rank: int, precision: str) -> int:
    """Shared memory of a block: resident and staged tiles, row scales (int8x2: 256 bytes a warp and accumulator group),
    one latent row with its header, one 4-byte key a warp."""
    tiles = (placement.shared_tiles + placement.staging_tiles) * terms.tile_bytes(rank, precision)
    scales = accumulator_groups(placement.slots) * placement.warps * THREADS_A_WARP * 8 if precision == "int8x2" else 0
    return tiles + scales + 2 * rank + LATENT_HEADER_BYTES + 4 * placement.warps


LATENT_HEADER_BYTES = 16


def capacity_problem(placement: Placement, gpu: Gpu, rank: int, precision: str) -> str | None:
    """Say why a placement does not fit the GPU, or None where it fits."""
    claim = registers_claim(placement, rank, precision)
    if claim.spills:
        groups = accumulator_groups(placement.slots)
        return (f"{placement.register_slots} register tiles a warp and the sums of {groups} accumulators want {claim.wanted_registers:,} registers a "
                f"thread; {register_cap(placement.warps)} are allowed at {placement.warps} warps")
    needed, available = shared_bytes(placement, rank, precision), int(gpu.value("smem_bytes_per_block_optin"))
    if needed > available:
        return f"{needed:,} bytes of shared memory are needed, {available:,} are available to a block of {gpu.id}"
    if placement.tiles * terms.TILE_ROWS > ROWS_A_BLOCK:
        return f"{placement.tiles} tiles a block exceed the kernel's {ROWS_A_BLOCK // terms.TILE_ROWS}"
    if placement.tensor_tiles:
        return "tensor memory is not used by the kernel yet; set tensor_tiles to 0"
    return None


# --- the planner ----------------------------------------------------------------------------------------------------------


def slots_needed(vocab_size: int, grid_blocks: int, warps: int) -> int:
    """Tiles a warp of the busiest block: ceil(ceil(ceil(V / 16) / blocks) / warps)."""
    return -(-(-(-terms.tiles_of(vocab_size) // grid_blocks)) // warps)


def enumerate_placements(gpu: Gpu, head: Head, precision: str, mode: str, *, grid_blocks: int | None = None,
                         warps: int = DEFAULT_WARPS) -> Iterator[Placement]:
    """Yield every placement that fits, for the fused modes, in the planner's order of preference: `plan` returns the first.

    `resident` keeps as much as it can for each number of register slots: what does not fit streams, and each depth of the
    staging ring is a placement of its own. `streaming` keeps nothing.
    """
    fitting = _fitting(gpu, _checked_slots(gpu, head, precision, mode, grid_blocks, warps), head.rank, precision, mode, warps)
    yield from sorted(fitting, key=lambda placement: _cost(placement, gpu, head.rank, precision))


def _fitting(gpu: Gpu, slots: int, rank: int, precision: str, mode: str, warps: int) -> Iterator[Placement]:
    """Yield the placements of that many tiles a warp."""
    fit = _shared_slots(gpu, rank, precision, warps, slots)
    for register_slots in range(slots + 1 if mode == "resident" else 1):
        left = slots - register_slots
        for staging_slots in range(min(left, fit) + 1):
            shared_slots = min(fit - staging_slots, left - (1 if staging_slots else 0)) if mode == "resident" else 0
            streamed_slots = left - shared_slots
            if (streamed_slots == 0) != (staging_slots == 0) or staging_slots > streamed_slots or streamed_slots == slots and mode == "resident":
                continue
            counts = (register_slots, shared_slots, streamed_slots, staging_slots)
            placement = Placement(warps, *(count * warps for count in counts))
            if capacity_problem(placement, gpu, rank, precision) is None:
                yield placement


def plan(gpu: Gpu, head: Head, precision: str, mode: str, *, grid_blocks: int | None = None,
         warps: int = DEFAULT_WARPS) -> Placement:
    """Return the placement with the lowest predicted step.

    Streaming costs most, so the least of it wins; then the balance of tensor products against shared reads: registers are
    filled only until shared memory hides behind the products (with a tenth to spare), which keeps registers for the
    compiler. Ties go to the deeper staging ring, which holds more bytes in flight, up to STAGING_TARGET_BYTES.

    Raises:
        PlanError: nothing fits, with the shortage that binds.
        MissingFact: the GPU lacks sm_count or smem_bytes_per_block_optin.
    """
    slots = _checked_slots(gpu, head, precision, mode, grid_blocks, warps)
    best = _best(ByIdentity(gpu), slots, head.rank, precision, mode, warps)
    if best is None:
        raise PlanError(_shortage(gpu, head, precision, mode, slots, warps, gpu.sm_count if grid_blocks is None else grid_blocks))
    return best


@lru_cache(maxsize=1024)
def _best(key: ByIdentity, slots: int, rank: int, precision: str, mode: str, warps: int) -> Placement | None:
    """Plan once for one Gpu object and number of tiles a warp: a vocabulary matters through that number only."""
    fitting = _fitting(key.gpu, slots, rank, precision, mode, warps)
    return min(fitting, key=lambda placement: _cost(placement, key.gpu, rank, precision), default=None)


STAGING_TARGET_BYTES = 128 * 1024
"""Bytes in flight a multiprocessor beyond which a deeper ring is not expected to gain: three times latency × bandwidth of the
fastest L2 (0.8 µs under load × 50 bytes a ns). No record varies the ring yet."""

STARVED_STAGING_BYTES = 32 * 1024
"""Bytes in flight below which the ring no longer covers latency × bandwidth (0.8 µs under load × 50 bytes a ns)."""

SHARED_HEADROOM = 0.9
"""Shared reads may take this share of the products' time and still hide."""

NOMINAL_SHARED_BYTES_A_CYCLE = 128
"""Shared memory of every architecture from sm_80 on feeds 128 bytes a cycle (Luo et al. 2024)."""

UNKNOWN_CLOCK_MHZ = 1000.0

NOMINAL_MMA_SHARE = 0.65
"""Share of the dense tensor rate that `mma.sync` reaches on Hopper (Luo et al. 2024: 62.9 to 67.8 %); balance only."""


def _cost(placement: Placement, gpu: Gpu, rank: int, precision: str) -> tuple:
    """Order of preference of placements; smaller is better. Needs only datasheet facts."""
    size = terms.tile_bytes(rank, precision)
    staged = min(placement.staging_tiles * size, STAGING_TARGET_BYTES)
    excess = _shared_excess_us(placement, gpu, rank, precision) if placement.shared_tiles else 0.0
    starved = placement.streamed_tiles > 0 and staged < min(STARVED_STAGING_BYTES, placement.streamed_tiles * size)
    return starved, placement.streamed_tiles, round(excess, 6), -staged, placement.register_tiles, placement.staging_tiles


def _shared_excess_us(placement: Placement, gpu: Gpu, rank: int, precision: str) -> float:
    """Shared-memory reads of a step that the products do not hide.

    Of a GPU whose tensor rate or clock is not known (one that is in no catalogue, say) half of the tiles are taken to hide, at
    a clock of 1 GHz: that orders placements, and says nothing about time.
    """
    read = (placement.shared_tiles + placement.streamed_tiles) * terms.tile_bytes(rank, precision)
    rate = "int8_dense_ops_per_s" if precision == "int8x2" else "bf16_dense_flops_per_s"
    if not (gpu.has(rate) and gpu.has("boost_clock_mhz")):
        hidden = placement.tiles * terms.tile_bytes(rank, precision) / 2
        return max(0.0, us_from_cycles((read - hidden) / NOMINAL_SHARED_BYTES_A_CYCLE, UNKNOWN_CLOCK_MHZ))
    shared_us = us_from_cycles(read / NOMINAL_SHARED_BYTES_A_CYCLE, gpu.value("boost_clock_mhz"))
    operations = terms.product_operations(placement.tiles, rank, precision, 1)
    return max(0.0, shared_us - SHARED_HEADROOM * terms.products_us(operations, gpu.value(rate) / gpu.sm_count * NOMINAL_MMA_SHARE))


def _checked_slots(gpu: Gpu, head: Head, precision: str, mode: str, grid_blocks: int | None, warps: int) -> int:
    """Validate the request and return the tiles a warp."""
    require_word("precision", precision, tuple(terms.BYTES_OF_PRECISION))
    require_word("mode", mode, ("streaming", "resident"))
    require_whole("warps", warps, 1, MAX_WARPS)
    gpu.require(["sm_count", "smem_bytes_per_block_optin"])
    blocks = gpu.sm_count if grid_blocks is None else grid_blocks
    require_grid(gpu, blocks)
    return slots_needed(head.padded_vocab_size, blocks, warps)


def require_grid(gpu: Gpu, grid_blocks: int) -> None:
    """Raise PlanError unless all blocks of a grid can be resident at once, one a multiprocessor: blocks that wait for each other must be."""
    require_whole("grid_blocks", grid_blocks, 1, None)
    if grid_blocks > gpu.sm_count:
        raise PlanError(f"grid_blocks is {grid_blocks:,}; the blocks of a walk wait for each other, one on each multiprocessor, and {gpu.id} has "
                        f"{gpu.sm_count}. Give at most {gpu.sm_count}, or leave it out")


def _shared_slots(gpu: Gpu, rank: int, precision: str, warps: int, slots: int) -> int:
    """Slots a warp, resident or staging, that shared memory holds beside what is fixed; -1 where that alone does not fit."""
    fixed = shared_bytes(Placement(warps, slots * warps, 0, 0, 0), rank, precision)
    room = int(gpu.value("smem_bytes_per_block_optin")) - fixed
    return room // (warps * terms.tile_bytes(rank, precision)) if room >= 0 else -1


def _shortage(gpu: Gpu, head: Head, precision: str, mode: str, slots: int, warps: int, blocks: int) -> str:
    """Explain why no placement fits, with needed and available bytes."""
    more = f"more blocks (up to {gpu.sm_count}), " if blocks < gpu.sm_count else ""
    problem = capacity_problem(Placement(warps, 0, 0, slots * warps, warps), gpu, head.rank, precision)
    return (f"no {mode} placement of {head.name} in {precision} fits {gpu.id} on {blocks} block{'s' if blocks > 1 else ''} of {warps} warps with "
            f"{slots:,} tiles a warp: {problem or 'no combination of registers and shared memory fits'}. Use {more}fewer warps, a smaller rank or int8x2")
