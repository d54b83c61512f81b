"""What tuning tries and how it judges: the request, the candidates in order, and the verdict on each. Nothing is measured here.

Candidates are placements that the planner says fit, so they can be listed on any machine; torch is not needed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cost_model import placement as planner
from cost_model.errors import BadInput
from cost_model.fit import MIN_STEPS, StepFit
from cost_model.placement import GREEDY_ROW, Kernel, Placement
from cost_model.workload import DEFAULT_EXCHANGE, EXCHANGES, OURS, Workload, require_whole, require_word
from wts_lab.bench_plan import DEFAULT_PROCESSES, DEFAULT_REPEATS, WalkCase, check_points
from wts_lab.walk_plan import planner_request

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from cost_model.head import Head

FUSED_MODES = ("resident", "streaming")
DEFAULT_WARPS = (4, 8, 12, 16)
DEFAULT_EXCHANGES = EXCHANGES
DEFAULT_STEPS = (1, 7, 16)
DEFAULT_LIMIT = 24

PLANNED, FASTER, ALIKE, SLOWER = "planner's choice", "faster", "not distinguishable", "slower"
LONGER_CALL, SCREENED_OUT, INCONCLUSIVE = "faster step, longer call", "screened out", "inconclusive"


@dataclass(frozen=True)
class TuneRequest:
    """What to tune for, and how much to try.

    Attributes:
        head, mode, precision, rounding, batch, temperature: the walk; see :class:`wts_lab.bench_plan.WalkCase`.
        warps: numbers of warps to try.
        exchanges: exchanges to try on the best placements.
        limit: placements to try, the planner's choice among them.
        steps, l2_state, processes, repeats: of the final round; see :func:`wts_lab.bench.measure`.

    Raises:
        BadInput: a field outside what is allowed.
    """

    head: Head
    mode: str = "resident"
    precision: str = "int8x2"
    rounding: str = "once"
    batch: int = 1
    temperature: float = 0.0
    warps: tuple[int, ...] = DEFAULT_WARPS
    exchanges: tuple[str, ...] = DEFAULT_EXCHANGES
    limit: int = DEFAULT_LIMIT
    steps: tuple[int, ...] = DEFAULT_STEPS
    l2_state: str = "warm"
    processes: int = DEFAULT_PROCESSES
    repeats: int = DEFAULT_REPEATS

    def __post_init__(self) -> None:
        require_word("mode", self.mode, FUSED_MODES)
        require_whole("limit", self.limit, 1, None)
        require_whole("processes", self.processes, 1, None)
        check_points(self.steps, (self.l2_state,), self.repeats)
        if len(self.steps) < MIN_STEPS:
            raise BadInput(f"steps are {', '.join(map(str, self.steps))}; a step cost needs at least {MIN_STEPS} walk lengths, such as 1, 7 and 16")
        if not self.warps:
            raise BadInput("no number of warps was given; give some, such as 8 and 12")
        for count in self.warps:
            require_whole("warps", count, 1, planner.MAX_WARPS)
        for name in self.exchanges:
            require_word("exchange", name, EXCHANGES)
        _ = self.workload, self.walk

    @property
    def workload(self) -> Workload:
        """What is asked of the walk, at the longest length that is measured."""
        return Workload(self.batch, max(self.steps), self.temperature, self.precision, self.rounding, self.l2_state)

    @property
    def walk(self) -> WalkCase:
        """The walk before a placement is chosen; BadInput where it cannot be measured."""
        return WalkCase(OURS, self.mode, self.mode, self.precision, self.head, self.batch, rounding=self.rounding, temperature=self.temperature)

    def case(self, placement: Placement, exchange: str) -> WalkCase:
        """The walk with a placement and an exchange; its variant tells them, so that series are told apart by it alone."""
        tiers = (placement.register_tiles, placement.shared_tiles, placement.streamed_tiles, placement.staging_tiles)
        variant = f"w{placement.warps}-{'-'.join(map(str, tiers))}-{exchange}"
        return replace(self.walk, variant=variant, placement=placement, exchange=exchange)


@dataclass(frozen=True)
class Trial:
    """One candidate and what became of it.

    Attributes:
        case: placement and exchange, as a walk to measure.
        planned: whether it is the planner's choice with the default exchange.
        predicted_step_us: of the cost model; None where it cannot say.
        kernel: what the planner counts beside the placement.
        registers_per_thread, spill_bytes: the compiler's; None before it is built.
        screened, fit: step cost with few samples, and of the final round.
        record: stem of the walk record with its last samples.
        problem: why it could not be built or run; empty where it could.
    """

    case: WalkCase
    planned: bool = False
    predicted_step_us: float | None = None
    kernel: Kernel = GREEDY_ROW
    registers_per_thread: int | None = None
    spill_bytes: int | None = None
    screened: StepFit | None = None
    fit: StepFit | None = None
    record: str | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """Warps, tiles and exchange in one word."""
        return self.case.variant

    def verdict(self, planned: StepFit | None) -> str:
        """What became of it, beside the final fit of the planner's choice (None: not measured)."""
        if self.problem or planned is None:
            return self.problem
        if self.planned:
            return PLANNED if planned.usable else INCONCLUSIVE
        return SCREENED_OUT if self.fit is None else compare(self.fit, planned)

    def row(self, planned: StepFit | None) -> dict[str, Any]:
        """Everything as plain values, None where it is not known: what every table and JSON shows."""
        place, head = self.case.placement, self.case.head
        claim = planner.registers_claim(place, head.rank, self.case.precision, self.kernel)
        fit = self.fit if self.fit is not None and self.fit.usable else None
        times = ("step_us", "step_us_low", "step_us_high", "repeatability_us", "entry_us")
        return {
            "planned": self.planned, **asdict(place), "exchange": self.case.exchange, "residency": place.residency,
            "predicted_registers_per_thread": claim.registers_per_thread,
            "shared_bytes": planner.shared_bytes(place, head.rank, self.case.precision, self.kernel),
            "registers_per_thread": self.registers_per_thread, "spill_bytes": self.spill_bytes,
            "predicted_step_us": self.predicted_step_us, "screened_step_us": self.screened.step_us if self.screened else None,
            **{name: getattr(fit, name, None) for name in times}, "call_steps": max(fit.steps) if fit else None,
            "call_us": fit.call_us(max(fit.steps)) if fit else None, "record": self.record, "verdict": self.verdict(planned),
        }


