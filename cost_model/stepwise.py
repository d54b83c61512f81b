"""Entry and step of a stepwise path as named terms: launches, byte floor, projection excess, selection, sampling.

A path whose library picks its kernels by shape has measured points instead of an efficiency; then `projection_excess` holds
all that its kernels take beyond launches and byte floor at batch 1, selection included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.engines import COLD_ENTRY, Engine, EnginePath
from cost_model.gpu import BandwidthCurve, Figure, Gpu
from cost_model.head import Head
from cost_model.parameters import RELATIVE_ERROR_BY_KIND, Parameter, relative_error
from cost_model.workload import Workload

Parts = dict[str, tuple[float, float, str]]
"""Term name -> (exposed_us, hidden_us, resource)."""

PRECISION = "bf16"
"""Engines keep W2 in bf16."""


@dataclass(frozen=True)
class StepwiseCase:
    """What a stepwise prediction is about, apart from parameter values.

    Attributes:
        path: of the engine.
        sampled: whether the temperature is above 0.
        vocab_size, rank, batch: the shape; elements: batch × V.
        matrix_bytes: of W2, read in each step.
        rate_bytes_per_s: best rate at which they can be read again.
        cold: whether the call finds L2 without the weights.
        first_pass_us: what the first read costs above a later one, where L2 will hold the matrix and does not yet.
    """

    path: EnginePath
    sampled: bool
    vocab_size: int
    rank: int
    batch: int
    elements: int
    matrix_bytes: float
    rate_bytes_per_s: float
    cold: bool
    first_pass_us: float


def byte_rate(gpu: Gpu, curve: BandwidthCurve, footprint_bytes: float) -> float:
    """Best rate for bytes that are read again each step: the datasheet's DRAM bandwidth, or the read curve where L2 beats it.

    A curve carried over from another GPU counts only up to the size of L2: a loop longer than a cache that evicts what was
    used longest ago never hits, and how far a real L2 departs from that has to be measured.
    """
    dram = gpu.value("dram_bandwidth_bytes_per_s")
    carried_over = any(figure.kind == "transferred" for figure in curve.figures)
    if carried_over and footprint_bytes > gpu.value("l2_bytes"):
        return dram
    return max(dram, curve.at(footprint_bytes))


def stepwise_case(gpu: Gpu, curve: BandwidthCurve, head: Head, workload: Workload, path: EnginePath) -> StepwiseCase:
    """Size one stepwise path."""
    matrix = terms.matrix_bytes(head.padded_vocab_size, head.rank, PRECISION)
    rate = byte_rate(gpu, curve, matrix)
    dram = gpu.value("dram_bandwidth_bytes_per_s")
    cold = workload.l2_state != "warm"
    first_pass_us = terms.first_pass_us(matrix, dram, rate) if cold else 0.0
    vocab = head.padded_vocab_size
    return StepwiseCase(path, workload.temperature > 0, vocab, head.rank, workload.batch, workload.batch * vocab, matrix, rate, cold, first_pass_us)


BEYOND_FLOOR = "beyond_floor_us"
"""Parameter of a path with measured points: step less launches and byte floor."""

OUTSIDE_ERROR, BETWEEN_ERROR = 0.5, 0.15
"""Relative standard errors of a measured path outside its points, and at least between two of them."""


def stepwise_parameters(engine: Engine, case: StepwiseCase, gpu: Gpu) -> dict[str, Parameter]:
    """Return the path's fitted figures as parameters; on another GPU than the fitted one they are transferred."""
    path = case.path
    same = gpu.id == engine.fitted_on
    floor = 0.0 if same else RELATIVE_ERROR_BY_KIND["transferred"]
    by_name = {
        name: Parameter(figure.value, figure.kind if same else "transferred", f"{engine.name}, fitted on {engine.fitted_on}: {figure.source}",
                        max(relative_error(figure), floor if name != "read_efficiency" else floor / 3))
        for name, figure in path.figures.items()
    }
    if path.points:
        value, error, source = beyond_floor(path, case.vocab_size, case.rank)
        by_name[BEYOND_FLOOR] = Parameter(value, "derived" if same else "transferred", f"{engine.name}, measured on {engine.fitted_on}: {source}",
                                          max(error, floor))
    return {f"{engine.name}.{path.variant}.{name}": parameter for name, parameter in by_name.items()}


