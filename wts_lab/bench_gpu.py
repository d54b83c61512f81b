"""The GPU side of a measurement: prepared walks, their correctness, and what precedes each timed call.

`bench.py` decides what is timed and when, `bench_inputs.py` makes weights and inputs; this module is the rest that needs a device,
kept thin. A :class:`GpuBench` prepares one :class:`Subject` a case; the cases of a group share weights and inputs.

Correctness. On the timed weights, an int8x2 walk must equal the twin in every token and every kept logit, for every walk length and
several fresh inputs. A bf16 walk has no exact twin on arbitrary weights, since the order of its sums is free; that of a Markov head is
compared on weights whose sums are exact, through the same kernel, placement and shape. Another head's bf16 walk and an engine's path
have no twin: they are compared with the bf16 reference alone. A probe repeats a part of a step; its tokens mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cost_model.measurement import NO_PROBE
from cost_model.workload import ENGINE, REFERENCE
from wts_lab.bench_inputs import GroupInputs, checked_draws
from wts_lab.bench_plan import ENGINE_PATHS, WalkCase
from wts_lab.nvml import ClockReading, NvmlDevice
from wts_lab.timing import CudaQueue, GateTimer

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from wts_lab.abi import WalkSpec

FLUSH_FACTOR = 2.5
"""The flush writes, then reads, this many times the L2, each in a buffer of its own."""

USUAL = {"max_batch": 1, "rounding": "once", "sampling": False, "probe": NO_PROBE}
"""What a fused walk is unless asked otherwise."""


@dataclass(frozen=True)
class Agreement:
    """Shares of equal elements, 0 to 1; ``None`` where there is nothing to compare with.

    Attributes:
        tokens_match: of tokens with the twin's; the column of that name.
        tokens_agree_reference: of steps with the bf16 reference's, given its history; the column of that name.
        logits_match: of kept logits with the twin's.
    """

    tokens_match: float | None = None
    tokens_agree_reference: float | None = None
    logits_match: float | None = None


@dataclass
class _Tally:
    """Elements compared and equal, over many tensors."""

    equal: int = 0
    compared: int = 0

    def add(self, got: Any, wanted: Any) -> None:
        self.equal += int((got == wanted).sum())
        self.compared += wanted.numel()

    @property
    def share(self) -> float | None:
        return self.equal / self.compared if self.compared else None


class Flusher:
    """Leaves nothing useful in L2: writes one large buffer, then reads another.

    The read comes last so that L2 ends full of clean lines, as after a verify pass that reads its weights, and the timed
    call does not pay for writing dirty ones back.
    """

    def __init__(self, device: Any) -> None:
        import torch

        size = int(torch.cuda.get_device_properties(device).L2_cache_size * FLUSH_FACTOR) // 4
        self._torch = torch
        self._written = torch.zeros(size, dtype=torch.float32, device=device)
        self._read = torch.zeros(size, dtype=torch.float32, device=device)
        self._sum = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Enqueue the flush on the current stream."""
        self._written.fill_(1.0)
        self._torch.sum(self._read, dim=0, out=self._sum)


def walk_options(case: WalkCase) -> dict[str, Any]:
    """What a fused case asks of ``plan_walk``, and of :class:`wts_lab.walk.Walk` beside the exchange; the usual is left to them."""
    asked = {"max_batch": case.batch, "rounding": case.rounding, "sampling": case.temperature > 0, "probe": case.probe}
    options = {"mode": case.mode, "precision": case.precision, "placement": case.placement}
    return options | {name: value for name, value in asked.items() if value != USUAL[name]}


def walk_spec(case: WalkCase, gpu: Gpu) -> WalkSpec:
    """The instantiation that a fused case runs on a GPU; raises as :func:`wts_lab.walk_plan.plan_walk`."""
    from wts_lab.walk_plan import plan_walk

    return plan_walk(gpu, case.head, **walk_options(case)).spec


def make_walk(case: WalkCase, head: Any, steps: int, engine_root: str | None = None) -> Any:
    """The walk of a case over a head, for up to that many steps; raises what its class raises."""
    if case.implementation == REFERENCE:
        from wts_lab.stepwise import StepwiseWalk

        return StepwiseWalk(head, rounding=case.rounding)
    if case.implementation == ENGINE:
        from wts_lab.engines.sglang import SglangWalk

        return SglangWalk(head, path=ENGINE_PATHS[case.variant][0], root=engine_root)
    from wts_lab.walk import Walk

    exchange = {} if case.exchange is None else {"exchange": case.exchange}
    return Walk(head, steps=steps, **walk_options(case), **exchange)


