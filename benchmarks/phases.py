"""Where a resident step's time goes: ``python -m benchmarks.run phases``, or ``python -m benchmarks.phases`` to see it too.

Records probe ``walk_phase`` for every head of `benchmarks.cases.DISSECTED` and the planner's placement, one row a phase (``variant``):
the clocks that warp 0 of each block counts between the marks of a step, averaged over a 16-step walk and turned to microseconds.
``samples_us`` has one entry a block. A step passes through its phases one after the other, so those of a block sum to its step,
timers included, which makes them a little longer than the step of the plain kernel. A phase that a head's kernel does not pass
through counts no clock and gets no row.

What the parts cost alone, as slopes of complete calls, is benchmark ``parts``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases import DISSECTED
from benchmarks.recording import record_here
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.measurement import frame_rows, read_walk
from cost_model.units import us_from_cycles
from cost_model.workload import require_whole
from wts_lab.bench import case_facts
from wts_lab.bench_plan import WalkCase, resident_case

if TYPE_CHECKING:
    from wts_lab.nvml import NvmlDevice

STEPS = 16
SEED = 0
PHASE_PROBE = "walk_phase"


def measure_phases(repeats: int, read_clock_mhz: Callable[[], float]) -> list[dict[str, Any]]:
    """Rows of every head, without provenance, each of the last of ``repeats`` walks; raises what :class:`wts_lab.walk.Walk` raises.

    ``read_clock_mhz`` tells the present clock. It is asked while a head is walked: an idle GPU may run at another.
    """
    return [row for head, batch in DISSECTED for row in measure_case(resident_case(head, batch=batch), repeats, read_clock_mhz)]


def measure_case(case: WalkCase, repeats: int, read_clock_mhz: Callable[[], float]) -> list[dict[str, Any]]:
    """Rows of one head, as :func:`measure_phases`; its weights and buffers are freed with this call."""
    from wts_lab.abi import PHASES
    from wts_lab.bench_gpu import walk_facts, walk_options
    from wts_lab.bench_inputs import GroupInputs
    from wts_lab.walk import Walk

    inputs = GroupInputs([case], STEPS, SEED, "cuda")
    walk = Walk(inputs.head, steps=STEPS, **walk_options(case) | {"probe": "phases"})
    for _ in range(repeats):
        walk(inputs.base, inputs.anchor, **inputs.options(case))
    sm_clock_mhz = read_clock_mhz()
    walk.check()
    return phase_rows(case, walk_facts(walk), dict(zip(PHASES, walk.phase_clocks.T.tolist())), sm_clock_mhz)


def phase_rows(case: WalkCase, facts: dict[str, Any], clocks: dict[str, list[int]], sm_clock_mhz: float) -> list[dict[str, Any]]:
    """One row a phase from the clocks of each block over a whole walk, without provenance."""
    rows = []
    for phase, counts in clocks.items():
        if any(counts):
            samples_us = [us_from_cycles(count / STEPS, sm_clock_mhz) for count in counts]
            told = {"probe": PHASE_PROBE, "variant": phase, "steps": STEPS, "l2_state": "warm", "repeats": len(samples_us)}
            rows.append({**case_facts(case), **facts, **told, "samples_us": samples_us, "samples_dropped": 0})
    return rows


def record_phases(
    out: Path, repeats: int, case_name: str = "phases", gpu: str | None = None, commit: str | None = None, git_dirty: bool | None = None
) -> Path:
    """Measure and write the record; returns its path. ``gpu``, ``commit`` and ``git_dirty`` as for :func:`wts_lab.bench.measure`.

    Raises:
        BadInput: there is no GPU that runs the kernels, or its driver does not tell the clock.
    """
    require_whole("repeats", repeats, 1, None)

    def rows(device: NvmlDevice) -> list[dict[str, Any]]:
        if device.clocks().sm_clock_mhz is None:
            raise BadInput("the driver does not tell the clock, so counts of clocks cannot be turned to microseconds; `wts-lab doctor` looks at NVML")
        return measure_phases(repeats, lambda: device.clocks().sm_clock_mhz)

    return record_here(out, case_name, rows, gpu=gpu, commit=commit, git_dirty=git_dirty)


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the record, print the account and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.phases", description="Record where a resident step's time goes.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument("--repeats", type=int, default=100)
    given = command.parse_args(arguments)
    path = record_phases(given.out, given.repeats)
    for row in frame_rows(read_walk(path)):
        print(f"{row['head_kind']:7} batch {row['batch']:2} {row['variant']:12} median {statistics.median(row['samples_us']):7.3f} us")
    print(f"recorded {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
