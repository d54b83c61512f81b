"""Engines: what a stepwise path costs beside launches and bytes, from `data/engines/<name>.toml`.

Fitted efficiencies live in files of their own, never beside hardware facts. Each path of an engine is a variant; the
engine takes one of them for a given batch and temperature, and another may be faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cost_model.catalogue import check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.gpu import Figure
from cost_model.head import HEAD_KINDS
from cost_model.paths import data_root
from cost_model.workload import Workload

ENGINE_SCHEMA_VERSION = 1
COLD_ENTRY = "cold_entry_us"
"""Optional figure of a path: what a call adds to its entry where L2 is not warm."""

STATE_KINDS = ("gated", "rnn", "domino", "domino-pool")
"""Kinds of heads with kernels beside the projection, as `states` of a path names them."""

FIGURES = ("read_efficiency", "fixed_us", "select_us_per_million", "sampling_fixed_us", "sampling_us_per_million", "entry_us")


POINT_OPTIONS = ("head_kind", "hidden_size", "gru_size", "candidate_pool", "batch", "sampled")
"""Keys that a point has where it is not of a Markov head at batch 1, greedy."""


class UnknownImplementation(BadInput):
    """No engine of that name, or no such variant, is described; the message lists what is."""


@dataclass(frozen=True)
class EnginePoint:
    """A measured step of a path whose library picks its kernel by shape, so that no smooth formula holds.

    Attributes:
        vocab_size, rank: rows of W2 as stored, and elements of the latent.
        beyond_floor_us: step less launches and byte floor.
        head_kind, hidden_size, gru_size, candidate_pool: of the head.
        batch: batch rows; sampled: whether the temperature was above 0.
    """

    vocab_size: int
    rank: int
    beyond_floor_us: Figure
    head_kind: str = "markov"
    hidden_size: int | None = None
    gru_size: int | None = None
    candidate_pool: int | None = None
    batch: int = 1
    sampled: bool = False

    @property
    def shape(self) -> tuple:
        """What a walk must share with the point to take its step."""
        return shape_of(self.head_kind, self.vocab_size, self.rank, self.hidden_size, self.gru_size, self.candidate_pool, self.batch, self.sampled)


def shape_of(head_kind: str, vocab_size: int, rank: int, hidden_size: int | None, gru_size: int | None, candidate_pool: int | None, batch: int,
             sampled: bool) -> tuple:
    """What makes two walks cost the same: all of that, but no hidden size of a Markov head, which never reads hidden vectors."""
    return head_kind, vocab_size, rank, None if head_kind == "markov" else hidden_size, gru_size, candidate_pool, batch, sampled


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
        heads: kinds of heads that it serves.
        states: one of STATE_KINDS -> time of a step's further kernels, launches included, bytes left out.
    """

    variant: str
    kernel: str
    what: str
    nodes: int
    figures: Mapping[str, Figure]
    points: tuple[EnginePoint, ...] = ()
    max_batch: int | None = None
    max_temperature: float | None = None
    heads: tuple[str, ...] = HEAD_KINDS
    states: Mapping[str, Figure] = field(default_factory=dict)

    def serves(self, workload: Workload, head_kind: str = "markov") -> bool:
        """Tell whether the path can run this workload; Domino drafts greedily."""
        if head_kind not in self.heads or head_kind == "domino" and workload.temperature > 0:
            return False
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

    def path(self, workload: Workload, variant: str | None = None, head_kind: str = "markov") -> EnginePath:
        """Return the named variant (by its short name or its kernel's), or the path that the engine takes for the workload.

        Raises:
            UnknownImplementation: no such variant, or it does not serve the workload.
        """
        if variant is None:
            return self.serving(workload, head_kind)[0]
        chosen = next((path for path in self.paths if variant in (path.variant, path.kernel)), None)
        if chosen is None:
            known = ", ".join(path.variant for path in self.paths)
            raise UnknownImplementation(f"{self.name} has no variant {variant!r}; choose one of {known}")
        if not chosen.serves(workload, head_kind):
            raise UnknownImplementation(
                f"{self.name}'s {variant} path does not run {_asked(workload, head_kind)}; "
                f"use {', '.join(path.variant for path in self.serving(workload, head_kind))}"
            )
        return chosen

    def serving(self, workload: Workload, head_kind: str = "markov") -> tuple[EnginePath, ...]:
        """Return the paths that can run the workload."""
        paths = tuple(path for path in self.paths if path.serves(workload, head_kind))
        if not paths:
            raise UnknownImplementation(f"no path of {self.name} runs {_asked(workload, head_kind)}")
        return paths


def _asked(workload: Workload, head_kind: str) -> str:
    """What a path was asked to run, in words."""
    return f"{'' if head_kind == 'markov' else f'a {head_kind} head, '}batch {workload.batch} at temperature {workload.temperature:g}"


def list_engines() -> tuple[str, ...]:
    """Return the names of the described stepwise implementations, sorted."""
    return tuple(sorted(path.stem for path in (data_root() / "engines").glob("*.toml")))


def short_variant(implementation: str | None, variant: str | None) -> str | None:
    """Return an engine path's short name, however it is named: records name paths by their kernels. What is not described stays as it is."""
    try:
        paths = load_engine(str(implementation)).paths
    except UnknownImplementation:
        return variant
    return next((path.variant for path in paths if variant in (path.variant, path.kernel)), variant)


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
                   {"points", "max_batch", "max_temperature", "heads", "states"})
        check_keys(path, f"figures of {table['variant']}", table["figures"], set(FIGURES), {COLD_ENTRY})
        figures = {key: Figure(**figure) for key, figure in table["figures"].items()}
        states = {kind: Figure(**figure) for kind, figure in table.get("states", {}).items()}
        check_keys(path, f"states of {table['variant']}", states, set(), set(STATE_KINDS))
        heads = tuple(table.get("heads", HEAD_KINDS))
        paths.append(EnginePath(**{**table, "figures": figures, "points": _points(path, table), "states": states, "heads": heads}))
    return Engine(facts["name"], facts["fitted_on"], facts["fitted_to"], tuple(paths))


def _points(path: Path, table: Mapping) -> tuple[EnginePoint, ...]:
    """Build the measured points of a path."""
    points = []
    for point in table.get("points", ()):
        check_keys(path, f"a point of {table['variant']}", point, {"vocab_size", "rank", "beyond_floor_us"},
                   set(POINT_OPTIONS))
        points.append(EnginePoint(**{**point, "beyond_floor_us": Figure(**point["beyond_floor_us"])}))
    return tuple(points)
