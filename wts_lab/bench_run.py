"""Recorded runs: several processes, parts that survive an interruption, one immutable record.

A run is described by a :class:`RunPlan`. Each of its processes is a fresh Python, started as ``python -m wts_lab.bench
--worker``; it measures the parts that are still missing and writes each, whole, as soon as it is done. When all parts are
there they are merged into the record and removed. Starting an equal plan again goes on where the last one stopped.

Nothing here touches a GPU: the worker does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cost_model.measurement import require_place
from wts_lab.bench_plan import DEFAULT_PROCESSES, DEFAULT_REPEATS, DEFAULT_ROUNDS, RunPlan, WalkCase
from wts_lab.run_folder import PLAN_FILE, RunFolder

PROGRESS_PREFIX = "progress "
STOP_PATIENCE_S = 20.0
LAST_LINES = 25
ENGINE_ROOT_OPTION = "--sglang-root"
"""Option of command lines that names the engine's folder, which is a fact of a machine and goes into no record."""

Report = Callable[[int, int, str], None]
"""Called as ``report(done, total, label)``, both counts over the whole run."""

RunWorker = Callable[[Path, int, Callable[[int, int, str], None], Any], None]
"""Measures the missing parts of one process: (plan file, process index, progress within it, cancel)."""


class WorkerFailed(RuntimeError):
    """A measuring process ended with an error; the message ends with its last lines. Finished parts are kept."""


class MeasurementInterrupted(RuntimeError):
    """The run was stopped on request; the message says where its finished parts are and how to go on."""


def measure(
    cases: Sequence[WalkCase], *, steps: Sequence[int], l2_states: Sequence[str], processes: int = DEFAULT_PROCESSES,
    repeats: int = DEFAULT_REPEATS, rounds: int = DEFAULT_ROUNDS, out: Path | str, case_name: str, gpu: str | None = None,
    commit: str | None = None, git_dirty: bool | None = None, seed: int = 0, progress: bool | Report = True,
    cancel: Any = None, run_worker: RunWorker | None = None, engine_root: Path | str | None = None,
) -> Path:
    """Measure cases in several processes into one record, and return its path.

    Args:
        cases, steps, l2_states, repeats, rounds: as ``bench.stream_points``.
        processes: fresh processes, one after the other.
        out: folder of records, such as ``data/measurements``.
        case_name: last part of the record's name.
        gpu: catalogue id of the device; default: recognised from the device.
        commit, git_dirty: state of the code, for a tree without its history; default: asked of git.
        progress: show a progress bar, or a function to call instead.
        cancel: anything with ``is_set()``.
        run_worker: how a process is run; default: :func:`run_subprocess`.
        engine_root: folder of the engine's unpacked files, where a case runs it and it is not installed.

    Raises:
        BadInput: the request cannot be measured, which is known before a device is looked for; there is no GPU that runs the kernels;
            the record exists.
        WorkerFailed, MeasurementInterrupted: finished parts are kept, and the same call goes on from them.
    """
    check_run(cases, steps, l2_states, processes=processes, repeats=repeats, out=out, case_name=case_name)
    gpu_id, provenance = _identity(gpu, commit, git_dirty, run_worker)
    root = None if engine_root is None else str(Path(engine_root).resolve())
    plan = RunPlan("walks", tuple(cases), tuple(steps), tuple(l2_states), repeats, rounds, processes, seed, gpu_id, provenance, root)
    return execute(plan, out, case_name, progress=progress, cancel=cancel, run_worker=run_worker)


def measure_probes(
    *, processes: int = DEFAULT_PROCESSES, repeats: int = DEFAULT_REPEATS, out: Path | str, case_name: str = "probes",
    gpu: str | None = None, commit: str | None = None, git_dirty: bool | None = None, progress: bool | Report = True,
    cancel: Any = None, run_worker: RunWorker | None = None,
) -> Path:
    """Run all probes in several processes into one record, and return its path; arguments and errors as :func:`measure`."""
    check_run(processes=processes, repeats=repeats, out=out, case_name=case_name, kind="probes")
    gpu_id, provenance = _identity(gpu, commit, git_dirty, run_worker)
    plan = RunPlan("probes", (), (), (), repeats, 1, processes, 0, gpu_id, provenance)
    return execute(plan, out, case_name, progress=progress, cancel=cancel, run_worker=run_worker)


