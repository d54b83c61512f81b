"""What the benchmarks that measure in their own process share: a record's place, its provenance, and passing over what is recorded."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cost_model.measurement import record_path, require_new, require_place, walk_row, write_walk
from wts_lab import environment, nvml

PROCESS = 0

Measure = Callable[[nvml.NvmlDevice], list[dict[str, Any]]]
"""Measures on the GPU of that device and returns rows without provenance."""


def passed_over(out: Path, case_name: str, gpu: str | None = None) -> bool:
    """Whether a folder has a record of that name, from whatever day, of this machine's GPU or of that whose id is given; tells which."""
    environment.require_device()
    there = max((out / (gpu or environment.device_id())).glob(f"????-??-??-{case_name}.parquet"), default=None)
    if there is not None:
        print(f"recorded already: {there}", flush=True)
    return there is not None


def record_here(
    out: Path, case_name: str, measure: Measure, *, gpu: str | None = None, commit: str | None = None, git_dirty: bool | None = None
) -> Path:  # fmt: skip
    """Measure in this process and write the rows as one walk record; returns its path.

    ``gpu``, ``commit`` and ``git_dirty`` as for :func:`wts_lab.bench.measure`.

    Raises:
        BadInput: before anything is measured: the record could not be written, or there is no GPU that runs the kernels.
    """
    require_place(out, case_name)
    environment.require_device()
    path = record_path(out, gpu or environment.device_id(), datetime.now(timezone.utc), case_name)
    require_new(path)
    device = nvml.NvmlDevice.open()
    before = device.clocks()
    rows = measure(device)
    after, now = device.clocks(), datetime.now(timezone.utc)
    shared = environment.snapshot() | {
        "run_id": uuid.uuid4().hex, "process_index": PROCESS, "recorded_at_utc": now.isoformat(timespec="seconds"),
        "sm_clock_mhz_before": before.sm_clock_mhz, "sm_clock_mhz_after": after.sm_clock_mhz,
    }  # fmt: skip
    shared |= {name: value for name, value in (("git_commit", commit), ("git_dirty", git_dirty)) if value is not None}
    return write_walk(path, [walk_row(**shared, **row) for row in rows])
