"""Stress the exchange and record it: ``python -m benchmarks.stress``.

Batches of 1, 4, 8 and 32 unless ``--rows`` names others, both widths of words, both exchanges: a few seconds each (`wts_lab/stress.py`). The record has one
row for each, of probe ``stress``, variant ``walk-r<rows>``, ``-wide`` after it for 64-bit words: ``samples_us`` is the time of a round,
delays included, ``tokens_match`` the share of winners, as all blocks saw them, that were right.

Exit status: as `benchmarks.status` has them; 1 also where there was a mismatch or a stall.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.recording import passed_over, record_here
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.units import format_count, format_us
from cost_model.workload import EXCHANGES, OURS
from wts_lab.endings import EXIT_FAILED
from wts_lab.probe_library import EXCHANGE_WARPS
from wts_lab.stress import ROWS, StressResult, stress_exchange

STRESS_PROBE = "stress"
DEFAULT_ROWS = (1, 4, 8, 32)
SECONDS = 2.0


def stress_row(rows: int, wide: bool, exchange: str, result: StressResult) -> dict[str, Any]:
    """The facts of one record row, without provenance."""
    return {
        "implementation": OURS, "probe": STRESS_PROBE, "variant": f"walk-r{rows}{'-wide' * wide}", "steps": 1, "batch": rows,
        "exchange": exchange, "grid_blocks": result.grid_blocks, "warps": min(rows, EXCHANGE_WARPS), "repeats": len(result.samples_us),
        "samples_us": list(result.samples_us), "samples_dropped": 0, "tokens_match": result.matching_share,
    }


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Stress, write the record and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.stress", description="Stress the exchange of the blocks, and record it.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument("--missing", action="store_true", help="measure nothing where the folder has a record of it, from whatever day")
    command.add_argument("--seconds", type=float, default=SECONDS, help="of each kind of exchange (default: %(default)s)")
    command.add_argument("--rows", type=int, nargs="+", choices=ROWS, default=DEFAULT_ROWS, help="batch rows")
    command.add_argument("--exchange", nargs="+", choices=EXCHANGES, default=EXCHANGES, help="where the words lie")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    given = command.parse_args(arguments)
    if not 0 < given.seconds < math.inf:
        raise BadInput(f"--seconds is {given.seconds:g}; give a number above 0, such as {SECONDS:g}")
    if given.missing and passed_over(given.out, STRESS_PROBE, given.gpu):
        return 0
    found: list[bool] = []

    def rows(_: object) -> list[dict[str, Any]]:
        results = list(stressed(given))
        found.extend(result.clean for *_, result in results)
        return [stress_row(*kind, result) for *kind, result in results]

    print(f"recorded {record_here(given.out, STRESS_PROBE, rows, gpu=given.gpu)}")
    return 0 if all(found) else EXIT_FAILED


def stressed(given: argparse.Namespace) -> Iterator[tuple[int, bool, str, StressResult]]:
    """Stress every kind of exchange asked for, and print a line for each: its rows, whether words are wide, where they lie, and the result."""
    for exchange, rows, wide in product(given.exchange, given.rows, (False, True)):
        result = stress_exchange(seconds=given.seconds, rows=rows, wide=wide, exchange=exchange, seed=given.seed)
        print(f"{exchange:12} rows {rows:2} {'64' if wide else '32'}-bit words: {format_count(result.exchanges)} exchanges, "
              f"{result.mismatches} mismatches, {result.stalls} stalls, {format_us(min(result.samples_us))} a round at best", flush=True)
        yield rows, wide, exchange, result


if __name__ == "__main__":
    raise SystemExit(main())
