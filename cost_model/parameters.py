"""Parameters of the cost model for one GPU: each with its value, kind, source and relative error.

Order of resolution for a parameter: the GPU's own figure (calibrated or published), else its value carried over from the
reference GPU by a rule that scales with datasheet facts, kind `transferred`. The reference is the H200: its calibration
where `data/gpus/calibrated/` has one, else `data/parameters/reference.toml` (published microbenchmarks). A datasheet fact
that a rule needs and the GPU lacks raises `MissingFact`; nothing is invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.footprint import KERNEL_ROWS
from cost_model.gpu import READ_CURVE, BandwidthCurve, Figure, Gpu, MissingFact, load_gpu
from cost_model.paths import data_root
from cost_model.walk_class import WALK_CLASSES

REFERENCE_GPU = "h200-sxm"
REFERENCE_SCHEMA_VERSION = 1

RELATIVE_ERROR_BY_KIND: Mapping[str, float] = {
    "datasheet": 0.05, "microbenchmark": 0.15, "measured": 0.02, "derived": 0.15, "transferred": 0.30,
}
"""Assumed relative standard error of a figure that states none; for a measured one also the least (day, board, placement)."""

RESIDUALS: Mapping[str, str] = {
    "fused_overhead_us": "a fused step beyond its named terms: first fragments, issue stalls, blocks that drift apart",
    "stream_efficiency": "share of the probe's read bandwidth that the walk's own streaming reaches",
    "first_step_us": "entry of a fused walk beyond its named terms: the first step runs from cold instruction caches",
}
"""The global residual coefficients that walk measurements may fix: these three and no more."""

MODEL_ERROR, ENTRY_ERROR = "model_relative_error", "entry_relative_error"
"""Ends of the names of a calibrated GPU's figures (`class_error`): what the terms of a step, and of an entry, leave of walks that were held out."""

DEFAULT_MODEL_ERROR = 0.15
"""The same for a GPU whose walks were never measured."""


@dataclass(frozen=True)
class Parameter:
    """One number of the model.

    Attributes:
        value: in the unit that the name says (a ratio where it says none).
        kind: one of `gpu.KINDS`.
        source: document, record or rule.
        relative_error: standard error / value.
    """

    value: float
    kind: str
    source: str
    relative_error: float


@dataclass(frozen=True)
class Parameters:
    """All parameters of one GPU.

    Attributes:
        gpu_id: whose they are.
        by_name: parameter name -> Parameter.
        curve: whole-chip read bandwidth over footprint.
        calibrated: whether walks on this GPU fixed the residual coefficients.
        step_relative_error, entry_relative_error: class of walk (`walk_class.WALK_CLASSES`) -> relative error of the terms themselves.
        unresolved: parameter name -> facts that its transfer rule lacks.
    """

    gpu_id: str
    by_name: Mapping[str, Parameter]
    curve: BandwidthCurve
    calibrated: bool
    step_relative_error: Mapping[str, float]
    entry_relative_error: Mapping[str, float]
    unresolved: Mapping[str, tuple[str, ...]]

    def only(self, gpu: Gpu, names: Iterable[str]) -> dict[str, Parameter]:
        """Return the named parameters, or raise MissingFact with every fact that they lack."""
        names = tuple(names)
        gpu.require(sorted({fact for name in names for fact in self.unresolved.get(name, ())}))
        return {name: self.by_name[name] for name in names}

    @property
    def values(self) -> dict[str, float]:
        """Parameter name -> value."""
        return {name: parameter.value for name, parameter in self.by_name.items()}

    @property
    def kinds(self) -> dict[str, str]:
        """Parameter name -> kind."""
        return {name: parameter.kind for name, parameter in self.by_name.items()}


def relative_error(figure: Figure) -> float:
    """Relative standard error of a figure: its own, or the assumed one of its kind; never below the measured kind's."""
    assumed = RELATIVE_ERROR_BY_KIND[figure.kind]
    if figure.standard_error is None or figure.value == 0:
        return assumed
    return max(figure.standard_error / figure.value, RELATIVE_ERROR_BY_KIND["measured"])


