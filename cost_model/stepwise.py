"""Entry and step of a stepwise path as named terms: launches, byte floor, projection excess, selection, state, sampling.

A path whose library picks its kernels by shape has measured points instead of an efficiency; then `projection_excess` holds
all that its kernels take beyond launches and byte floor, at the batch, temperature and head of the point.

Sizes may be arrays over many walks that share a path and a kind of head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.elementwise import Number, choose, larger, rate_at, smaller
from cost_model.engines import COLD_ENTRY, Engine, EnginePath, shape_of
from cost_model.figures import BandwidthCurve, Figure
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parameters import RELATIVE_ERROR_BY_KIND, Parameter, relative_error
from cost_model.parts import Group, one_by_one
from cost_model.workload import Workload

PRECISION = "bf16"
"""Engines keep W2 in bf16."""

POOL_STATE = "domino-pool"
"""Name of a Domino head's further kernels where the steps choose among candidates."""


@dataclass(frozen=True)
class StepwiseSizes:
    """Numbers of a stepwise walk; each may be an array.

    Attributes:
        vocab_size: rows of W2 as stored; rank, hidden_size, gru_size: of the head, 0 where it has none.
        batch: batch rows.
        candidates: rows that each batch row chooses among; 0 for the vocabulary.
    """

    vocab_size: Number
    rank: Number
    batch: Number
    hidden_size: Number = 0
    gru_size: Number = 0
    candidates: Number = 0


@dataclass(frozen=True)
class StepwiseCase:
    """What a stepwise prediction is about, apart from parameter values.

    Attributes:
        path: of the engine.
        head_kind: of the head; sampled: whether the temperature is above 0; pooled: whether steps choose among candidates.
        sizes: numbers of the walk.
        elements: logits of a step.
        matrix_bytes: weights that are read in each step: W2 or the candidates' rows, and the head's own.
        rate_bytes_per_s: best rate at which they can be read again.
        cold: whether the call finds L2 without the weights.
        first_pass_us: what the first read costs above a later one, where L2 will hold the matrix and does not yet.
        measured: where the path has measured points, what beyond launches and byte floor was found for the shape (`beyond_floor`).
    """

    path: EnginePath
    head_kind: str
    sampled: bool
    pooled: bool
    sizes: StepwiseSizes
    elements: Number
    matrix_bytes: Number
    rate_bytes_per_s: Number
    cold: bool
    first_pass_us: Number
    measured: BeyondFloor | None


def byte_rate(gpu: Gpu, curve: BandwidthCurve, footprint_bytes: Number) -> Number:
    """Best rate for bytes that are read again each step: the datasheet's DRAM bandwidth, or the read curve where L2 beats it.

    A curve carried over from another GPU counts only up to the size of L2: a loop longer than a cache that evicts what was
    used longest ago never hits, and how far a real L2 departs from that has to be measured.
    """
    dram = gpu.value("dram_bandwidth_bytes_per_s")
    best = larger(dram, rate_at(curve, footprint_bytes))
    if any(figure.kind == "transferred" for figure in curve.figures):
        return choose(footprint_bytes > gpu.value("l2_bytes"), dram, best)
    return best


def sizes_of(head: Head, workload: Workload) -> StepwiseSizes:
    """Return the numbers of one walk."""
    pool = 0 if head.candidate_pool is None else min(head.candidate_pool, head.vocab_size)
    return StepwiseSizes(head.padded_vocab_size, head.rank, workload.batch, head.hidden_size or 0, head.gru_size or 0, pool)


def point_shape(head: Head, workload: Workload) -> tuple:
    """What a measured point must be of to stand for a walk (`EnginePoint.shape`)."""
    return shape_of(head.kind, head.padded_vocab_size, head.rank, head.hidden_size, head.gru_size, head.candidate_pool, workload.batch,
                    workload.temperature > 0)


def stepwise_case(gpu: Gpu, curve: BandwidthCurve, head: Head, workload: Workload, path: EnginePath, sizes: StepwiseSizes | None = None,
                  measured: BeyondFloor | None = None) -> StepwiseCase:
    """Size stepwise walks of a head's kind at a workload's temperature and L2 state; sizes of their own replace the head's and batch."""
    if sizes is None:
        sizes = sizes_of(head, workload)
        measured = beyond_floor(path, head, workload) if path.points else None
    pooled = head.candidate_pool is not None
    rows = sizes.batch * sizes.candidates if pooled else sizes.vocab_size
    read = terms.matrix_bytes(rows, sizes.rank, PRECISION) + terms.head_weight_bytes(head.kind, sizes.rank, sizes.hidden_size, sizes.gru_size)
    rate = byte_rate(gpu, curve, read)
    cold = workload.l2_state != "warm"
    first_pass_us = terms.first_pass_us(read, gpu.value("dram_bandwidth_bytes_per_s"), rate) if cold else 0.0
    elements = sizes.batch * (sizes.candidates if pooled else sizes.vocab_size)
    return StepwiseCase(path, head.kind, workload.temperature > 0, pooled, sizes, elements, read, rate, cold, first_pass_us, measured)


BEYOND_FLOOR = "beyond_floor_us"
"""Parameter of a path with measured points: step less launches and byte floor."""

OUTSIDE_ERROR, BETWEEN_ERROR = 0.5, 0.15
"""Relative standard errors of a measured path outside its points, and at least between two of them."""


@dataclass(frozen=True)
class BeyondFloor:
    """What a path with measured points takes beyond launches and byte floor, for one shape or for an array of them.

    Attributes:
        time_us: the figure.
        relative_error: standard error / time.
        whole: whether it was measured at the very head, batch and temperature, and so holds their state, selection and sampling.
        source: what it rests on.
    """

    time_us: Number
    relative_error: Number
    whole: Number
    source: str


