"""Measuring walks by the protocol of the design: correct first, then graph replays, interleaved, every sample kept.

:func:`stream_points` measures in this process and yields rows as points finish. :func:`measure` makes a
record of it (`bench_run.py`): several processes, parts that survive an interruption, one immutable file.

What is kept out of a sample: the host (a gate holds the GPU while work is enqueued, see `timing.py`), the flush of L2 and the
writing of base logits, warm-up calls, and samples taken while the driver reported throttling (dropped and counted; if none is
left the row stays, with empty samples).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from cost_model.measurement import walk_row
from cost_model.workload import ENGINE
from wts_lab.bench_plan import (
    DEFAULT_REPEATS, DEFAULT_ROUNDS, PARTS, Point, WalkCase, burst_sizes, check_points, comparison_cases, group_cases, order_bursts,
    resident_case, stepwise_case, streaming_case,
)
from wts_lab.bench_run import main, measure, measure_probes
from wts_lab.nvml import ClockReading

__all__ = [
    "Bench", "Progress", "WalkCase", "WrongKernel", "comparison_cases", "measure", "measure_probes", "resident_case", "stepwise_case",
    "stream_points", "streaming_case",
]

WARMUP_CALLS = 3
BUSY_US = 200_000.0
"""The GPU is kept busy this long before a group, so that its clocks have left their idle state."""

LEAST_ENGINE_AGREEMENT = 0.5
"""An engine rounds otherwise than the reference, which changes a few tokens in a hundred; more is another computation."""

Progress = Callable[[int, int, str], None]
"""Called as ``progress(bursts done, bursts in all, what is being timed)``."""


class WrongKernel(RuntimeError):
    """A walk's tokens or kept logits differ from the twin's, before or after timing. Nothing of its group is recorded."""


class Bench(Protocol):
    """A place to measure; `bench_gpu.GpuBench` is the real one."""

    timer: Any

    def build(self, cases: Sequence[WalkCase]) -> None:
        """Compile what all cases need, before anything is prepared."""

    def prepare(self, cases: Sequence[WalkCase], steps: Sequence[int], seed: int) -> list[Any]:
        """Subjects of one group, in order."""

    def clocks(self) -> ClockReading:
        """Clock and throttle reasons now."""

    def release(self) -> None:
        """Free what the last group held."""


@dataclass
class PointSamples:
    """What has been gathered for one point: kept samples in order, the count of dropped ones, and clock readings."""

    samples_us: list[float] = field(default_factory=list)
    dropped: int = 0
    first: ClockReading | None = None
    last: ClockReading = ClockReading()
    reasons: set[str] = field(default_factory=set)
    reasons_known: bool = True

    def add(self, samples_us: Sequence[float], before: ClockReading, after: ClockReading) -> None:
        """Take in one burst; a throttling reason before or after it drops all its samples."""
        if before.throttled or after.throttled:
            self.dropped += len(samples_us)
        else:
            self.samples_us += samples_us
        self.see(before, after)

    def see(self, before: ClockReading, after: ClockReading) -> None:
        """Take in the readings around a burst, and nothing of the burst."""
        self.first = self.first or before
        self.last = after
        for reading in (before, after):
            self.reasons_known = self.reasons_known and reading.reasons is not None
            self.reasons.update(reading.reasons or ())

    def facts(self) -> dict[str, Any]:
        """The columns that follow from the samples."""
        return {
            "samples_us": list(self.samples_us), "samples_dropped": self.dropped,
            "sm_clock_mhz_before": self.first.sm_clock_mhz if self.first else None,
            "sm_clock_mhz_after": self.last.sm_clock_mhz,
            "throttle_reasons": (",".join(sorted(self.reasons)) or "none") if self.reasons_known or self.reasons else None,
        }


def utc_now() -> str:
    """The present moment as records write it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def case_facts(case: WalkCase) -> dict[str, Any]:
    """The columns that a case alone decides."""
    head = case.head
    return {
        "implementation": case.implementation, "variant": case.variant, "mode": case.mode, "precision": case.precision,
        "rounding": case.rounding, "head_kind": head.kind, "vocab_size": head.vocab_size,
        "target_vocab_size": head.target_vocab_size, "padded_vocab_size": head.padded_vocab_size, "rank": head.rank,
        "hidden_size": head.hidden_size, "gru_size": head.gru_size, "candidate_pool": head.candidate_pool,
        "batch": case.batch, "temperature": case.temperature, "logits_kept": case.logits_kept, "probe": PARTS.get(case.probe, case.probe),
    }


