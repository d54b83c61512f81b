"""Describe the torch-stepwise reference from recorded walks: a table of measured steps, and its file in `data/engines/`.

The smaller of two vocabularies may take longer (54 us a step at 129,280 rows, 38 at 151,936 on an H200; the library presumably
picks another kernel), so no smooth formula of bytes holds; the table keeps each measured shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median, stdev

from cost_model import terms
from cost_model.engines import COLD_ENTRY, ENGINE_SCHEMA_VERSION, POINT_OPTIONS, Engine, EnginePath, EnginePoint, load_engine
from cost_model.errors import CalibrationError
from cost_model.figures import Figure, figure_lines, toml_number, toml_text
from cost_model.files import write_text_whole
from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import Gpu
from cost_model.head import HEAD_KINDS, Head
from cost_model.parameters import resolve
from cost_model.stepwise import PRECISION, point_shape, sizes_of, stepwise_case
from cost_model.workload import REFERENCE, Workload

TABLED_ENGINE = REFERENCE
"""The implementation whose steps are kept as measured points."""

Z_95 = 1.96


def asked_of(key: SeriesKey) -> tuple[Head, Workload]:
    """Return the head and workload of a series, warm, as far as its step depends on them."""
    target = key.target_vocab_size or key.vocab_size
    head = Head("recorded", key.head_kind or "markov", key.vocab_size, target, key.padded_vocab_size or key.vocab_size, key.rank, key.hidden_size, key.gru_size,
                key.candidate_pool)
    return head, Workload(key.batch or 1, 1, key.temperature or 0.0, PRECISION)


def tabulate_engine(gpu: Gpu, fits: Iterable[tuple[SeriesKey, StepFit]], origin: str) -> Engine:
    """Return the torch-stepwise engine with a point for every head, batch and temperature of its series, and entries from those of
    Markov heads at batch 1.

    Args:
        gpu: calibrated; its launch times and byte rate are what a point is measured beyond.
        origin: records, cited.

    Raises:
        CalibrationError: no usable greedy series of a Markov head at batch 1, from which other shapes are told.
    """
    series = [(key, fit) for key, fit in fits if fit.usable and key.implementation == TABLED_ENGINE and not key.logits_kept]
    plain = [(key, fit) for key, fit in series if (key.batch or 1) == 1 and not key.temperature and (key.head_kind or "markov") == "markov"]
    if not plain:
        raise CalibrationError(f"no usable greedy series of {TABLED_ENGINE} with a Markov head at batch 1; measure some, or leave the engine's description as it is")
    path = load_engine(TABLED_ENGINE).paths[0]
    values = resolve(gpu).values
    shapes: dict[tuple, list[tuple[SeriesKey, StepFit]]] = {}
    for key, fit in series:
        head, workload = asked_of(key)
        shapes.setdefault(point_shape(head, workload), []).append((key, fit))
    points = tuple(_point(gpu, path, values["graph_node_us"], of_shape, origin) for _, of_shape in sorted(shapes.items(), key=lambda one: tuple(map(str, one[0]))))
    launch_us = terms.first_launch_us(values["graph_launch_us"], values["graph_node_us"])
    warm = [fit.entry_us - launch_us for key, fit in plain if key.l2_state == "warm"]
    cold = [fit.entry_us - launch_us for key, fit in plain if key.l2_state != "warm"]
    figures = dict(path.figures)
    if warm:
        figures["entry_us"] = _entry(warm, 0.0, f"median over warm series of the intercept less the first launch, at least 0; {origin}")
        figures[COLD_ENTRY] = _entry(cold, figures["entry_us"].value, f"median over cold and serving series, less the same when warm; {origin}")
    return Engine(TABLED_ENGINE, gpu.id, f"recorded walks: {origin}", (replace(path, figures=figures, points=points),))


def _point(gpu: Gpu, path: EnginePath, graph_node_us: float, series: list[tuple[SeriesKey, StepFit]], origin: str) -> EnginePoint:
    """Median step of a shape over its L2 states less launches and byte floor."""
    head, workload = asked_of(series[0][0])
    case = stepwise_case(gpu, resolve(gpu).curve, head, workload, path, sizes_of(head, workload))
    launches_us, floor_us = terms.launch_us(path.nodes, graph_node_us), terms.read_floor_us(case.matrix_bytes, case.rate_bytes_per_s)
    steps = [fit.step_us for _, fit in series]
    within = median((fit.step_us_high - fit.step_us_low) / 2 / Z_95 for _, fit in series)
    error = max(within, stdev(steps) if len(steps) > 1 else 0.0)
    left = median(steps) - launches_us - floor_us
    if left <= 0:
        raise CalibrationError(f"{TABLED_ENGINE} at {head.padded_vocab_size} x {head.rank} takes {median(steps):.2f} us a step, below launches and byte floor "
                               f"({launches_us + floor_us:.2f}); the floor is wrong, or the record is of another GPU than {gpu.id}")
    figure = Figure(left, "us", "derived", f"step of {len(steps)} series less {toml_number(round(launches_us, 4))} us of launches and "
                    f"{toml_number(round(floor_us, 4))} us of byte floor; {origin}", error)
    hidden = None if head.kind == "markov" else head.hidden_size
    return EnginePoint(head.padded_vocab_size, head.rank, figure, head.kind, hidden, head.gru_size, head.candidate_pool, workload.batch, workload.temperature > 0)


def _entry(values: list[float], base_us: float, source: str) -> Figure:
    """Median of entries above a base, at least 0."""
    return Figure(max(0.0, median(values) - base_us) if values else 0.0, "us", "derived", source, stdev(values) if len(values) > 1 else None)


def write_engine(engine: Engine, path: Path | str) -> Path:
    """Write an engine's description as TOML, whole or not at all; `engines.load_engine` reads it."""
    lines = [f"# What the stepwise paths of {engine.name} cost beside launches and bytes. Written by `wts-lab calibrate --engines`; not edited by hand.",
             f"schema_version = {ENGINE_SCHEMA_VERSION}", f"name = {toml_text(engine.name)}", f"fitted_on = {toml_text(engine.fitted_on)}",
             f"fitted_to = {toml_text(engine.fitted_to)}", ""]
    for one in engine.paths:
        lines += _path_lines(one)
    return write_text_whole(path, "\n".join(lines).rstrip("\n") + "\n")