def stepwise_parameters(engine: Engine, case: StepwiseCase, gpu: Gpu) -> dict[str, Parameter]:
    """Return the path's fitted figures as parameters; on another GPU than the fitted one they are transferred."""
    path = case.path
    same = gpu.id == engine.fitted_on
    floor = 0.0 if same else RELATIVE_ERROR_BY_KIND["transferred"]
    state = _state_name(case)
    figures = {**path.figures, **({STATE: path.states[state]} if state in path.states else {})}
    by_name = {
        name: Parameter(figure.value, figure.kind if same else "transferred", f"{engine.name}, fitted on {engine.fitted_on}: {figure.source}",
                        max(relative_error(figure), floor if name != "read_efficiency" else floor / 3))
        for name, figure in figures.items()
    }
    if case.measured is not None:
        by_name[BEYOND_FLOOR] = Parameter(case.measured.time_us, "derived" if same else "transferred",
                                          f"{engine.name}, measured on {engine.fitted_on}: {case.measured.source}", larger(case.measured.relative_error, floor))
    return {f"{engine.name}.{path.variant}.{name}": parameter for name, parameter in by_name.items()}


STATE = "state_us"
"""Parameter of a path: a head's further kernels."""


def _state_name(case: StepwiseCase) -> str:
    """Which of a path's `states` a head takes."""
    return POOL_STATE if case.pooled else case.head_kind


def beyond_floor(path: EnginePath, head: Head, workload: Workload) -> BeyondFloor:
    """What beyond launches and byte floor a path with measured points takes at a shape.

    A measured shape: its own figure. Else from Markov shapes at batch 1: between two in bytes of W2 the straight line, with half the
    points' difference as error, since the library may have picked either kernel; outside, the nearest in proportion to the bytes, at
    least `fixed_us`, with half of it as error.
    """
    wanted = point_shape(head, workload)
    exact = next((point for point in path.points if point.shape == wanted), None)
    if exact is not None:
        return BeyondFloor(exact.beyond_floor_us.value, relative_error_of_point(exact.beyond_floor_us), True, exact.beyond_floor_us.source)
    rows = head.padded_vocab_size if head.candidate_pool is None else workload.batch * min(head.candidate_pool, head.vocab_size)
    size = terms.matrix_bytes(rows, head.rank, PRECISION)
    plain = [point for point in path.points if (point.head_kind, point.batch, point.sampled) == ("markov", 1, False)]
    sized = sorted((terms.matrix_bytes(point.vocab_size, point.rank, PRECISION), point.beyond_floor_us.value) for point in plain)
    for (low, left), (high, right) in zip(sized, sized[1:]):
        if low <= size <= high:
            value = left + (right - left) * (size - low) / (high - low) if high > low else (left + right) / 2
            return BeyondFloor(value, max(abs(right - left) / 2 / value, BETWEEN_ERROR), False, "between two measured shapes")
    nearest_bytes, nearest_us = min(sized, key=lambda one: abs(one[0] - size), default=(size, 0.0))
    return BeyondFloor(max(nearest_us * size / nearest_bytes, path.figures["fixed_us"].value), OUTSIDE_ERROR, False, "outside the measured shapes")


def relative_error_of_point(figure: Figure) -> float:
    """Relative standard error of a measured point: its own, at least the measured kind's."""
    return max((figure.standard_error or 0.0) / figure.value, RELATIVE_ERROR_BY_KIND["measured"])


def stepwise_groups(values: Mapping[str, Number], engine: Engine, case: StepwiseCase) -> tuple[list[Group], list[Group]]:
    """Return (entry, step) groups of one term each for parameter values: kernels run one after the other."""
    return entry_groups(values, engine, case), step_groups(values, engine, case)


def step_groups(values: Mapping[str, Number], engine: Engine, case: StepwiseCase) -> list[Group]:
    """launches + byte floor + excess + selection + state + sampling; a measured shape holds the last three in its excess."""
    def own(name: str) -> Number:
        return values[f"{engine.name}.{case.path.variant}.{name}"]

    floor_us = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    step: dict[str, Number] = {"launch": terms.launch_us(case.path.nodes, values["graph_node_us"]), "byte_floor": floor_us}
    left: Number = 1.0
    if case.measured is not None:
        left = choose(case.measured.whole, 0.0, 1.0)
        step["projection_excess"] = own(BEYOND_FLOOR)
        step["selection"] = left * terms.selection_us(0.0, own("select_us_per_million"), larger(case.elements - case.sizes.vocab_size, 0))
    else:
        step["projection_excess"] = terms.projection_excess_us(floor_us, smaller(own("read_efficiency"), 1.0))
        step["selection"] = terms.selection_us(own("fixed_us"), own("select_us_per_million"), case.elements)
    if _state_name(case) in case.path.states:
        step["state"] = left * own(STATE)
    if case.sampled:
        step["sampling"] = left * terms.selection_us(own("sampling_fixed_us"), own("sampling_us_per_million"), case.elements)
    return one_by_one(step)


def entry_groups(values: Mapping[str, Number], engine: Engine, case: StepwiseCase) -> list[Group]:
    """launch + first kernels + first pass, and the gathering of candidates."""
    def own(name: str) -> Number:
        return values[f"{engine.name}.{case.path.variant}.{name}"]

    entry: dict[str, Number] = {
        "launch": terms.first_launch_us(values["graph_launch_us"], values["graph_node_us"]),
        "first_kernels": own("entry_us") + (own(COLD_ENTRY) if case.cold and COLD_ENTRY in case.path.figures else 0.0),
        "first_pass": case.first_pass_us,
    }
    if case.pooled:
        entry["pool_gather"] = values["pool_gather_us"]
    return one_by_one(entry)