def stream_points(
    cases: Sequence[WalkCase], steps: Sequence[int], l2_states: Sequence[str] = ("warm",), *, repeats: int = DEFAULT_REPEATS,
    process_index: int = 0, run_id: str | None = None, seed: int = 0, cancel: Any = None, progress: Progress | None = None,
    rounds: int = DEFAULT_ROUNDS, bench: Bench | None = None, provenance: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure cases in this process, and yield one walk row a point as soon as its last sample is taken.

    Args:
        cases: what to measure; those of the same head, batch and temperature share inputs and run interleaved.
        steps, l2_states: walk lengths and L2 states; every case is timed at all of them.
        repeats: samples a point.
        rounds: bursts that a point's samples are spread over. With 1 the first row comes soonest (for a live screen).
        seed: of weights, inputs and order.
        cancel: anything with ``is_set()``; once set, the iterator ends without an error, between two bursts.
        progress: called after each burst.
        bench: where to measure; default: the current CUDA device.
        provenance: columns for every row; default: ``environment.snapshot()``.

    Raises:
        BadInput: nothing to measure, or a length, state or count that cannot be.
        WrongKernel: tokens differ from the twin's; raised before anything of that group is timed, or after.
        RuntimeError: no CUDA device, a failed build, a stalled walk.
    """
    check_points(steps, l2_states, repeats)
    groups = group_cases(cases)
    if provenance is None:
        from wts_lab.environment import snapshot

        provenance = snapshot()
    if bench is None:
        from wts_lab.bench_gpu import GpuBench

        bench = GpuBench()
    bench.build(cases)
    shared = {**provenance, "run_id": run_id or uuid4().hex, "process_index": process_index, "repeats": repeats}
    total = sum(len(group) for group in groups) * len(steps) * len(l2_states) * len(burst_sizes(repeats, rounds))
    done = 0
    for number, group in enumerate(groups):
        run = _GroupRun(bench, group, steps, l2_states, repeats, rounds, shared, Random(f"{seed}/{number}"))
        for row, label in run.rows(cancel, seed + number):
            done += 1
            if progress is not None:
                progress(done, total, label)
            if row is not None:
                yield row
        if cancel is not None and cancel.is_set():
            return


@dataclass
class _GroupRun:
    """One group being measured."""

    bench: Bench
    group: Sequence[WalkCase]
    steps: Sequence[int]
    l2_states: Sequence[str]
    repeats: int
    rounds: int
    shared: Mapping[str, Any]
    rng: Random
    reading: ClockReading = ClockReading()

    def rows(self, cancel: Any, seed: int) -> Iterator[tuple[dict | None, str]]:
        """Yield (row or None, label) after every burst; a row comes with a point's last burst."""
        try:
            subjects = self.bench.prepare(self.group, self.steps, seed)
            agreements = [_require_match(case, subject.check()) for case, subject in zip(self.group, subjects)]
            for subject in subjects:
                subject.settle()
            self.bench.timer.busy(BUSY_US)
            self.reading = self.bench.clocks()
            gathered: dict[Point, PointSamples] = {}
            order = order_bursts(len(self.group), self.steps, self.l2_states, self.repeats, self.rounds, self.rng)
            for point, samples, last in order:
                if cancel is not None and cancel.is_set():
                    return
                self._burst(subjects[point.case], point, samples, gathered.setdefault(point, PointSamples()))
                case = self.group[point.case]
                label = f"{case.label}, {point.steps} steps, {point.l2_state}"
                row = self._row(case, subjects[point.case], agreements[point.case], point, gathered[point]) if last else None
                yield row, label
            for case, subject in zip(self.group, subjects):
                _require_unchanged(case, subject.recheck())
        finally:
            subjects = None
            self.bench.release()

    def _burst(self, subject: Any, point: Point, samples: int, gathered: PointSamples) -> None:
        """Time one burst of a point and take it in; the reading after a burst is the one before the next."""
        key = f"{self.group[point.case].label}/{point.steps}/{point.l2_state}"
        times = self.bench.timer.burst(
            key, subject.call(point.steps), repeats=samples, warmup=WARMUP_CALLS, before=subject.before(point.steps, point.l2_state)
        )
        before, self.reading = self.reading, self.bench.clocks()
        gathered.add(times, before, self.reading)

    def _row(self, case: WalkCase, subject: Any, agreement: Any, point: Point, gathered: PointSamples) -> dict[str, Any]:
        """The record row of a finished point."""
        return walk_row(
            **self.shared, **case_facts(case), **subject.facts(), **gathered.facts(), recorded_at_utc=utc_now(),
            l2_state=point.l2_state, steps=point.steps, tokens_match=agreement.tokens_match,
            tokens_agree_reference=agreement.tokens_agree_reference,
        )


def _require_match(case: WalkCase, agreement: Any) -> Any:
    """The agreement, unless tokens or kept logits differ from the twin's, or an engine runs something else altogether."""
    for what, share in (("tokens", agreement.tokens_match), ("kept logits", agreement.logits_match)):
        if share is not None and share < 1.0:
            raise WrongKernel(
                f"{case.label}: only {share:.6f} of the {what} equal the twin's; a wrong kernel is not timed. "
                "Run the GPU tests to see where it differs"
            )
    if case.implementation == ENGINE and agreement.tokens_agree_reference < LEAST_ENGINE_AGREEMENT:
        raise WrongKernel(
            f"{case.label}: chooses as the bf16 reference in only {agreement.tokens_agree_reference:.3f} of the steps; "
            "it does not walk this head as it should, so it is not timed"
        )
    return agreement


def _require_unchanged(case: WalkCase, share: float) -> None:
    """Raise WrongKernel unless replays after the timing gave the tokens of before."""
    if share < 1.0:
        raise WrongKernel(f"{case.label}: only {share:.6f} of the tokens are those of before the timing; its samples are not recorded")


if __name__ == "__main__":
    raise SystemExit(main())
