"""Tuning: the placement and exchange that walk a shape fastest on this GPU, found by measuring them beside the planner's choice.

Three rounds, each an ordinary walk record of `bench.measure`, each candidate a case of it:

1. *placements*: what the planner says fits, for several numbers of warps, the best predicted first; few samples.
2. *exchanges*: the best quarter of these with every other exchange; few samples.
3. *final*: the best quarter of all beside the planner's choice, with all samples in several processes.

The same request again goes on where it was stopped: a round whose record is there is read, and `bench_run` keeps the parts of an
unfinished one. Records are found by a digest of all that decides them, the kernels' sources included. What does not build, and
what a measuring process cannot run (a wrong kernel, a launch refused, no memory), is left out with the reason, not fatal.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.workload import DEFAULT_EXCHANGE
from wts_lab.bench_plan import WalkCase
from wts_lab.bench_run import Report, RunWorker, WorkerFailed, measure
from wts_lab.tune_plan import FASTER, Trial, TuneRequest, candidates
from wts_lab.tuned import Tuned, TunedFor, walk_sources_hash

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from wts_lab.build import BuildRecord

KEPT_SHARE = 1 / 4
"""Share of the screened candidates that goes on to the next round."""

SCREENED_SHARE = 1 / 5
"""Share of the samples that a screening takes, in one process."""

LOOK_EVERY_S = 0.2
"""How often a build under way is asked whether it is to stop."""


@dataclass(frozen=True)
class Machine:
    """The device that is tuned for: its description, id of its records, driver's name, visible multiprocessors, architecture
    (such as ``sm_90``), and the hash of the kernels' sources."""

    gpu: Gpu
    gpu_id: str
    gpu_name: str
    sm_count: int
    arch: str
    kernel_hash: str

    @classmethod
    def here(cls, gpu_id: str | None = None) -> Machine:
        """The current CUDA device; ``gpu_id`` names the SKU where the device alone does not tell."""
        import torch

        from wts_lab.environment import device_id
        from wts_lab.walk import device_arch, device_gpu

        device = torch.device("cuda", torch.cuda.current_device())
        about = torch.cuda.get_device_properties(device)
        return cls(
            device_gpu(device), gpu_id or device_id(), about.name, about.multi_processor_count, device_arch(device), walk_sources_hash()
        )


