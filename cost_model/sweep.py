"""sweep: `predict` over whole grids, in arrays. The terms are the same functions; every number equals `predict`'s.

A grid has axes; a block of it shares all words (GPU, way, kind of head, batch rows of the kernel, sampling, L2 state, rounding), so that its
sizes are arrays over heads × batches × walk lengths, and NumPy's broadcasting computes each term only along the axes it depends on.
NumPy and pandas are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING

from cost_model import terms
from cost_model.elementwise import Number, choose
from cost_model.engines import load_engine
from cost_model.errors import BadInput
from cost_model.estimate import estimate
from cost_model.footprint import KERNEL_ROWS, Kernel, kernel_rows
from cost_model.fused import (
    WalkSizes, WalkWords, entry_groups, entry_parameters, fused_case, moving_parameters, step_groups, step_parameters,
)
from cost_model.fused_floor import FloorFacts, fused_floor
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.parameters import ByIdentity, resolve
from cost_model.placement import DEFAULT_WARPS, Placement, kernel_beside, plan, slots_needed
from cost_model.predict import FusedRequest, crowded_slots, fused_errors, fused_request, narrow_ring, require_stored, require_walk, stepwise_errors, unchecked_parts, walk_sizes
from cost_model.stepwise import (
    BeyondFloor, StepwiseSizes, beyond_floor, sizes_of, stepwise_case, stepwise_groups, stepwise_parameters,
)
from cost_model.workload import ENGINE, MODES, Workload, require_word

if TYPE_CHECKING:
    import numpy
    import pandas

Way = tuple[str, str]
"""(mode, precision)."""

WAYS: tuple[Way, ...] = (("stepwise", "bf16"), ("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2"))
"""The walks that split a gain; ("resident", "bf16") exists, too."""

QUANTITIES = ("entry_us", "entry_us_low", "entry_us_high", "step_us", "step_us_low", "step_us_high", "floor_entry_us", "floor_step_us")
"""Fields of a Prediction that a sweep computes."""

BLOCK_CELLS = 1 << 16
"""Cells that are evaluated together: temporaries of that many numbers stay in a CPU's cache."""


@dataclass(frozen=True)
class Grid:
    """What to predict: every combination of its axes, in this order.

    Attributes:
        gpus, heads: objects, with ids and names that tell them apart.
        ways: (mode, precision) pairs.
        batches, steps, temperatures, l2_states, roundings, logits_kept: fields of `Workload`.
        implementation: of the stepwise way.

    Raises:
        BadInput: an axis is empty or repeats a label, or a label is not allowed.
    """

    gpus: tuple[Gpu, ...]
    heads: tuple[Head, ...]
    ways: tuple[Way, ...] = WAYS
    batches: tuple[int, ...] = (1,)
    steps: tuple[int, ...] = (16,)
    temperatures: tuple[Number, ...] = (0.0,)
    l2_states: tuple[str, ...] = ("warm",)
    roundings: tuple[str, ...] = ("once",)
    logits_kept: tuple[bool, ...] = (False,)
    implementation: str = ENGINE

    def __post_init__(self) -> None:
        for axis in self._fields:
            object.__setattr__(self, axis, tuple(getattr(self, axis)))
        for axis, labels in self.axes.items():
            if not labels or len(set(labels)) < len(labels):
                raise BadInput(f"axis {axis} of the grid is {', '.join(map(str, labels)) or 'empty'}; give at least one label, and each once")
        load_engine(self.implementation)
        for mode, _ in self.ways:
            require_word("mode", mode, MODES)
        for batch, steps in product(self.batches, self.steps):
            Workload(batch, steps)
        for temperature, precision, rounding, state, kept in product(
                self.temperatures, dict.fromkeys(way[1] for way in self.ways), self.roundings, self.l2_states, self.logits_kept):
            Workload(1, 1, temperature, precision, rounding, state, kept)

    _fields = ("gpus", "heads", "ways", "batches", "steps", "temperatures", "l2_states", "roundings", "logits_kept")

    @property
    def axes(self) -> dict[str, tuple]:
        """Name of each axis -> its labels."""
        return {
            "gpu": tuple(gpu.id for gpu in self.gpus), "head": tuple(head.name for head in self.heads), "way": tuple(" ".join(way) for way in self.ways),
            "batch": self.batches, "steps": self.steps, "temperature": self.temperatures, "l2_state": self.l2_states, "rounding": self.roundings,
            "logits_kept": self.logits_kept,
        }


