"""Engines: what a stepwise path costs beside launches and bytes, from `data/engines/<name>.toml`.

Fitted efficiencies live in files of their own, never beside hardware facts. Each path of an engine is a variant; the
engine takes one of them for a given batch and temperature, and another may be faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cost_model.catalogue import check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.gpu import Figure
from cost_model.paths import data_root
from cost_model.workload import Workload

ENGINE_SCHEMA_VERSION = 1
COLD_ENTRY = "cold_entry_us"
"""Optional figure of a path: what a call adds to its entry where L2 is not warm."""

FIGURES = ("read_efficiency", "fixed_us", "select_us_per_million", "sampling_fixed_us", "sampling_us_per_million", "entry_us")


class UnknownImplementation(BadInput):
    """No engine of that name, or no such variant, is described; the message lists what is."""


@dataclass(frozen=True)
class EnginePoint:
    """A measured step of a path whose library picks its kernel by shape, so that no smooth formula holds.

    Attributes:
        vocab_size, rank: the shape, batch 1, greedy.
        beyond_floor_us: step less launches and byte floor.
    """

    vocab_size: int
    rank: int
    beyond_floor_us: Figure


@dataclass(frozen=True)
class EnginePath:
    """One stepwise path.

    Attributes:
        variant: short name, such as `greedy`.
        kernel: what the engine calls it.
        what: its kernels in words.
        nodes: kernels a step, nodes of the replayed graph.
        figures: FIGURES name -> Figure, and COLD_ENTRY where it is known.
        points: measured steps; where there are any, they replace `read_efficiency` and `fixed_us` (but outside the points).
        max_batch, max_temperature: where the path can be taken; None for anywhere.
    """

    variant: str
    kernel: str
    what: str
    nodes: int
    figures: Mapping[str, Figure]
    points: tuple[EnginePoint, ...] = ()
    max_batch: int | None = None
    max_temperature: float | None = None

    def serves(self, workload: Workload) -> bool:
        """Tell whether the path can run this workload."""
        return (self.max_batch is None or workload.batch <= self.max_batch) and (
            self.max_temperature is None or workload.temperature <= self.max_temperature)


@dataclass(frozen=True)
class Engine:
    """An implementation of the stepwise mode; its first path that serves a workload is the one it takes.

    Attributes:
        name: such as `sglang-0.5.23`.
        fitted_on: GPU id that the figures were fitted on.
        fitted_to: the records that they came from.
        paths: in the order in which the engine tries them.
    """

    name: str
    fitted_on: str
    fitted_to: str
    paths: tuple[EnginePath, ...]

    def path(self, workload: Workload, variant: str | None = None) -> EnginePath:
        """Return the named variant, or the path that the engine takes for the workload.

        Raises:
            UnknownImplementation: no such variant, or it does not serve the workload.
        """
        if variant is None:
            return self.serving(workload)[0]
        chosen = next((path for path in self.paths if path.variant == variant), None)
        if chosen is None:
            known = ", ".join(path.variant for path in self.paths)
            raise UnknownImplementation(f"{self.name} has no variant {variant!r}; choose one of {known}")
        if not chosen.serves(workload):
            raise UnknownImplementation(
                f"{self.name}'s {variant} path does not run batch {workload.batch} at temperature {workload.temperature:g}; "
                f"use {', '.join(path.variant for path in self.serving(workload))}"
            )
        return chosen

    def serving(self, workload: Workload) -> tuple[EnginePath, ...]:
        """Return the paths that can run the workload."""
        paths = tuple(path for path in self.paths if path.serves(workload))
        if not paths:
            raise UnknownImplementation(f"no path of {self.name} runs batch {workload.batch} at temperature {workload.temperature:g}")
        return paths


def list_engines() -> tuple[str, ...]:
    """Return the names of the described stepwise implementations, sorted."""
    return tuple(sorted(path.stem for path in (data_root() / "engines").glob("*.toml")))


def load_engine(name: str) -> Engine:
    """Return a described engine.

    Raises:
        UnknownImplementation: the name is not described; lists those that are.
        CatalogueError: the file does not have the expected form.
    """
    path = data_root() / "engines" / f"{name}.toml"
    if "/" in name or not path.is_file():
        raise UnknownImplementation(f"unknown stepwise implementation {name!r}; known are {', '.join(list_engines())}")
    return _engine(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _engine(path: Path, mtime_ns: int) -> Engine:
    """Read one state of a file; the time only tells states apart."""
    facts = read_facts(path)
    check_version(path, facts, ENGINE_SCHEMA_VERSION)
    check_keys(path, "the engine", facts, {"schema_version", "name", "fitted_on", "fitted_to", "paths"})
    paths = []
    for table in facts["paths"]:
        check_keys(path, f"path {table.get('variant')}", table, {"variant", "kernel", "what", "nodes", "figures"},
                   {"points", "max_batch", "max_temperature"})
        check_keys(path, f"figures of {table['variant']}", table["figures"], set(FIGURES), {COLD_ENTRY})
        figures = {key: Figure(**figure) for key, figure in table["figures"].items()}
        paths.append(EnginePath(**{**table, "figures": figures, "points": _points(path, table)}))
    return Engine(facts["name"], facts["fitted_on"], facts["fitted_to"], tuple(paths))


def _points(path: Path, table: Mapping) -> tuple[EnginePoint, ...]:
    """Build the measured points of a path."""
    points = []
    for point in table.get("points", ()):
        check_keys(path, f"a point of {table['variant']}", point, {"vocab_size", "rank", "beyond_floor_us"})
        points.append(EnginePoint(point["vocab_size"], point["rank"], Figure(**point["beyond_floor_us"])))
    return tuple(points)
