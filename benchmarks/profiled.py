"""What Nsight Compute says of one walk: ``ncu ... python -m benchmarks.profiled BATCH...``, then ``python -m benchmarks.profiled --table ...``.

The first form launches a greedy resident walk of 16 steps (V 151,936, rank 256, the planner's placement) for each batch, warmed up, between the
profiler's start and stop, and checks that the profiled call gives the same tokens. The second turns what ``ncu`` printed into a table, whole or
not at all. Together, on a GPU whose counters may be read::

    ncu --clock-control none --cache-control none --profile-from-start off --target-processes all -k regex:walk_kernel --section SpeedOfLight \\
        --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section SchedulerStats --section WarpStateStats --section SourceCounters \\
        -o walk python -m benchmarks.profiled 1 8 16 32
    ncu --import walk.ncu-rep --page details --print-units base > details.txt
    ncu --import walk.ncu-rep --page source --csv > source.csv
    python -m benchmarks.profiled --table details.txt source.csv --out walk.csv

Exit status as of `benchmarks.status`.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.files import require_writable, write_text_whole
from cost_model.footprint import KERNEL_ROWS

VOCAB_SIZE, RANK, STEPS, WARM_UP_CALLS = 151_936, 256, 16, 5
COLUMNS = ("kernel_rows", "section", "metric", "unit", "value")
STALLS = "Warp samples"
"""Section of the rows that count samples of warps by why they did not issue, over all instructions."""

_KERNEL = re.compile(r"walk_kernel<.*?WalkConfig<(?P<numbers>[^>]*)>")
_METRIC = re.compile(r" {4}(?! |OPT |INF |WRN )")  # advice is marked, and goes on further to the right
_ROWS_PLACE = 5
"""Place of the batch rows among the numbers of a `WalkConfig` (csrc/walk/config.cuh)."""

Row = tuple[int, str, str, str, float]


def rows_of_kernel(line: str) -> int | None:
    """Batch rows of the walk kernel that a line names, or None where it names none; ncu may write ``(int)8`` for 8."""
    found = _KERNEL.search(line)
    if found is None:
        return None
    return int(re.sub(r"\([^)]*\)", "", found["numbers"]).split(",")[_ROWS_PLACE])


def metrics(details: str) -> Iterator[Row]:
    """Rows of the page ``details``: every metric that is a number, by kernel and section. What ncu advises beside them is left out."""
    kernel, section = None, ""
    for line in details.splitlines():
        kernel = rows_of_kernel(line) or kernel
        if line.strip().startswith("Section: "):
            section = line.strip().removeprefix("Section: ")
        cells = re.split(r"\s{2,}", line.strip())
        if kernel is None or not section or not _METRIC.match(line) or len(cells) not in (2, 3):
            continue
        try:
            value = float(cells[-1].replace(",", ""))
        except ValueError:
            continue
        yield kernel, section, cells[0], cells[1] if len(cells) == 3 else "", value


def stalls(source: str) -> Iterator[Row]:
    """Rows of the page ``source`` as CSV: samples of each kernel's warps by state, over all its instructions."""
    kernel, header, counts = None, [], Counter()
    for cells in [*csv.reader(io.StringIO(source)), ["Kernel Name", ""]]:
        if cells[:1] == ["Kernel Name"]:
            yield from ((kernel, STALLS, state, "samples", float(count)) for state, count in counts.items())
            kernel, header, counts = rows_of_kernel(cells[1]), [], Counter()
        elif "Source" in cells:
            header = cells
        elif header and len(cells) == len(header):
            for name, cell in zip(header, cells):
                if name.startswith("stall_") and "Not Issued" not in name:
                    counts[name.removeprefix("stall_")] += int(cell or 0)


def launch(batches: Sequence[int]) -> None:
    """Launch a walk of each batch for the profiler, in turn. Raises RuntimeError where there is no GPU, or the profiled call gives other tokens."""
    from wts_lab.environment import require_device

    require_device()
    import torch

    from wts_lab.heads import MarkovHead
    from wts_lab.walk import Walk

    head, generator = MarkovHead.random(VOCAB_SIZE, RANK, seed=1, device="cuda"), torch.Generator("cuda").manual_seed(2)
    for batch in batches:
        walk = Walk(head, steps=STEPS, max_batch=batch, mode="resident")
        base = torch.randn(batch, STEPS, VOCAB_SIZE, generator=generator, device="cuda").to(torch.bfloat16)
        anchor = torch.randint(VOCAB_SIZE, (batch,), generator=generator, device="cuda")
        for _ in range(WARM_UP_CALLS):
            expected = walk(base, anchor)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        tokens = walk(base, anchor)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        walk.check()
        if not torch.equal(tokens, expected):
            raise RuntimeError(f"batch {batch}: the profiled call gave other tokens than the call before; its profile means nothing")
        print(f"profiled batch {batch}: {walk.spec.name()}", flush=True)


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.profiled", description="Launch walks for ncu, or turn what it printed into a table.")
    command.add_argument("batches", nargs="*", type=int, metavar="batch", help="batch rows of each walk to launch")
    command.add_argument("--table", nargs=2, type=Path, metavar=("DETAILS", "SOURCE"), help="ncu's pages details (text) and source (CSV) to turn into a table")
    command.add_argument("--out", type=Path, help="the table, a CSV file")
    return command


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    if bool(given.batches) == bool(given.table) or bool(given.table) != bool(given.out):
        raise BadInput("give either batches to launch, or --table DETAILS SOURCE with --out FILE")
    for batch in given.batches:
        if batch not in KERNEL_ROWS:
            raise BadInput(f"batch is {batch}; kernels are built for {', '.join(map(str, KERNEL_ROWS))}")
    if given.batches:
        launch(given.batches)
        return 0
    require_writable(given.out)
    details, source = (path.read_text("utf-8", errors="replace") for path in given.table)
    found = [*metrics(details), *stalls(source)]
    if not found:
        raise BadInput(f"{given.table[0]} and {given.table[1]} hold no metric of a walk kernel; give ncu's pages details and source of a profiled walk")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *found])
    write_text_whole(given.out, text.getvalue())
    print(f"wrote {given.out}: {len(found)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
