"""Entry and step of a stepwise path as named terms: launches, byte floor, projection excess, selection, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model import terms
from cost_model.engines import Engine, EnginePath
from cost_model.gpu import BandwidthCurve, Gpu
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
        elements: batch × V.
        matrix_bytes: of W2, read in each step.
        rate_bytes_per_s: best rate at which they can be read again.
        first_pass_us: what the first read costs above a later one, where L2 will hold the matrix and does not yet.
    """

    path: EnginePath
    sampled: bool
    elements: int
    matrix_bytes: float
    rate_bytes_per_s: float
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
    first_pass_us = 0.0 if workload.l2_state == "warm" else terms.first_pass_us(matrix, dram, rate)
    return StepwiseCase(path, workload.temperature > 0, workload.batch * head.padded_vocab_size, matrix, rate, first_pass_us)


def stepwise_parameters(engine: Engine, path: EnginePath, gpu: Gpu) -> dict[str, Parameter]:
    """Return the path's fitted figures as parameters; on another GPU than the fitted one they are transferred."""
    same = gpu.id == engine.fitted_on
    floor = 0.0 if same else RELATIVE_ERROR_BY_KIND["transferred"]
    return {
        f"{engine.name}.{path.variant}.{name}": Parameter(
            figure.value, figure.kind if same else "transferred", f"{engine.name}, fitted on {engine.fitted_on}: {figure.source}",
            max(relative_error(figure), floor if name != "read_efficiency" else floor / 3),
        )
        for name, figure in path.figures.items()
    }


def stepwise_terms(values: Mapping[str, float], engine: Engine, case: StepwiseCase) -> tuple[Parts, Parts]:
    """Return (entry, step) terms for parameter values."""
    def own(name: str) -> float:
        return values[f"{engine.name}.{case.path.variant}.{name}"]

    floor_us = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    parameter = case.path.selection_parameter
    fixed_us = own("fixed_us") + (values[parameter] if parameter else 0.0)
    step: Parts = {
        "launch": (terms.launch_us(case.path.nodes, values["graph_node_us"]), 0.0, "launch"),
        "byte_floor": (floor_us, 0.0, "memory"),
        "projection_excess": (terms.projection_excess_us(floor_us, min(own("read_efficiency"), 1.0)), 0.0, "kernel efficiency"),
        "selection": (terms.selection_us(fixed_us, own("select_us_per_million"), case.elements), 0.0, "kernel efficiency"),
    }
    if case.sampled:
        sampling_us = terms.selection_us(own("sampling_fixed_us"), own("sampling_us_per_million"), case.elements)
        step["sampling"] = (sampling_us, 0.0, "kernel efficiency")
    entry: Parts = {
        "launch": (values["graph_launch_us"], 0.0, "launch"),
        "first_kernels": (own("entry_us"), 0.0, "launch"),
        "first_pass": (case.first_pass_us, 0.0, "memory"),
    }
    return entry, step
