"""Made-up walk records for tests: call times lie on a known line with known noise.  Never part of `data/`.

Driver, command and run id say that the rows are synthetic, so that no file made from them can pass for a measurement; the GPU's
name is a real one, because records of an unknown GPU are refused.
"""

from __future__ import annotations

import random
from pathlib import Path

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.measurement import walk_row, write_walk
from cost_model.placement import plan
from cost_model.workload import DEFAULT_EXCHANGE

GPU_ID = "h200-sxm"
GPU_NAME = "NVIDIA H200"
DATE = "2026-01-31"
STEPS = (1, 2, 4, 7, 11, 15, 16)
LINES_US = {  # implementation, variant, mode, precision: entry, step
    ("torch-stepwise", "graph", "stepwise", "bf16"): (6.0, 33.0),
    ("wts", "streaming", "streaming", "bf16"): (10.0, 26.0),
    ("wts", "streaming", "streaming", "int8x2"): (10.0, 6.5),
    ("wts", "resident", "resident", "int8x2"): (12.0, 2.5),
}
EXTRA_ENTRY_US = {"warm": 0.0, "serving": 9.0, "cold": 12.0}


def synthetic_rows(
    vocab_size: int = 151_936,
    rank: int = 256,
    *,
    l2_states=("warm", "serving", "cold"),
    steps=STEPS,
    processes: int = 3,
    repeats: int = 15,
    ways=tuple(LINES_US),
    seed: int = 1,
) -> list[dict]:
    """Rows of every way; a process shifts all its times by up to 0.5 %, a sample scatters by 1 %."""
    rng = random.Random(seed)
    gpu, head = load_gpu(GPU_ID), Head.markov(vocab_size, rank)
    rows = []
    for process in range(processes):
        shift = 1 + 0.005 * (process - (processes - 1) / 2) / max(processes - 1, 1)
        for way in ways:
            implementation, variant, mode, precision = way
            entry_us, step_us = LINES_US[way]
            placed = {} if mode == "stepwise" else _placement_facts(gpu, head, precision, mode)
            for l2_state in l2_states:
                for count in steps:
                    middle = (entry_us + EXTRA_ENTRY_US[l2_state] + step_us * count) * shift
                    rows.append(
                        walk_row(
                            run_id="synthetic",
                            process_index=process,
                            recorded_at_utc=f"{DATE}T12:00:00+00:00",
                            gpu_name=GPU_NAME,
                            gpu_sm_count=132,
                            command="synthetic rows of a test",
                            driver_version="synthetic",
                            cuda_version="0.0",
                            torch_version="0.0",
                            l2_state=l2_state,
                            implementation=implementation,
                            variant=variant,
                            mode=mode,
                            precision=precision,
                            rounding="once",
                            head_kind="markov",
                            vocab_size=vocab_size,
                            target_vocab_size=vocab_size,
                            padded_vocab_size=vocab_size,
                            rank=rank,
                            batch=1,
                            steps=count,
                            temperature=0.0,
                            logits_kept=False,
                            probe="none",
                            repeats=repeats,
                            samples_us=[middle * rng.gauss(1, 0.01) for _ in range(repeats)],
                            samples_dropped=0,
                            tokens_match=1.0,
                            throttle_reasons="none",
                            **placed,
                        )
                    )
    return rows


def _placement_facts(gpu, head: Head, precision: str, mode: str) -> dict:
    placement = plan(gpu, head, precision, mode)
    names = ("warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles", "tensor_tiles")
    return {"grid_blocks": gpu.sm_count, "exchange": DEFAULT_EXCHANGE, **{name: getattr(placement, name) for name in names}}


def write_synthetic(folder: Path, **options) -> Path:
    """A records folder with one synthetic record of the H200; returns the folder."""
    write_walk(folder / GPU_ID / f"{DATE}-synthetic.parquet", synthetic_rows(**options))
    return folder


def write_two_vocabularies(folder: Path) -> Path:
    """The same with a second vocabulary in a record of the next day."""
    records = write_synthetic(folder)
    write_walk(records / GPU_ID / "2026-02-01-more.parquet", synthetic_rows(129_280))
    return records
