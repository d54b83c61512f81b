"""Made-up probe records for tests: phases of a step, and calls whose steps leave something out. Never part of `data/`; the run's name says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cost_model.head import Head
from cost_model.measurement import walk_row, write_walk
from wts_lab.recorded_probes import PHASE_PROBE


def write_probes(folder: Path, head: Head, phases: Mapping[str, float], parts: Mapping[str, float], run: str = "made-up",
                 moment: str = "2026-01-31T12:00:00+00:00") -> Path:
    """Write phases (name -> microseconds) with three blocks each, whose medians they are, and calls of steps that leave something out (probe ->
    microseconds a step), on a line."""
    sizes = {"head_kind": head.kind, "vocab_size": head.vocab_size, "target_vocab_size": head.vocab_size, "padded_vocab_size": head.vocab_size,
             "rank": head.rank, "hidden_size": head.hidden_size}
    shared = {"run_id": run, "process_index": 0, "recorded_at_utc": moment, "gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "implementation": "wts", "mode": "resident",
              "precision": "int8x2", "rounding": "once", "l2_state": "warm", "batch": 1, "temperature": 0.0, "logits_kept": False, "samples_dropped": 0, **sizes}
    rows = [walk_row(**shared, probe=PHASE_PROBE, variant=name, steps=16, samples_us=[us - 0.1, us, us + 0.2]) for name, us in phases.items()]
    rows += [walk_row(**shared, probe=probe, variant=probe, steps=n, samples_us=[5.0 + n * us] * 3) for probe, us in parts.items() for n in (1, 7, 16)]
    return write_walk(folder / "h200-sxm" / f"2026-01-31-{run}.parquet", rows)