def walk_facts(walk: Any) -> dict[str, Any]:
    """Columns that only a built walk knows; None where it has no such thing."""
    build, placement = getattr(walk, "build", None), getattr(walk, "placement", None)
    tiers = ("warps", "register_tiles", "shared_tiles", "tensor_tiles", "streamed_tiles", "staging_tiles")
    return {
        "grid_blocks": getattr(walk, "grid_blocks", None),
        **{name: getattr(placement, name, None) for name in tiers},
        "exchange": getattr(walk, "exchange", None),
        "registers_per_thread": getattr(build, "registers_per_thread", None),
        "spill_bytes": getattr(build, "spill_bytes", None),
    }


Capture = Callable[[Callable[[], Any]], Callable[[], None]]
"""Turns a function that enqueues work into one that repeats it: a CUDA graph and its replay."""


def capture_graph(work: Callable[[], Any]) -> Callable[[], None]:
    """Capture what ``work`` enqueues on the current device, after running it outside the graph; returns the replay."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Subject:
    """One case, prepared: captured in a CUDA graph for each walk length, checked, ready to be timed."""

    def __init__(
        self, case: WalkCase, inputs: GroupInputs, steps: Sequence[int], flush: Callable[[], None], capture: Capture,
        engine_root: str | None = None,
    ) -> None:  # fmt: skip
        self._case, self._inputs, self._flush = case, inputs, flush
        self._longest, self._engine_root = max(steps), engine_root
        self._walk = self._make(inputs.head)
        self._replays: dict[int, Callable[[], None]] = {}
        self._tokens: dict[int, Any] = {}
        self._seen: dict[int, Any] = {}
        for length in sorted(steps, reverse=True):
            positions = case.positions(length)
            base = inputs.base[:, :positions]
            tokens = self._tokens[length] = inputs.anchor.new_empty(base.shape[:2])
            options = inputs.options(case, positions)
            self._replays[length] = capture(partial(self._walk, base, inputs.anchor, tokens_out=tokens, **options))

    def call(self, steps: int) -> Callable[[], None]:
        """What is timed: one replay of the graph of that walk length."""
        return self._replays[steps]

    def before(self, steps: int, l2_state: str) -> Callable[[], None] | None:
        """What precedes each call, untimed: nothing when warm, the flush when cold, and when serving the flush followed by
        writing the hidden vectors and base logits, so that they are the only things in L2."""
        if l2_state == "warm":
            return None
        if l2_state == "cold":
            return self._flush
        positions = self._case.positions(steps)

        def serve() -> None:
            self._flush()
            self._inputs.write(positions)

        return serve

    def check(self) -> Agreement:
        """Compare with the twin and with the bf16 reference; see the module docstring."""
        case, tokens, logits, agree = self._case, _Tally(), _Tally(), None
        if case.probe != NO_PROBE:
            self._replay_all()
        elif case.fused and case.precision == "int8x2":
            self._match_on_timed_weights(tokens, logits)
        elif case.implementation != ENGINE and case.head.kind == "markov":
            self._match_on_exact_weights(tokens, logits)
        self._raise_reports(self._walk)
        if case.probe == NO_PROBE:
            agree = self._agree_with_reference()
        self._inputs.end_check()
        return Agreement(tokens.share, agree, logits.share)

    def settle(self) -> None:
        """Remember the tokens on the group's present inputs; called once no case will draw fresh ones any more."""
        self._replay_all()
        self._inputs.end_check()
        self._seen = {} if self._case.probe != NO_PROBE else {length: tokens.clone() for length, tokens in self._tokens.items()}

    def recheck(self) -> float:
        """Share of tokens, over all walk lengths, that replays after the timing still give; raises what the walk reports."""
        self._replay_all()
        self._raise_reports(self._walk)
        tally = _Tally()
        for length, seen in self._seen.items():
            tally.add(self._tokens[length], seen)
        return 1.0 if tally.share is None else tally.share

    def facts(self) -> dict[str, Any]:
        """Columns that only the built walk knows."""
        return walk_facts(self._walk)

    def _make(self, head: Any) -> Any:
        """The walk of this case over a head."""
        return make_walk(self._case, head, self._longest, self._engine_root)

    def _replay(self, length: int) -> Any:
        """Replay a walk length once over poisoned outputs; returns its tokens."""
        self._inputs.begin_check()
        self._tokens[length].fill_(-1)
        if self._case.logits_kept:
            self._inputs.logits.fill_(float("nan"))
        self._replays[length]()
        return self._tokens[length]

    def _replay_all(self) -> None:
        """Replay every walk length once."""
        for length in self._replays:
            self._replay(length)

    @staticmethod
    def _raise_reports(walk: Any) -> None:
        """Wait, and raise what only the device could see: a stall, or an anchor out of range."""
        if hasattr(walk, "check"):
            walk.check()

    def _match_on_timed_weights(self, tokens: _Tally, logits: _Tally) -> None:
        """Count what equals the int8x2 twin over all walk lengths and several fresh inputs."""
        for _ in range(checked_draws(self._case.batch)):
            self._inputs.draw()
            for length in self._replays:
                positions = self._case.positions(length)
                tokens_now, expected = self._replay(length), self._inputs.expected(self._case, positions)
                tokens.add(tokens_now, expected.tokens[:, :positions])
                if self._case.logits_kept:
                    logits.add(self._inputs.logits[:, :positions], expected.logits[:, :positions])

    def _match_on_exact_weights(self, tokens: _Tally, logits: _Tally) -> None:
        """Count what equals the bf16 twin on weights for which it is exact, over several fresh inputs."""
        inputs, head = self._inputs, self._inputs.exact_head()
        walk = self._make(head)
        for _ in range(checked_draws(self._case.batch)):
            inputs.draw()
            inputs.begin_check()
            tokens_now = walk(inputs.base, inputs.anchor, **inputs.options(self._case))
            expected = inputs.expected_exact(self._case, head)
            tokens.add(tokens_now, expected.tokens)
            if self._case.logits_kept:
                logits.add(inputs.logits, expected.logits)
        self._raise_reports(walk)

    def _agree_with_reference(self) -> float:
        """Share of steps in which the walk chooses as the bf16 reference, with the same noise where it samples."""
        from wts_lab.stepwise import StepwiseWalk, teacher_forced_agreement

        inputs, head = self._inputs, self._inputs.head
        sampling = {} if inputs.noise is None else {"temperatures": inputs.temperatures, "noise": inputs.noise}

        def choose(walk: Any, base: Any, anchor: Any, **hidden: Any) -> Any:
            inputs.begin_check()
            return walk(base, anchor, **sampling, **hidden)

        hidden = {} if inputs.hidden is None else {"hidden": inputs.hidden}
        reference = choose(StepwiseWalk(head), inputs.base, inputs.anchor, **hidden)
        return teacher_forced_agreement(
            partial(choose, self._walk), reference, inputs.base, inputs.anchor, first_step=head.first_step, max_batch=self._case.batch, **hidden
        )


