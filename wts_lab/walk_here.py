"""Resident walks on this machine's GPU where it has a usable one, else their recorded runs: the live part of notebooks that have no panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.gpu import load_gpu
from wts_lab.recordings import kept_recording, records_stamp
from wts_lab.study import capable_device, free_case_name, recognise
from wts_lab.walked import Walked, walked

if TYPE_CHECKING:
    from cost_model.head import Head
    from cost_model.workload import Workload

STEPS = (1, 7, 16)
PROCESSES, REPEATS = 1, 40
"""A quick look, whose intervals know nothing of other processes; records that others shall rest on are made by `wts-lab measure`."""


@dataclass(frozen=True)
class WalkedHere:
    """Walks, and in `label` where they were timed: measured here, or replayed from which GPU and date."""

    label: str
    walks: tuple[Walked, ...]


def walk_here(head: Head, workloads: Sequence[Workload], *, replay: str = "h200-sxm", out: Path | str = "out", records: Path | None = None) -> WalkedHere:
    """Time resident walks of a head, one for each workload.

    Args:
        workloads: batch, temperature, L2 state and kept logits of each.
        replay: catalogue id of the GPU that is replayed where there is none here; records: folder of its records, those that ship where None.
        out: folder that keeps a live run's record under `records/`.

    Raises what `wts_lab.bench.measure` raises; nothing where nothing was recorded: then walks are predicted, and the label says so.
    """
    device = capable_device()
    if device is not None:
        gpu = recognise(device)
        folder = _measure(head, workloads, gpu.id, Path(out) / "records")
        return WalkedHere(f"measured here: {device.name}", _walks(gpu.id, head, workloads, folder))
    recording = kept_recording(replay, records, records_stamp(replay, records))
    label = f"replayed: {recording.label}" if recording is not None else f"predicted only: never measured on {load_gpu(replay).name}"
    return WalkedHere(label, _walks(replay, head, workloads, records))


def _walks(gpu_id: str, head: Head, workloads: Sequence[Workload], records: Path | None) -> tuple[Walked, ...]:
    gpu = load_gpu(gpu_id)
    return tuple(walked(gpu, head, workload, "resident", records=records) for workload in workloads)


def _measure(head: Head, workloads: Sequence[Workload], gpu_id: str, folder: Path) -> Path:
    """Measure on this machine's GPU, and return the folder of the record."""
    from wts_lab.bench import measure, resident_case

    cases = [resident_case(head, batch=load.batch, temperature=load.temperature, logits_kept=load.logits_kept) for load in workloads]
    states = tuple(dict.fromkeys(load.l2_state for load in workloads))
    measure(cases, steps=STEPS, l2_states=states, processes=PROCESSES, repeats=REPEATS, out=folder, case_name=free_case_name(folder, gpu_id, "walks-here"), gpu=gpu_id)
    return folder
