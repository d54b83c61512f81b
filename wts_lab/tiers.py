"""Where the matrix W2 sits in a GPU's memory tiers, for one placement: the numbers behind the tier figure.

Everything is bytes.  One block runs on each multiprocessor, so a block's tier is a multiprocessor's, and the chip's on-chip
tiers are those of all multiprocessors together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_model.terms import matrix_bytes, tile_bytes
from cost_model.units import BYTES_PER_GB

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.placement import Placement


@dataclass(frozen=True)
class Tier:
    """One memory tier in one scope.

    Attributes:
        name: 'registers', 'shared memory', 'L2' or 'HBM'.
        scope: 'block' (one multiprocessor) or 'chip'.
        capacity_bytes: size of the tier.
        kept_bytes: W2 that a step reads from here.
        at_rest_bytes: W2 that lies here but is read only when a walk begins.
        landing_bytes: room kept for streamed tiles that pass through.
    """

    name: str
    scope: str
    capacity_bytes: float
    kept_bytes: float
    at_rest_bytes: float = 0.0
    landing_bytes: float = 0.0


def memory_tiers(gpu: Gpu, head: Head, precision: str, placement: Placement | None) -> tuple[Tier, ...]:
    """Tiers of a block, then of the chip.  `placement` None is a stepwise walk, which keeps nothing on chip.

    The streamed part is read from L2 each step where all of it fits there, else from HBM.  W2 itself always lies in HBM.
    A chip total counts whole tiles of every block, so it may exceed W2 by the padding of the last tiles.
    """
    tile = tile_bytes(head.rank, precision)
    whole = matrix_bytes(head.vocab_size, head.rank, precision)
    registers = tile * placement.register_tiles if placement is not None else 0
    shared = tile * placement.shared_tiles if placement is not None else 0
    landing = tile * placement.staging_tiles if placement is not None else 0
    blocks = gpu.sm_count
    on_chip = min(whole, blocks * (registers + shared))
    streamed = whole - on_chip
    in_l2 = streamed if streamed <= gpu.value("l2_bytes") else 0
    tiers = [
        Tier("registers", "block", gpu.value("register_file_bytes_per_sm"), registers),
        Tier("shared memory", "block", gpu.value("smem_bytes_per_sm"), shared, 0.0, landing),
        Tier("registers", "chip", blocks * gpu.value("register_file_bytes_per_sm"), blocks * registers),
        Tier("shared memory", "chip", blocks * gpu.value("smem_bytes_per_sm"), blocks * shared, 0.0, blocks * landing),
        Tier("L2", "chip", gpu.value("l2_bytes"), in_l2),
        Tier(
            "HBM",
            "chip",
            _memory_bytes(gpu),
            0 if in_l2 or not streamed else streamed,
            whole if in_l2 or not streamed else on_chip,
        ),
    ]
    return tuple(tiers)


def _memory_bytes(gpu: Gpu) -> float:
    """Device memory: what the driver shows, or else what the maker names."""
    return gpu.value("dram_visible_bytes") if gpu.has("dram_visible_bytes") else gpu.value("dram_nominal_gb") * BYTES_PER_GB