@dataclass(frozen=True)
class TuneResult:
    """What tuning found.

    Attributes:
        request, machine: what was asked, and of which device.
        trials: every candidate, the planner's choice first.
        records: walk records with the samples, in the order of the rounds.
    """

    request: TuneRequest
    machine: Machine
    trials: tuple[Trial, ...]
    records: tuple[Path, ...]

    @property
    def planned(self) -> Trial:
        """The planner's choice."""
        return self.trials[0]

    @property
    def winner(self) -> Trial | None:
        """The fastest step among those that are faster than the planner's choice, else that choice; None where throttling left
        nothing to compare."""
        if not self.planned.fit.usable:
            return None
        faster = [trial for trial in self.trials[1:] if trial.verdict(self.planned.fit) == FASTER]
        return min(faster, key=lambda trial: trial.fit.step_us, default=self.planned)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row a candidate, and whether it is kept: those of the final round by step cost, then the screened ones by theirs, then the
        failed ones."""
        winner = self.winner

        def place(trial: Trial) -> tuple:
            known = trial.fit or trial.screened
            step_us = known.step_us if known is not None and known.usable else math.inf
            return trial.fit is None, trial.screened is None, step_us

        return [{**trial.row(self.planned.fit), "kept": trial is winner} for trial in sorted(self.trials, key=place)]

    def tuned(self) -> Tuned:
        """The winner as a tuned file holds it; BadInput where there is none."""
        winner = self.winner
        if winner is None:
            raise BadInput(f"there is no winner to keep: {self.planned.fit.reason}; tune again when the GPU is not throttled")
        request, machine = self.request, self.machine
        valid_for = TunedFor.of(
            machine.gpu_name, machine.sm_count, machine.kernel_hash, request.head, mode=request.mode, precision=request.precision,
            rounding=request.rounding, batch=request.batch, sampling=request.temperature > 0,
        )
        told = "no candidate is distinguishably faster than the planner's choice" if winner.planned else "faster than the planner's choice"
        return Tuned(valid_for, winner.case.placement, winner.case.exchange, told, winner.fit.step_us, self.planned.fit.step_us,
                     request.l2_state, winner.record)  # fmt: skip


BuildCases = Callable[[Sequence[WalkCase]], "list[BuildRecord | Exception]"]
"""Builds the kernels of all cases; a case that cannot be built gives its error."""


def run_tune(
    request: TuneRequest, machine: Machine, *, out: Path | str, progress: bool | Report = True, cancel: Any = None,
    build: BuildCases | None = None, run_worker: RunWorker | None = None,
) -> TuneResult:
    """Tune a walk for a device, from where an equal request stopped.

    Args:
        out: folder of records.
        progress: progress bars, a function as :func:`wts_lab.bench.measure` takes, or nothing.
        cancel: anything with ``is_set()``.
        build, run_worker: how kernels are built and a measuring process run; default: the compiler, and a fresh process.

    Raises:
        PlanError, BadInput: nothing can be tried, or the walk cannot be measured.
        BuildError, WorkerFailed: the planner's choice itself cannot be built or run.
        BuildCancelled, MeasurementInterrupted: stopped; the same request goes on.
    """
    if build is None:
        def build(cases: Sequence[WalkCase]) -> list[BuildRecord | Exception]:
            return build_cases(cases, machine, progress=progress is True, cancel=cancel)

    rounds = _Rounds(request, machine, Path(out), progress, cancel, build, run_worker)
    placements = candidates(machine.gpu, request)
    rounds.take_in(placements)
    rounds.screen("placements", [trial.name for trial in placements])
    others = [
        Trial(request.case(trial.case.placement, exchange), predicted_step_us=trial.predicted_step_us, kernel=trial.kernel)
        for trial in rounds.best() for exchange in dict.fromkeys(request.exchanges) if exchange != DEFAULT_EXCHANGE
    ]  # fmt: skip
    if others:
        rounds.take_in(others)
        rounds.screen("exchanges", [rounds.planned, *(trial.name for trial in others)])
    rounds.finish([rounds.planned, *(trial.name for trial in rounds.best() if not trial.planned)])
    return TuneResult(request, machine, tuple(rounds.trials.values()), tuple(rounds.records))


class _Rounds:
    """The trials of one request while they go through the rounds; the first that is taken in is the planner's choice."""

    def __init__(
        self, request: TuneRequest, machine: Machine, out: Path, progress: bool | Report, cancel: Any, build: BuildCases,
        run_worker: RunWorker | None,
    ) -> None:
        self.request, self.machine, self.out = request, machine, out
        self.progress, self.cancel, self.build, self.run_worker = progress, cancel, build, run_worker
        self.trials: dict[str, Trial] = {}
        self.records: list[Path] = []

    @property
    def planned(self) -> str:
        """Name of the planner's choice."""
        return next(iter(self.trials))

    def take_in(self, trials: Sequence[Trial]) -> None:
        """Build the kernels of new trials, and keep what the compiler says of each."""
        for trial, built in zip(trials, self.build([trial.case for trial in trials]), strict=True):
            if isinstance(built, Exception):
                if trial.planned:
                    raise built
                self.trials[trial.name] = replace(trial, problem=f"not built: {_one_line(built)}")
            else:
                self.trials[trial.name] = replace(trial, registers_per_thread=built.registers_per_thread, spill_bytes=built.spill_bytes)

    def screen(self, name: str, wanted: Sequence[str]) -> None:
        """Measure trials with few samples in one process."""
        self._measure(name, wanted, "screened", 1, math.ceil(self.request.repeats * SCREENED_SHARE))

    def finish(self, wanted: Sequence[str]) -> None:
        """Measure trials with all samples in all processes."""
        self._measure("final", wanted, "fit", self.request.processes, self.request.repeats)

    def best(self) -> list[Trial]:
        """The best share of what was screened, at least two, fastest first."""
        usable = [trial for trial in self.trials.values() if not trial.problem and trial.screened is not None and trial.screened.usable]
        return sorted(usable, key=lambda trial: trial.screened.step_us)[: max(2, math.ceil(len(usable) * KEPT_SHARE))]

    def _measure(self, name: str, wanted: Sequence[str], into: str, processes: int, repeats: int) -> None:
        """Put the fits of some trials, interleaved in one record, into a field of theirs. Where the run fails it is repeated in halves,
        until what fails stands alone. The planner's choice is always in the first, so a general failure is known after a few."""
        from cost_model.fit import fit_frame
        from cost_model.measurement import read_walk

        wanted = [trial for trial in wanted if not self.trials[trial].problem]
        try:
            path = self._record(name, [self.trials[trial].case for trial in wanted], processes, repeats)
        except WorkerFailed as error:
            if wanted == [self.planned]:
                raise
            if len(wanted) == 1:
                self.trials[wanted[0]] = replace(self.trials[wanted[0]], problem=f"not run: {_one_line(error)}")
                return
            half = len(wanted) // 2
            for part in (wanted[:half], wanted[half:]):
                self._measure(name, part, into, processes, repeats)
            return
        self.records.append(path)
        for key, fit in fit_frame(read_walk(path)):
            self.trials[key.variant] = replace(self.trials[key.variant], record=path.stem, **{into: fit})

    def _record(self, name: str, cases: Sequence[WalkCase], processes: int, repeats: int) -> Path:
        """The record of some cases: the one that is there, whatever its day, or a new one."""
        request, machine = self.request, self.machine
        decided = [[case.as_dict() for case in cases], request.steps, request.l2_state, processes, repeats, *_identity(machine)]
        case_name = f"tune-{name}-{hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:10]}"
        there = max((self.out / machine.gpu_id).glob(f"????-??-??-{case_name}.parquet"), default=None)
        return there or measure(
            cases, steps=request.steps, l2_states=(request.l2_state,), processes=processes, repeats=repeats, out=self.out, case_name=case_name,
            gpu=machine.gpu_id, progress=self.progress, cancel=self.cancel, run_worker=self.run_worker,
        )


