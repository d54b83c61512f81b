"""Measuring rounds in one process: correct first, then graph replays of every phase and of whole rounds, interleaved, every sample kept.

The head alone is timed right after the base logits were computed, as in a round: they are warm in L2, and everything else is not. Verify,
backbone and base logits read more weights than L2 holds, so each finds it as the phase before it would leave it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

import torch

from cost_model.measurement import round_row
from wts_lab.bench import BUSY_US, LEAST_ENGINE_AGREEMENT, PointSamples, WrongKernel, utc_now
from wts_lab.bench_gpu import GpuBench, capture_graph, make_walk
from wts_lab.bench_inputs import draw_head
from wts_lab.bench_plan import WalkCase, burst_sizes
from wts_lab.nvml import ClockReading
from wts_lab.round_model import Cache, Places
from wts_lab.round_parts import RoundModels, RoundParts, RoundShape
from wts_lab.round_plan import HEAD, PHASES, WHOLE, RoundCase, implementation_name
from wts_lab.stepwise import StepwiseWalk, teacher_forced_agreement
from wts_lab.timing import MAX_TRIES, TimingError
from wts_lab.twin_torch import expected_walks

WARMUP_CALLS = 2
MOST_LAYER_ERROR = 0.1
"""Largest relative error of a layer in bf16 beside the same in fp32 on the host; rounding alone leaves 0.01 to 0.02, a wrong mask or place near 1."""

STREAM_SPREAD = 1e-3
"""Standard deviation of the residual stream that enters a compared layer: small, so that what the layer adds is what is compared."""

RESTS, REST_S = 4, 0.3
"""A burst that the driver throttled is taken again after a rest, this often and this long: rounds of many tokens meet the power cap, and a rest frees it."""

CHECKED_ROWS, CHECKED_CONTEXT = 2, 1024
"""Sequences, and positions of their context, that the compared layer gets at most."""


class Place(Protocol):
    """Where rounds are measured; :class:`GpuPlace` is the real one.

    Attributes: ``timer`` has ``busy`` and ``burst`` as `timing.GateTimer`; ``device`` and ``dtype`` are of weights.
    """

    timer: Any
    device: torch.device
    dtype: torch.dtype

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Turn work into something that repeats it."""

    def walk(self, case: WalkCase, head: Any, steps: int) -> Any:
        """The walk of a case over a head."""

    def clocks(self) -> ClockReading:
        """Clock and throttle reasons now."""

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""

    def release(self) -> None:
        """Give freed memory back."""


class GpuPlace:
    """One CUDA device; arguments and errors as `bench_gpu.GpuBench`."""

    def __init__(self, engine_root: str | None = None) -> None:
        self._bench, self._engine_root = GpuBench(engine_root=engine_root), engine_root
        self.timer, self.device, self.dtype = self._bench.timer, torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
        self.capture, self.clocks, self.release, self.rest = capture_graph, self._bench.clocks, self._bench.release, time.sleep

    def build(self, cases: Sequence[RoundCase]) -> None:
        """Build the kernels of all heads at once."""
        self._bench.build([head for case in cases for head in case.heads])

    def walk(self, case: WalkCase, head: Any, steps: int) -> Any:
        """As `Place`."""
        return make_walk(case, head, steps, self._engine_root)


class RoundHeads:
    """A random head of a case's shape and the walks over it; cases that differ in context alone share them."""

    def __init__(self, case: RoundCase, models: RoundModels, place: Place) -> None:
        self.cases = case.heads
        self.head = draw_head(case.head, models.generator)
        self.walks = [place.walk(one, self.head, case.steps) for one in case.heads]


