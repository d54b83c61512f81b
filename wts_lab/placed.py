"""Every placement of a shape side by side: what the model predicts for it and what was measured, the planner's choice marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.placement import Placement, built_for, enumerate_placements
from cost_model.predict import predict
from cost_model.workload import OURS, is_experiment
from wts_lab.recordings import Recording, kept_recording, records_stamp, select_walks

if TYPE_CHECKING:
    import pandas

    from cost_model.fit import StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.workload import Workload


@dataclass(frozen=True)
class Placed:
    """One placement.

    Attributes:
        placement: tiles of a block.
        predicted_us: predicted step; None for a recorded placement that the model refuses.
        measured: fit of its recorded walks; None where there are none.
        registers_per_thread, spill_bytes: what the compiler said of the recorded kernel; None where it was not recorded.
        is_planned: whether the planner chooses it; is_chosen: whether the user did.
    """

    placement: Placement
    predicted_us: float | None
    measured: StepFit | None
    registers_per_thread: int | None
    spill_bytes: int | None
    is_planned: bool
    is_chosen: bool


def placed(gpu: Gpu, head: Head, workload: Workload, mode: str, chosen: Placement | None = None, *, records: Path | None = None) -> tuple[Placed, ...]:
    """Every placement that fits, of each depth of the staging ring the planner's favourite, and every recorded one; by register tiles.

    Args:
        chosen: a placement to mark; the planner's where None.
        records: folder of recorded runs; those that ship with the lab where None.

    Raises BadInput for a stepwise walk, which has no placement, and where nothing fits.
    """
    if mode == "stepwise":
        raise BadInput("mode is stepwise; a stepwise walk has no placement. Choose resident or streaming")
    ordered = list(enumerate_placements(gpu, head, workload.precision, mode, **built_for(workload)))
    if not ordered and chosen is None:
        from cost_model.placement import plan

        plan(gpu, head, workload.precision, mode, **built_for(workload))  # raises PlanError, which says what is short
    planned = ordered[0] if ordered else None
    fits = recorded_fits(gpu, head, workload, mode, records)
    shown = dict.fromkeys([*ordered[:1], *_favourites(ordered), *fits, *([chosen] if chosen is not None else [])])
    rows = [_placed(gpu, head, workload, mode, each, fits.get(each), each == planned, each == (chosen or planned)) for each in shown]
    return tuple(sorted(rows, key=lambda row: (row.placement.register_slots, row.placement.staging_tiles)))


def _favourites(ordered: list[Placement]) -> list[Placement]:
    """The first, in the planner's order, of each number of register tiles."""
    best: dict[int, Placement] = {}
    for each in ordered:
        best.setdefault(each.register_slots, each)
    return list(best.values())


def _placed(gpu: Gpu, head: Head, workload: Workload, mode: str, placement: Placement, recorded: Mapping | None, is_planned: bool, is_chosen: bool) -> Placed:
    """Predict one placement; a recorded one has run, so whether it fits is not asked."""
    try:
        predicted_us = predict(gpu, head, workload, mode, OURS, placement, ran=recorded is not None).step_us
    except BadInput:
        if recorded is None:
            raise
        predicted_us = None
    known = recorded or {}
    return Placed(placement, predicted_us, known.get("fit"), known.get("registers_per_thread"), known.get("spill_bytes"), is_planned, is_chosen)


def recorded_fits(gpu: Gpu, head: Head, workload: Workload, mode: str, records: Path | None = None) -> dict[Placement, dict]:
    """Placement -> fit, registers and spills of the walks recorded of this shape, mode, precision, batch, temperature and L2 state."""
    recording = kept_recording(gpu.id, records, records_stamp(gpu.id, records))
    return {} if recording is None else _fits(_walks(recording, head, workload, mode))


def _walks(recording: Recording, head: Head, workload: Workload, mode: str) -> pandas.DataFrame:
    frame = select_walks(
        recording, implementation=OURS, mode=mode, precision=workload.precision, head_kind=head.kind, vocab_size=head.vocab_size,
        rank=head.rank, batch=workload.batch, temperature=workload.temperature, l2_state=workload.l2_state,
    )  # fmt: skip
    return frame[~frame["exchange"].map(is_experiment).astype(bool)]


def _fits(frame: pandas.DataFrame) -> dict[Placement, dict]:
    """Fit each placement's rows; of several runs of one the newest stands."""
    from cost_model.fit import MIN_STEPS, fit_frame

    found: dict[Placement, dict] = {}
    columns = ["warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles"]
    rows = frame.sort_values([*columns, "recorded_at_utc"], kind="stable")
    for key, _ in groupby(rows[columns].itertuples(index=False, name=None)):
        own = rows[(rows[columns] == list(key)).all(axis=1)]
        if own["steps"].nunique() < MIN_STEPS:
            continue
        fit = fit_frame(own)[-1][1]
        if fit.usable:
            last = own.iloc[-1]
            found[Placement(*map(int, key))] = {"fit": fit, **{name: _whole(last[name]) for name in ("registers_per_thread", "spill_bytes")}}
    return found


def _whole(value: object) -> int | None:
    """A whole number, or None where it is not known."""
    import pandas

    return None if pandas.isna(value) else int(value)
