"""SGLang's draft step, kernel by kernel: ``python -m benchmarks.engine_kernels --sglang-root FOLDER``.

A walk of 16 steps is captured in a CUDA graph, as the engine replays it, and torch's profiler says when each kernel of a replay began and how long
it ran. A replay is so many kernels a step, one step after the other, and a few at its end that belong to none; how many a step has is told by the
counts of two walk lengths. Records probe ``engine_kernel``, one row a kernel of a step and one for the time in which none runs
(``wts_lab.engine_step`` reads them): ``samples_us`` has one entry for each step of each replay. Kernels and gaps sum to the
step as the profiler sees it; what it costs without a profiler is the slope of complete calls, benchmark ``engine``.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import QWEN3, QWEN38, SAMPLED
from benchmarks.recording import passed_over, record_here
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.workload import require_whole
from wts_lab.bench import case_facts
from wts_lab.bench_plan import WalkCase, engine_case
from wts_lab.bench_run import ENGINE_ROOT_OPTION
from wts_lab.engine_step import BETWEEN, KERNEL_PROBE, join_variant

RECORD = "engine-kernels"
STEPS, SHORTER = 16, 8
WARM_UP = 10
CASES = tuple(
    case
    for head in (QWEN38, QWEN3)
    for case in (engine_case(head, "MarkovGreedyStep"), engine_case(head, "MarkovSampleStep"), engine_case(head, "MarkovSampleStep", **SAMPLED))
)  # fmt: skip


@dataclass(frozen=True)
class KernelRun:
    """One kernel of a trace: its name, when it began, and how long it ran, in microseconds."""

    name: str
    begin_us: float
    run_us: float


def kernel_runs(trace: dict[str, Any]) -> list[KernelRun]:
    """The kernels of a trace as torch's profiler exports it, in the order in which they began; copies and fills on the device count.

    Raises BadInput where it has none: then the profiler could not see the device.
    """
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not events:
        raise BadInput("the profiler saw no kernel; it needs CUPTI, which a build of torch for CUDA brings, and a driver that lets it trace")
    return sorted((KernelRun(event["name"], float(event["ts"]), float(event["dur"])) for event in events), key=lambda run: run.begin_us)


def kernels_a_step(longer: int, shorter: int) -> int:
    """Kernels of a step from those of replays of STEPS and SHORTER steps. Raises BadInput where the difference is no whole number of them."""
    kernels, rest = divmod(longer - shorter, STEPS - SHORTER)
    if rest or kernels < 1:
        raise BadInput(f"replays of {STEPS} and {SHORTER} steps have {longer} and {shorter} kernels, which is no whole number a step")
    return kernels


def step_samples(replays: Sequence[Sequence[KernelRun]], kernels: int) -> list[tuple[str, list[float]]]:
    """(name, times in microseconds) of each kernel of a step, and of what lies between them, over the steps of all replays.

    A step runs from the beginning of its first kernel to that of the next step's, so the last step of a replay, which has no next, is
    left out; times of one step sum to its length.
    """
    names = [short_name(run.name) for run in replays[0][:kernels]]
    samples: list[list[float]] = [[] for _ in range(kernels + 1)]
    for runs in replays:
        for step in range(STEPS - 1):
            own = runs[step * kernels : (step + 1) * kernels]
            length_us = runs[(step + 1) * kernels].begin_us - own[0].begin_us
            for place, run in enumerate(own):
                samples[place].append(run.run_us)
            samples[kernels].append(max(0.0, length_us - sum(run.run_us for run in own)))
    return list(zip([*names, BETWEEN], samples))


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    bare = re.split(r"[<(]", re.sub(r"^(void|int|float)\s+", "", name).replace("(anonymous namespace)::", ""))[0]
    return bare.rsplit("::", 1)[-1].strip() or name


def kernel_rows(case: WalkCase, found: Sequence[tuple[str, list[float]]]) -> list[dict[str, Any]]:
    """One row a part of a step, without provenance."""
    told = {"probe": KERNEL_PROBE, "steps": STEPS, "l2_state": "warm", "samples_dropped": 0}
    return [
        {**case_facts(case), **told, "variant": join_variant(case.variant, place, name), "repeats": len(samples), "samples_us": samples}
        for place, (name, samples) in enumerate(found)
    ]


def measure_case(case: WalkCase, repeats: int, engine_root: str | None) -> list[dict[str, Any]]:
    """Rows of one path at one shape; weights and graphs are freed with this call."""
    from wts_lab.bench_gpu import capture_graph, make_walk
    from wts_lab.bench_inputs import GroupInputs

    inputs = GroupInputs([case], STEPS, 0, "cuda")
    walk = make_walk(case, inputs.head, STEPS, engine_root)
    runs = {}
    for length in (STEPS, SHORTER):
        base = inputs.base[:, :length]
        tokens = inputs.anchor.new_empty(base.shape[:2])
        call = partial(walk, base, inputs.anchor, tokens_out=tokens, **inputs.options(case, length))
        traced(call, 1)  # the profiler is at work before the graph is made, or it may miss the graph's kernels
        runs[length] = traced(capture_graph(call), repeats)
    return kernel_rows(case, step_samples(runs[STEPS], kernels_a_step(len(runs[STEPS][0]), len(runs[SHORTER][0]))))


def traced(replay: Callable[[], object], repeats: int) -> list[list[KernelRun]]:
    """Kernels of each of some replays, warm, back to back in one profile."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARM_UP):
        replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            replay()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return split_replays(kernel_runs(json.loads(path.read_text("utf-8"))), repeats)


def split_replays(runs: Sequence[KernelRun], repeats: int) -> list[list[KernelRun]]:
    """Equal parts, one a replay. Raises BadInput where kernels are missing, so that there is no equal part for each."""
    each, rest = divmod(len(runs), repeats)
    if rest or not each:
        raise BadInput(f"the profiler saw {len(runs)} kernels of {repeats} equal replays, so it lost some; run it again, with fewer --repeats")
    return [list(runs[replay * each : (replay + 1) * each]) for replay in range(repeats)]


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the record and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.engine_kernels", description="Record SGLang's draft step kernel by kernel.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument(ENGINE_ROOT_OPTION, dest="engine_root", metavar="FOLDER", help="unpacked wheel of SGLang, where it is not installed")
    command.add_argument("--missing", action="store_true", help="measure nothing where the folder has a record of it, from whatever day")
    command.add_argument("--repeats", type=int, default=20, help="replays, each of 15 steps that count (default: %(default)s)")
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    command.add_argument("--commit", help="commit of the code, for a tree without its history")
    command.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="whether tracked files differ from that commit")
    given = command.parse_args(arguments)
    require_whole("repeats", given.repeats, 1, None)
    if given.missing and passed_over(given.out, RECORD, given.gpu):
        return 0
    path = record_here(given.out, RECORD, lambda _: [row for case in CASES for row in measure_case(case, given.repeats, given.engine_root)],
                       gpu=given.gpu, commit=given.commit, git_dirty=given.dirty)  # fmt: skip
    print(f"recorded {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
