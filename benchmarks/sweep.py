"""Record declared benchmarks over all GPUs of this machine or of a cluster: ``python -m benchmarks.sweep NAME...``.

As `benchmarks.run` for walk benchmarks, whole or in parts (``--only``), but a benchmark's groups are spread over workers, one a GPU
(`wts_lab.sweep`): ``grid-greedy grid-sampled`` are the record grids. Records have the same names and form.

Exit status: as `benchmarks.status` has them; 1 where a job failed or was lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import Benchmark, declared, find, select
from benchmarks.run import OUT, options
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.workload import require_whole
from wts_lab.bench_run import ENGINE_ROOT_OPTION, check_run
from wts_lab.sweep import GPU_WORKER, GROUPS_PER_JOB, Pool, Worker, run_sweep
from wts_lab.sweep_pools import open_pool


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description="Record declared walk benchmarks over several GPUs.")
    command.add_argument("names", nargs="+", metavar="name", help=f"of {', '.join(name for name, each in declared().items() if each.kind == 'walks')}")
    command.add_argument("--only", action="append", default=[], metavar="WORDS", help="as of benchmarks.run")
    command.add_argument("--gpus", default="", help="numbers of the GPUs to use, separated by commas (default: all of this machine)")
    command.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler, whose workers measure, one a GPU")
    command.add_argument("--out", type=Path, default=OUT, help="folder of records (default: %(default)s)")
    command.add_argument("--processes", type=int, help="default: the benchmark's")
    command.add_argument("--repeats", type=int, help="default: the benchmark's")
    command.add_argument("--groups-per-job", type=int, default=GROUPS_PER_JOB, help="groups that a worker takes at a time (default: %(default)s)")
    command.add_argument("--without-failed", action="store_true", help="write records without jobs that failed")
    command.add_argument(ENGINE_ROOT_OPTION, type=Path, metavar="FOLDER", help="unpacked wheel of SGLang, on every worker's machine")
    return command


def record(benchmark: Benchmark, given: argparse.Namespace, pool: Pool, worker: Worker = GPU_WORKER) -> Path:
    """Measure a benchmark over a pool and return the record's path; raises as `run_sweep`."""
    return run_sweep(
        benchmark.cases, pool, worker, steps=benchmark.steps, l2_states=benchmark.l2_states, groups_per_job=given.groups_per_job,
        engine_root=given.sglang_root, without_failed=given.without_failed, **options(benchmark, given),
    )  # fmt: skip


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    chosen = [select(find(name), given.only) for name in given.names]
    for benchmark in chosen:
        if benchmark.kind != "walks":
            raise BadInput(f"{benchmark.name} has no walks to spread over GPUs; record it with `python -m benchmarks.run {benchmark.name}`")
        check_run(benchmark.cases, benchmark.steps, benchmark.l2_states, **options(benchmark, given))
    require_whole("--groups-per-job", given.groups_per_job, 1, None)
    with open_pool(given.scheduler, [word for word in given.gpus.split(",") if word]) as pool:
        for benchmark in chosen:
            print(f"recorded {record(benchmark, given, pool)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
