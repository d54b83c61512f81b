"""Running `wts-lab` in tests: in this process, as a process of its own, and so that it must refuse; and records for it to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cost_model.workload import DEFAULT_EXCHANGE

ROOT = Path(__file__).resolve().parents[1]
SHAPE = ("--vocab", "151936", "--rank", "256")


def run(*arguments: str):
    """Run a command in this process; returns exit_code, stdout, stderr."""
    from typer.testing import CliRunner

    from wts_lab import cli

    return CliRunner().invoke(cli.app, list(arguments))


def refused(*arguments: str) -> str:
    """Run a command that must be refused: status 2, nothing on standard output, one line on standard error, which is returned."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("wts-lab: error: "), result.stderr
    return lines[0]


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run the command line as its own process from the checkout."""
    return subprocess.run([sys.executable, "-m", "wts_lab", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


def whole_record(
    folder: Path, entry_us: float = 10.0, step_us: float = 2.5, *, name: str = "line", processes: int = 3, probe: str = "none", **facts: object
) -> Path:
    """Write a record of some processes whose call times lie on a line, with a small spread between processes."""
    from cost_model.measurement import walk_row, write_walk

    same = {
        "run_id": name, "recorded_at_utc": "2026-01-01T00:00:00+00:00", "gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "l2_state": "warm",
        "implementation": "wts", "variant": "resident", "mode": "resident", "precision": "int8x2", "rounding": "once", "head_kind": "markov",
        "vocab_size": 151_936, "target_vocab_size": 151_936, "padded_vocab_size": 151_936, "rank": 256, "batch": 1, "temperature": 0.0,
        "warps": 8, "register_tiles": 40, "shared_tiles": 32, "streamed_tiles": 0, "staging_tiles": 0, "exchange": DEFAULT_EXCHANGE,
        "probe": probe, "repeats": 3, "samples_dropped": 0, "tokens_match": 1.0, **facts,
    }  # fmt: skip
    rows = [
        walk_row(**same, process_index=process, steps=steps, samples_us=[entry_us + step_us * steps + 0.01 * process] * 3)
        for process in range(processes)
        for steps in (1, 4, 7, 16)
    ]
    return write_walk(folder / f"{name}.parquet", rows)


def quick_look_and_full_run(folder: Path) -> None:
    """A full run of 2.5 µs a step, and a quick look at the same configuration that seems faster."""
    whole_record(folder, step_us=2.5, name="full")
    whole_record(folder, step_us=2.4, name="quick", processes=1)