def check_run(
    cases: Sequence[WalkCase] = (), steps: Sequence[int] = (), l2_states: Sequence[str] = (), *, processes: int, repeats: int, out: Path | str,
    case_name: str, kind: str = "walks",
) -> None:  # fmt: skip
    """Refuse what can neither be measured nor recorded on any GPU, before one is looked for; arguments and errors as :func:`measure`."""
    RunPlan(kind, tuple(cases), tuple(steps), tuple(l2_states), repeats, DEFAULT_ROUNDS, processes, seed=0, gpu_id="", provenance={})
    require_place(out, case_name)


def execute(
    plan: RunPlan, out: Path | str, case_name: str, *, progress: bool | Report, cancel: Any, run_worker: RunWorker | None
) -> Path:
    """Carry a plan out from where an equal one stopped, and return the record's path; errors as :func:`measure`."""
    run = RunFolder.open(plan, Path(out), case_name)
    total = sum(_part_size(plan, group) for group in range(len(plan.groups))) * plan.processes
    with _reporter(progress, total, case_name) as report:
        done = sum(_part_size(plan, group) for index in range(plan.processes) for group in run.finished(index))
        for index in range(plan.processes):
            missing = run.missing(index)
            if not missing:
                continue
            begun = done

            def within(part_done: int, _: int, label: str, begun: int = begun, index: int = index) -> None:
                report(begun + part_done, total, f"process {index + 1} of {plan.processes}: {label}")

            try:
                (run_worker or run_subprocess)(run.folder / PLAN_FILE, index, within, cancel)
            except KeyboardInterrupt:
                raise MeasurementInterrupted(run.how_to_go_on()) from None
            if cancel is not None and cancel.is_set():
                raise MeasurementInterrupted(run.how_to_go_on())
            if run.missing(index):
                raise WorkerFailed(f"process {index} ended without an error but left parts {run.missing(index)} unmeasured")
            done = begun + sum(_part_size(plan, group) for group in missing)
    return run.merge()


def _part_size(plan: RunPlan, group: int) -> int:
    """Units of progress in one part."""
    return plan.bursts_of(group) if plan.kind == "walks" else 1000


def run_subprocess(plan_file: Path, process_index: int, progress: Report, cancel: Any) -> None:
    """Run one worker as a fresh process, passing its progress on.

    Raises:
        WorkerFailed: it ended with an error.
        KeyboardInterrupt: passed on after the worker has been stopped.
    """
    command = [sys.executable, "-m", "wts_lab.bench", "--worker", str(plan_file.resolve()), "--process", str(process_index)]
    root = Path(__file__).resolve().parent.parent
    search = os.pathsep.join(path for path in (str(root), os.environ.get("PYTHONPATH", "")) if path)
    environment = {**os.environ, "PYTHONPATH": search}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    lines: list[str] = []
    try:
        for line in process.stdout:
            if line.startswith(PROGRESS_PREFIX):
                done, total, label = line[len(PROGRESS_PREFIX):].rstrip("\n").split(" ", 2)
                progress(int(done), int(total), label)
            else:
                lines.append(line.rstrip("\n"))
            if cancel is not None and cancel.is_set():
                break
        else:
            process.wait()
    finally:
        _stop(process)
    if process.returncode and not (cancel is not None and cancel.is_set()):
        said = "\n".join(lines[-LAST_LINES:])
        raise WorkerFailed(f"measuring process {process_index} ended with status {process.returncode}; it said:\n{said}")


