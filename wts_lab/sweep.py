"""A sweep: a grid of walks cut into jobs, which GPUs of one kind measure side by side, and which become one record.

A job is a few groups of a run (`bench_plan`), a run of its own that any worker carries out by `bench_run`'s rules: correctness first,
fresh processes one after the other, no two at once on a GPU. Who the workers are, processes of this machine or of a Dask cluster, is
`sweep_pools.py`'s affair. A finished job is a file in the sweep's folder, ``.<case>-<fingerprint>.sweep`` beside the record that will be;
an equal sweep goes on from these, and a worker that is lost costs the rows of its job alone. When all jobs are there their rows are
written, each once, into the record, and the folder is removed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from cost_model.errors import BadInput
from cost_model.gpu import UnknownGpu, load_gpu
from cost_model.measurement import frame_rows, read_walk, record_path, require_new, write_walk
from cost_model.placement import PlanError
from cost_model.workload import require_whole
from wts_lab import __version__
from wts_lab.bench_plan import DEFAULT_PROCESSES, DEFAULT_REPEATS, DEFAULT_ROUNDS, RunPlan, WalkCase
from wts_lab.bench_run import RunWorker, check_run, execute

GROUPS_PER_JOB = 8
"""Groups that a worker measures before it hands them in: few enough to lose, enough that starting processes costs little beside them."""


class SweepIncomplete(RuntimeError):
    """Jobs failed or were lost, so there is no record yet; the message has each with its reason, and how to go on."""


class SweepInterrupted(RuntimeError):
    """The sweep was stopped on request; the message says what is kept and how to go on."""


@dataclass(frozen=True)
class Place:
    """Where a worker measures.

    Attributes:
        host, device: machine, and device on it: no two workers may share both.
        gpu_id: catalogue id of the device, or a name made from its own.
        kernel_hash: of the sources that it would build.
    """

    host: str
    device: str
    gpu_id: str
    kernel_hash: str


@dataclass(frozen=True)
class Worker:
    """What runs at a place; both functions must be importable there.

    Attributes:
        identify: finds the place that a process is at.
        run_worker: how one process of a job is run, as `bench_run.measure` takes it; None for a fresh process on the GPU.
    """

    identify: Callable[[], Place]
    run_worker: RunWorker | None = None


@dataclass(frozen=True)
class Task:
    """One job as it is sent to a worker.

    Attributes:
        number: of the job within its sweep.
        plan: the job's run, as `RunPlan.as_dict`.
        folder: where its unfinished parts are kept, on a machine that shares the sweep's files; None for a temporary one.
        kernel_hash: of the kernels that the sweep is about.
        worker: how to measure.
    """

    number: int
    plan: Mapping[str, Any]
    folder: Path | None
    kernel_hash: str
    worker: Worker


@dataclass(frozen=True)
class Outcome:
    """What became of a task: the bytes of its record, or what went wrong."""

    number: int
    record: bytes | None = None
    problem: str = ""


class Pool(Protocol):
    """Workers, one a GPU; see `sweep_pools`."""

    shares_files: bool

    def places(self, identify: Callable[[], Place]) -> list[Place]:
        """The place of every worker."""

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Carry tasks out, each once where nothing goes wrong, and yield what became of each as soon as it is known."""


