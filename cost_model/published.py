"""Published figures in `data/published/`: engine times measured elsewhere, claims of papers, micro-measurements.

They are set beside predictions and measurements; nothing here feeds a prediction without being named as its source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.paths import data_root

PUBLISHED_SCHEMA_VERSION = 1
_WORDS = ("head", "path")


class UnknownPublication(BadInput):
    """No published table of that name ships with the package; the message lists those that do."""


@dataclass(frozen=True)
class PublishedTimes:
    """A table of published times with what is known of its making.

    Attributes:
        name: file stem, such as `sglang-0.5.23-h200-markov`.
        provenance: the sidecar: source, kind, gpu, versions, statistic, protocol, paths and columns.
        rows: one mapping a row, numbers as int or float; times are in `median_us`.
    """

    name: str
    provenance: Mapping
    rows: tuple[Mapping, ...]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, in our words.

    Attributes:
        id: short name.
        claim: what is stated, for which setting.
        value: the number, or the word where `unit` is `word` or several numbers are listed.
        unit: of the value.
        source: work and place within it.
    """

    id: str
    claim: str
    value: float | str
    unit: str
    source: str


def list_published_times() -> tuple[str, ...]:
    """Return the names of the published tables of times, sorted."""
    return tuple(path.stem for path in sorted((data_root() / "published").glob("*.csv")))


def load_published_times(name: str) -> PublishedTimes:
    """Return a published table of times and its sidecar.

    Raises:
        UnknownPublication: no such table; lists the known ones.
        CatalogueError: table and sidecar do not fit each other.
    """
    if name not in list_published_times():
        raise UnknownPublication(f"no published times are called {name!r}; known are {', '.join(list_published_times())}")
    path = data_root() / "published" / f"{name}.toml"
    provenance = read_facts(path)
    check_version(path, provenance, PUBLISHED_SCHEMA_VERSION)
    table = path.with_suffix(".csv")
    with table.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != list(provenance["columns"]):
            raise CatalogueError(f"{table}: columns are {reader.fieldnames}; {path.name} names {list(provenance['columns'])}")
        rows = tuple({key: _cell(key, value) for key, value in row.items()} for row in reader)
    return PublishedTimes(name, provenance, rows)


def load_claims() -> tuple[Claim, ...]:
    """Return the published claims of the work that this project starts from, in the order of its figures."""
    path = data_root() / "published" / "weights-that-stay.toml"
    facts = read_facts(path)
    check_version(path, facts, PUBLISHED_SCHEMA_VERSION)
    for claim in facts["claims"]:
        check_keys(path, "a claim", claim, {"id", "claim", "value", "unit", "source"})
    return tuple(Claim(**claim) for claim in facts["claims"])


def load_microbenchmarks() -> tuple[Mapping, ...]:
    """Return the published micro-measurements: group, device, metric, value (or low and high), unit, kind, source keys."""
    path = data_root() / "published" / "microbenchmarks.toml"
    facts = read_facts(path)
    check_version(path, facts, PUBLISHED_SCHEMA_VERSION)
    required = {"group", "device", "metric", "unit", "kind", "source"}
    for figure in facts["figures"]:
        check_keys(path, "a figure", figure, required, {"gpu", "value", "low", "high", "note"})
        if ("value" in figure) == ("low" in figure and "high" in figure):
            raise CatalogueError(f"{path}: {figure['device']}, {figure['metric']}: give a value, or low and high")
    return tuple(facts["figures"])


def _cell(column: str, text: str) -> int | float | str:
    """Turn a cell into a number unless its column holds words; whole numbers become int."""
    if column in _WORDS:
        return text
    number = float(text)
    return int(number) if number.is_integer() and column != "median_us" else number
