"""How fast the cost model answers: one prediction, and predictions a second over a grid. Prints a line each; asserts nothing.

    python -m benchmarks.predict_speed [--threads 2]

The first sweep of a grid plans every placement that the grid needs; later ones find the plans kept. Both rates are printed, and beside each what a
second of CPU time gives, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence

from benchmarks.status import ending_with_status
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.sweep import WAYS, Grid, sweep
from cost_model.units import US_PER_S, format_count, format_us
from cost_model.workload import L2_STATES, Workload, require_whole

SINGLE_ROUNDS = 400
SWEEP_ROUNDS = 5


def single_us(mode: str, precision: str) -> list[float]:
    """Times of single predictions of vocabularies that differ, in microseconds."""
    gpu, times = load_gpu("h200-sxm"), []
    for number in range(SINGLE_ROUNDS):
        head = Head.markov(100_000 + 16 * number, 256)
        begin = time.perf_counter()
        predict(gpu, head, Workload(precision=precision), mode)
        times.append((time.perf_counter() - begin) * US_PER_S)
    return times


def grid_of_markov_heads() -> Grid:
    """60 shapes, 4 ways, 32 batches, 64 walk lengths, greedy and sampled, 3 L2 states: 2.9 million predictions on one GPU."""
    heads = tuple(Head.markov(vocab, rank) for vocab in range(24_000, 264_000, 8_000) for rank in (128, 256))
    return Grid((load_gpu("h200-sxm"),), heads, WAYS, tuple(range(1, 33)), tuple(range(1, 65)), (0.0, 1.0), L2_STATES)


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of a sweep (default: %(default)s)")
    threads = parser.parse_args(arguments).threads
    require_whole("--threads", threads, 1, None)
    for mode, precision in WAYS:
        times = single_us(mode, precision)
        print(f"one prediction, {mode} {precision}: median {format_us(statistics.median(times))}, best {format_us(min(times))}")
    grid = grid_of_markov_heads()
    for number in range(SWEEP_ROUNDS):
        begin, worked = time.perf_counter(), time.process_time()
        cells = sweep(grid, threads).values["step_us"].size
        rate, of_cpu = cells / (time.perf_counter() - begin), cells / (time.process_time() - worked)
        print(f"sweep {'with planning' if number == 0 else 'again'}: {format_count(rate)} predictions a second, {format_count(of_cpu)} a second of CPU time "
              f"({format_count(cells)} cells, {threads} threads, {os.cpu_count()} cores)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
