"""Recorded runs of rounds: several processes, a part for each case that survives an interruption, one immutable record.

Each process is a fresh Python, ``python -m wts_lab.round_run --plan FILE --process N``: it measures the cases whose parts are missing, and
writes each whole. An equal plan takes up the parts that it finds; when all are there they become the record. Nothing here touches a GPU:
the worker does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed
from wts_lab.round_plan import RoundPlan
from wts_lab.run_folder import PLAN_FILE, RunFolder

RunWorker = Callable[[Path, int], None]
"""Measures the missing parts of one process: (plan file, process index)."""


def measure_rounds(plan: RoundPlan, out: Path | str, name: str, *, run_worker: RunWorker | None = None) -> Path:
    """Carry a plan out from where an equal one stopped, and return the record's path.

    Args:
        out: folder of records, such as ``runs``; name: last part of the record's name.
        run_worker: how a process is run; default: :func:`run_subprocess`.

    Raises:
        RecordError: the record exists.
        WorkerFailed, MeasurementInterrupted: finished parts are kept, and the same call goes on from them.
    """
    run = RunFolder.open(plan, Path(out), name)
    for index in range(plan.processes):
        if not run.missing(index):
            continue
        try:
            (run_worker or run_subprocess)(run.folder / PLAN_FILE, index)
        except KeyboardInterrupt:
            raise MeasurementInterrupted(run.how_to_go_on()) from None
        if run.missing(index):
            raise WorkerFailed(f"process {index} ended without an error but left cases {run.missing(index)} unmeasured")
    return run.merge()


def run_subprocess(plan_file: Path, process_index: int) -> None:
    """Run one worker as a fresh process that shows its own progress. Raises WorkerFailed with its exit status."""
    root = str(Path(__file__).resolve().parent.parent)
    search = os.pathsep.join(path for path in (root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)) if path)
    command = [sys.executable, "-m", "wts_lab.round_run", "--plan", str(plan_file.resolve()), "--process", str(process_index)]
    status = subprocess.run(command, env={**os.environ, "PYTHONPATH": search}, check=False).returncode
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise WorkerFailed(f"measuring process {process_index} ended with status {status}; what it said stands above. Finished parts are kept in {plan_file.parent}")


def work(plan_file: Path, process_index: int, *, place: Any = None, progress: Callable[[int, int, str], None] = lambda done, total, label: None) -> None:
    """What a worker does: measure the missing cases of its process, and write each when it is whole.

    Args:
        place: where to measure; default: the current CUDA device.
        progress: called with cases done, cases in all, and what is being done.
    """
    from wts_lab.round_bench import GpuPlace, stream_rounds

    run = RunFolder.load(plan_file, RoundPlan)
    plan, missing = run.plan, run.missing(process_index)
    cases = [plan.cases[number] for number in missing]
    if place is None:
        place = GpuPlace(plan.engine_root)
        progress(0, len(missing), "building kernels")
        place.build(cases)
    shared = {**plan.provenance, "run_id": run.run_id, "process_index": process_index}
    done = 0
    rounds = stream_rounds(cases, place, repeats=plan.repeats, rounds=plan.rounds, seed=plan.seed + process_index, shared=shared,
                           progress=lambda label: progress(done, len(missing), label))
    for number, (_, rows) in zip(missing, rounds, strict=True):
        run.write_part(process_index, number, rows)
        done += 1
        progress(done, len(missing), "written")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the worker; ``benchmarks.round`` starts it."""
    parser = argparse.ArgumentParser(prog="python -m wts_lab.round_run", description="Measure the missing cases of one process of a run of rounds.")
    parser.add_argument("--plan", type=Path, required=True, help="plan file of a begun run")
    parser.add_argument("--process", type=int, required=True, help="which process of the run, from 0")
    given = parser.parse_args(arguments)

    from tqdm import tqdm

    with tqdm(desc=f"process {given.process + 1}", unit="case", file=sys.stderr, mininterval=0.5) as bar:

        def show(done: int, total: int, label: str) -> None:
            bar.total = total
            bar.set_postfix_str(label, refresh=True)
            bar.update(done - bar.n)

        try:
            work(given.plan, given.process, progress=show)
        except KeyboardInterrupt:
            return 130
        except (RuntimeError, ValueError) as error:
            print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
