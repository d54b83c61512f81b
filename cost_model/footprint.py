"""Footprint: shared memory and registers that a walk kernel takes for a placement, as the compiler would say.

Shared memory is counted exactly (`csrc/walk/config.cuh`; a test asks the compiler). Registers are a small model with a promise:
what it does not call spilling, ptxas compiles for sm_90 without a spill (tests/wts_lab/test_build.py, and every recorded walk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_model import terms
from cost_model.elementwise import Number, choose
from cost_model.head_state import RECURRENT_KINDS, state_bytes
from cost_model.workload import MAX_BATCH, require_whole

if TYPE_CHECKING:
    from cost_model.placement import Placement

THREADS_A_WARP = 32
REGISTER_BYTES = 4
LATENT_HEADER_BYTES = 16
NARROW_ROWS = 1 << 11
"""Matrix rows of a block that a 32-bit exchange word tells apart; more take 64-bit words."""

KERNEL_ROWS = (1, 2, 4, 8, 16, 32)
"""Batch rows that kernels are built for."""

QUAD = 4
"""Batch rows of one tensor product: each takes a pair of its 8 columns."""

QUADS_TOGETHER = 4
"""Quads that are multiplied with one reading of a tile: by warps of a streamed one, by warpgroups of a resident one."""


def kernel_rows(batch: int) -> int:
    """Batch rows of the kernel that walks `batch` rows: the next of 1, 2, 4, 8, 16, 32."""
    require_whole("batch", batch, 1, MAX_BATCH)
    return next(rows for rows in KERNEL_ROWS if rows >= batch)


@dataclass(frozen=True)
class Kernel:
    """What a walk kernel is built for, beside rank, precision and placement; the default is one greedy row of a Markov head.

    Attributes:
        rows: batch rows, one of KERNEL_ROWS.
        rounding: of the logits, one of `workload.ROUNDINGS`.
        sampling: whether rows may have a temperature.
        head: kind of head; gru: elements of Domino's state.
        state_rows, projector_rows: rows of a recurrent head's matrices that a block keeps (`head_state.state_placement`).
        products: who multiplies a tile: a `warp` with up to four batch rows, or a `warpgroup` four tiles with all rows at once.
    """

    rows: int = 1
    rounding: str = "once"
    sampling: bool = False
    head: str = "markov"
    gru: int = 0
    state_rows: int = 0
    projector_rows: int = 0
    products: str = "warp"

    @property
    def grouped(self) -> bool:
        """Whether warpgroups multiply."""
        return self.products == "warpgroup"

    def group_reads(self, placement: Placement) -> int:
        """Times that warpgroups read each resident tile in a step."""
        return group_reads(self.quads, placement.streamed_tiles)

    @property
    def quads(self) -> int:
        """Batch rows by fours: how often a warp multiplies each tile in a step."""
        return -(-self.rows // QUAD)

    @property
    def packed(self) -> int:
        """Slots that share the four column pairs of an accumulator: 4 for one batch row, 2 for two, else 1."""
        return max(1, QUAD // self.rows)

    def wide(self, placement: Placement) -> bool:
        """Whether its words have 64 bits."""
        return needs_wide_words(placement, rounding=self.rounding, sampling=self.sampling)


GREEDY_ROW = Kernel()


def group_reads(quads: int, streamed_tiles: Number) -> Number:
    """Times that warpgroups read each resident tile in a step: once for four quads, but once for all where tiles stream."""
    return choose(streamed_tiles > 0, 1, -(-quads // QUADS_TOGETHER))


def needs_wide_words(placement: Placement, *, rounding: str = "once", sampling: bool = False) -> bool:
    """Whether exchange words take 64 bits: values are compared in fp32, or the block has more matrix rows than 11 bits tell apart."""
    return sampling or rounding == "none" or placement.tiles * terms.TILE_ROWS > NARROW_ROWS


# --- shared memory --------------------------------------------------------------------------------------------------------


def shared_bytes(placement: Placement, rank: int, precision: str, kernel: Kernel = GREEDY_ROW) -> int:
    """Shared memory of a block: resident and staged tiles; row scales (int8x2); a latent a batch row; keys, tokens,
    halt flag and temperatures, and what bounds of noise are made with where sampled rows' tiles stream; what a recurrent head keeps. Parts start at
    multiples of 16 or 128 bytes."""
    tiles = (placement.shared_tiles + placement.staging_tiles) * terms.tile_bytes(rank, precision)
    scales = _scale_bytes(placement, kernel) if precision == "int8x2" else 0
    latents = _latent_bytes(rank, kernel)
    keys = _up(8 * kernel.rows * (placement.warps if kernel.wide(placement) else 1), 16)
    flags = _up(4 * kernel.rows + 4 + (4 * kernel.rows if kernel.sampling else 0), 16)
    bounds = 16 * kernel.rows if kernel.sampling and kernel.quads > 1 and placement.streamed_tiles else 0
    state = state_bytes(kernel.head, kernel.rows, rank, kernel.gru, kernel.state_rows, kernel.projector_rows)
    return _up(tiles + scales, 128) + latents + keys + flags + bounds + state


def _latent_bytes(rank: int, kernel: Kernel) -> int:
    """A latent a batch row, padded against bank conflicts; for warpgroups k-steps of 32 elements of all rows, and a header a row."""
    if kernel.grouped:
        return rank // 32 * (2 * 32 * kernel.rows + 32) + kernel.rows * LATENT_HEADER_BYTES
    return kernel.rows * (_up(2 * rank + LATENT_HEADER_BYTES, 128) + 64)


def _scale_bytes(placement: Placement, kernel: Kernel) -> int:
    """A float a matrix row, and 32 bytes a slot that keep a lane's columns in different banks; empty columns have slots too."""
    slots = max(placement.slots, kernel.packed * accumulator_groups(placement, kernel))
    return slots * (placement.warps * terms.TILE_ROWS * 4 + 32)


