"""The GPU side of a measurement: inputs, prepared walks, their correctness, and what precedes each timed call.

`bench.py` decides what is timed and when; this module is everything of it that needs a device, kept thin. A
:class:`GpuBench` prepares one :class:`Subject` a case; the cases of a group share weights and inputs.

Correctness. On the timed weights, an int8x2 walk must equal the twin in every token, for every walk length and several fresh
inputs. A bf16 walk has no exact twin on arbitrary weights, since the order of its sums is free; it is compared with the
twin on weights whose sums are exact in fp32 (small integers / 8), through the same kernel, placement and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wts_lab.bench_plan import WalkCase, exchange_name, exchange_replicas
from wts_lab.nvml import ClockReading, NvmlDevice
from wts_lab.timing import CudaQueue, GateTimer

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from wts_lab.abi import WalkSpec

CHECKED_DRAWS = 4
"""Fresh inputs on which each case is compared with the twin; each is walked at every walk length."""

FLUSH_FACTOR = 2.5
"""The flush writes, then reads, this many times the L2, each in a buffer of its own."""

EXACT_STEP = 8
"""Exact weights are whole numbers of at most this size, divided by it: products and sums of 512 are exact in fp32."""


@dataclass(frozen=True)
class Agreement:
    """Shares of equal tokens, 0 to 1; ``None`` where there is nothing to compare with. Columns of the same names."""

    tokens_match: float | None
    tokens_agree_reference: float | None


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


def walk_spec(case: WalkCase, gpu: Gpu) -> WalkSpec:
    """The instantiation that a fused case runs on a GPU; raises as :func:`wts_lab.walk.plan_walk`."""
    from wts_lab.walk import EXCHANGE_REPLICAS, plan_walk

    replicas = EXCHANGE_REPLICAS if case.exchange is None else exchange_replicas(case.exchange)
    return plan_walk(
        gpu, case.head, mode=case.mode, precision=case.precision, placement=case.placement, replicas=replicas
    ).spec


class GroupInputs:
    """Weights and inputs of one group: a random head, base logits bf16 ``[B, steps, V]``, anchors int64 ``[B]``.

    Base logits and corrections both have a standard deviation near 1, so both decide the tokens.
    """

    def __init__(self, case: WalkCase, max_steps: int, seed: int, device: Any) -> None:
        import torch

        from wts_lab.heads import MarkovHead

        shape = case.head
        self._torch = torch
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._codes: tuple | None = None
        self._expected: dict[str, Any] = {}
        self.head = MarkovHead.random(
            shape.vocab_size, shape.rank, target_vocab_size=shape.target_vocab_size,
            padded_vocab_size=shape.padded_vocab_size, seed=seed % (1 << 31), device=device,
        )
        columns = (case.batch, max_steps, shape.vocab_size)
        self.source = torch.empty(columns, dtype=torch.bfloat16, device=device)
        self.base = torch.empty_like(self.source)
        self.anchor = torch.empty(case.batch, dtype=torch.int64, device=device)
        self.draw()

    def draw(self) -> None:
        """Fresh base logits and anchors, in place."""
        self.source.normal_(generator=self._generator)
        self.base.copy_(self.source)
        self.anchor.random_(0, self.head.target_vocab_size, generator=self._generator)
        self._expected.clear()

    def expected_int8x2(self, rounding: str) -> Any:
        """Tokens int64 ``[B, steps]`` of the int8x2 twin on the present inputs."""
        from wts_lab.quantize import quantize_latents, quantize_rows
        from wts_lab.twin_torch import twin_walks_torch

        if self._codes is None:
            matrix, table = self.head.markov_w2.weight, self.head.markov_w1.weight
            self._codes = (*quantize_rows(matrix), *quantize_latents(table))
        if rounding not in self._expected:
            walk = twin_walks_torch(*self._codes, self.base, self.anchor, vocab_size=self.head.vocab_size, rounding=rounding)
            self._expected[rounding] = walk.tokens
        return self._expected[rounding]

    def exact_head(self) -> Any:
        """A head of the same shape whose bf16 products and sums are exact in fp32."""
        from wts_lab.heads import MarkovHead

        def whole(rows: int) -> Any:
            shape = (rows, self.head.rank)
            numbers = self._torch.randint(-EXACT_STEP, EXACT_STEP + 1, shape, generator=self._generator, device=self.base.device)
            return (numbers / EXACT_STEP).to(self._torch.bfloat16)

        return MarkovHead(whole(self.head.target_vocab_size), whole(self.head.padded_vocab_size), vocab_size=self.head.vocab_size)


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
        self, case: WalkCase, inputs: GroupInputs, steps: Sequence[int], flush: Callable[[], None], capture: Capture
    ) -> None:
        self._case, self._inputs, self._flush = case, inputs, flush
        self._walk = self._make(inputs.head)
        self._replays: dict[int, Callable[[], None]] = {}
        self._tokens: dict[int, Any] = {}
        self._seen: dict[int, Any] = {}
        for length in sorted(steps, reverse=True):
            base = inputs.base[:, :length]
            tokens = self._tokens[length] = inputs.anchor.new_empty(base.shape[:2])
            self._replays[length] = capture(partial(self._walk, base, inputs.anchor, tokens_out=tokens))

    def call(self, steps: int) -> Callable[[], None]:
        """What is timed: one replay of the graph of that walk length."""
        return self._replays[steps]

    def before(self, steps: int, l2_state: str) -> Callable[[], None] | None:
        """What precedes each call, untimed: nothing when warm, the flush when cold, and when serving the flush followed
        by writing the base logits, so that they are the only thing in L2."""
        if l2_state == "warm":
            return None
        if l2_state == "cold":
            return self._flush
        base, source = self._inputs.base[:, :steps], self._inputs.source[:, :steps]

        def serve() -> None:
            self._flush()
            base.copy_(source)

        return serve

    def check(self) -> Agreement:
        """Compare tokens with the twin and with the bf16 reference; see the module docstring."""
        from wts_lab.stepwise import StepwiseWalk, teacher_forced_agreement

        match = self._match_on_timed_weights() if self._case.precision == "int8x2" else self._match_on_exact_weights()
        inputs = self._inputs
        self._raise_reports()
        reference = StepwiseWalk(inputs.head)(inputs.base, inputs.anchor)
        agree = teacher_forced_agreement(self._walk, reference, inputs.base, inputs.anchor, max_batch=self._case.batch)
        return Agreement(match, agree)

    def settle(self) -> None:
        """Remember the tokens on the group's present inputs; called once no case will draw fresh ones any more."""
        self._replay_all()
        self._seen = {length: tokens.clone() for length, tokens in self._tokens.items()}

    def recheck(self) -> float:
        """Share of tokens, over all walk lengths, that replays after the timing still give; raises what the walk reports."""
        self._replay_all()
        self._raise_reports()
        return self._share([(self._tokens[length], seen) for length, seen in self._seen.items()])

    def facts(self) -> dict[str, Any]:
        """Columns that only the built walk knows."""
        walk, build, spec = self._walk, getattr(self._walk, "build", None), getattr(self._walk, "spec", None)
        placement = getattr(walk, "placement", None)
        tiers = ("warps", "register_tiles", "shared_tiles", "tensor_tiles", "streamed_tiles", "staging_tiles")
        return {
            "grid_blocks": getattr(walk, "grid_blocks", None),
            **{name: getattr(placement, name, None) for name in tiers},
            "exchange": None if spec is None else exchange_name(spec.replicas),
            "registers_per_thread": getattr(build, "registers_per_thread", None),
            "spill_bytes": getattr(build, "spill_bytes", None),
        }

    def _make(self, head: Any) -> Any:
        """The walk of this case over a head."""
        case = self._case
        if case.implementation == "torch-stepwise":
            from wts_lab.stepwise import StepwiseWalk

            return StepwiseWalk(head, rounding=case.rounding)
        from wts_lab.walk import Walk

        extra = {} if case.exchange is None else {"replicas": exchange_replicas(case.exchange)}
        return Walk(
            head, steps=self._inputs.base.shape[1], max_batch=case.batch, mode=case.mode, precision=case.precision,
            placement=case.placement, rounding=case.rounding, **extra,
        )

    def _replay_all(self) -> None:
        """Replay every walk length once over poisoned output."""
        for length, replay in self._replays.items():
            self._tokens[length].fill_(-1)
            replay()

    def _raise_reports(self) -> None:
        """Wait, and raise what only the device could see: a stall, or an anchor out of range."""
        if hasattr(self._walk, "check"):
            self._walk.check()

    def _match_on_timed_weights(self) -> float:
        """Share equal to the int8x2 twin over all walk lengths and several fresh inputs."""
        pairs = []
        for _ in range(CHECKED_DRAWS):
            self._inputs.draw()
            expected = self._inputs.expected_int8x2(self._case.rounding)
            self._replay_all()
            pairs += [(tokens.clone(), expected[:, :length]) for length, tokens in self._tokens.items()]
        return self._share(pairs)

    def _match_on_exact_weights(self) -> float:
        """Share equal to the bf16 twin on weights for which it is exact, over several fresh inputs."""
        from wts_lab.twin_torch import twin_walks_bf16_torch

        head = self._inputs.exact_head()
        walk = self._make(head)
        pairs = []
        for _ in range(CHECKED_DRAWS):
            self._inputs.draw()
            base, anchor = self._inputs.base, self._inputs.anchor
            twin = twin_walks_bf16_torch(
                head.markov_w2.weight, head.markov_w1.weight, base, anchor, vocab_size=head.vocab_size, rounding=self._case.rounding
            )
            pairs.append((walk(base, anchor).clone(), twin.tokens))
        return self._share(pairs)

    @staticmethod
    def _share(pairs: Sequence[tuple[Any, Any]]) -> float:
        """Equal elements over all elements of pairs of tensors."""
        equal = sum(int((got == wanted).sum()) for got, wanted in pairs)
        return equal / sum(wanted.numel() for _, wanted in pairs)


class GpuBench:
    """One CUDA device as a place to measure: prepares cases, times calls, reads clocks.

    Raises:
        RuntimeError: torch sees no CUDA device.
    """

    def __init__(self, device: int = 0) -> None:
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
        specs = {walk_spec(case, gpu) for case in cases if case.implementation == "wts"} - self._built
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda spec: build_walk(spec, arch), sorted(specs, key=lambda spec: spec.name())))
        self._built |= specs

    def prepare(self, cases: Sequence[WalkCase], steps: Sequence[int], seed: int) -> list[Subject]:
        """Build, upload and capture the cases of one group over shared inputs."""
        if self._flush is None:
            self._flush = Flusher(self._device)
        inputs = GroupInputs(cases[0], max(steps), seed, self._device)
        return [Subject(case, inputs, steps, self._flush, capture_graph) for case in cases]

    def clocks(self) -> ClockReading:
        """Clock and throttle reasons now."""
        return self._nvml.clocks()

    def release(self) -> None:
        """Give freed memory back, so that the next group allocates afresh."""
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
