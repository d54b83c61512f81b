"""placements: every way to lay the tiles of a head, each with its predicted cost, and the best.

The planner yields what fits, in an order that needs datasheet facts only. Here each one is predicted with all parameters that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cost_model import terms
from cost_model.footprint import registers_claim, shared_bytes
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parts import TILE_TERMS
from cost_model.placement import DEFAULT_WARPS, Kernel, Placement, PlanError, enumerate_placements, kernel_beside
from cost_model.predict import FusedRequest, Prediction, fused_request, predict
from cost_model.workload import Workload, require_word

FUSED_MODES = ("resident", "streaming")


@dataclass(frozen=True)
class PlacedWalk:
    """One placement and what it costs.

    Attributes:
        prediction: of the walk; holds the placement.
        rank: place by the time of the workload's call, 1 is the fastest; planned: whether the planner chooses it unasked.
        register_bytes, shared_bytes_resident, streamed_bytes, staging_bytes: of W2 a block, by tier; staging is where streamed tiles land.
        shared_bytes_total: shared memory of a block, all that the kernel keeps there included.
        registers_per_thread: what ptxas is expected to take.
        binding: the longest exposed term of the tiles.
    """

    prediction: Prediction
    rank: int
    planned: bool
    register_bytes: int
    shared_bytes_resident: int
    streamed_bytes: int
    staging_bytes: int
    shared_bytes_total: int
    registers_per_thread: int
    binding: str

    @property
    def placement(self) -> Placement:
        """Tiles of a block."""
        return self.prediction.placement

    @property
    def call_us(self) -> float:
        """Time of the workload's call."""
        return self.prediction.call_us()

    def as_row(self) -> dict:
        """Return plain values, one row of a table."""
        made, place = self.prediction, self.placement
        return {
            "rank": self.rank, "planned": self.planned, "mode": made.mode, "precision": made.precision, "warps": place.warps,
            "register_tiles": place.register_tiles, "shared_tiles": place.shared_tiles, "streamed_tiles": place.streamed_tiles,
            "staging_tiles": place.staging_tiles, "residency": place.residency, "step_us": made.step_us, "step_us_low": made.step_us_low,
            "step_us_high": made.step_us_high, "entry_us": made.entry_us, "call_us": self.call_us, "binding": self.binding,
            "registers_per_thread": self.registers_per_thread, "shared_bytes": self.shared_bytes_total, "register_bytes": self.register_bytes,
            "shared_bytes_resident": self.shared_bytes_resident, "streamed_bytes": self.streamed_bytes, "staging_bytes": self.staging_bytes,
        }


def predict_placements(gpu: Gpu, head: Head, workload: Workload, mode: str = "resident", *, warps: tuple[int, ...] = (DEFAULT_WARPS,),
                       grid_blocks: int | None = None) -> tuple[PlacedWalk, ...]:
    """Return every placement that the planner allows, fastest call first.

    Args:
        warps: numbers of warps a block to lay the tiles for.
        grid_blocks: as for `predict`.

    Raises:
        BadInput: as `predict`; PlanError where nothing fits.
    """
    require_word("mode", mode, FUSED_MODES)
    request = fused_request(gpu, head, workload, grid_blocks)
    found = [one for count in warps for one in _placed(gpu, request, head, workload, mode, count)]
    if not found:
        raise PlanError(f"no {mode} placement of {head.name} in {workload.precision} fits {gpu.id} with {' or '.join(map(str, warps))} warps; "
                        "use another number of warps, int8x2, a smaller batch, or mode streaming")
    found.sort(key=lambda one: (one.call_us, not one.planned))
    return tuple(replace(one, rank=rank) for rank, one in enumerate(found, start=1))


def best_placement(gpu: Gpu, head: Head, workload: Workload, *, warps: tuple[int, ...] = (DEFAULT_WARPS,)) -> PlacedWalk:
    """Return the placement with the fastest predicted call, resident or streaming.

    Raises:
        PlanError: neither mode fits.
    """
    found, refused = [], []
    for mode in FUSED_MODES:
        try:
            found.append(predict_placements(gpu, head, workload, mode, warps=warps)[0])
        except PlanError as error:
            refused.append(str(error))
    if not found:
        raise PlanError("; ".join(refused))
    return min(found, key=lambda one: one.call_us)


def _placed(gpu: Gpu, request: FusedRequest, head: Head, workload: Workload, mode: str, warps: int) -> Iterator[PlacedWalk]:
    """Predict the placements of one number of warps; the planner's own choice is its first, at its default warps."""
    asked = {"grid_blocks": request.grid_blocks, **request.built}
    for number, placement in enumerate(enumerate_placements(gpu, request.head, workload.precision, mode, warps=warps, **asked)):
        kernel = kernel_beside(placement, gpu, request.head, workload.precision, **asked)
        prediction = predict(gpu, head, workload, mode, placement=placement, grid_blocks=request.grid_blocks)
        yield _row(prediction, kernel, number == 0 and warps == DEFAULT_WARPS)


def _row(prediction: Prediction, kernel: Kernel, planned: bool) -> PlacedWalk:
    """Count the bytes of a placement."""
    place, rank, precision = prediction.placement, prediction.head.rank, prediction.precision
    size = terms.tile_bytes(rank, precision)
    step = prediction.terms["step"]
    return PlacedWalk(
        prediction, 0, planned, place.register_tiles * size, place.shared_tiles * size, place.streamed_tiles * size, place.staging_tiles * size,
        shared_bytes(place, rank, precision, kernel), registers_claim(place, rank, precision, kernel).registers_per_thread,
        max(TILE_TERMS, key=lambda name: step[name].exposed_us),
    )