class RoundSubject:
    """One case, prepared: its phases and whole rounds captured, ready to be checked and timed."""

    def __init__(self, case: RoundCase, models: RoundModels, heads: RoundHeads, place: Place) -> None:
        self.case, self._heads = case, heads
        self.parts = RoundParts(RoundShape.of(case.drafter, case.steps, case.concurrency, case.context_tokens), models)
        self._drafts = [torch.full_like(self.parts.tokens[:, 1:], -1) for _ in heads.walks]
        self._calls: dict[tuple[str, int | None], Callable[[], Any]] = {}
        for phase in PHASES:
            self._calls[phase, None] = place.capture(self.parts.phase(phase))
        for number, (walk, drafts) in enumerate(zip(heads.walks, self._drafts)):
            self._calls[HEAD, number] = place.capture(self.parts.head(walk, drafts))
            self._calls[WHOLE, number] = place.capture(self.parts.whole(walk, drafts))

    def call(self, point: tuple[str, int | None]) -> Callable[[], Any]:
        """What is timed at a point of the case."""
        return self._calls[point]

    def before(self, point: tuple[str, int | None]) -> Callable[[], Any] | None:
        """What precedes it, untimed: base logits before a head that is timed alone."""
        return self._calls["base_logits", None] if point[0] == HEAD else None

    def drafts(self, number: int) -> torch.Tensor:
        """Tokens that a whole round with that head drafts, int64 ``[B, steps]``, a copy."""
        self._drafts[number].fill_(-1)
        self._calls[WHOLE, number]()
        if hasattr(self._heads.walks[number], "check"):
            self._heads.walks[number].check()
        return self._drafts[number].clone()

    def check(self) -> list[torch.Tensor]:
        """Compare every head with its twin, or with the reference, on the base logits of a round; returns what each drafted. Raises WrongKernel."""
        return [self._checked(number, head) for number, head in enumerate(self.case.heads)]

    def check_layers(self) -> None:
        """Compare the first layer of target and drafter with the same in fp32 on the host; raises WrongKernel."""
        for name, error in layer_errors(self.parts).items():
            if not error <= MOST_LAYER_ERROR:
                raise WrongKernel(f"{self.case.label}: a {name} layer differs from the same in fp32 by {error:.3g}, and {MOST_LAYER_ERROR} is allowed; it is not timed")

    def recheck(self, seen: Sequence[torch.Tensor]) -> None:
        """Raise WrongKernel unless rounds after the timing draft what they did before."""
        for number, drafts in enumerate(seen):
            if not torch.equal(self.drafts(number), drafts):
                raise WrongKernel(f"{self.case.label}: {self.case.heads[number].label} drafts other tokens than before the timing; its samples are not recorded")

    def _checked(self, number: int, case: WalkCase) -> torch.Tensor:
        """Tokens of one head, once they are found right."""
        drafts, parts = self.drafts(number), self.parts
        if not parts.base_logits.isfinite().all():
            raise WrongKernel(f"{self.case.label}: base logits are not finite; the round is not timed")
        if case.fused:
            share = float((drafts == expected_walks(self._heads.head, parts.base_logits, parts.anchor, precision=case.precision).tokens).float().mean())
            least, whose = 1.0, "the twin's tokens"
        else:
            reference = StepwiseWalk(self._heads.head)(parts.base_logits, parts.anchor)
            share = teacher_forced_agreement(self._heads.walks[number], reference, parts.base_logits, parts.anchor, max_batch=self.case.concurrency)
            least, whose = LEAST_ENGINE_AGREEMENT, "the reference's tokens"
        if not share >= least:
            raise WrongKernel(f"{self.case.label}: {case.label} drafts only {share:.6f} of {whose}; a wrong head is not timed")
        return drafts


def layer_errors(parts: RoundParts) -> dict[str, float]:
    """Relative error of one layer of target and drafter beside the same weights, context and inputs in fp32 on the host: ‖out − reference‖ / ‖reference‖."""
    shape, models = parts.shape, parts.models
    rows, context = min(shape.concurrency, CHECKED_ROWS), min(shape.context_tokens, CHECKED_CONTEXT)
    found = {}
    for name, cache, count, causal in (("target", parts.cache, shape.verified, True), ("drafter", parts.draft_cache, shape.positions, False)):
        one, host = models.first_layers[name]
        stream = torch.empty((rows, count, shape.target.hidden_size), device=models.device, dtype=models.dtype)
        stream.normal_(std=STREAM_SPREAD, generator=models.generator)
        places = Places.made(context, count, shape.target.head_dim, models.device, models.dtype)
        part = Cache(*(tensor[:1, :rows, : context + count].clone() for tensor in (cache.keys, cache.values)))
        on_host = Cache(*(tensor.cpu().float() for tensor in (part.keys, part.values)))
        with torch.no_grad():
            wanted = host.run(stream.cpu().float(), places.to(torch.device("cpu"), torch.float32), on_host, causal)
            got = one.run(stream, places, part, causal).cpu().float()
        found[name] = float((got - wanted).norm() / wanted.norm())
    return found


