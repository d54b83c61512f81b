"""Where a resident step's time goes: ``python -m benchmarks.run phases``, or ``python -m benchmarks.phases`` to see it too.

Records, for the headline head (V 151,936, rank 256, the planner's placement):

- probe ``walk_phase``, one row a phase (``variant``): the clocks that warp 0 of each block counts between the marks of a step,
  averaged over a 16-step walk and turned to microseconds; ``samples_us`` has one entry a block. The phases of a block sum to
  its step, timers included, so they are a little longer than the step of the plain kernel.
- probe ``fixed_latent``: complete calls of 1, 7 and 16 steps that repeat products and selection inside the blocks on one
  latent, without exchange.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.measurement import frame_rows, read_walk, record_path, walk_row, write_walk
from cost_model.units import us_from_cycles

HEAD = Head.markov(151_936, 256)
STEPS = 16
FIXED_STEPS = (1, 7, 16)
PROCESS = 0


def measure_phases(repeats: int, sm_clock_mhz: float) -> list[dict[str, Any]]:
    """Rows of both probes, without provenance.

    ``sm_clock_mhz`` is the clock that the counts are divided by; raises what :class:`wts_lab.walk.Walk` raises.
    """
    import torch

    from wts_lab.abi import PHASES
    from wts_lab.bench_gpu import capture_graph
    from wts_lab.heads import MarkovHead
    from wts_lab.timing import CudaQueue, GateTimer
    from wts_lab.walk import Walk

    head = MarkovHead.random(HEAD.vocab_size, HEAD.rank, device="cuda")
    base = (2 * torch.randn(1, STEPS, HEAD.vocab_size, device="cuda")).to(torch.bfloat16)
    anchor = torch.zeros(1, dtype=torch.int64, device="cuda")
    rows = []
    clocked = Walk(head, steps=STEPS, mode="resident", probe="phases")
    for _ in range(repeats):
        clocked(base, anchor)
    clocked.check()
    clocks = clocked.phase_clocks.cpu().double() / STEPS
    for index, phase in enumerate(PHASES):
        samples = [us_from_cycles(count, sm_clock_mhz) for count in clocks[:, index].tolist()]
        rows.append(_row(clocked, "walk_phase", phase, STEPS, samples))
    fixed = Walk(head, steps=STEPS, mode="resident", probe="fixed_latent")
    timer = GateTimer(CudaQueue())
    for steps in FIXED_STEPS:
        tokens = torch.empty((1, steps), dtype=torch.int64, device="cuda")
        replay = capture_graph(partial(fixed, base[:, :steps], anchor, tokens_out=tokens))
        rows.append(_row(fixed, "fixed_latent", "products-and-selection", steps, timer.burst(str(steps), replay, repeats=repeats)))
    return rows


def _row(walk: Any, probe: str, variant: str, steps: int, samples_us: list[float]) -> dict[str, Any]:
    placement = walk.placement
    return {
        "probe": probe, "variant": variant, "implementation": "wts", "mode": "resident", "precision": "int8x2", "rounding": "once",
        "head_kind": "markov", "vocab_size": HEAD.vocab_size, "target_vocab_size": HEAD.target_vocab_size,
        "padded_vocab_size": HEAD.padded_vocab_size, "rank": HEAD.rank, "batch": 1, "steps": steps, "l2_state": "warm",
        "grid_blocks": walk.grid_blocks, "warps": placement.warps, "register_tiles": placement.register_tiles,
        "shared_tiles": placement.shared_tiles, "streamed_tiles": placement.streamed_tiles, "staging_tiles": placement.staging_tiles,
        "tensor_tiles": 0, "registers_per_thread": walk.build.registers_per_thread, "spill_bytes": walk.build.spill_bytes,
        "samples_us": samples_us, "samples_dropped": 0, "repeats": len(samples_us),
    }  # fmt: skip


def record_phases(
    out: Path, repeats: int, case_name: str = "phases", gpu: str | None = None, commit: str | None = None, git_dirty: bool | None = None
) -> Path:
    """Measure and write the record; returns its path. ``gpu``, ``commit`` and ``git_dirty`` as for :func:`wts_lab.bench.measure`.

    Raises:
        BadInput: there is no GPU that runs the kernels, or its driver does not tell the clock.
    """
    from wts_lab.environment import device_id, require_device, snapshot
    from wts_lab.nvml import NvmlDevice

    require_device()
    device = NvmlDevice.open()
    before = device.clocks()
    if before.sm_clock_mhz is None:
        raise BadInput("the driver does not tell the clock, so counts of clocks cannot be turned to microseconds; `wts-lab doctor` looks at NVML")
    rows = measure_phases(repeats, before.sm_clock_mhz)
    after, now = device.clocks(), datetime.now(timezone.utc)
    shared = snapshot() | {
        "run_id": uuid.uuid4().hex, "process_index": PROCESS, "recorded_at_utc": now.isoformat(timespec="seconds"),
        "sm_clock_mhz_before": before.sm_clock_mhz, "sm_clock_mhz_after": after.sm_clock_mhz,
    }  # fmt: skip
    shared |= {name: value for name, value in (("git_commit", commit), ("git_dirty", git_dirty)) if value is not None}
    path = record_path(out, gpu or device_id(), now, case_name)
    return write_walk(path, [walk_row(**shared, **row) for row in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the record, print the account and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.phases", description="Record where a resident step's time goes.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument("--repeats", type=int, default=100)
    given = command.parse_args(arguments)
    try:
        path = record_phases(given.out, given.repeats)
    except (BadInput, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for row in frame_rows(read_walk(path)):
        print(f"{row['probe']:13} {row['variant']:23} {row['steps']:3} steps  median {statistics.median(row['samples_us']):7.3f} us")
    print(f"recorded {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
