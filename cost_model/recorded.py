"""recorded: what a recorded series asked for, as the model takes it; its prediction, its class, and the case of its fused walk."""

from __future__ import annotations

from cost_model.fit import SeriesKey
from cost_model.fused import FusedCase, WalkWords, fused_case
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parameters import resolve
from cost_model.placement import DEFAULT_WARPS, Placement, kernel_beside
from cost_model.predict import Prediction, crowded_slots, fused_request, narrow_ring, predict, unchecked_parts, walk_sizes
from cost_model.walk_class import walk_class
from cost_model.workload import Workload

STEPS = 16
"""Walk length that a series, which has many, is predicted at; base logits of more steps take more room in L2."""


def predict_series(gpu: Gpu, key: SeriesKey, steps: int = STEPS) -> Prediction:
    """Return the prediction of a recorded series: its head, workload, mode, implementation, placement and grid.

    A placement that ran is not refused, whatever the planner thinks of it.
    """
    head, workload = asked_of_series(key, steps)
    if key.mode == "stepwise":
        variant = key.variant if not (key.implementation or "").startswith("torch") else None
        return predict(gpu, head, workload, "stepwise", key.implementation, variant=variant)
    placement = placement_of_series(key)
    return predict(gpu, head, workload, key.mode, placement=placement, grid_blocks=key.grid_blocks, ran=placement is not None)


def case_of_series(gpu: Gpu, key: SeriesKey, steps: int = STEPS) -> FusedCase:
    """Return the sizes of a recorded fused walk, or of a part of one."""
    head, workload = asked_of_series(key, steps)
    request, placement = fused_request(gpu, head, workload, key.grid_blocks), placement_of_series(key)
    kernel = kernel_beside(placement, gpu, request.head, workload.precision, grid_blocks=request.grid_blocks, **request.built)
    words = WalkWords(workload.precision, workload.l2_state, workload.logits_kept, kernel)
    return fused_case(gpu, resolve(gpu).curve, words, walk_sizes(request, head, workload, placement, kernel))


def unchecked_of_series(key: SeriesKey) -> tuple[str, ...]:
    """Name what of a recorded fused walk's step the calibration is not fitted to."""
    placement, (head, workload) = placement_of_series(key), asked_of_series(key)
    narrow, crowded = (False, False) if placement is None else (narrow_ring(placement, head.rank, workload.precision), crowded_slots(placement))
    return unchecked_parts(key.mode or "", head, workload, key.warps or DEFAULT_WARPS, narrow, crowded)


def streams_of_series(key: SeriesKey) -> bool:
    """Return whether any tiles of a recorded walk stream."""
    return (key.streamed_tiles or 0) > 0 or key.mode == "streaming"


def class_of_series(key: SeriesKey) -> str:
    """Return the class of a recorded fused walk."""
    return walk_class(*asked_of_series(key), streams_of_series(key))


def placement_of_series(key: SeriesKey) -> Placement | None:
    """Return the placement that ran; None where the record does not say."""
    if not key.warps:
        return None
    counts = (key.register_tiles, key.shared_tiles, key.streamed_tiles, key.staging_tiles, key.tensor_tiles)
    return Placement(key.warps, *(count or 0 for count in counts))


def asked_of_series(key: SeriesKey, steps: int = STEPS) -> tuple[Head, Workload]:
    """Return head and workload of a series."""
    target = key.target_vocab_size or key.vocab_size
    head = Head(f"markov-{key.vocab_size}-r{key.rank}", key.head_kind or "markov", key.vocab_size, target, key.padded_vocab_size or key.vocab_size, key.rank,
                key.hidden_size, key.gru_size, key.candidate_pool)
    workload = Workload(key.batch or 1, steps, key.temperature or 0.0, key.precision or "int8x2", key.rounding or "once", key.l2_state or "warm",
                        bool(key.logits_kept))
    return head, workload