def _identity(machine: Machine) -> tuple[str, int, str, str]:
    """What of a machine decides whether a record of it still answers."""
    return machine.gpu_name, machine.sm_count, machine.arch, machine.kernel_hash


def _one_line(error: Exception) -> str:
    """What went wrong, in the line of a long message that says so."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in reversed(lines) if "error" in line.lower() or "Wrong" in line or "Refused" in line), lines[-1])


def build_cases(cases: Sequence[WalkCase], machine: Machine, *, progress: bool = True, cancel: Any = None) -> list[BuildRecord | Exception]:
    """Build the kernels of fused cases, as many at a time as there are processors; finds those already built.

    Returns what the compiler says of each, or the error of one that cannot be built. Raises BuildCancelled when stopped.
    """
    from tqdm import tqdm

    from wts_lab.bench_gpu import walk_spec
    from wts_lab.build import BuildCancelled, BuildError, build_walk

    stop = Event()

    def one(case: WalkCase) -> BuildRecord | Exception:
        try:
            return build_walk(walk_spec(case, machine.gpu), machine.arch, cancel=stop)
        except (BuildError, ValueError) as error:
            return error

    bar = tqdm(total=len(cases), desc="building", unit="kernel", file=sys.stderr, disable=not progress)
    with bar, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = pending = [pool.submit(one, case) for case in cases]
        try:
            while pending:
                done, pending = wait(pending, LOOK_EVERY_S, FIRST_COMPLETED)
                if done:
                    bar.update(len(done))
                if cancel is not None and cancel.is_set():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise BuildCancelled("stopped while kernels were built; what is done is kept, give the same command again to go on") from None
        return [future.result() for future in futures]
