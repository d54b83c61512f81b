"""Measuring without a GPU: torch's stepwise walk on the CPU behind the bench's interface, for tests of who measures what.

The walk, its check and its times are real; only the device is the processor, and there is no L2 to flush. Everything can be imported
by another process, as workers of a sweep need it.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import torch

from wts_lab import bench_run
from wts_lab.heads import random_head
from wts_lab.nvml import ClockReading
from wts_lab.stepwise import StepwiseWalk
from wts_lab.sweep import Place, Worker


class CpuTimer:
    """Wall-clock times; a CPU needs no gate."""

    def busy(self, us):
        """Nothing to wake."""

    def burst(self, key, timed, *, repeats, warmup, before=None):
        samples = []
        for call in range(warmup + repeats):
            start = time.perf_counter()
            timed()
            samples.append(1e6 * (time.perf_counter() - start))
        return samples[warmup:]


class CpuSubject:
    """A stepwise walk over random weights."""

    def __init__(self, case, steps, seed):
        self.walk = StepwiseWalk(random_head(case.head, seed=seed), rounding=case.rounding)
        generator = torch.Generator().manual_seed(seed)
        self.base = torch.randn(case.batch, max(steps), case.head.vocab_size, generator=generator).to(torch.bfloat16)
        self.anchor = torch.zeros(case.batch, dtype=torch.int64)
        self.first = self.walk(self.base, self.anchor)

    def check(self):
        again = self.walk(self.base, self.anchor)
        return SimpleNamespace(tokens_match=None, tokens_agree_reference=float((again == self.first).float().mean()), logits_match=None)

    def settle(self):
        """Nothing to do."""

    def call(self, steps):
        return lambda: self.walk(self.base[:, :steps], self.anchor)

    def before(self, steps, l2_state):
        return None

    def recheck(self):
        return float((self.walk(self.base, self.anchor) == self.first).float().mean())

    def facts(self):
        return {}


class CpuBench:
    """As `bench_gpu.GpuBench`, for stepwise cases."""

    provenance = {"gpu_name": None, "gpu_sm_count": None}

    def __init__(self):
        self.timer = CpuTimer()

    def build(self, cases):
        """Nothing to compile."""

    def prepare(self, cases, steps, seed):
        return [CpuSubject(case, steps, seed) for case in cases]

    def clocks(self):
        return ClockReading()

    def release(self):
        """Nothing is held."""


def cpu_place():
    """A worker is a device of its own: its process."""
    return Place(platform.node(), str(os.getpid()), "some-cpu", "c0ffee")


MEETING_S = 120.0
"""How long a worker waits for the other device's, which may still be starting on a busy machine."""


def measure_on_cpu(plan_file: Path, process_index: int, progress, cancel):
    """One process of a job, in this process; notes who measured it, dies where a file says so, and waits where one says until each device has a worker."""
    notes = Path(os.environ["SWEEP_TEST_NOTES"])
    if (notes / "always-die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    for mark in (notes / "die-once", notes / "die-second"):
        if mark.name == "die-once" or process_index == 1:
            with suppress(FileNotFoundError):  # there is none, or another worker took it
                mark.rename(notes / f"died-{os.getpid()}")
                os.kill(os.getpid(), signal.SIGKILL)
    (notes / f"at-{os.environ.get('CUDA_VISIBLE_DEVICES')}").touch()
    deadline = time.monotonic() + MEETING_S
    while (notes / "all-devices").exists() and len(list(notes.glob("at-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    torch.set_num_threads(1)
    bench_run.work(plan_file, process_index, bench=CpuBench(), say=lambda line: None)
    with open(notes / "measured", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")


CPU_WORKER = Worker(cpu_place, measure_on_cpu)
