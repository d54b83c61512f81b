"""Micro-measurements that calibrate the cost model: one row a configuration, in the form of walk records.

A row's ``samples_us`` are times of one *unit* (``steps`` is 1), and ``work_bytes`` and ``work_operations`` are those of that unit.
Most units are slopes: the same kernel with two repeat counts, difference over difference, so launch and set-up drop out.

| probe              | unit                                              | work                    | variants                          |
|--------------------|---------------------------------------------------|-------------------------|-----------------------------------|
| exchange           | all blocks agree on the largest words, once       | -                       | walk-r<batch rows>, words, places |
| l2_latency         | one dependent load from a ring that L2 holds      | -                       | ring size                         |
| hbm_latency        | one dependent load from a ring far beyond L2      | -                       | ring size                         |
| shared_read        | one pass over a block's shared memory             | bytes, a multiprocessor | threads a block                   |
| read_bandwidth     | one pass of the whole chip over the footprint     | bytes, the whole chip   | how it is read                    |
| graph_launch       | a graph of one empty kernel, as calls are timed   | -                       | grid                              |
| cooperative_launch | the same, launched cooperatively on the full grid | -                       | shared memory                     |
| graph_node         | one more empty kernel in a graph                  | -                       | grid                              |
| mma_s8, mma_bf16   | one product of every accumulator of every warp    | operations, a multiproc.| warps a block                     |

Every exchange is the walk's own code; walk-r1 is that of a greedy walk of one batch row over the whole grid.

``PRIMARY`` (kept in `cost_model.calibrate`) names the variant of each probe that a calibration reads. A probe that fails is reported and left out; the
others are measured all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any
from uuid import uuid4

from cost_model.calibrate import PRIMARY_VARIANTS as PRIMARY
from cost_model.measurement import walk_row
from wts_lab.bench import PointSamples, utc_now
from wts_lab.probe_jobs import Job, ProbeSizes, all_jobs
from wts_lab.probe_library import ProbeDevice, ProbeError, ProbeLibrary

__all__ = ["PRIMARY", "ProbeError", "ProbeSizes", "run_probes", "slope_samples"]

WARMUP_CALLS = 2


def run_probes(
    *, repeats: int = 100, process_index: int = 0, run_id: str | None = None, provenance: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None, cancel: Any = None, only: tuple[str, ...] = (), bench: Any = None,
    library: Any = None, device: Any = None, sizes: ProbeSizes = ProbeSizes(),
    on_failure: Callable[[str, str, Exception], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the probes in this process and return their rows; ends early, with the rows so far, once ``cancel`` is set.

    Args:
        repeats: samples a configuration.
        only: names of probes; empty for all.
        bench, library, device: where to measure; default: the current CUDA device, and the library built for it.
        on_failure: told (probe, variant, error) of each configuration that fails; default: printed.

    Raises:
        ProbeError: not one configuration could be measured, or the library cannot be built.
    """
    if bench is None:
        from wts_lab.bench_gpu import GpuBench

        bench = GpuBench()
    if provenance is None:
        from wts_lab.environment import snapshot

        provenance = snapshot()
    device = device or ProbeDevice()
    if library is None:
        from wts_lab.build import build_probes

        library = ProbeLibrary(build_probes(device.arch).library)
    shared = {**provenance, "run_id": run_id or uuid4().hex, "process_index": process_index, "repeats": repeats}
    jobs = [job for job in all_jobs(library, device, sizes) if not only or job.probe in only]
    rows, failures = [], []
    bench.timer.busy(100_000.0)
    for number, job in enumerate(jobs):
        if cancel is not None and cancel.is_set():
            return rows
        try:
            gathered = _measure(job, bench, repeats)
            rows.append(_row(job, gathered, shared))
        except Exception as error:  # noqa: BLE001 - one probe failing must not lose the others
            failures.append(f"{job.probe} {job.variant}: {error}")
            (on_failure or _print_failure)(job.probe, job.variant, error)
        bench.release()
        if progress is not None:
            progress(number + 1, len(jobs), f"{job.probe} {job.variant}")
    if not rows:
        raise ProbeError("no probe could be measured: " + ("; ".join(failures) or f"none is named {', '.join(only)}"))
    return rows


def _print_failure(probe: str, variant: str, error: Exception) -> None:
    """Say on the standard output that a configuration is left out."""
    print(f"probe {probe} {variant} left out: {type(error).__name__}: {error}", flush=True)


def _measure(job: Job, bench: Any, repeats: int) -> PointSamples:
    """All samples of one job, in units."""
    timed, verify = job.prepare()
    gathered = PointSamples()
    before = bench.clocks()
    times = [
        bench.timer.burst(f"{job.probe}/{job.variant}/{count}", timed(count), repeats=repeats, warmup=WARMUP_CALLS)
        for count in job.counts
    ]
    if verify is not None:
        verify()
    if len(times) == 1:
        units = [time / job.counts[0] for time in times[0]]
    else:
        units = slope_samples(*times, job.counts[1] - job.counts[0])
    gathered.add(units, before, bench.clocks())
    return gathered


def slope_samples(fewer_us: list[float], more_us: list[float], difference: int) -> list[float]:
    """Time of one unit, sample by sample: (more − the median of fewer) / difference of the counts.

    The median stands for launch and set-up, so that their spread does not enter twice.

    Raises:
        ProbeError: more work took no longer than less, so there is no slope to read.
    """
    base = median(fewer_us)
    units = [(time - base) / difference for time in more_us]
    if min(units) <= 0:
        raise ProbeError(f"{difference} more units took {min(more_us) - base:.3f} us longer than fewer; there is no slope to read")
    return units


def _row(job: Job, gathered: PointSamples, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The record row of a job."""
    return walk_row(
        **shared, **job.facts, **gathered.facts(), recorded_at_utc=utc_now(), implementation="wts", variant=job.variant,
        probe=job.probe, steps=1, work_bytes=job.work_bytes, work_operations=job.work_operations,
    )
