"""A round record made from known coefficients: every pass takes what `passes.pass_us` says, every head what `predict` says, with a little noise."""

from __future__ import annotations

import random

from cost_model import passes
from cost_model.gpu import Gpu
from cost_model.measured_round import HEAD, PHASES, WHOLE, MeasuredPart, RoundKey, predict_part, work_of
from cost_model.measurement import round_row
from cost_model.passes import PassRates

RATES = PassRates(1.8, 0.82, 0.65, 0.35)
STEPWISE, RESIDENT = ("sglang-0.5.23 MarkovSampleStep", "stepwise"), ("wts", "resident")
SHARED = {"run_id": "synthetic", "recorded_at_utc": "2026-01-31T12:00:00Z", "gpu_name": "NVIDIA H200", "gpu_sm_count": 132}


def synthetic_rows(gpu: Gpu, targets=("qwen3-4b", "qwen3-8b"), concurrencies=(1, 4, 16), contexts=(1024, 8192), processes=3, noise=0.0, drafted=16) -> list[dict]:
    """Rows of a round record. `noise`: relative standard deviation of a process, half of it that of a sample."""
    rng, rows = random.Random(0), []
    for target in targets:
        for concurrency in concurrencies:
            for context in contexts:
                key = RoundKey(target, concurrency, context, drafted)
                for process in range(processes):
                    rows += _process(gpu, key, process, rng, noise)
    return rows


def _process(gpu: Gpu, key: RoundKey, process: int, rng: random.Random, noise: float) -> list[dict]:
    """Rows of one round in one process."""

    def row(phase: str, time_us: float, head: tuple | None = None) -> dict:
        time_us *= 1 + noise * rng.gauss(0, 1)
        samples = [time_us * (1 + noise / 2 * rng.gauss(0, 1)) for _ in range(5)]
        return round_row(**SHARED, process_index=process, phase=phase, target=key.target, concurrency=key.concurrency, context_tokens=key.context_tokens,
                         draft_tokens=key.draft_tokens, head_implementation=head and head[0], head_mode=head and head[1], samples_us=samples, samples_dropped=0)

    passed = {phase: passes.pass_us(gpu, work_of(key, phase), RATES) for phase in PHASES}
    rows = [row(phase, time_us) for phase, time_us in passed.items()]
    for head in (STEPWISE, RESIDENT):
        call_us = predict_part(gpu, MeasuredPart(key, HEAD, *head, 1.0, None, None, {}, 0, 0), RATES)
        rows += [row(HEAD, call_us, head), row(WHOLE, call_us + sum(passed.values()), head)]
    return rows