def stream_rounds(
    cases: Sequence[RoundCase], place: Place, *, repeats: int, rounds: int, seed: int, shared: Mapping[str, Any],
    progress: Callable[[str], None] = lambda label: None,
) -> Iterator[tuple[RoundCase, list[dict[str, Any]]]]:
    """Measure cases in this process, and yield each with its round rows as soon as it is done.

    Args:
        cases: in this order; those of one drafter beside each other share its weights.
        repeats, rounds: samples a point, and the bursts that they are spread over.
        seed: of weights, inputs and order.
        shared: provenance columns for every row.
        progress: called with what is being done.

    Raises:
        WrongKernel: a layer or a head is not what it should be; nothing of its case is yielded.
    """
    models = heads = subject = None
    for number, case in enumerate(cases):
        earlier = cases[number - 1] if number else None
        if earlier is None or earlier.drafter != case.drafter:
            models = heads = None
            place.release()
            progress(f"{case.target}: drawing weights")
            shape = RoundShape.of(case.drafter, 1, 1, 1)
            models = RoundModels(shape.drafter, shape.target, place.device, seed, place.dtype)
        if heads is None or replace(case, context_tokens=earlier.context_tokens) != earlier:
            heads = None
            progress(f"{case.label}: preparing walks")
            heads = RoundHeads(case, models, place)
        progress(f"{case.label}: capturing")
        subject = RoundSubject(case, models, heads, place)
        rows = _timed(subject, place, burst_sizes(repeats, rounds), Random(f"{seed}/{number}"), shared, progress)
        subject = None
        place.release()
        yield case, rows


def _timed(
    subject: RoundSubject, place: Place, sizes: Sequence[int], rng: Random, shared: Mapping[str, Any], progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Check a case, time all its points in bursts of these sizes, and return its rows."""
    case, gathered = subject.case, {point: PointSamples() for point in subject.case.points}
    progress(f"{case.label}: checking")
    subject.check_layers()
    seen = subject.check()
    place.timer.busy(BUSY_US)
    reading = place.clocks()
    for size in sizes:
        for point in rng.sample(case.points, len(case.points)):
            for left in range(RESTS, -1, -1):
                progress(f"{case.label}: {point[0]}")
                times = burst(place.timer, f"{case.label}/{point}", subject.call(point), size, subject.before(point))
                before, reading = reading, place.clocks()
                if left == 0 or not (before.throttled or reading.throttled):
                    break
                gathered[point].see(before, reading)
                progress(f"{case.label}: throttled, resting")
                place.rest(REST_S)
                reading = place.clocks()
            gathered[point].add(times, before, reading)
    subject.recheck(seen)
    return [_row(case, point, samples, shared) for point, samples in gathered.items()]


def burst(timer: Any, key: str, timed: Callable[[], Any], repeats: int, before: Callable[[], Any] | None) -> list[float]:
    """Times of ``repeats`` calls in microseconds, behind the timer's gate, or behind one another where a gate does not hold them.

    A graph of a whole round may be too large for many to wait on the GPU; then enqueuing outlasts every gate. But such a call is long: the
    host enqueues the next one while it runs, and a sample counts where it was enqueued, whole, before the GPU came to it.

    Raises:
        TimingError: the host is too slow for that, too.
    """
    try:
        return timer.burst(key, timed, repeats=repeats, warmup=WARMUP_CALLS, before=before)
    except TimingError:
        queue = timer.queue
    samples: list[float] = []
    for _ in range(MAX_TRIES):
        marks = []
        for number in range(WARMUP_CALLS + repeats):
            if before is not None:
                before()
            start = queue.mark()
            timed()
            stop = queue.mark()
            if number >= WARMUP_CALLS and not queue.reached(start):
                marks.append((start, stop))
        queue.synchronize()
        samples += [queue.elapsed_us(start, stop) for start, stop in marks]
        if len(samples) >= repeats:
            return samples[:repeats]
    raise TimingError(f"{key}: the GPU waits for the host even between calls this long; stop other work and try again")


def _row(case: RoundCase, point: tuple[str, int | None], samples: PointSamples, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The record row of one point."""
    phase, number = point
    head = None if number is None else case.heads[number]
    return round_row(
        **shared, **samples.facts(), recorded_at_utc=utc_now(), phase=phase, target=case.target, concurrency=case.concurrency,
        context_tokens=case.context_tokens, draft_tokens=case.steps, head_implementation=None if head is None else implementation_name(head),
        head_mode=None if head is None else head.mode,
    )