def resolve(gpu: Gpu) -> Parameters:
    """Return the parameters of a GPU; remembered for as long as few other GPUs are asked about.

    A parameter whose transfer rule lacks a fact is left out and listed in `unresolved`; `Parameters.only` raises for it.

    Raises:
        MissingFact: a fact that every prediction needs is not known; all missing ones are named.
    """
    return _resolve(ByIdentity(gpu))


@dataclass(frozen=True, eq=False)
class ByIdentity:
    """A cache key that is equal only for the same object: comparing whole GPUs would cost more than a prediction."""

    gpu: Gpu

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.gpu is self.gpu

    def __hash__(self) -> int:
        return id(self.gpu)


@lru_cache(maxsize=64)
def _resolve(key: ByIdentity) -> Parameters:
    """Resolve once for one Gpu object."""
    gpu = key.gpu
    reference = _reference(calibrated=gpu.id != REFERENCE_GPU)
    needed = {"sm_count", "boost_clock_mhz", "dram_bandwidth_bytes_per_s"}
    if READ_CURVE not in gpu.curves:
        needed |= set(_CURVE_FACTS)
    gpu.require(sorted(needed))
    by_name, unresolved = {}, {}
    for name, rule in _RULES.items():
        missing = tuple(fact for fact in rule.facts if not gpu.has(fact))
        if gpu.has(name):
            by_name[name] = _own(gpu.figures[name])
        elif missing:
            unresolved[name] = missing
        else:
            by_name[name] = _transferred(name, gpu, reference)
    curve = gpu.curves[READ_CURVE] if READ_CURVE in gpu.curves else _transferred_curve(gpu, reference)
    curve_figure = sorted(curve.figures, key=relative_error)[len(curve.figures) // 2]
    by_name["read_curve_scale"] = Parameter(1.0, curve_figure.kind, curve_figure.source, relative_error(curve_figure))
    calibrated = gpu.has("fused_overhead_us") and gpu.figure("fused_overhead_us").kind == "measured"
    return Parameters(gpu.id, by_name, curve, calibrated, _class_errors(gpu, MODEL_ERROR), _class_errors(gpu, ENTRY_ERROR), unresolved)


def class_error(name: str, of_class: str) -> str:
    """Name of the figure that a calibrated GPU has of MODEL_ERROR or ENTRY_ERROR for a class of walks."""
    return f"{of_class}_{name}"


def _class_errors(gpu: Gpu, name: str) -> dict[str, float]:
    """The calibration's error of each class of walks, and DEFAULT_MODEL_ERROR where it has none."""
    figures = {one: class_error(name, one) for one in WALK_CLASSES}
    return {one: gpu.value(figure) if gpu.has(figure) else DEFAULT_MODEL_ERROR for one, figure in figures.items()}


def _own(figure: Figure) -> Parameter:
    """Return a GPU's own figure as a parameter."""
    return Parameter(figure.value, figure.kind, figure.source, relative_error(figure))


# --- transfer rules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How a parameter of the reference becomes another GPU's.

    Attributes:
        says: the rule in words.
        facts: datasheet facts that both GPUs must have.
        factor: (gpu, reference) -> factor on the reference's value.
    """

    says: str
    facts: tuple[str, ...]
    factor: Callable[[Gpu, Gpu], float]


def _ratio(*facts: str) -> Callable[[Gpu, Gpu], float]:
    """Factor that is the product of the ratios of facts; a fact after a `/` divides."""
    def factor(gpu: Gpu, reference: Gpu) -> float:
        product = 1.0
        for fact in facts:
            name = fact.removeprefix("/")
            ratio = gpu.value(name) / reference.value(name)
            product = product / ratio if fact.startswith("/") else product * ratio
        return product
    return factor


_SAME = Rule("carried over unchanged", (), lambda gpu, reference: 1.0)
_BY_CLOCK = Rule("cycles carried over, at this clock", ("boost_clock_mhz",), _ratio("/boost_clock_mhz"))
_BY_DRAM = Rule("same share of the datasheet's bandwidth", ("dram_bandwidth_bytes_per_s",), _ratio("dram_bandwidth_bytes_per_s"))

MMA_SHARE_BY_CAPABILITY: Mapping[tuple[int, int], tuple[float, float]] = {
    (8, 0): (0.97, 0.996), (8, 6): (0.97, 0.996), (8, 9): (1.0, 1.0), (9, 0): (0.65, 0.65), (10, 0): (0.25, 0.25),
    (10, 3): (0.93, 0.25), (12, 0): (1.0, 1.0), (12, 1): (1.0, 1.0),
}
"""Share of the dense tensor rate that `mma.sync` reaches, (int8, bf16), by compute capability. Luo et al. 2024 for 8.0, 8.9 and
9.0; QuickRunCUDA's B300 for 10.3 and, its bf16 ratio carried to both precisions, 10.0; an RTX 5090's 931 Top/s for 12.0."""


def _mma_factor(fact: str, column: int) -> Callable[[Gpu, Gpu], float]:
    """Datasheet rate a multiprocessor times the share of `mma.sync`, as a ratio to the reference's."""
    def of(gpu: Gpu) -> float:
        if gpu.compute_capability not in MMA_SHARE_BY_CAPABILITY:
            raise MissingFact(f"{gpu.id}: the share of the tensor rate that mma.sync reaches at compute capability "
                              f"{gpu.compute_capability} is not known; run `wts-lab calibrate` on that GPU")
        share = MMA_SHARE_BY_CAPABILITY[gpu.compute_capability][column]
        return gpu.value(fact) / gpu.value("sm_count") * share
    return lambda gpu, reference: of(gpu) / of(reference)


_RULES: Mapping[str, Rule] = {
    "exchange_us": _SAME,
    "l2_latency_us": _BY_CLOCK,
    "hbm_latency_us": _SAME,
    "shared_read_bytes_per_s_per_sm": Rule("128 bytes a cycle at this clock", ("boost_clock_mhz",), _ratio("boost_clock_mhz")),
    "mma_s8_ops_per_s_per_sm": Rule("share of the dense int8 rate that mma.sync reaches", ("int8_dense_ops_per_s",), _mma_factor("int8_dense_ops_per_s", 0)),
    "mma_bf16_flops_per_s_per_sm": Rule("share of the dense bf16 rate that mma.sync reaches", ("bf16_dense_flops_per_s",), _mma_factor("bf16_dense_flops_per_s", 1)),
    "graph_launch_us": _SAME,
    "cooperative_launch_us": _SAME,
    "graph_node_us": _SAME,
    "hbm_read_bytes_per_s": _BY_DRAM,
    "group_slot_cycles": _SAME,
    "group_quad_cycles": _SAME,
    "noise_bound_instructions": _SAME,
    "epilogue_cycles_per_accumulator": _SAME,
    "exchange_growth": _SAME,
    "exchange_crowding": _SAME,
    "exchange_wide_ratio": _SAME,
    "instruction_cycles": _SAME,
    "ring_latency_us": _SAME,
    "ring_latency_hbm_us": _SAME,
    "led_row_us": _BY_CLOCK,
    **{f"tile_rest_{rows}_us": _BY_CLOCK for rows in KERNEL_ROWS},
    "small_kernel_us": _SAME,
    "position_product_us": _SAME,
    "pool_gather_us": _SAME,
    "fused_overhead_us": _BY_CLOCK,
    "stream_efficiency": _SAME,
    "first_step_us": _BY_CLOCK,
}
_CURVE_FACTS = ("l2_bytes", "sm_count", "boost_clock_mhz", "dram_bandwidth_bytes_per_s")


def _transferred(name: str, gpu: Gpu, reference: Gpu) -> Parameter:
    """Carry one parameter over from the reference GPU."""
    rule, figure = _RULES[name], reference.figure(name)
    same = gpu.id == reference.id
    kind = figure.kind if same else "transferred"
    source = figure.source if same else f"{reference.id}: {rule.says} ({figure.source})"
    error = relative_error(figure) if same else max(RELATIVE_ERROR_BY_KIND["transferred"], relative_error(figure))
    return Parameter(figure.value * rule.factor(gpu, reference), kind, source, error)


def _transferred_curve(gpu: Gpu, reference: Gpu) -> BandwidthCurve:
    """Carry the read curve over: footprints scale with L2, rates up to L2's size with multiprocessors × clock, beyond it with
    DRAM bandwidth, and never above the datasheet's there.

    How a real L2 fades beyond its size has to be measured: a loop longer than a cache that evicts what was used longest ago
    never hits. So a carried-over curve drops at L2's size.
    """
    curve = reference.curves[READ_CURVE]
    if gpu.id == reference.id:
        return curve
    on_chip = _ratio("sm_count", "boost_clock_mhz")(gpu, reference)
    dram = _ratio("dram_bandwidth_bytes_per_s")(gpu, reference)
    l2, size = reference.value("l2_bytes"), _ratio("l2_bytes")(gpu, reference)
    slowest = min(curve.figures, key=lambda figure: figure.value)

    def figure(value: float, source: str) -> Figure:
        return Figure(value, "B/s", "transferred", f"{reference.id}, scaled ({source})")

    sizes = [footprint for footprint in curve.footprints_bytes if footprint < l2] + [l2]
    points = [(footprint * size, figure(curve.at(footprint) * on_chip, slowest.source)) for footprint in sizes]
    beyond = min(slowest.value * dram, gpu.value("dram_bandwidth_bytes_per_s"))
    points.append((l2 * size * JUST_BEYOND, figure(beyond, slowest.source)))
    return BandwidthCurve(tuple(footprint for footprint, _ in points), tuple(one for _, one in points))


JUST_BEYOND = 1.0 + 1e-9
"""Factor on L2's size at which a carried-over curve has dropped to DRAM."""


# --- the reference --------------------------------------------------------------------------------------------------------


def _reference(calibrated: bool) -> Gpu:
    """Return the reference GPU with every parameter: calibrated figures first, where asked for, and published ones for the rest.

    For the reference GPU itself only published figures fill gaps: whoever loads it without its calibration means that.
    """
    return _merged(load_gpu(REFERENCE_GPU, calibrated=calibrated), *published_reference())


def _merged(gpu: Gpu, figures: Mapping[str, Figure], curves: Mapping[str, BandwidthCurve]) -> Gpu:
    """Add what the GPU lacks."""
    return gpu.with_figures({name: figure for name, figure in figures.items() if not gpu.has(name)},
                            {name: curve for name, curve in curves.items() if name not in gpu.curves})


def published_reference() -> tuple[Mapping[str, Figure], Mapping[str, BandwidthCurve]]:
    """Return the reference GPU's published figures and curves from `data/parameters/reference.toml`."""
    return _published(data_root() / "parameters" / "reference.toml")


@lru_cache(maxsize=4)
def _published(path) -> tuple[Mapping[str, Figure], Mapping[str, BandwidthCurve]]:
    facts = read_facts(path)
    check_version(path, facts, REFERENCE_SCHEMA_VERSION)
    check_keys(path, "the file", facts, {"schema_version", "gpu", "figures", "curves"})
    if facts["gpu"] != REFERENCE_GPU:
        raise CatalogueError(f"{path}: is about {facts['gpu']!r}; the reference GPU is {REFERENCE_GPU}")
    figures = {name: Figure(**table) for name, table in facts["figures"].items()}
    curves = {}
    for name, points in facts["curves"].items():
        ordered = sorted(points, key=lambda point: point["footprint_bytes"])
        fields = [{key: value for key, value in point.items() if key != "footprint_bytes"} for point in ordered]
        curves[name] = BandwidthCurve(tuple(point["footprint_bytes"] for point in ordered), tuple(Figure(**one) for one in fields))
    return figures, curves
