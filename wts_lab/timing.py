"""Timing work on a GPU queue so that the host never shows.

The queue is held shut by a spinning kernel (the gate), a batch of (mark, call, mark) triples is enqueued behind it, and
only then may the GPU run them, back to back. A batch whose gate opened before the last triple was enqueued is thrown away
and timed again behind a longer gate, or in smaller batches: launch cost of the host cannot enter a sample unnoticed.

The gate logic knows the queue only through :class:`GpuQueue`, so that it can be tested against a simulated one.
:class:`CudaQueue` is the real one; it imports torch when it is made.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Protocol

Call = Callable[[], Any]

FIRST_ENQUEUE_COST_US = 60.0
"""Assumed host time to enqueue one call before any was seen; wrong guesses only cost a repeated batch."""

HOLD_MARGIN = 2.0
"""The gate is held this many times as long as enqueuing took last time."""

MIN_HOLD_US = 200.0
MAX_HOLD_US = 20_000.0
MAX_TRIES = 12
CYCLES_A_US = 2000.0
"""Upper estimate of the GPU clock: the spin is given in cycles, and too long a gate costs only time."""


class TimingError(RuntimeError):
    """The host cannot enqueue even one call while the gate is shut; the message says how long it was held."""


class GpuQueue(Protocol):
    """An in-order queue of GPU work. Times are in microseconds."""

    def hold(self, us: float) -> None:
        """Enqueue work that occupies the GPU for at least ``us``."""

    def mark(self) -> Any:
        """Enqueue a mark whose time can be read later."""

    def reached(self, mark: Any) -> bool:
        """Whether the GPU has passed the mark."""

    def elapsed_us(self, start: Any, stop: Any) -> float:
        """Time between two marks that the GPU has passed."""

    def synchronize(self) -> None:
        """Wait until everything enqueued is done."""

    def host_us(self) -> float:
        """The host's clock."""


class CudaQueue:
    """The current stream of a CUDA device."""

    def __init__(self, device: int = 0) -> None:
        import torch

        self._torch = torch
        self._device = device

    def hold(self, us: float) -> None:
        self._torch.cuda._sleep(int(us * CYCLES_A_US))

    def mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: Any) -> bool:
        return mark.query()

    def elapsed_us(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) * 1e3

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def host_us(self) -> float:
        return time.perf_counter() * 1e6


class GateTimer:
    """Times calls behind a gate.

    Args:
        queue: the queue that the calls enqueue their work on.
    """

    def __init__(self, queue: GpuQueue) -> None:
        self.queue = queue
        self._enqueue_cost_us: dict[str, float] = {}
        self._batch_limit: dict[str, int] = {}

    def busy(self, us: float) -> None:
        """Occupy the GPU for a while and wait, so that its clocks leave their idle state."""
        while us > 0:
            self.queue.hold(min(us, MAX_HOLD_US))
            us -= MAX_HOLD_US
        self.queue.synchronize()

    def burst(self, key: str, timed: Call, *, repeats: int, warmup: int = 3, before: Call | None = None) -> list[float]:
        """Times of ``repeats`` consecutive calls, in order, in microseconds.

        Args:
            key: names the work, to remember how long the host needs to enqueue it.
            timed: enqueues what is timed.
            repeats: samples to take, at least 1.
            warmup: calls at the start of every batch that are run and not timed.
            before: enqueues what precedes each call untimed (a flush of L2, say).

        Raises:
            TimingError: not even single calls can be enqueued behind the longest gate.
        """
        if repeats < 1 or warmup < 0:
            raise ValueError(f"repeats is {repeats} and warmup {warmup}; give at least 1 and at least 0")
        samples: list[float] = []
        while len(samples) < repeats:
            samples += self._gated(key, timed, before, warmup, repeats - len(samples))
        return samples

    def _gated(self, key: str, timed: Call, before: Call | None, warmup: int, wanted: int) -> list[float]:
        """One good batch of at most ``wanted`` samples."""
        stretch = 1.0
        for _ in range(MAX_TRIES):
            count = min(wanted, self._batch_limit.get(key, wanted))
            expected_us = self._enqueue_cost_us.get(key, FIRST_ENQUEUE_COST_US) * (warmup + count)
            hold_us = min(MAX_HOLD_US, max(MIN_HOLD_US, HOLD_MARGIN * stretch * expected_us))
            marks, shut, spent_us = self._batch(timed, before, warmup, count, hold_us)
            if shut:
                self._enqueue_cost_us[key] = spent_us / (warmup + count)
                return [self.queue.elapsed_us(start, stop) for start, stop in marks]
            if hold_us >= MAX_HOLD_US or stretch > 4:
                self._batch_limit[key] = max(1, count // 2)
            stretch *= 2
        raise TimingError(
            f"{key}: enqueuing {warmup} + {count} calls outlasted a gate of {hold_us:.0f} us in {MAX_TRIES} tries; "
            "the host is too busy to time this GPU, so stop other work on it and try again"
        )

    def _batch(self, timed: Call, before: Call | None, warmup: int, count: int, hold_us: float) -> tuple[list, bool, float]:
        """Enqueue one batch behind a gate; returns the marks, whether the gate stayed shut, and the host's time."""
        queue = self.queue
        queue.synchronize()
        began_us = queue.host_us()
        queue.hold(hold_us)
        gate = queue.mark()
        for _ in range(warmup):
            if before is not None:
                before()
            timed()
        marks = []
        for _ in range(count):
            if before is not None:
                before()
            start = queue.mark()
            timed()
            marks.append((start, queue.mark()))
        shut = not queue.reached(gate)
        spent_us = queue.host_us() - began_us
        queue.synchronize()
        return marks, shut, spent_us
