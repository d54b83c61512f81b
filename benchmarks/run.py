"""Record declared benchmarks: ``python -m benchmarks.run NAME...``.

A record is written once, to ``<out>/<gpu>/<date>-<name>.parquet``; an interrupted run goes on when the same command is given
again, on another machine too if the folder is there. ``--only`` records a part of a benchmark under a name of its own, so that a grid
fits slices of time: ``grid-greedy --only v151936 --only b1,b2``.

Exit status: as `benchmarks.status` has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import Benchmark, declared, find, select
from benchmarks.phases import record_phases
from benchmarks.recording import passed_over
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.placement import PlanError
from wts_lab.bench import WalkCase, measure, measure_probes
from wts_lab.bench_run import ENGINE_ROOT_OPTION, check_run
from wts_lab.environment import require_device

OUT = Path("runs")
"""Where records go: not among those that ship, which a calibration and its tests rest on."""


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Record declared benchmarks on this machine's GPU.")
    command.add_argument("names", nargs="*", metavar="name", help="benchmarks to record; leave out to list them")
    command.add_argument("--out", type=Path, default=OUT, help="folder of records (default: %(default)s)")
    command.add_argument("--missing", action="store_true", help="pass over what the folder has a record of, from whatever day")
    command.add_argument("--only", action="append", default=[], metavar="WORDS",
                         help="only cases with one of these words, such as v151936,v248320 or b1 or sglang*; several must all hold")
    command.add_argument(ENGINE_ROOT_OPTION, type=Path, metavar="FOLDER", help="unpacked wheel of SGLang, where it is not installed")
    command.add_argument("--record", metavar="NAME", help="name of the record, where it is to differ from the benchmark's; for one benchmark only")
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    command.add_argument("--processes", type=int, help="processes with fresh allocations")
    command.add_argument("--repeats", type=int, help="samples a point")
    command.add_argument("--commit", help="commit of the code, for a tree without its history")
    command.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="whether tracked files differ from that commit")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    return command


def record(benchmark: Benchmark, given: argparse.Namespace) -> Path:
    """Measure a benchmark with the options given, and return the record's path."""
    require_device()
    asked = options(benchmark, given)
    if benchmark.kind == "phases":
        return record_phases(given.out, asked["repeats"], asked["case_name"], given.gpu, given.commit, given.dirty)
    asked |= {"gpu": given.gpu, "commit": given.commit, "git_dirty": given.dirty, "progress": not given.quiet}
    if benchmark.kind == "probes":
        return measure_probes(**asked)
    cases = plannable(benchmark.cases)
    return measure(cases, steps=benchmark.steps, l2_states=benchmark.l2_states, engine_root=given.sglang_root, **asked)


def options(benchmark: Benchmark, given: argparse.Namespace) -> dict[str, Any]:
    """How often a benchmark is measured, and where its record goes: as asked, else as declared."""
    return {
        "processes": benchmark.processes if given.processes is None else given.processes,
        "repeats": benchmark.repeats if given.repeats is None else given.repeats,
        "out": given.out, "case_name": benchmark.name,
    }  # fmt: skip


def plannable(cases: Sequence[WalkCase]) -> list[WalkCase]:
    """The cases for which there is a placement on this machine's GPU; says of each other one why there is none."""
    import torch

    from wts_lab.bench_gpu import walk_spec
    from wts_lab.walk import device_gpu

    gpu, kept = device_gpu(torch.device("cuda", 0)), []
    for case in cases:
        try:
            if case.fused:
                walk_spec(case, gpu)
            kept.append(case)
        except PlanError as error:
            print(f"left out {case.label}: {error}", file=sys.stderr)
    return kept


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    if not given.names:
        for benchmark in declared().values():
            print(f"{benchmark.name:12} {benchmark.about}{benchmark.size and f' ({benchmark.size})'}")
        return 0
    if given.record and len(given.names) > 1:
        raise BadInput(f"--record {given.record} names one record, and {len(given.names)} benchmarks were given; record them one by one")
    chosen = [select(find(name), given.only) for name in given.names]
    if given.record:
        chosen = [replace(chosen[0], name=given.record)]
    for benchmark in chosen:
        check_run(benchmark.cases, benchmark.steps, benchmark.l2_states, kind="walks" if benchmark.cases else "probes", **options(benchmark, given))
    for benchmark in chosen:
        if not (given.missing and passed_over(given.out, benchmark.name, given.gpu)):
            print(f"recorded {record(benchmark, given)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