def beyond_floor(path: EnginePath, vocab_size: int, rank: int) -> tuple[float, float, str]:
    """Return (us, relative standard error, source) of a path with measured points at a shape.

    A measured shape: its own figure. Between two points in bytes of W2: the straight line, with half the points' difference
    as error, since the library may have picked either kernel. Outside: the nearest point in proportion to the bytes, at
    least `fixed_us`, with half of it as error.
    """
    exact = next((point for point in path.points if (point.vocab_size, point.rank) == (vocab_size, rank)), None)
    if exact is not None:
        return exact.beyond_floor_us.value, relative_error_of_point(exact.beyond_floor_us), exact.beyond_floor_us.source
    size = terms.matrix_bytes(vocab_size, rank, PRECISION)
    sized = sorted((terms.matrix_bytes(point.vocab_size, point.rank, PRECISION), point.beyond_floor_us.value) for point in path.points)
    for (low, left), (high, right) in zip(sized, sized[1:]):
        if low <= size <= high:
            value = left + (right - left) * (size - low) / (high - low) if high > low else (left + right) / 2
            return value, max(abs(right - left) / 2 / value, BETWEEN_ERROR), "between two measured shapes"
    nearest_bytes, nearest_us = min(sized, key=lambda one: abs(one[0] - size))
    return max(nearest_us * size / nearest_bytes, path.figures["fixed_us"].value), OUTSIDE_ERROR, "outside the measured shapes"


def relative_error_of_point(figure: Figure) -> float:
    """Relative standard error of a measured point: its own, at least the measured kind's."""
    return max((figure.standard_error or 0.0) / figure.value, RELATIVE_ERROR_BY_KIND["measured"])


def stepwise_terms(values: Mapping[str, float], engine: Engine, case: StepwiseCase) -> tuple[Parts, Parts]:
    """Return (entry, step) terms for parameter values."""
    def own(name: str) -> float:
        return values[f"{engine.name}.{case.path.variant}.{name}"]

    floor_us = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    step: Parts = {
        "launch": (terms.launch_us(case.path.nodes, values["graph_node_us"]), 0.0, "launch"),
        "byte_floor": (floor_us, 0.0, "memory"),
    }
    if case.path.points:
        more_elements = (case.batch - 1) * case.vocab_size
        step["projection_excess"] = (own(BEYOND_FLOOR), 0.0, "kernel efficiency")
        step["selection"] = (terms.selection_us(0.0, own("select_us_per_million"), more_elements), 0.0, "kernel efficiency")
    else:
        step["projection_excess"] = (terms.projection_excess_us(floor_us, min(own("read_efficiency"), 1.0)), 0.0, "kernel efficiency")
        step["selection"] = (terms.selection_us(own("fixed_us"), own("select_us_per_million"), case.elements), 0.0, "kernel efficiency")
    if case.sampled:
        sampling_us = terms.selection_us(own("sampling_fixed_us"), own("sampling_us_per_million"), case.elements)
        step["sampling"] = (sampling_us, 0.0, "kernel efficiency")
    entry: Parts = {
        "launch": (terms.first_launch_us(values["graph_launch_us"], values["graph_node_us"]), 0.0, "launch"),
        "first_kernels": (own("entry_us") + (own(COLD_ENTRY) if case.cold and COLD_ENTRY in case.path.figures else 0.0), 0.0, "launch"),
        "first_pass": (case.first_pass_us, 0.0, "memory"),
    }
    return entry, step