@dataclass(frozen=True)
class Refusal:
    """Cells that `predict` would refuse: they hold NaN. `where` has the labels that they share; `reason` is the error's message."""

    where: Mapping[str, object]
    reason: str


@dataclass(frozen=True)
class Sweep:
    """Predictions over a grid.

    Attributes:
        axes: name of each axis -> labels, in the order of the arrays' dimensions.
        values: each of QUANTITIES -> float64 array over all axes, NaN where refused.
        refused: why.
    """

    axes: Mapping[str, tuple]
    values: Mapping[str, numpy.ndarray]
    refused: tuple[Refusal, ...] = field(default=())

    @cached_property
    def call_us(self) -> numpy.ndarray:
        """Complete call: entry + steps × step, over all axes."""
        import numpy

        names = list(self.axes)
        shape = [-1 if name == "steps" else 1 for name in names]
        return self.values["entry_us"] + numpy.array(self.axes["steps"], float).reshape(shape) * self.values["step_us"]

    def at(self, **labels: object) -> Sweep:
        """The part of the sweep at a label of each named axis; those axes are gone.

        Raises:
            BadInput: no such axis or label; lists what there is.
        """
        index: list[object] = [slice(None)] * len(self.axes)
        for name, label in labels.items():
            if name not in self.axes:
                raise BadInput(f"the sweep has no axis {name!r}; it has {', '.join(self.axes)}")
            if label not in self.axes[name]:
                raise BadInput(f"axis {name} has no label {label!r}; it has {', '.join(map(str, self.axes[name]))}")
            index[list(self.axes).index(name)] = self.axes[name].index(label)
        left = {name: values for name, values in self.axes.items() if name not in labels}
        return Sweep(left, {name: values[tuple(index)] for name, values in self.values.items()}, self.refused)

    def frame(self) -> pandas.DataFrame:
        """One row a cell: its labels, QUANTITIES, and `call_us` where steps are still an axis."""
        import pandas

        columns = {name: values.reshape(-1) for name, values in self.values.items()}
        if "steps" in self.axes:
            columns["call_us"] = self.call_us.reshape(-1)
        index = pandas.MultiIndex.from_product(list(self.axes.values()), names=list(self.axes))
        return pandas.DataFrame(columns, index=index).reset_index()


def sweep(grid: Grid, threads: int = 2) -> Sweep:
    """Predict every cell of a grid; what `predict` refuses is NaN and listed, in the grid's order.

    Args:
        threads: blocks that are evaluated side by side; NumPy lets others run while it works on an array.
    """
    values = {name: _unknown(grid) for name in QUANTITIES}
    planned = [block.planned() for block in _blocks(grid)]  # plain Python, which threads would only slow down
    with ThreadPoolExecutor(max(1, threads)) as pool:
        refused = [one for found in pool.map(lambda ready: ready.filled(values), planned) for one in found]
    return Sweep(grid.axes, values, tuple(refused))


def _unknown(grid: Grid) -> numpy.ndarray:
    """NaN over all axes of a grid. In memory heads, batches and walk lengths come last, which a block fills together."""
    import numpy

    sizes, together = list(map(len, grid.axes.values())), [list(grid.axes).index(name) for name in ("head", "batch", "steps")]
    order = [axis for axis in range(len(sizes)) if axis not in together] + together
    return numpy.full([sizes[axis] for axis in order], numpy.nan).transpose(numpy.argsort(order))


