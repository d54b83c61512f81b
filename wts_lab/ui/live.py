"""Background runs: a source of measured rows, and the thread that pulls them while the screen stays alive.

Two sources yield the same walk rows (`cost_model.measurement`): `launch` times the real kernels on this machine's GPU, and
`replay` reads a recorded run at a watchable pace.  A `BackgroundRun` pulls one of them, reports each row, can be cancelled
between rows, and never lets an error escape the thread: it ends up in the outcome, for the panel to show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.workload import OURS
from wts_lab.compare import Way
from wts_lab.endings import INTERRUPTIONS
from wts_lab.recordings import recorded_rows

if TYPE_CHECKING:
    from wts_lab.bench_plan import WalkCase
    from wts_lab.study import Device
    from wts_lab.ui.requests import PanelRequest

TICK_S = 1.0

Row = Mapping[str, Any]
Log = Callable[[str], None]


@dataclass(frozen=True)
class RowSource:
    """Where a run's rows come from.

    Attributes:
        label: the source in words, with GPU and, for a replay, its date.
        total: number of rows to expect.
        rows: called with a cancel event and a log function in the run's thread; yields walk rows.
        is_live: True when kernels are launched here, so that the rows deserve a record of their own.
    """

    label: str
    total: int
    rows: Callable[[threading.Event, Log], Iterator[Row]]
    is_live: bool


@dataclass(frozen=True)
class Outcome:
    """How a run ended: 'done', 'cancelled' or 'failed' (cancelled or not), with the rows that came before, seconds taken, and the error."""

    status: str
    rows: tuple[Row, ...]
    elapsed_s: float
    error: Exception | None = None


def ways_of(request: PanelRequest) -> tuple[Way, ...]:
    """What a run of this request walks: the way asked for, and the stepwise reference to compare it with."""
    return tuple(dict.fromkeys(((request.mode, request.precision), ("stepwise", "bf16"))))


def launch(request: PanelRequest, device: Device, *, repeats: int = 100) -> RowSource:
    """Time the requested walk and the stepwise reference, interleaved, on this machine's GPU."""
    cases = cases_of(request)
    lengths = request.walk_lengths()

    def rows(cancel: threading.Event, log: Log) -> Iterator[Row]:
        from wts_lab.bench import stream_points

        for case in cases:
            build_ahead(case, cancel, log)
        log("Checking tokens against the twin, then timing.")
        yield from stream_points(cases, lengths, (request.l2_state,), repeats=repeats, rounds=1, cancel=cancel)

    return RowSource(f"measured here: {device.name}", len(cases) * len(lengths), rows, is_live=True)


def cases_of(request: PanelRequest) -> tuple[WalkCase, ...]:
    """The walk asked for, and the stepwise reference."""
    from wts_lab.bench_plan import resident_case, stepwise_case, streaming_case

    head, fields = request.load_head(), dict(batch=request.batch, temperature=request.temperature)
    reference = stepwise_case(head, **fields)
    if request.mode == "stepwise":
        return (reference,)
    fused = resident_case if request.mode == "resident" else streaming_case
    return fused(head, precision=request.precision, **fields), reference


def build_ahead(case: WalkCase, cancel: threading.Event, log: Log) -> None:
    """Build a fused case's kernel before it is measured, so that the compiler's messages and a cancel reach the user.

    The walk finds the finished build in the cache.  Raises BuildError and BuildCancelled.
    """
    if case.implementation != OURS:
        return
    import torch

    from wts_lab.bench_gpu import walk_spec
    from wts_lab.build import build_walk, load_binding
    from wts_lab.walk import device_arch, device_gpu

    device = torch.device("cuda", 0)
    log(f"Building {case.label}.")
    record = build_walk(walk_spec(case, device_gpu(device)), device_arch(device), log=log, cancel=cancel)
    load_binding(log)
    log(f"Built: {record.registers_per_thread} registers a thread, {record.spill_bytes} bytes spilled.")


def replay(request: PanelRequest, records: Path | None = None, *, pace_s: float = 0.06) -> RowSource:
    """The recorded run of the requested walk and of its stepwise reference, one row every `pace_s` seconds.

    Raises NothingRecorded, which lists what there is, when no record fits the request.
    """
    recording = recorded_rows(
        request.load_gpu(),
        request.load_head(),
        ways_of(request),
        request.l2_state,
        max_steps=request.steps,
        batch=request.batch,
        temperature=request.temperature,
        records=records,
    )
    recorded = recording.rows

    def rows(cancel: threading.Event, log: Log) -> Iterator[Row]:
        log(f"Replaying {len(recorded)} rows of {recording.label}.")
        for row in recorded:
            if cancel.wait(pace_s):
                return
            yield row

    return RowSource(f"replayed: {recording.label}", len(recorded), rows, is_live=False)


def progress_words(count: int, total: int, elapsed_s: float, first_s: float | None) -> str:
    """How far a run is: points, elapsed time and, from the second point on, what is left at the pace since the first one.

    Args:
        first_s: elapsed time at which the first point came; None before.
    """
    done = f"{count} of {total} points, {elapsed_s:.0f} s"
    if first_s is None or not 1 < count < total:
        return done
    return f"{done}, about {(total - count) * (elapsed_s - first_s) / (count - 1):.0f} s left"


class BackgroundRun:
    """A thread that pulls a source.  `on_tick` is called every TICK_S seconds in a thread of its own, from the start until the rows have ended;
    all other callbacks are called in the run's thread, `on_end` last and exactly once."""

    def __init__(
        self,
        source: RowSource,
        *,
        on_row: Callable[[Row, int], None],
        on_log: Log,
        on_end: Callable[[Outcome], None],
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self._on_row, self._on_log, self._on_end, self._on_tick = on_row, on_log, on_end, on_tick
        self._cancel, self._is_over = threading.Event(), threading.Event()
        self._started_s = 0.0
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._pull, name="wts-lab run", daemon=True)

    def start(self) -> None:
        """Start pulling; returns at once."""
        self._started_s = time.monotonic()
        self._thread.start()

    def cancel(self) -> None:
        """Ask the run to end after the row in hand; returns at once."""
        self._cancel.set()

    def wait(self, timeout_s: float) -> Outcome:
        """Block until the run has ended and its callbacks have returned.  Raises TimeoutError after `timeout_s` seconds."""
        self._thread.join(timeout_s)
        if self._thread.is_alive() or self.outcome is None:
            raise TimeoutError(f"the run has not ended after {timeout_s} s; wait longer, or cancel it")
        return self.outcome

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was asked to end."""
        return self._cancel.is_set()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def is_running(self) -> bool:
        """True until the thread has ended."""
        return self._thread.is_alive()

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_S):
            self._on_tick()

    def _pull(self) -> None:
        rows: list[Row] = []
        error: Exception | None = None
        ticker = threading.Thread(target=self._tick, name="wts-lab clock", daemon=True)
        ticker.start()
        try:
            for row in self.source.rows(self._cancel, self._on_log):
                rows.append(row)
                self._on_row(row, len(rows))
                if self._cancel.is_set():
                    break
        except Exception as caught:  # whatever went wrong belongs on the screen, not in a dead thread
            error = caught
        self._is_over.set()
        ticker.join()
        is_failed = error is not None and not (self._cancel.is_set() and type(error).__name__ in INTERRUPTIONS)
        status = "failed" if is_failed else "cancelled" if self._cancel.is_set() else "done"
        self.outcome = Outcome(status, tuple(rows), self.elapsed_s, error)
        self._on_end(self.outcome)
