"""What to build for a walk: the grid, the placement and the instantiation. Needs no torch and no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_model.errors import BadInput
from cost_model.footprint import Kernel
from cost_model.gpu import Gpu
from cost_model.head import Head, walked_shape
from cost_model.placement import Placement, kernel_beside, kernel_rows, plan
from cost_model.terms import tiles_of
from cost_model.workload import MAX_BATCH, PRECISIONS, ROUNDINGS, require_whole, require_word
from wts_lab.abi import CONSTANTS, WalkSpec, k_steps, staging_steps


@dataclass(frozen=True)
class WalkPlan:
    """What to build for a request: blocks of the grid, tiles of a block, and the instantiation."""

    grid_blocks: int
    placement: Placement
    spec: WalkSpec


def plan_walk(
    gpu: Gpu,
    shape: Head,
    *,
    mode: str,
    precision: str = "int8x2",
    placement: Placement | None = None,
    max_batch: int = 1,
    rounding: str = "once",
    sampling: bool = False,
    probe: str = "none",
) -> WalkPlan:
    """The plan of a walk of ``shape`` on ``gpu``; the planner's placement where none is given.

    Raises ``ValueError`` for a bad argument or a placement that cannot hold the matrix or contradicts the mode, ``PlanError`` where
    nothing fits.
    """
    require_word("mode", mode, ("streaming", "resident"))
    require_word("precision", precision, PRECISIONS)
    walked, wanted = planner_request(gpu, shape, max_batch=max_batch, rounding=rounding, sampling=sampling)
    chosen = placement or plan(gpu, walked, precision, mode, **wanted)
    _check_placement(chosen, mode, tiles_of(walked.vocab_size), wanted["grid_blocks"])
    kernel = kernel_beside(chosen, gpu, walked, precision, **wanted)
    return WalkPlan(wanted["grid_blocks"], chosen, walk_spec(chosen, kernel, walked.rank, precision, probe))


def planner_request(
    gpu: Gpu, head: Head, *, max_batch: int = 1, rounding: str = "once", sampling: bool = False
) -> tuple[Head, dict[str, Any]]:
    """What the planner is asked for a walk: the shape as the kernel sees it, and the planner's arguments ``grid_blocks``, ``rows``,
    ``rounding`` and ``sampling``. A block has a tile at least; candidate pools are walked a batch row at a time.

    Raises ``BadInput`` for a batch or word outside what is allowed, and for a domino head that is to sample.
    """
    require_whole("max_batch", max_batch, 1, MAX_BATCH)
    require_word("rounding", rounding, ROUNDINGS)
    if sampling and head.kind == "domino":
        raise BadInput("domino heads draft greedily; prepare the walk without sampling, at temperature 0")
    walked = walked_shape(head)
    rows = kernel_rows(max_batch) if head.candidate_pool is None else 1
    grid_blocks = min(gpu.sm_count, CONSTANTS["kMaxBlocks"], tiles_of(walked.vocab_size))
    return walked, {"grid_blocks": grid_blocks, "rows": rows, "rounding": rounding, "sampling": sampling}


def walk_spec(placement: Placement, kernel: Kernel, rank: int, precision: str, probe: str = "none") -> WalkSpec:
    """The instantiation of a kernel with a placement."""
    warps, entry = placement.warps, staging_steps(rank, precision)
    return WalkSpec(
        warps=warps, register_slots=placement.register_tiles // warps, shared_slots=placement.shared_tiles // warps,
        streamed_slots=placement.streamed_tiles // warps, staging_entries=placement.staging_tiles * k_steps(rank, precision) // entry // warps,
        rows=kernel.rows, rank=rank, precision=precision, rounding=kernel.rounding, sampling=kernel.sampling, wide=kernel.wide(placement),
        products=kernel.products, head=kernel.head, gru=kernel.gru, state_rows=kernel.state_rows, projector_rows=kernel.projector_rows, probe=probe,
    )


def _check_placement(placement: Placement, mode: str, tiles: int, grid_blocks: int) -> None:
    needed = -(-tiles // grid_blocks)
    if placement.tiles < needed:
        raise ValueError(f"the placement holds {placement.tiles} tiles a block; {tiles} tiles over {grid_blocks} blocks need {needed}")
    if mode == "streaming" and placement.register_tiles + placement.shared_tiles:
        raise ValueError("a streaming walk keeps nothing on chip; give a placement of streamed and staging tiles, or mode resident")
