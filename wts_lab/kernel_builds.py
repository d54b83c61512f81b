"""What the compiler made of the walk kernel: registers and spills beside the tiles that stay, built for this machine's GPU or as recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.gpu import load_gpu
from cost_model.measurement import frame_rows
from cost_model.operand_paths import kernel_path
from cost_model.placement import Placement
from cost_model.terms import tile_bytes
from cost_model.workload import OURS
from wts_lab.recordings import NothingRecorded, read_recording

if TYPE_CHECKING:
    from cost_model.head import Head

LIVE_ROWS = (1, 16)
ROWS = (1, 2, 4, 8, 16, 32)
"""Batch rows that kernels are built for."""

TILES = ("warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles")


@dataclass(frozen=True)
class KernelBuild:
    """One resident int8x2 kernel: batch rows, where its tiles lie, and registers and spilled bytes a thread as ptxas reports them, or None."""

    rows: int
    placement: Placement
    registers_per_thread: int | None
    spill_bytes: int | None


@dataclass(frozen=True)
class KernelBuilds:
    """Kernels, the size of a tile of theirs in bytes, and where they come from; there may be none."""

    builds: tuple[KernelBuild, ...]
    tile_bytes: int
    source: str


def kernel_builds(head: Head, live: bool | None = None, gpu_id: str = "h200-sxm", records: Path | None = None) -> KernelBuilds:
    """Build the greedy resident int8x2 kernels of a head for this machine's GPU (`live` True), or look up what was recorded with the planner's
    placements (False); None: build where a GPU is.

    Raises:
        BadInput: `live` without a GPU.
        BuildError: a kernel cannot be built.
    """
    from wts_lab.study import capable_device, no_device

    device = capable_device() if live is None or live else None
    if live and device is None:
        raise no_device()
    return _built(head, device.name) if device is not None else _recorded(head, gpu_id, records)


def _built(head: Head, device_name: str) -> KernelBuilds:
    import torch

    from wts_lab.build import build_walk
    from wts_lab.walk import device_arch, device_gpu
    from wts_lab.walk_plan import plan_walk

    device, found = torch.device("cuda", torch.cuda.current_device()), []
    for rows in LIVE_ROWS:
        planned = plan_walk(device_gpu(device), head, mode="resident", precision="int8x2", placement=None, max_batch=rows)
        record = build_walk(planned.spec, device_arch(device))
        found.append(KernelBuild(rows, planned.placement, record.registers_per_thread, record.spill_bytes))
    return KernelBuilds(tuple(found), tile_bytes(head.rank, "int8x2"), f"built now for {device_name}")


def _recorded(head: Head, gpu_id: str, records: Path | None) -> KernelBuilds:
    try:
        recording = read_recording(gpu_id, records)
    except NothingRecorded:
        return KernelBuilds((), tile_bytes(head.rank, "int8x2"), f"no walk of {gpu_id} is recorded")
    frame, gpu, found = recording.frame, load_gpu(gpu_id), []
    same = (frame["implementation"] == OURS) & (frame["mode"] == "resident") & (frame["precision"] == "int8x2") & (frame["rounding"] == "once")
    same &= (frame["head_kind"] == head.kind) & (frame["vocab_size"] == head.vocab_size) & (frame["rank"] == head.rank) & (frame["temperature"] == 0)
    frame = frame[same].sort_values("recorded_at_utc")
    for rows in ROWS:
        planned = kernel_path(gpu, head, "int8x2", rows).placement
        own = frame[frame["batch"] == rows]
        own = own[[planned is not None and [row[name] for name in TILES] == [getattr(planned, name) for name in TILES] for _, row in own.iterrows()]]
        if len(own):
            last = frame_rows(own)[-1]
            found.append(KernelBuild(rows, planned, last["registers_per_thread"], last["spill_bytes"]))
    nothing = f"no kernel of {head.name} with the planner's placement is among what {recording.label} holds"
    return KernelBuilds(tuple(found), tile_bytes(head.rank, "int8x2"), recording.label if found else nothing)
