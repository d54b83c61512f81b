"""A simulated GPU for the tests of timing and measuring: an in-order queue with a host clock and a device clock.

Nothing here stands in for the code under test. The gate, the order of bursts, the dropping of samples, parts, merging and
slopes are the real ones; only the machine that they would run on is simulated, and it is exact: a call that costs the device
10 us takes 10 us, and any excess in a sample is a fault of the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from wts_lab.nvml import ClockReading
from wts_lab.timing import GateTimer


@dataclass
class SimulatedQueue:
    """Work is done in order, not before the host enqueued it. ``depth`` bounds how many entries may wait, as on a GPU."""

    host: float = 0.0
    device: float = 0.0
    mark_cost_us: float = 2.0
    depth: int | None = None
    waiting: list[float] = field(default_factory=list)

    def enqueue(self, host_us: float, device_us: float) -> float:
        self.host += host_us
        self.waiting = [end for end in self.waiting if end > self.host]
        if self.depth is not None and len(self.waiting) >= self.depth:
            self.host = self.waiting[-self.depth]  # a full queue blocks the host until an entry is done
        self.device = max(self.device, self.host) + device_us
        self.waiting.append(self.device)
        return self.device

    def hold(self, us: float) -> None:
        self.enqueue(5.0, us)

    def mark(self) -> float:
        return self.enqueue(self.mark_cost_us, 0.0)

    def reached(self, mark: float) -> bool:
        return self.host >= mark

    def elapsed_us(self, start: float, stop: float) -> float:
        return stop - start

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def host_us(self) -> float:
        return self.host


@dataclass
class SimulatedSubject:
    """A walk whose call takes entry + step · steps microseconds, more with a flushed L2."""

    bench: Any
    case: Any
    entry_us: float
    step_us: float
    match: float | None = 1.0
    stays: float = 1.0
    agree: float | None = 0.875
    logits: float | None = None
    calls: list[tuple[str, int]] = field(default_factory=list)

    def check(self) -> SimpleNamespace:
        self.bench.log.append(("check", self.case.variant))
        return SimpleNamespace(tokens_match=self.match, tokens_agree_reference=self.agree, logits_match=self.logits)

    def settle(self) -> None:
        self.bench.log.append(("settle", self.case.variant))

    def call(self, steps: int):
        return lambda: self._call(steps)

    def _call(self, steps: int) -> None:
        self.bench.log.append(("call", (self.case.variant, self.case.precision, steps)))
        cold = 5.0 if self.bench.flushed else 0.0
        self.bench.flushed = False
        self.bench.queue.enqueue(8.0, self.entry_us + cold + self.step_us * steps)

    def before(self, steps: int, l2_state: str):
        if l2_state == "warm":
            return None

        def flush() -> None:
            self.bench.queue.enqueue(4.0, 60.0)
            self.bench.flushed = True

        return flush

    def recheck(self) -> float:
        return self.stays

    def facts(self) -> dict[str, Any]:
        return {"grid_blocks": 132, "registers_per_thread": 200, "spill_bytes": 0}


class SimulatedBench:
    """A bench over a simulated queue. ``costs`` maps variants to (entry, step); ``throttled`` are numbers of clock readings
    that report a thermal slowdown."""

    provenance = {"gpu_name": "Simulated", "gpu_sm_count": 132}

    def __init__(self, costs: dict[str, tuple[float, float]] | None = None, throttled: range | tuple = (), **subject: Any) -> None:
        self.queue = SimulatedQueue()
        self.timer = GateTimer(self.queue)
        self.costs, self.throttled, self.subject = costs or {}, throttled, subject
        self.readings, self.flushed, self.released = 0, False, 0
        self.log: list[tuple] = []
        self.built: list = []

    def build(self, cases) -> None:
        self.built += cases

    def prepare(self, cases, steps, seed) -> list[SimulatedSubject]:
        self.log.append(("prepare", seed))
        return [SimulatedSubject(self, case, *self.costs.get(case.variant, (12.0, 3.0)), **self.subject) for case in cases]

    def clocks(self) -> ClockReading:
        self.readings += 1
        return ClockReading(1980.0, ("sw_thermal_slowdown",) if self.readings - 1 in self.throttled else ())

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def simulated() -> SimpleNamespace:
    """The classes of the simulated GPU: ``Queue`` and ``Bench``."""
    return SimpleNamespace(Queue=SimulatedQueue, Bench=SimulatedBench)