def _stop(process: subprocess.Popen) -> None:
    """End a worker that still runs: ask first, so that it can leave the GPU in order, then insist."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


def work(plan_file: Path, process_index: int, *, bench: Any = None, say: Callable[[str], None] = print, cancel: Any = None) -> None:
    """What a worker does: measure the missing parts of its process and write each when it is whole.

    Args:
        bench: where to measure; default: the current CUDA device.
        say: takes lines of progress.
    """
    run = RunFolder.load(plan_file, RunPlan)
    plan = run.plan
    provenance = {**_measured_provenance(bench), **{k: v for k, v in plan.provenance.items() if v is not None}}
    missing = run.missing(process_index)
    total, begun = sum(_part_size(plan, group) for group in missing), 0
    if bench is None and plan.kind == "walks":
        from wts_lab.bench_gpu import GpuBench

        bench = GpuBench(engine_root=plan.engine_root)
        say(f"{PROGRESS_PREFIX}0 {total} building kernels")
        bench.build([case for group in missing for case in plan.groups[group]])
    for group in missing:
        def report(done: int, of: int, label: str, begun: int = begun, group: int = group) -> None:
            say(f"{PROGRESS_PREFIX}{begun + round(_part_size(plan, group) * done / of)} {total} {label}")

        rows = _measure_part(run, process_index, group, bench, provenance, report, cancel)
        if cancel is not None and cancel.is_set():
            return
        run.write_part(process_index, group, rows)
        begun += _part_size(plan, group)


def _measure_part(
    run: RunFolder, process_index: int, group: int, bench: Any, provenance: dict, report: Report, cancel: Any
) -> list[dict[str, Any]]:
    """The rows of one part."""
    plan = run.plan
    if plan.kind == "probes":
        from wts_lab.probes import run_probes

        return run_probes(
            repeats=plan.repeats, process_index=process_index, run_id=run.run_id, provenance=provenance, progress=report,
            cancel=cancel, bench=bench,
        )
    from wts_lab.bench import stream_points

    return list(stream_points(
        plan.groups[group], plan.steps, plan.l2_states, repeats=plan.repeats, rounds=plan.rounds, bench=bench, cancel=cancel,
        process_index=process_index, run_id=run.run_id, seed=plan.seed_of(process_index, group), progress=report,
        provenance=provenance,
    ))


def _measured_provenance(bench: Any) -> dict[str, Any]:
    """Provenance as the worker sees it; a bench that brings its own (a simulated one) is believed."""
    if hasattr(bench, "provenance"):
        return dict(bench.provenance)
    from wts_lab.environment import snapshot

    return snapshot()


def _identity(gpu: str | None, commit: str | None, git_dirty: bool | None, run_worker: RunWorker | None) -> tuple[str, dict[str, Any]]:
    """The device's id for the record's name, and provenance: given facts before discovered ones. A worker of the caller's needs no device."""
    from wts_lab.environment import device_id, require_device, snapshot

    if run_worker is None:
        require_device()
    provenance = snapshot()
    if commit is not None:
        provenance |= {"git_commit": commit, "git_dirty": git_dirty}
    elif git_dirty is not None:
        provenance["git_dirty"] = git_dirty
    if provenance.get("command"):
        provenance["command"] = _without_engine_root(provenance["command"])
    return gpu or device_id(), provenance


def _without_engine_root(command: str) -> str:
    """A command line without ENGINE_ROOT_OPTION and its value."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word == ENGINE_ROOT_OPTION:
            next(words, None)
        elif not word.startswith(f"{ENGINE_ROOT_OPTION}="):
            kept.append(word)
    return shlex.join(kept)


class _reporter:  # noqa: N801 - used like a function: `with _reporter(...) as report`
    """A progress bar, a caller's own function, or silence, as a context."""

    def __init__(self, progress: bool | Report, total: int, title: str) -> None:
        self._progress, self._total, self._title, self._bar = progress, total, title, None

    def __enter__(self) -> Report:
        if callable(self._progress):
            return self._progress
        if not self._progress:
            return lambda done, total, label: None
        from tqdm import tqdm

        self._bar = tqdm(total=self._total, desc=self._title, unit="burst", file=sys.stderr, mininterval=0.5)
        return self._advance

    def _advance(self, done: int, total: int, label: str) -> None:
        """Move the bar to an absolute count."""
        self._bar.set_postfix_str(label, refresh=False)
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``python -m wts_lab.bench``: the worker of a run; ``wts-lab measure`` and ``benchmarks`` start runs."""
    parser = argparse.ArgumentParser(prog="python -m wts_lab.bench", description="Measure the missing parts of one process of a run.")
    parser.add_argument("--worker", type=Path, required=True, metavar="PLAN", help="plan file of a begun run")
    parser.add_argument("--process", type=int, required=True, help="which process of the run, from 0")
    given = parser.parse_args(arguments)
    try:
        work(given.worker, given.process, say=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return 0