# --- blocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """Cells that share all words. Indices are of the grid's axes; `workload` holds the words, its batch and steps do not count."""

    grid: Grid
    gpu: int
    heads: tuple[int, ...]
    way: int
    batches: tuple[int, ...]
    others: tuple[int, int, int, int]  # temperature, l2_state, rounding, logits_kept
    workload: Workload

    def where(self) -> dict[str, object]:
        """Labels that all cells of the block share."""
        axes = self.grid.axes
        shared = {"gpu": axes["gpu"][self.gpu], "way": axes["way"][self.way]}
        if len(self.heads) == 1:
            shared["head"] = axes["head"][self.heads[0]]
        names = ("temperature", "l2_state", "rounding", "logits_kept")
        return {**shared, "batch": tuple(self.grid.batches[i] for i in self.batches), **{name: axes[name][i] for name, i in zip(names, self.others)}}

    @property
    def mode(self) -> str:
        """How its cells walk."""
        return self.grid.ways[self.way][0]

    def planned(self) -> _PlannedBlock:
        """Plan the placements of its heads, heads whose kernels multiply alike together; where nothing fits, or nothing walks so, say so."""
        refused: list[Refusal] = []
        alike: dict[object, list[tuple[int, WalkSizes | None, Kernel | None]]] = {}
        try:
            require_walk(self.grid.heads[self.heads[0]], self.workload)
        except BadInput as error:
            return _PlannedBlock(self, (), [Refusal(self.where(), str(error))])
        for i in self.heads:
            try:
                sizes, kernel = (None, None) if self.mode == "stepwise" else _PLANNER.sizes(self.grid.gpus[self.gpu], self.grid.heads[i], self.workload, self.mode)
            except BadInput as error:
                refused.append(Refusal(replace(self, heads=(i,)).where(), str(error)))
                continue
            alike.setdefault(kernel and kernel.products, []).append((i, sizes, kernel))
        at_once = max(1, BLOCK_CELLS // (len(self.batches) * len(self.grid.steps)))
        return _PlannedBlock(self, tuple(ready[start:start + at_once] for ready in alike.values() for start in range(0, len(ready), at_once)), refused)


@dataclass(frozen=True)
class _PlannedBlock:
    """A block with what is evaluated together, (head, its numbers, its kernel) each, and what planning refused."""

    block: _Block
    together: Sequence[Sequence[tuple[int, WalkSizes | None, Kernel | None]]]
    refused: list[Refusal]

    def filled(self, values: Mapping[str, numpy.ndarray]) -> list[Refusal]:
        """Evaluate the block and store what it finds; return what is refused."""
        try:
            for ready in self.together:
                self._fill(values, ready)
        except BadInput as error:
            return [*self.refused, Refusal(self.block.where(), str(error))]
        return self.refused

    def _fill(self, values: Mapping[str, numpy.ndarray], ready: Sequence[tuple[int, WalkSizes | None, Kernel | None]]) -> None:
        """Evaluate some heads."""
        import numpy

        block, some = self.block, [i for i, _, _ in ready]
        chosen, steps = [block.grid.heads[i] for i in some], block.grid.steps
        found = _stepwise(block, chosen) if block.mode == "stepwise" else _fused(block, chosen, [sizes for _, sizes, _ in ready], ready[0][2])
        where = _run(some), _run(block.batches)
        index = (*where, slice(None)) if all(where) else numpy.ix_(some, block.batches, range(len(steps)))
        for name, value in found.items():
            values[name][block.gpu, :, block.way, :, :, *block.others][index] = value


def _run(indices: Sequence[int]) -> slice | None:
    """The slice of indices that follow one another; None of others. A slice is written faster."""
    run = slice(indices[0], indices[-1] + 1)
    return run if list(range(run.start, run.stop)) == list(indices) else None


def _blocks(grid: Grid) -> Iterator[_Block]:
    """Split a grid into blocks: heads by kind, batches by the kernel's rows (fused) or the engine's path (stepwise)."""
    paths = load_engine(grid.implementation).paths
    kinds: dict[tuple, list[int]] = {}
    for i, head in enumerate(grid.heads):
        kinds.setdefault((head.kind, head.candidate_pool is not None), []).append(i)
    others = list(product(*(range(len(grid.axes[name])) for name in ("temperature", "l2_state", "rounding", "logits_kept"))))
    for gpu, (way, (mode, precision)), heads, other in product(range(len(grid.gpus)), enumerate(grid.ways), kinds.values(), others):
        words = Workload(1, 1, grid.temperatures[other[0]], precision, grid.roundings[other[2]], grid.l2_states[other[1]], grid.logits_kept[other[3]])

        def batch_class(i: int, mode: str = mode, kind: str = grid.heads[heads[0]].kind, words: Workload = words) -> object:
            batch = grid.batches[i]
            if mode != "stepwise":
                return KERNEL_ROWS.index(kernel_rows(batch))
            serving = [path.serves(replace(words, batch=batch), kind) for path in paths]
            return serving.index(True) if any(serving) else -1

        for _, batches in groupby(sorted(range(len(grid.batches)), key=batch_class), key=batch_class):
            chosen = tuple(batches)
            yield _Block(grid, gpu, tuple(heads), way, chosen, other, replace(words, batch=grid.batches[chosen[0]]))


# --- the fused modes --------------------------------------------------------------------------------------------------------


class _Planner:
    """Placements, planned once for all heads, L2 states and temperatures that share one, and kept from sweep to sweep."""

    KEPT_PLANS = 1 << 16

    def __init__(self) -> None:
        self._kept: dict[tuple, tuple[Placement, Kernel] | BadInput] = {}

    def sizes(self, gpu: Gpu, head: Head, workload: Workload, mode: str) -> tuple[WalkSizes, Kernel]:
        """Return a head's numbers, those of its placement included, and the kernel; batch and steps do not count.

        Raises:
            BadInput: as the planner does.
        """
        request = fused_request(gpu, head, workload)
        walked, blocks = request.head, request.grid_blocks
        slots = slots_needed(walked.padded_vocab_size, blocks, DEFAULT_WARPS)
        wanted = (ByIdentity(gpu), mode, workload.precision, *request.built.values(), slots, walked.rank, walked.kind, walked.gru_size, blocks)
        found = self._kept.get(wanted)
        if found is None:
            if len(self._kept) >= self.KEPT_PLANS:
                self._kept.clear()
            found = self._kept[wanted] = _planned(gpu, request, workload.precision, mode)
        if isinstance(found, BadInput):
            raise found
        return walk_sizes(request, head, workload, *found), found[1]


def _planned(gpu: Gpu, request: FusedRequest, precision: str, mode: str) -> tuple[Placement, Kernel] | BadInput:
    """Plan, or return why nothing fits."""
    try:
        placement = plan(gpu, request.head, precision, mode, grid_blocks=request.grid_blocks, **request.built)
    except BadInput as error:
        return error
    return placement, kernel_beside(placement, gpu, request.head, precision, grid_blocks=request.grid_blocks, **request.built)


_PLANNER = _Planner()


def _stacked(sizes: Sequence[WalkSizes], batches: Sequence[int], steps: Sequence[int], pooled: bool) -> WalkSizes:
    """Numbers of heads × batches × walk lengths: arrays [H, 1, 1], [1, B, 1] and [1, 1, S]."""
    import numpy

    names = [name for name in WalkSizes.__dataclass_fields__ if name not in ("batch", "launches", "steps", "warps")]
    columns = {name: numpy.array([getattr(one, name) for one in sizes]).reshape(-1, 1, 1) for name in names}
    rows = numpy.array(batches).reshape(1, -1, 1)
    return WalkSizes(**columns, warps=sizes[0].warps, steps=numpy.array(steps).reshape(1, 1, -1), batch=1 if pooled else rows, launches=rows if pooled else 1)


def _fused(block: _Block, heads: Sequence[Head], sizes: Sequence[WalkSizes], kernel: Kernel) -> dict[str, numpy.ndarray]:
    """Evaluate the persistent kernel, whose placements differ between heads in numbers only."""
    import numpy

    grid, gpu, mode = block.grid, block.grid.gpus[block.gpu], block.grid.ways[block.way][0]
    parameters = resolve(gpu)
    batches = [grid.batches[i] for i in block.batches]
    words = WalkWords(block.workload.precision, block.workload.l2_state, block.workload.logits_kept, kernel)
    case = fused_case(gpu, parameters.curve, words, _stacked(sizes, batches, grid.steps, heads[0].candidate_pool is not None))
    of_entry, of_step = entry_parameters(words), step_parameters(words)
    used = parameters.only(gpu, dict.fromkeys((*of_step, *of_entry, "graph_launch_us")))
    facts = FloorFacts(gpu, parameters.curve, used["l2_latency_us"].value, used["graph_launch_us"].value)
    asked = [replace(block.workload, batch=batch) for batch in batches]
    narrow, crowded = narrow_ring(case.sizes, case.sizes.rank, words.precision), crowded_slots(case.sizes)

    def errors(streams: bool, narrow: bool = False, crowded: bool = False) -> list[numpy.ndarray]:
        unchecked = [unchecked_parts(mode, heads[0], one, narrow=narrow, crowded=crowded) for one in asked]
        found = [fused_errors(parameters, heads[0], one, parts, streams) for one, parts in zip(asked, unchecked)]
        return [numpy.array(column).reshape(1, -1, 1) for column in zip(*found)]

    kinds = zip(errors(True, narrow=True), errors(True), errors(False, crowded=True), errors(False))
    entry_error, step_error = (choose(narrow, least, choose(case.sizes.streamed_tiles > 0, streamed, choose(crowded, many, kept))) for least, streamed, many, kept in kinds)
    floor_entry, floor_step = fused_floor(facts, mode, case)
    entry = estimate(lambda values: entry_groups(values, case), used, moving_parameters(of_entry, case), entry_error, floor_entry, parameters.calibrated)
    step = estimate(lambda values: step_groups(values, case), used, moving_parameters(of_step, case), step_error, floor_step, parameters.calibrated)
    return dict(zip(QUANTITIES, (*entry, *step, floor_entry, floor_step)))


# --- stepwise ---------------------------------------------------------------------------------------------------------------


def _stepwise(block: _Block, heads: Sequence[Head]) -> dict[str, numpy.ndarray]:
    """Evaluate the path that the engine takes."""
    import numpy

    grid, gpu = block.grid, block.grid.gpus[block.gpu]
    parameters = resolve(gpu)
    engine = load_engine(grid.implementation)
    path = engine.path(block.workload, None, heads[0].kind)
    require_stored(block.workload)
    batches = [grid.batches[i] for i in block.batches]
    each = [sizes_of(head, block.workload) for head in heads]
    columns = {name: numpy.array([getattr(one, name) for one in each]).reshape(-1, 1, 1) for name in StepwiseSizes.__dataclass_fields__ if name != "batch"}
    sizes = StepwiseSizes(**columns, batch=numpy.array(batches).reshape(1, -1, 1))
    measured = _measured(path, heads, [replace(block.workload, batch=batch) for batch in batches]) if path.points else None
    case = stepwise_case(gpu, parameters.curve, heads[0], block.workload, path, sizes, measured)
    used = parameters.only(gpu, ("graph_node_us", "graph_launch_us", *(("pool_gather_us",) if case.pooled else ())))
    by_name = {**used, **stepwise_parameters(engine, case, gpu)}
    floor_step = terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    floor_entry = terms.first_launch_us(by_name["graph_launch_us"].value, by_name["graph_node_us"].value)
    entry_error, step_error = stepwise_errors(parameters)
    entry = estimate(lambda values: stepwise_groups(values, engine, case)[0], by_name, by_name, entry_error, floor_entry, parameters.calibrated)
    step = estimate(lambda values: stepwise_groups(values, engine, case)[1], by_name, by_name, step_error, floor_step, parameters.calibrated)
    return dict(zip(QUANTITIES, (*entry, *step, floor_entry, floor_step)))


def _measured(path, heads: Iterable[Head], workloads: Sequence[Workload]) -> BeyondFloor:
    """What lies beyond launches and byte floor at each head and batch: arrays [H, B, 1]."""
    import numpy

    found = [[beyond_floor(path, head, workload) for workload in workloads] for head in heads]
    columns = {name: numpy.array([[getattr(one, name) for one in row] for row in found])[:, :, None] for name in ("time_us", "relative_error", "whole")}
    return BeyondFloor(**columns, source="measured shapes, or between them")