class GpuBench:
    """One CUDA device as a place to measure: prepares cases, times calls, reads clocks.

    Args:
        device: its number.
        engine_root: folder of the engine's unpacked files, for cases that run it.

    Raises:
        RuntimeError: torch sees no CUDA device.
    """

    def __init__(self, device: int = 0, engine_root: str | None = None) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError(
                "no CUDA device is visible to torch; measuring needs one (wts-lab doctor says what is missing), "
                "and wts-lab study replays recorded runs without one"
            )
        torch.cuda.set_device(device)
        self._device = torch.device("cuda", device)
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        self._nvml = NvmlDevice.open(None if uuid is None else str(uuid), device)
        self._engine_root = engine_root
        self._flush: Flusher | None = None
        self._built: set[Any] = set()
        self.timer = GateTimer(CudaQueue(device))

    def build(self, cases: Sequence[WalkCase]) -> None:
        """Build the kernels of all cases at once, as many at a time as there are processors; finds those already built.

        Raises:
            BuildError: a build failed, with the compiler's output.
        """
        import os
        from concurrent.futures import ThreadPoolExecutor

        from wts_lab.build import build_walk
        from wts_lab.walk import device_arch, device_gpu

        gpu, arch = device_gpu(self._device), device_arch(self._device)
        specs = {walk_spec(case, gpu) for case in cases if case.fused} - self._built
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda spec: build_walk(spec, arch), sorted(specs, key=lambda spec: spec.name())))
        self._built |= specs

    def prepare(self, cases: Sequence[WalkCase], steps: Sequence[int], seed: int) -> list[Subject]:
        """Build, upload and capture the cases of one group over shared inputs."""
        if self._flush is None:
            self._flush = Flusher(self._device)
        inputs = GroupInputs(cases, max(steps), seed, self._device)
        return [Subject(case, inputs, steps, self._flush, capture_graph, self._engine_root) for case in cases]

    def clocks(self) -> ClockReading:
        """Clock and throttle reasons now."""
        return self._nvml.clocks()

    def release(self) -> None:
        """Give freed memory back, so that the next group allocates afresh."""
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
