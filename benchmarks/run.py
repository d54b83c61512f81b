"""Record a declared benchmark: ``python -m benchmarks.run NAME``.

The record is written once, under ``<out>/<gpu>/<date>-<name>.parquet``; an interrupted run goes on when the same command is
given again. Exit status: 0 recorded, 1 measuring failed, 2 the request cannot be used, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import Benchmark, declared, find
from cost_model.errors import BadInput
from wts_lab.bench import measure, measure_probes
from wts_lab.bench_run import MeasurementInterrupted


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Record a declared benchmark on this machine's GPU.")
    command.add_argument("name", nargs="?", help="benchmark to record; leave out to list them")
    command.add_argument("--out", type=Path, default=Path("data/measurements"), help="folder of records (default: %(default)s)")
    command.add_argument("--record", metavar="NAME", help="name of the record, where it is to differ from the benchmark's")
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    command.add_argument("--processes", type=int, help="processes with fresh allocations")
    command.add_argument("--repeats", type=int, help="samples a point")
    command.add_argument("--commit", help="commit of the code, for a tree without its history")
    command.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="whether tracked files differ from that commit")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    return command


def record(benchmark: Benchmark, given: argparse.Namespace) -> Path:
    """Measure a benchmark with the options given, and return the record's path."""
    options = {
        "processes": benchmark.processes if given.processes is None else given.processes,
        "repeats": benchmark.repeats if given.repeats is None else given.repeats,
        "out": given.out, "case_name": given.record or benchmark.name, "gpu": given.gpu, "commit": given.commit,
        "git_dirty": given.dirty, "progress": not given.quiet,
    }
    if benchmark.kind == "probes":
        return measure_probes(**options)
    return measure(benchmark.cases, steps=benchmark.steps, l2_states=benchmark.l2_states, **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    if given.name is None:
        for benchmark in declared().values():
            print(f"{benchmark.name:10} {benchmark.about}")
        return 0
    try:
        print(f"recorded {record(find(given.name), given)}")
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    except MeasurementInterrupted as error:
        print(error, file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