def _up(bytes_: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-bytes_ // multiple) * multiple


# --- registers ------------------------------------------------------------------------------------------------------------


def accumulator_groups(placement: Placement, kernel: Kernel = GREEDY_ROW) -> int:
    """Accumulators of a thread: slots share one where they can, but three keep the tensor cores busy. With several quads streamed slots
    are multiplied on their own. None for warpgroups, which take slot by slot."""
    if kernel.grouped:
        return 0
    joint = placement.slots - (placement.streamed_tiles // placement.warps if kernel.quads > 1 else 0)
    return max(-(-joint // kernel.packed), min(joint, 3))


@dataclass(frozen=True)
class KernelLimits:
    """The compiler's behaviour on the walk kernel, as few numbers: registers of a thread beside tiles, sums and base logits.

    Fitted to ptxas of CUDA 13.0 for sm_90: some 50 shapes, each with the most register tiles that do not spill.

    Attributes:
        overhead_registers: addresses, loop state, fragments in flight, running best.
        led_row_registers: of each further batch row that a warp exchanges words of.
        stream_registers: the staging ring.
        wide_registers: of 64-bit words, for each accumulator.
        quads_registers: of the loop over several quads.
        quad_registers: running best and base logits of each quad, where streamed tiles are multiplied with all of them.
        exact_registers: of fp32 logits (rounding `none`), for each accumulator.
        noise_registers: of noise where several quads are walked; noise_quad_registers: the same for each quad that a streamed tile is
            multiplied with.
        gated_registers: of latents that leaders compute, where several quads are walked.
        recurrent_stream_registers: of a state beside the staging ring.
        group_registers: of a warpgroup, for each quad that it multiplies at once, beside sums and base logits: best row, scales and place
            of its base logits; group_stream_registers: where tiles stream, too.
        group_recurrent_registers: of a warpgroup beside a state; group_readings_registers: where it reads its tiles more than once.
        group_wide_registers: of a warpgroup's 64-bit words.
        max_registers: the instruction set's limit for a thread.
    """

    overhead_registers: int = 59
    led_row_registers: int = 6
    stream_registers: int = 14
    wide_registers: int = 1
    quads_registers: int = 1
    quad_registers: int = 3
    exact_registers: int = 3
    noise_registers: int = 32
    noise_quad_registers: int = 6
    gated_registers: int = 4
    recurrent_stream_registers: int = 8
    group_registers: int = 4
    group_stream_registers: int = 3
    group_recurrent_registers: int = 31
    group_readings_registers: int = 7
    group_wide_registers: int = 64
    max_registers: int = 255


LIMITS = KernelLimits()
REGISTER_GRANULE = 8
"""The hardware gives a warp registers in steps of 8 a thread (256 a warp)."""


GROUP_SLOTS = 9
"""Slots up to which warpgroups keep that promise, of those whose code stands by itself (`own_code_slots`). Of those with more some spill a few bytes: 16 with 8
rows and 96 with 16 at ten slots (2026-11-30-grid-greedy). The planner takes them all the same: with ten slots a step took a tenth more than with nine, with 16
rows a sixth, and a slot that streams instead takes half a microsecond."""

LOOPED_SLOTS, LOOPED_RANK = 10, 256
"""Where tiles of more than 16 greedy rows stream, streamed slots are walked in a loop above one of these (`loops` of csrc/walk/config.cuh)."""


@dataclass(frozen=True)
class RegisterClaim:
    """What the planner expects of ptxas.

    Attributes:
        registers_per_thread: estimate, capped at what the launch bounds allow. Where registers are not scarce (few or no
            register tiles) ptxas unrolls loads and takes more, up to the cap.
        wanted_registers: estimate before the cap.
        fits: whether the cap does not bind, which the planner asks for.
        spills: False is a promise: ptxas reports no spilled byte and at most the cap. True only says that some were seen to spill: where the cap
            binds, and a few bytes with more than ``GROUP_SLOTS`` slots of a warpgroup outside its loop.
    """

    registers_per_thread: int
    wanted_registers: int
    fits: bool
    spills: bool


def fragment_registers(rank: int, precision: str) -> int:
    """Registers of a thread that hold one tile: tile bytes / 32 lanes / 4 (rank / 8 in int8, rank / 4 in bf16)."""
    return terms.tile_bytes(rank, precision) // THREADS_A_WARP // REGISTER_BYTES


def register_cap(warps: int, register_file_bytes: int = 65536 * REGISTER_BYTES, limits: KernelLimits = LIMITS) -> int:
    """Registers of a thread that one resident block of `warps` may use: the file's share, in granules, at most 255."""
    share = register_file_bytes // REGISTER_BYTES // (warps * THREADS_A_WARP)
    return min(limits.max_registers, share // REGISTER_GRANULE * REGISTER_GRANULE)


def registers_claim(placement: Placement, rank: int, precision: str, kernel: Kernel = GREEDY_ROW, limits: KernelLimits = LIMITS) -> RegisterClaim:
    """Estimate registers a thread and whether ptxas will spill.

    wanted = register slots × fragment + sums + what `KernelLimits` adds for the kernel, where sums are 4 of each accumulator or, with
    several quads, 4 of each of up to four quads of a streamed tile; for warpgroups see `_group_registers`.
    """
    resident = placement.register_slots * fragment_registers(rank, precision) + limits.overhead_registers
    resident += (-(-kernel.rows // placement.warps) - 1) * limits.led_row_registers + limits.stream_registers * (placement.streamed_tiles > 0)
    wanted = resident + (_group_registers(placement, kernel, limits) if kernel.grouped else _warp_registers(placement, kernel, limits))
    cap = register_cap(placement.warps, limits=limits)
    fits = wanted <= cap
    return RegisterClaim(min(wanted, cap), wanted, fits, not fits or kernel.grouped and own_code_slots(placement, rank, kernel) > GROUP_SLOTS)


def own_code_slots(placement: Placement, rank: int, kernel: Kernel) -> int:
    """Slots of a warpgroup whose code stands by itself: all of them, but for streamed ones that are walked in a loop, two a turn after the first slot."""
    streamed = placement.streamed_tiles // placement.warps
    if kernel.quads <= QUADS_TOGETHER or not streamed or placement.slots <= LOOPED_SLOTS and rank <= LOOPED_RANK:
        return placement.slots
    return placement.slots - (streamed - (streamed == placement.slots)) // 2 * 2


def _warp_registers(placement: Placement, kernel: Kernel, limits: KernelLimits) -> int:
    """Sums of all slots that a warp multiplies side by side, or of the quads of a streamed tile, and what noise and heads add."""
    streams, together = placement.streamed_tiles > 0, min(kernel.quads, QUADS_TOGETHER)
    wide = limits.wide_registers * kernel.wide(placement) + limits.exact_registers * (kernel.rounding == "none")
    sums = accumulator_groups(placement, kernel) * (4 + wide)
    if streams and kernel.quads > 1:
        sums = max(sums, 4 * together + limits.quad_registers * kernel.quads)
    sums += limits.quads_registers * (kernel.quads > 1)
    if kernel.sampling and kernel.quads > 1:
        sums += limits.noise_registers + together * limits.noise_quad_registers * streams
    if kernel.head == "gated" and kernel.quads > 1:
        sums += limits.gated_registers
    if kernel.head in RECURRENT_KINDS and streams:
        sums += limits.recurrent_stream_registers
    return sums


def _group_registers(placement: Placement, kernel: Kernel, limits: KernelLimits) -> int:
    """Of each quad that is multiplied at once (up to four, but all where tiles stream) the sums of two slots, base logits of those ahead
    (`slots_ahead` of csrc/walk/config.cuh), and more."""
    streams = placement.streamed_tiles > 0
    together = -(-kernel.quads // kernel.group_reads(placement))
    ahead = 7 if together <= 2 else 3 if together == 4 else 2
    registers = (4 * 2 + ahead + limits.group_registers + limits.group_stream_registers * streams) * together
    registers += limits.group_readings_registers * (kernel.group_reads(placement) > 1)
    return registers + limits.group_wide_registers * kernel.wide(placement) + limits.group_recurrent_registers * (kernel.head in RECURRENT_KINDS)
