"""How fast the explorer answers: opening it to its first figures, and each step of each slider. Prints a line each; asserts nothing.

    python -m benchmarks.panel_speed

Opening is timed in fresh Python processes, from the import of the panel on, as a kernel that is up does it; a slider's step from the
control's change until every figure has been sent. Times of the process (CPU) stand beside those of the clock, which others on the machine lengthen.
The limits are those of the tests: 3 s and 100 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.status import ending_with_status
from cost_model.workload import require_whole

OPEN_S, STEP_S = 3.0, 0.1
OPENING = """
import time
wall_s, cpu_s = time.perf_counter(), time.process_time()
from wts_lab.ui.explorer import explorer_panel
panel, handles = explorer_panel()
print(time.perf_counter() - wall_s, time.process_time() - cpu_s)
"""
STEPS = {"steps": range(15, 5, -1), "batch": range(2, 10), "rank": range(32, 513, 32), "temperature": (0.2, 0.4, 0.6, 0.8, 1.0)}


def opening_s() -> tuple[float, float]:
    """Seconds of clock and CPU from the import to the first figures, in a new process."""
    told = subprocess.run([sys.executable, "-c", OPENING], capture_output=True, text=True, check=True, timeout=120).stdout
    wall_s, cpu_s = map(float, told.split())
    return wall_s, cpu_s


def steps_s(field: str) -> list[tuple[float, float]]:
    """Seconds of clock and CPU of each move of a slider, in an explorer of its own."""
    from wts_lab.ui.explorer import explorer_panel

    _, handles = explorer_panel()
    took = []
    for value in STEPS[field]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        handles.controls[field].value = value
        took.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return took


def told(times: list[tuple[float, float]], limit_s: float) -> str:
    """Median and longest times in words, and whether the median of the clock is within the limit."""
    (wall, cpu), (longest, busiest) = ([pick(column) for column in zip(*times)] for pick in (statistics.median, max))
    return f"median {1e3 * wall:.0f} ms (CPU {1e3 * cpu:.0f}), longest {1e3 * longest:.0f} ms (CPU {1e3 * busiest:.0f}); limit {1e3 * limit_s:.0f} ms, {'kept' if wall <= limit_s else 'MISSED'}"


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--openings", type=int, default=3, help="processes that open the explorer (default: %(default)s)")
    given = parser.parse_args(arguments)
    require_whole("--openings", given.openings, 1, None)
    print(f"opening the explorer: {told([opening_s() for _ in range(given.openings)], OPEN_S)}")
    for field in STEPS:
        print(f"a step of {field}: {told(steps_s(field), STEP_S)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