def run_sweep(
    cases: Sequence[WalkCase], pool: Pool, worker: Worker, *, steps: Sequence[int], l2_states: Sequence[str], out: Path | str, case_name: str,
    processes: int = DEFAULT_PROCESSES, repeats: int = DEFAULT_REPEATS, rounds: int = DEFAULT_ROUNDS, seed: int = 0,
    groups_per_job: int = GROUPS_PER_JOB, engine_root: Path | str | None = None, without_failed: bool = False, progress: bool = True,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Path:
    """Measure a grid over all workers of a pool into one record, and return its path.

    Args:
        cases, steps, l2_states, processes, repeats, rounds, engine_root: as `bench_run.measure`.
        groups_per_job: groups that a worker takes at a time.
        without_failed: write the record without jobs that failed, naming them; else they keep it from being written.
        say: takes lines about cases without a placement and about jobs that went wrong.

    Raises:
        BadInput: nothing to measure; workers on GPUs of several kinds, two on one GPU, or with other kernels; the record exists.
        SweepIncomplete, SweepInterrupted: finished jobs are kept, and the same call goes on from them.
    """
    require_whole("groups_per_job", groups_per_job, 1, None)
    check_run(cases, steps, l2_states, processes=processes, repeats=repeats, out=out, case_name=case_name)
    gpu_id, kernel_hash = _common_place(pool.places(worker.identify))
    root = None if engine_root is None else str(Path(engine_root).resolve())
    plan = RunPlan(
        "walks", tuple(plannable(cases, gpu_id, say)), tuple(steps), tuple(l2_states), repeats, rounds, processes, seed, gpu_id, _own_facts(), root
    )
    sweep = SweepFolder.open(plan, Path(out), case_name, groups_per_job)
    tasks = [Task(number, job.as_dict(), sweep.folder if pool.shares_files else None, kernel_hash, worker) for number, job in sweep.missing()]
    problems = _carry_out(sweep, pool, tasks, progress, say)
    if problems and not (without_failed and len(problems) < len(sweep.jobs)):
        raise SweepIncomplete(sweep.told(problems))
    return sweep.merge(without=problems)


def _carry_out(sweep: SweepFolder, pool: Pool, tasks: Sequence[Task], progress: bool, say: Callable[[str], None]) -> dict[int, str]:
    """Keep the record of every task that gives one; returns what went wrong with the others, by number."""
    from tqdm import tqdm

    problems: dict[int, str] = {}
    done = len(sweep.jobs) - len(tasks)
    with tqdm(total=len(sweep.jobs), initial=done, desc=sweep.record.stem, unit="job", file=sys.stderr, disable=not progress) as bar:
        try:
            for outcome in pool.outcomes(tasks):
                if outcome.record is None:
                    problems[outcome.number] = outcome.problem
                    say(f"job {outcome.number}: {outcome.problem}")
                else:
                    sweep.keep(outcome.number, outcome.record)
                bar.update()
        except KeyboardInterrupt:
            raise SweepInterrupted(f"stopped with {sweep.how_far()}; give the same command again to go on") from None
    return problems


@dataclass(frozen=True)
class SweepFolder:
    """The finished jobs of one sweep on disk.

    Attributes:
        jobs: each a run of its own.
        folder: of finished jobs and, where workers share it, of their unfinished parts.
        record: that will be.
    """

    jobs: tuple[RunPlan, ...]
    folder: Path
    record: Path

    @classmethod
    def open(cls, plan: RunPlan, out: Path, case_name: str, groups_per_job: int) -> SweepFolder:
        """Take up the folder of an equal sweep, or begin one; RecordError where today's record is there already."""
        groups = plan.groups
        cuts = [groups[start : start + groups_per_job] for start in range(0, len(groups), groups_per_job)]
        jobs = tuple(
            replace(plan, cases=tuple(case for group in cut for case in group), seed=plan.seed_of(0, number)) for number, cut in enumerate(cuts)
        )
        record = record_path(out, plan.gpu_id, datetime.now(timezone.utc), case_name)
        require_new(record)
        folder = record.parent / f".{case_name}-{plan.fingerprint[:12]}-{groups_per_job}.sweep"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(jobs, folder, record)

    def file(self, number: int) -> Path:
        """Record of a finished job; its name begins with a point, so that readers of the whole folder pass it over."""
        return self.folder / f".job-{number}.parquet"

    def missing(self) -> list[tuple[int, RunPlan]]:
        """Jobs that are still to be measured; a file is written whole, so being there is being finished."""
        return [(number, job) for number, job in enumerate(self.jobs) if not self.file(number).is_file()]

    def keep(self, number: int, record: bytes) -> None:
        """Put a finished job into its file, whole."""
        partial = self.file(number).with_suffix(".part")
        partial.write_bytes(record)
        read_walk(partial)  # a record that a lost connection cut short is refused here, and its job is still missing
        partial.replace(self.file(number))

    def how_far(self) -> str:
        """How many jobs are finished, and where they are."""
        return f"{len(self.jobs) - len(self.missing())} of {len(self.jobs)} jobs finished, kept in {self.folder}"

    def told(self, problems: Mapping[int, str]) -> str:
        """Message of an incomplete sweep."""
        return "\n".join([
            f"{self.how_far()}; give the same command again to measure the others, or leave them out",
            *(f"job {number} ({self._about(number)}): {problem}" for number, problem in sorted(problems.items())),
        ])  # fmt: skip

    def _about(self, number: int) -> str:
        """What a job measures, in short."""
        first, *others = self.jobs[number].cases
        return first.label + (f" and {len(others)} more" if others else "")

    def merge(self, without: Mapping[int, str]) -> Path:
        """Write the record from all jobs but some, in their order, and remove the folder."""
        rows = [row for number in range(len(self.jobs)) if number not in without for row in frame_rows(read_walk(self.file(number)))]
        write_walk(self.record, rows)
        shutil.rmtree(self.folder)
        return self.record


def run_task(task: Task) -> bytes:
    """What a worker does: measure a job on the device that this process sees, and return its record.

    :raises BadInput: this is not the GPU, or these are not the kernels, that the sweep is about; else as `bench_run.measure`.
    """
    here, job = task.worker.identify(), RunPlan.from_dict(dict(task.plan))
    if (here.gpu_id, here.kernel_hash) != (job.gpu_id, task.kernel_hash):
        raise BadInput(f"{here.host} has {here.gpu_id} with kernels {here.kernel_hash[:12]}; the sweep is of {job.gpu_id} with {task.kernel_hash[:12]}")
    name = f"job-{task.number}"
    with tempfile.TemporaryDirectory() if task.folder is None else nullcontext(task.folder) as folder:
        there = max((Path(folder) / job.gpu_id).glob(f"????-??-??-{name}.parquet"), default=None)  # measured, and not handed in
        path = there or execute(job, folder, name, progress=False, cancel=None, run_worker=task.worker.run_worker)
        return path.read_bytes()


def plannable(cases: Sequence[WalkCase], gpu_id: str, say: Callable[[str], None]) -> list[WalkCase]:
    """The cases for which there is a placement on a GPU; says of each other one why there is none. All, where the catalogue lacks the GPU."""
    from wts_lab.bench_gpu import walk_spec

    try:
        gpu = load_gpu(gpu_id)
    except UnknownGpu:
        return list(cases)
    kept = []
    for case in cases:
        try:
            if case.fused:
                walk_spec(case, gpu)
            kept.append(case)
        except PlanError as error:
            say(f"left out {case.label}: {error}")
    return kept


def gpu_place() -> Place:
    """The place of a process that sees one GPU."""
    import platform

    import torch

    from wts_lab.environment import device_id
    from wts_lab.tuned import walk_sources_hash

    return Place(platform.node(), str(torch.cuda.get_device_properties(0).uuid), device_id(), walk_sources_hash())


GPU_WORKER = Worker(gpu_place)
"""Measures on the first GPU that its process sees."""


def _common_place(places: Sequence[Place]) -> tuple[str, str]:
    """GPU and kernels of all workers; BadInput where there is no worker, they differ, or two share a GPU."""
    if not places:
        raise BadInput("there is no worker to measure; start one a GPU")
    kinds = sorted({(place.gpu_id, place.kernel_hash) for place in places})
    if len(kinds) > 1:
        told = "; ".join(f"{place.host} {place.device}: {place.gpu_id}, kernels {place.kernel_hash[:12]}" for place in places)
        raise BadInput(f"a sweep is of one kind of GPU with one state of the kernels; the workers have {told}")
    if len({(place.host, place.device) for place in places}) < len(places):
        told = ", ".join(sorted(f"{place.host} {place.device}" for place in places))
        raise BadInput(f"two workers would share a GPU and disturb each other's times: {told}; start one a GPU")
    return kinds[0]


def _own_facts() -> dict[str, Any]:
    """Provenance that the sweep states for all its workers; the rest is what each sees of its machine."""
    from wts_lab.environment import command_line, git_state, guarded

    commit, dirty = git_state(Path(__file__).resolve().parent.parent)
    return {"command": guarded(command_line), "git_commit": commit, "git_dirty": dirty, "wts_lab_version": __version__}