def candidates(gpu: Gpu, request: TuneRequest) -> tuple[Trial, ...]:
    """What a request would try on a GPU: the planner's choice, then what fits by predicted step, up to the limit.

    Where predictions are equal, or the model has none, numbers of warps take turns, each in the planner's order.

    Raises:
        PlanError: nothing fits that the planner would choose.
        BadInput: the walk cannot be measured.
    """
    asked, precision, mode = request.workload, request.precision, request.mode
    walked, wanted = planner_request(gpu, request.head, max_batch=asked.batch, rounding=asked.rounding, sampling=asked.temperature > 0)
    chosen = planner.plan(gpu, walked, precision, mode, **wanted)
    orders = [planner.enumerate_placements(gpu, walked, precision, mode, warps=warps, **wanted) for warps in dict.fromkeys(request.warps)]
    ranked = [placement for rank in zip_longest(*orders) for placement in rank if placement not in (None, chosen)]
    first, *others = (
        Trial(
            request.case(placement, DEFAULT_EXCHANGE), placement == chosen,
            _predicted_step_us(gpu, request, placement, wanted["grid_blocks"]), planner.kernel_beside(placement, gpu, walked, precision, **wanted),
        )
        for placement in (chosen, *ranked)
    )
    others.sort(key=lambda trial: math.inf if trial.predicted_step_us is None else trial.predicted_step_us)
    return (first, *others)[: request.limit]


def _predicted_step_us(gpu: Gpu, request: TuneRequest, placement: Placement, blocks: int) -> float | None:
    """The cost model's step of a placement; None where it does not cover the walk or the GPU."""
    from cost_model.predict import predict

    try:
        return predict(gpu, request.head, request.workload, request.mode, placement=placement, grid_blocks=blocks).step_us
    except BadInput:
        return None


def compare(fit: StepFit, planned: StepFit) -> str:
    """How a final fit stands beside that of the planner's choice. A step that is faster by less than both repeat is alike, and one
    that is paid for by a longer complete call wins nothing."""
    if not (fit.usable and planned.usable):
        return INCONCLUSIVE
    if not fit.distinguishable_from(planned):
        return ALIKE
    if fit.step_us > planned.step_us:
        return SLOWER
    longest = max(planned.steps)
    return FASTER if fit.call_us(longest) <= planned.call_us(longest) else LONGER_CALL