def _path_lines(path: EnginePath) -> list[str]:
    """Return the TOML lines of a path."""
    lines = ["[[paths]]", f"variant = {toml_text(path.variant)}", f"kernel = {toml_text(path.kernel)}", f"what = {toml_text(path.what)}", f"nodes = {path.nodes}"]
    lines += [f"{name} = {toml_number(getattr(path, name))}" for name in ("max_batch", "max_temperature") if getattr(path, name) is not None]
    if path.heads != HEAD_KINDS:
        lines.append(f"heads = [{', '.join(map(toml_text, path.heads))}]")
    lines.append("")
    for name, figure in path.figures.items():
        lines += figure_lines(f"[paths.figures.{name}]", figure)
    for name, figure in path.states.items():
        lines += figure_lines(f"[paths.states.{name}]", figure)
    for point in path.points:
        lines += ["[[paths.points]]", f"vocab_size = {point.vocab_size}", f"rank = {point.rank}"]
        lines += [f"{name} = {_toml_word(getattr(point, name))}" for name in POINT_OPTIONS if getattr(point, name) != EnginePoint.__dataclass_fields__[name].default]
        lines += figure_lines("[paths.points.beyond_floor_us]", point.beyond_floor_us)
    return lines


def _toml_word(value: object) -> str:
    """Write a flag, a whole number or a word."""
    return str(value).lower() if isinstance(value, bool) else toml_text(value) if isinstance(value, str) else str(value)
