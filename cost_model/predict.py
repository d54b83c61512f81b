"""predict: entry and step of a walk as sums of named terms, with an interval, a physical floor and the kind of each parameter.

`predict(gpu, head, workload, mode)` resolves the GPU's parameters, sizes the case, evaluates the terms, and propagates the
parameters' standard errors by finite differences. Imports neither SciPy, pandas nor NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.engines import load_engine
from cost_model.errors import BadInput
from cost_model.fused import fused_case, fused_floor, fused_parameters, fused_terms
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parameters import Parameter, Parameters, resolve
from cost_model.placement import PlanError, Placement, built_for, capacity_problem, kernel_beside, plan, require_grid, slots_needed
from cost_model.stepwise import PRECISION, Parts, byte_rate, stepwise_case, stepwise_parameters, stepwise_terms
from cost_model.workload import ENGINE, MODES, OURS, Workload, require_word

Z_95 = 1.96
"""Standard errors on each side of a 95 % interval."""


class NotModelled(BadInput):
    """The request is outside what the model covers; the message says what is covered."""


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
        """Time of a complete call: entry + steps × step (the workload's steps unless given)."""
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
        NotModelled: a head kind that the model does not cover yet.
        PlanError: the placement does not fit the GPU or does not hold the vocabulary.
        MissingFact: the GPU lacks facts; all are named.
    """
    require_word("mode", mode, MODES)
    if head.kind != "markov":
        raise NotModelled(f"{head.name} is a {head.kind} head; markov heads are modelled. Give a vocabulary size and a rank")
    parameters = resolve(gpu)
    if mode == "stepwise":
        if placement is not None:
            raise BadInput("a placement was given for stepwise; only streaming and resident have one")
        return _predict_stepwise(gpu, head, workload, parameters, implementation or ENGINE, variant)
    if implementation not in (None, OURS) or variant is not None:
        raise BadInput(f"{mode} is run by {OURS} only, without variants; {implementation or variant!r} was given")
    return _predict_fused(gpu, head, workload, mode, parameters, placement, grid_blocks, ran)


def _predict_fused(gpu: Gpu, head: Head, workload: Workload, mode: str, parameters: Parameters, placement: Placement | None,
                   grid_blocks: int | None, ran: bool) -> Prediction:
    """Predict the persistent kernel."""
    blocks = gpu.sm_count if grid_blocks is None else grid_blocks
    require_grid(gpu, blocks)
    if placement is None:
        placement = plan(gpu, head, workload.precision, mode, grid_blocks=blocks, **built_for(workload))
    else:
        _check_placement(gpu, head, workload, mode, placement, blocks, ran)
    case = fused_case(gpu, head, workload, placement, blocks)
    curve = parameters.curve
    used = parameters.only(gpu, fused_parameters(workload.precision))
    floors = fused_floor(gpu, {name: one.value for name, one in used.items()}, curve, head, workload, mode, case.resident_bytes)
    read_floor = terms.read_floor_us(case.streamed_bytes, byte_rate(gpu, curve, case.stream_footprint_bytes))
    return _assemble(
        lambda values: fused_terms(values, curve, case), used, (parameters.entry_error, parameters.model_error), floors, read_floor,
        placement=placement, mode=mode, implementation=OURS, variant=None, fastest_variant=None, gpu_id=gpu.id,
        calibrated=parameters.calibrated, head=head, workload=workload, precision=workload.precision, grid_blocks=blocks,
        notes=_notes(gpu, parameters, used) + _not_recorded(mode, workload),
    )


def _predict_stepwise(gpu: Gpu, head: Head, workload: Workload, parameters: Parameters, implementation: str, variant: str | None) -> Prediction:
    """Predict an engine's path, and name its fastest."""
    engine = load_engine(implementation)
    path = engine.path(workload, variant)
    if workload.precision != PRECISION:
        raise BadInput(f"precision is {workload.precision} for stepwise; stepwise walks keep W2 in {PRECISION}, so give that or another mode")
    curve = parameters.curve

    def total(option) -> float:
        case = stepwise_case(gpu, curve, head, workload, option)
        by_name = {**parameters.values, **{name: one.value for name, one in stepwise_parameters(engine, case, gpu).items()}}
        entry, step = stepwise_terms(by_name, engine, case)
        return _sum(entry) + workload.steps * _sum(step)

    fastest = min(engine.serving(workload), key=total)
    case = stepwise_case(gpu, curve, head, workload, path)
    used = parameters.only(gpu, ("graph_node_us", "graph_launch_us"))
    by_name = {**used, **stepwise_parameters(engine, case, gpu)}
    floor_step = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    floor_entry = terms.first_launch_us(by_name["graph_launch_us"].value, by_name["graph_node_us"].value)
    notes = _notes(gpu, parameters, used, engine.fitted_on)
    if fastest.variant != path.variant:
        notes += (f"{implementation} takes {path.kernel} at this shape; {fastest.kernel} is its fastest path",)
    return _assemble(
        lambda values: stepwise_terms(values, engine, case), by_name, (parameters.entry_error, parameters.model_error), (floor_entry, floor_step), floor_step,
        placement=None, mode="stepwise", implementation=implementation, variant=path.variant, fastest_variant=fastest.variant,
        gpu_id=gpu.id, calibrated=parameters.calibrated, head=head, workload=workload, precision=PRECISION, grid_blocks=None, notes=notes,
    )


def _check_placement(gpu: Gpu, head: Head, workload: Workload, mode: str, placement: Placement, blocks: int,
                     ran: bool) -> None:
    """Raise PlanError unless the placement holds the vocabulary, suits the mode and, where it has not run yet, fits the GPU."""
    needed = slots_needed(head.padded_vocab_size, blocks, placement.warps) * placement.warps
    if placement.tiles < needed:
        raise PlanError(f"the placement holds {placement.tiles} tiles a block; {head.name} needs {needed} on {blocks} blocks")
    if mode == "streaming" and placement.streamed_tiles != placement.tiles:
        raise PlanError("a streaming walk keeps nothing; register_tiles, shared_tiles and tensor_tiles must be 0")
    if mode == "resident" and placement.streamed_tiles == placement.tiles:
        raise PlanError("a resident walk keeps at least one slot; use mode streaming for none")
    if ran:
        return
    kernel = kernel_beside(placement, gpu, head, workload.precision, grid_blocks=blocks, **built_for(workload))
    problem = capacity_problem(placement, gpu, head.rank, workload.precision, kernel)
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


def _not_recorded(mode: str, workload: Workload) -> tuple[str, ...]:
    """Say what of a fused walk no record has checked the model against."""
    beyond = [f"{mode} {workload.precision}"] * (mode == "resident" and workload.precision == "bf16")
    beyond += [f"batch {workload.batch}"] * (workload.batch > 1) + [f"temperature {workload.temperature:g}"] * (workload.temperature > 0)
    return (f"no record has checked the model on this yet: {', '.join(beyond)}",) if beyond else ()


def _assemble(evaluate: Callable[[Mapping[str, float]], tuple[Parts, Parts]], by_name: Mapping[str, Parameter], model_errors: tuple[float, float],
              floors: tuple[float, float], read_floor_step_us: float, **identity) -> Prediction:
    """Evaluate the terms, propagate the errors and build the Prediction."""
    values = {name: one.value for name, one in by_name.items()}
    entry, step = evaluate(values)
    entry_us, step_us = _sum(entry), _sum(step)
    entry_error, step_error = _errors(evaluate, by_name, values, entry_us, step_us, model_errors)
    floor_entry_us, floor_step_us = floors
    return Prediction(
        entry_us=entry_us, step_us=step_us,
        entry_us_low=max(min(floor_entry_us, entry_us), entry_us - Z_95 * entry_error), entry_us_high=entry_us + Z_95 * entry_error,
        step_us_low=max(min(floor_step_us, step_us), step_us - Z_95 * step_error), step_us_high=step_us + Z_95 * step_error,
        floor_entry_us=floor_entry_us, floor_step_us=floor_step_us, read_floor_step_us=read_floor_step_us,
        terms={"entry": _named(entry), "step": _named(step)}, kinds={name: one.kind for name, one in by_name.items()},
        sources={name: one.source for name, one in by_name.items()}, **identity,
    )


def _errors(evaluate: Callable, by_name: Mapping[str, Parameter], values: dict[str, float], entry_us: float, step_us: float,
            model_errors: tuple[float, float]) -> tuple[float, float]:
    """Standard errors of entry and step: each parameter moved down by its own error in turn, and the model's of each, in quadrature."""
    entry_variance, step_variance = (model_errors[0] * entry_us) ** 2, (model_errors[1] * step_us) ** 2
    for name, parameter in by_name.items():
        moved = values[name] / (1.0 + parameter.relative_error)
        if moved == values[name]:
            continue
        entry, step = evaluate({**values, name: moved})
        entry_variance += (_sum(entry) - entry_us) ** 2
        step_variance += (_sum(step) - step_us) ** 2
    return math.sqrt(entry_variance), math.sqrt(step_variance)


def _sum(parts: Parts) -> float:
    """Total of the exposed parts."""
    return sum(exposed for exposed, _, _ in parts.values())


def _named(parts: Parts) -> dict[str, Term]:
    """Turn parts into Terms."""
    return {name: Term(*part) for name, part in parts.items()}
