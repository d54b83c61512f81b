"""Recorded probes of a walk's step: its phases by clocks, and steps that leave a part out; rows of records found by head and load.

`Recording` holds whole walks; this module holds what takes them apart. Frames are kept as long as the files stay as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.measurement import NO_PROBE, read_walk_folder
from wts_lab.recordings import Stamp, measurements_root, records_stamp

if TYPE_CHECKING:
    import pandas

    from cost_model.fit import StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.workload import Workload

PHASE_PROBE = "walk_phase"
PART_PROBES = {"fixed_latent": "without the agreement", "walk_exchange": "without products and selection", "walk_state": "without either"}
"""Probes that leave something out of a step, with what they leave out. A recurrent head advances its state in all of them."""


@dataclass(frozen=True)
class Dissection:
    """A step taken apart.

    Attributes:
        phases_us: phase -> median over blocks in microseconds, in the order in which a step passes through them; they sum to the step, clocks read
            included. Empty where no phases were recorded.
        parts: what is left out -> fit of calls without it, the slope what is left of a step; empty where none were recorded.
        label: GPU and dates, empty where nothing was recorded.
    """

    phases_us: Mapping[str, float]
    parts: Mapping[str, StepFit]
    label: str


def dissect(gpu: Gpu, head: Head, workload: Workload, *, records: Path | None = None) -> Dissection:
    """The newest phases and parts of a resident step that were recorded; `records` as in `walked`."""
    from cost_model.fit import MIN_STEPS, fit_steps

    frame = matching_rows(probe_rows(gpu, records), {"mode": "resident", **walk_columns(head, workload)})
    found = {probe: newest(frame[frame["probe"] == probe]) for probe in (PHASE_PROBE, *PART_PROBES)}
    phases_us = {row.variant: float(statistics.median(row.samples_us)) for row in found[PHASE_PROBE].itertuples()}
    parts = {name: fit_steps(found[probe]) for probe, name in PART_PROBES.items() if found[probe]["steps"].nunique() >= MIN_STEPS}
    days = sorted(str(moment)[:10] for rows in found.values() for moment in rows["recorded_at_utc"])
    label = f"{frame['gpu_name'].iloc[0]}, recorded {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    return Dissection(phases_us, parts, label)


def walk_columns(head: Head, workload: Workload) -> dict[str, Any]:
    """The columns of a record that a walk of this head and load has; those of another rounding are experiments. A Markov head reads no hidden vector."""
    return {
        "head_kind": head.kind, "vocab_size": head.vocab_size, "rank": head.rank, "gru_size": head.gru_size, "candidate_pool": head.candidate_pool,
        "batch": workload.batch, "temperature": workload.temperature, "precision": workload.precision, "l2_state": workload.l2_state,
        "logits_kept": workload.logits_kept, **({} if head.kind == "markov" else {"hidden_size": head.hidden_size}),
    }  # fmt: skip


def matching_rows(frame: pandas.DataFrame, wanted: Mapping[str, Any]) -> pandas.DataFrame:
    """Rows whose columns equal the wanted values; None stands for unknown."""
    for name, value in wanted.items():
        frame = frame[frame[name].isna() if value is None else (frame[name] == value).fillna(False).astype(bool)]
    return frame


def newest(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the run that began last; no row of no rows."""
    if frame.empty:
        return frame
    begun = frame.groupby("run_id")["recorded_at_utc"].transform("min")
    return frame[begun == begun.max()]


def probe_rows(gpu: Gpu, records: Path | None = None) -> pandas.DataFrame:
    """All recorded probes of a GPU as one frame; without rows where nothing is recorded."""
    return _kept_probes(gpu.id, records, records_stamp(gpu.id, records))


@lru_cache(maxsize=4)
def _kept_probes(gpu_id: str, records: Path | None, stamp: Stamp) -> pandas.DataFrame:
    """Read once for each stamp of the files."""
    import pandas

    from cost_model.measurement import WALK_COLUMNS

    if not stamp:
        return pandas.DataFrame(columns=[*WALK_COLUMNS, "record"])
    frame = read_walk_folder((measurements_root() if records is None else Path(records)) / gpu_id)
    return frame[frame["probe"] != NO_PROBE]
