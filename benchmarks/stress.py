"""Stress the exchange and record it: ``python -m benchmarks.stress``.

Batches of 1, 4, 8 and 32 unless ``--rows`` names others, both widths of words, both exchanges: a few seconds each (`wts_lab/stress.py`). The record has one
row for each, of probe ``stress``, variant ``walk-r<rows>``, ``-wide`` after it for 64-bit words: ``samples_us`` is the time of a round,
delays included, ``tokens_match`` the share of winners, as all blocks saw them, that were right.

Exit status: as `benchmarks.status` has them; 1 also where there was a mismatch or a stall.
"""

from __future__ import annotations

import argparse
import math
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.measurement import record_path, require_new, require_place, walk_row, write_walk
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
    """Stress, print a line for each kind of exchange, write the record and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.stress", description="Stress the exchange of the blocks, and record it.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument("--seconds", type=float, default=SECONDS, help="of each kind of exchange (default: %(default)s)")
    command.add_argument("--rows", type=int, nargs="+", choices=ROWS, default=DEFAULT_ROWS, help="batch rows")
    command.add_argument("--exchange", nargs="+", choices=EXCHANGES, default=EXCHANGES, help="where the words lie")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    given = command.parse_args(arguments)
    path, clean = record_stress(given)
    print(f"recorded {path}")
    return 0 if clean else EXIT_FAILED


def record_stress(given: argparse.Namespace) -> tuple[Path, bool]:
    """Stress every kind of exchange asked for; returns the record's path and whether nothing was wrong."""
    from wts_lab.environment import device_id, require_device, snapshot

    if not 0 < given.seconds < math.inf:
        raise BadInput(f"--seconds is {given.seconds:g}; give a number above 0, such as {SECONDS:g}")
    require_place(given.out, STRESS_PROBE)
    require_device()
    now = datetime.now(timezone.utc)
    path = record_path(given.out, given.gpu or device_id(), now, STRESS_PROBE)
    require_new(path)
    kinds = [(rows, wide, exchange) for exchange in given.exchange for rows in given.rows for wide in (False, True)]
    shared, rows_of_record, clean = snapshot(), [], True
    for rows, wide, exchange in kinds:
        result = stress_exchange(seconds=given.seconds, rows=rows, wide=wide, exchange=exchange, seed=given.seed)
        rows_of_record.append(stress_row(rows, wide, exchange, result))
        clean &= result.clean
        print(f"{exchange:12} rows {rows:2} {'64' if wide else '32'}-bit words: {format_count(result.exchanges)} exchanges, "
              f"{result.mismatches} mismatches, {result.stalls} stalls, {format_us(min(result.samples_us))} a round at best", flush=True)
    shared |= {"run_id": uuid.uuid4().hex, "process_index": 0, "recorded_at_utc": now.isoformat(timespec="seconds")}
    return write_walk(path, [walk_row(**shared, **row) for row in rows_of_record]), clean


if __name__ == "__main__":
    raise SystemExit(main())
