"""predict: entry and step of a walk as sums of named terms, with an interval, a physical floor and the kind of each parameter.

`predict(gpu, head, workload, mode)` resolves the GPU's parameters, sizes the case, evaluates the terms, and propagates the
parameters' standard errors by finite differences. Imports neither SciPy, pandas nor NumPy. `sweep.py` does the same for many at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.elementwise import Number
from cost_model.engines import EnginePath, load_engine
from cost_model.errors import BadInput
from cost_model.estimate import Z_95, GroupsOf, estimate  # noqa: F401  (the width of an interval is part of this module's interface)
from cost_model.footprint import GROUP_SLOTS
from cost_model.fused import (
    FusedCase, WalkSizes, WalkWords, entry_groups, entry_parameters, fused_case, moving_parameters, step_groups, step_parameters,
)
from cost_model.fused_floor import FloorFacts, fused_floor
from cost_model.gpu import Gpu
from cost_model.head import Head, walked_shape
from cost_model.parameters import DEFAULT_MODEL_ERROR, Parameter, Parameters, resolve
from cost_model.parts import Parts, split, total_us
from cost_model.placement import (
    DEFAULT_WARPS, STAGING_TARGET_BYTES, Kernel, Placement, PlanError, built_for, capacity_problem, kernel_beside, plan, require_grid, slots_needed,
)
from cost_model.stepwise import PRECISION, byte_rate, stepwise_case, stepwise_groups, stepwise_parameters
from cost_model.walk_class import FEW_ROWS, MANY_ROWS, walk_class
from cost_model.workload import ENGINE, MODES, OURS, Workload, require_word


class NotModelled(BadInput):
    """The request is for a walk that does not exist; the message says what does."""


@dataclass(frozen=True)
class Term:
    """One part of a time.

    Attributes:
        exposed_us: what it adds to the total.
        hidden_us: what of it overlaps with something else.
        resource: what binds it.
    """

    exposed_us: float
    hidden_us: float
    resource: str

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {"exposed_us": self.exposed_us, "hidden_us": self.hidden_us, "resource": self.resource}


@dataclass(frozen=True)
class Prediction:
    """What one walk costs.

    Attributes:
        entry_us, step_us: intercept and slope of call time over steps; the sums of the exposed terms.
        entry_us_low, entry_us_high, step_us_low, step_us_high: 95 % intervals.
        floor_entry_us, floor_step_us: what no implementation of the mode can beat.
        read_floor_step_us: bytes that the mode reads again each step at the best rate; the byte floor alone.
        terms: {"entry": {name: Term}, "step": {name: Term}}.
        placement: of the fused modes; None for stepwise.
        kinds: parameter name -> kind; sources: parameter name -> where it comes from.
        mode, implementation, variant, fastest_variant: the path; the last is the implementation's fastest at this shape.
        gpu_id, calibrated: whose parameters; whether its own walks fixed the residual coefficients.
        head, workload: what was asked; precision is that of W2.
        notes: what the reader must know, such as wide intervals.
    """

    entry_us: float
    step_us: float
    entry_us_low: float
    entry_us_high: float
    step_us_low: float
    step_us_high: float
    floor_entry_us: float
    floor_step_us: float
    read_floor_step_us: float
    terms: Mapping[str, Mapping[str, Term]]
    placement: Placement | None
    kinds: Mapping[str, str]
    sources: Mapping[str, str]
    mode: str
    implementation: str
    variant: str | None
    fastest_variant: str | None
    gpu_id: str
    calibrated: bool
    head: Head
    workload: Workload
    precision: str
    grid_blocks: int | None
    notes: tuple[str, ...] = ()

    def call_us(self, steps: int | None = None) -> float:
        """Time of a complete call: entry + steps × step (the workload's steps unless given); raises BadInput for steps below 0."""
        if steps is not None and not steps >= 0:
            raise BadInput(f"steps is {steps!r}; a call has a number of steps of at least 0")
        return self.entry_us + (self.workload.steps if steps is None else steps) * self.step_us

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON."""
        plain = {name: getattr(self, name) for name in (
            "entry_us", "entry_us_low", "entry_us_high", "step_us", "step_us_low", "step_us_high", "floor_entry_us", "floor_step_us",
            "read_floor_step_us", "mode", "implementation", "variant", "fastest_variant", "gpu_id", "calibrated", "precision", "grid_blocks")}
        return {
            **plain, "call_us": self.call_us(),
            "terms": {part: {name: term.as_dict() for name, term in named.items()} for part, named in self.terms.items()},
            "placement": self.placement.as_dict() if self.placement else None,
            "kinds": dict(self.kinds), "sources": dict(self.sources), "head": self.head.as_dict(),
            "workload": self.workload.as_dict(), "notes": list(self.notes),
        }


def predict(gpu: Gpu, head: Head, workload: Workload, mode: str, implementation: str | None = None,
            placement: Placement | None = None, *, variant: str | None = None, grid_blocks: int | None = None, ran: bool = False) -> Prediction:
    """Predict one walk.

    Args:
        implementation: `wts` for the fused modes; an engine of `data/engines` for stepwise (default sglang-0.5.23).
        placement: of the fused modes; planned where None.
        variant: path within an engine; the one the engine takes where None.
        grid_blocks: thread blocks of the fused modes; one a multiprocessor where None.
        ran: the placement has run on this GPU, so whether it fits is not asked.

    Raises:
        BadInput: unknown mode, implementation or variant, or a combination that does not exist.
        NotModelled: a walk that does not exist (Domino sampling, kept logits of a candidate pool).
        PlanError: the placement does not fit the GPU or does not hold the vocabulary.
        MissingFact: the GPU lacks facts; all are named.
    """
    require_word("mode", mode, MODES)
    require_walk(head, workload)
    parameters = resolve(gpu)
    if mode == "stepwise":
        if placement is not None:
            raise BadInput("a placement was given for stepwise; only streaming and resident have one")
        return _predict_stepwise(gpu, head, workload, parameters, implementation or ENGINE, variant)
    if implementation not in (None, OURS) or variant is not None:
        raise BadInput(f"{mode} is run by {OURS} only, without variants; {implementation or variant!r} was given")
    return _predict_fused(gpu, head, workload, mode, parameters, placement, grid_blocks, ran)


def require_walk(head: Head, workload: Workload) -> None:
    """Raise NotModelled for a walk that nothing runs."""
    if head.kind == "domino" and workload.temperature > 0:
        raise NotModelled(f"temperature is {workload.temperature:g} and {head.name} a domino head; domino heads draft greedily, so give 0")
    if head.candidate_pool is not None and workload.logits_kept:
        raise NotModelled("a walk over a candidate pool has no logits of the whole vocabulary; leave logits_kept out")


def require_stored(workload: Workload) -> None:
    """Raise BadInput unless the precision is the one in which engines keep W2."""
    if workload.precision != PRECISION:
        raise BadInput(f"precision is {workload.precision} for stepwise; stepwise walks keep W2 in {PRECISION}, so give that or another mode")


@dataclass(frozen=True)
class FusedRequest:
    """A fused walk as the planner and the terms see it.

    Attributes:
        head: the shape that the kernel walks, without a candidate pool; launches: of a call, one a batch row with a pool.
        built: rows, rounding and sampling, as the planner's arguments; grid_blocks: blocks.
    """

    head: Head
    launches: int
    built: Mapping[str, object]
    grid_blocks: int


def fused_request(gpu: Gpu, head: Head, workload: Workload, grid_blocks: int | None = None) -> FusedRequest:
    """Return what is planned and sized for a walk: candidate pools are walked a batch row at a time, and a block has a tile at least."""
    walked, pooled = walked_shape(head), head.candidate_pool is not None
    blocks = min(gpu.sm_count, terms.tiles_of(walked.padded_vocab_size)) if grid_blocks is None else grid_blocks
    require_grid(gpu, blocks)
    built = {**built_for(workload), **({"rows": 1} if pooled else {})}
    return FusedRequest(walked, workload.batch if pooled else 1, built, blocks)


def walk_sizes(request: FusedRequest, head: Head, workload: Workload, placement: Placement, kernel: Kernel) -> WalkSizes:
    """Return the numbers of one fused walk."""
    pooled = head.candidate_pool is not None
    return WalkSizes(
        vocab_size=request.head.padded_vocab_size, rank=head.rank, batch=1 if pooled else workload.batch, steps=workload.steps,
        grid_blocks=request.grid_blocks, warps=placement.warps, register_tiles=placement.register_tiles, shared_tiles=placement.shared_tiles,
        streamed_tiles=placement.streamed_tiles, staging_tiles=placement.staging_tiles, hidden_size=head.hidden_size or 0, gru_size=head.gru_size or 0,
        state_rows=kernel.state_rows, projector_rows=kernel.projector_rows, launches=request.launches, pooled_vocab_size=head.padded_vocab_size if pooled else 0,
    )


def _predict_fused(gpu: Gpu, head: Head, workload: Workload, mode: str, parameters: Parameters, placement: Placement | None,
                   grid_blocks: int | None, ran: bool) -> Prediction:
    """Predict the persistent kernel."""
    request = fused_request(gpu, head, workload, grid_blocks)
    if placement is None:
        placement = plan(gpu, request.head, workload.precision, mode, grid_blocks=request.grid_blocks, **request.built)
    kernel = kernel_beside(placement, gpu, request.head, workload.precision, grid_blocks=request.grid_blocks, **request.built)
    _check_placement(gpu, request, workload, mode, placement, kernel, ran)
    words = WalkWords(workload.precision, workload.l2_state, workload.logits_kept, kernel)
    case = fused_case(gpu, parameters.curve, words, walk_sizes(request, head, workload, placement, kernel))
    of_entry, of_step = entry_parameters(words), step_parameters(words)
    used = parameters.only(gpu, dict.fromkeys((*of_step, *of_entry, "graph_launch_us")))
    facts = FloorFacts(gpu, parameters.curve, used["l2_latency_us"].value, used["graph_launch_us"].value)
    streams = placement.streamed_tiles > 0
    unchecked = unchecked_parts(mode, head, workload, placement.warps, narrow_ring(placement, head.rank, workload.precision),
                                crowded_slots(placement))
    moving = moving_parameters(of_entry, case), moving_parameters(of_step, case)
    return _assemble(
        lambda values: entry_groups(values, case), lambda values: step_groups(values, case), used, moving,
        fused_errors(parameters, head, workload, unchecked, streams), fused_floor(facts, mode, case), _read_floor(gpu, parameters, case),
        placement=placement, mode=mode, implementation=OURS, variant=None, fastest_variant=None, gpu_id=gpu.id,
        calibrated=parameters.calibrated, head=head, workload=workload, precision=workload.precision, grid_blocks=request.grid_blocks,
        notes=_notes(gpu, parameters, used) + _not_recorded(unchecked + unchecked_entry(head)),
    )


def _read_floor(gpu: Gpu, parameters: Parameters, case: FusedCase) -> float:
    """Bytes of W2 that a fused mode reads again each step, at the best rate."""
    if not case.streamed_bytes:
        return 0.0
    footprint = case.streamed_bytes + case.sizes.steps * case.logits_bytes
    return case.sizes.launches * terms.read_floor_us(case.streamed_bytes, byte_rate(gpu, parameters.curve, footprint))


def _predict_stepwise(gpu: Gpu, head: Head, workload: Workload, parameters: Parameters, implementation: str, variant: str | None) -> Prediction:
    """Predict an engine's path, and name its fastest."""
    engine = load_engine(implementation)
    path = engine.path(workload, variant, head.kind)
    require_stored(workload)

    def total(option: EnginePath) -> float:
        case = stepwise_case(gpu, parameters.curve, head, workload, option)
        by_name = {**parameters.values, **{name: one.value for name, one in stepwise_parameters(engine, case, gpu).items()}}
        entry, step = stepwise_groups(by_name, engine, case)
        return total_us(entry) + workload.steps * total_us(step)

    serving = engine.serving(workload, head.kind)
    fastest = path if len(serving) == 1 else min(serving, key=total)
    case = stepwise_case(gpu, parameters.curve, head, workload, path)
    used = parameters.only(gpu, ("graph_node_us", "graph_launch_us", *(("pool_gather_us",) if case.pooled else ())))
    by_name = {**used, **stepwise_parameters(engine, case, gpu)}
    floor_step = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    floor_entry = terms.first_launch_us(by_name["graph_launch_us"].value, by_name["graph_node_us"].value)
    notes = _notes(gpu, parameters, used, engine.fitted_on)
    if fastest.variant != path.variant:
        notes += (f"{implementation} takes {path.kernel} at this shape; {fastest.kernel} is its fastest path",)
    return _assemble(
        lambda values: stepwise_groups(values, engine, case)[0], lambda values: stepwise_groups(values, engine, case)[1], by_name, (tuple(by_name),) * 2,
        stepwise_errors(parameters), (floor_entry, floor_step), floor_step,
        placement=None, mode="stepwise", implementation=implementation, variant=path.variant, fastest_variant=fastest.variant,
        gpu_id=gpu.id, calibrated=parameters.calibrated, head=head, workload=workload, precision=PRECISION, grid_blocks=None, notes=notes,
    )


def _check_placement(gpu: Gpu, request: FusedRequest, workload: Workload, mode: str, placement: Placement, kernel: Kernel, ran: bool) -> None:
    """Raise PlanError unless the placement holds the vocabulary, suits the mode and, where it has not run yet, fits the GPU."""
    needed = slots_needed(request.head.padded_vocab_size, request.grid_blocks, placement.warps) * placement.warps
    if placement.tiles < needed:
        raise PlanError(f"the placement holds {placement.tiles} tiles a block; {request.head.name} needs {needed} on {request.grid_blocks} blocks")
    if mode == "streaming" and placement.streamed_tiles != placement.tiles:
        raise PlanError("a streaming walk keeps nothing; register_tiles, shared_tiles and tensor_tiles must be 0")
    if mode == "resident" and placement.streamed_tiles == placement.tiles:
        raise PlanError("a resident walk keeps at least one slot; use mode streaming for none")
    problem = None if ran else capacity_problem(placement, gpu, request.head.rank, workload.precision, kernel)
    if problem:
        raise PlanError(problem)


def _notes(gpu: Gpu, parameters: Parameters, used: Mapping[str, Parameter], fitted_on: str | None = None) -> tuple[str, ...]:
    """Say what weakens a prediction."""
    notes = []
    if not parameters.calibrated:
        transferred = sorted(name for name, one in used.items() if one.kind == "transferred")
        notes.append(f"{gpu.id} is not calibrated: intervals are wide"
                     + (f"; transferred: {', '.join(transferred)}" if transferred else "; parameters are published ones"))
    if fitted_on not in (None, gpu.id):
        notes.append(f"the engine's efficiencies were fitted on {fitted_on} and are carried over")
    return tuple(notes)


# --- what a calibration is not fitted to ---------------------------------------------------------------------------------------------

CHECKED_WAYS = (("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16"))
CHECKED_KINDS = ("markov", "gated", "rnn", "domino")
MOST_ROWS = {"markov": 32, "gated": 8, "rnn": 8, "domino": 8}
"""Fused walks that a calibration is fitted on, and held to by `tests/cost_model/test_recorded.py`; others are predicted with wider intervals."""


def narrow_ring(sizes: Placement | WalkSizes, rank: Number, precision: str) -> Number:
    """Whether all tiles stream through a ring of a block that holds neither them nor STAGING_TARGET_BYTES, which the planner gives it where shared memory
    allows; sizes may be arrays. Recorded steps with smaller rings are up to a tenth shorter than their size allows by the model."""
    ring_bytes = sizes.staging_tiles * terms.tile_bytes(rank, precision)
    return (sizes.tiles == sizes.streamed_tiles) & (sizes.staging_tiles < sizes.streamed_tiles) & (ring_bytes < STAGING_TARGET_BYTES)


def crowded_slots(sizes: Placement | WalkSizes) -> Number:
    """Whether more than GROUP_SLOTS slots a warp stay on the chip, all that there are; sizes may be arrays. Kernels of more than four greedy rows may then spill, which no
    term knows: recorded steps are up to an eighth longer than the model's."""
    return (sizes.streamed_tiles == 0) & (sizes.tiles > GROUP_SLOTS * sizes.warps)


def unchecked_parts(mode: str, head: Head, workload: Workload, warps: int = DEFAULT_WARPS, narrow: bool = False, crowded: bool = False) -> tuple[str, ...]:
    """Name what of a fused walk's step the calibration is not fitted to; `narrow`: whether its rings are; `crowded`: whether its slots are."""
    parts = [f"{mode} {workload.precision}"] * ((mode, workload.precision) not in CHECKED_WAYS)
    many = head.candidate_pool is None and workload.batch > MOST_ROWS.get(head.kind, workload.batch)
    parts += [f"{head.kind} heads{f' of {workload.batch} rows' * many}"] * (many or head.kind not in CHECKED_KINDS)
    parts += [f"{warps} warps a block"] * (warps != DEFAULT_WARPS)
    parts += ["all tiles through a small ring"] * narrow
    if crowded and workload.precision == "int8x2" and walk_class(head, workload) == MANY_ROWS:
        parts += [f"more than {GROUP_SLOTS} resident slots a warp with {workload.batch} greedy rows, which may spill"]
    return tuple(parts)


def unchecked_entry(head: Head) -> tuple[str, ...]:
    """Name what of its entry the calibration is not fitted to, beside the parts of its step: what gathers candidates is another library's work."""
    return ("the entry with a candidate pool",) if head.candidate_pool is not None else ()


def fused_errors(parameters: Parameters, head: Head, workload: Workload, unchecked: Iterable[str], streams: bool) -> tuple[float, float]:
    """Relative errors of the terms of (entry, step): the calibration's of the walk's class, and DEFAULT_MODEL_ERROR for each part that it is not
    fitted to, in quadrature."""
    unchecked, of_class = tuple(unchecked), walk_class(head, workload, streams)
    entry, step = parameters.entry_relative_error[of_class], parameters.step_relative_error[of_class]
    return tuple((error**2 + len(parts) * DEFAULT_MODEL_ERROR**2) ** 0.5 for error, parts in ((entry, unchecked + unchecked_entry(head)), (step, unchecked)))


def stepwise_errors(parameters: Parameters) -> tuple[float, float]:
    """The same of a stepwise walk, which no calibration is fitted to: what its engine's path leaves is in that path's figures, and the rest is described
    as well as the simplest class of fused walks."""
    return parameters.entry_relative_error[FEW_ROWS], parameters.step_relative_error[FEW_ROWS]


def _not_recorded(unchecked: tuple[str, ...]) -> tuple[str, ...]:
    """Say so in a note."""
    return (f"the model is not fitted to records of this, so its interval is wide: {', '.join(unchecked)}",) if unchecked else ()


# --- putting it together ------------------------------------------------------------------------------------------------------


def _assemble(entry_of: GroupsOf, step_of: GroupsOf, by_name: Mapping[str, Parameter], used: tuple[Iterable[str], Iterable[str]],
              model_errors: tuple[float, float], floors: tuple[float, float], read_floor_step_us: float, **identity) -> Prediction:
    """Evaluate the terms, propagate the errors and build the Prediction."""
    values, checked = {name: one.value for name, one in by_name.items()}, identity["calibrated"]
    entry_us, entry_low, entry_high = estimate(entry_of, by_name, used[0], model_errors[0], floors[0], checked)
    step_us, step_low, step_high = estimate(step_of, by_name, used[1], model_errors[1], floors[1], checked)
    return Prediction(
        entry_us=entry_us, step_us=step_us, entry_us_low=entry_low, entry_us_high=entry_high, step_us_low=step_low, step_us_high=step_high,
        floor_entry_us=floors[0], floor_step_us=floors[1], read_floor_step_us=read_floor_step_us,
        terms={"entry": _named(split(entry_of(values))), "step": _named(split(step_of(values)))}, kinds={name: one.kind for name, one in by_name.items()},
        sources={name: one.source for name, one in by_name.items()}, **identity,
    )


def _named(parts: Parts) -> dict[str, Term]:
    """Turn parts into Terms."""
    return {name: Term(*part) for name, part in parts.items()}
