"""Figure: a number with its unit, kind and source; BandwidthCurve: a figure over footprints; and their form in TOML files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_model.catalogue import CatalogueError, check_keys
from cost_model.errors import BadInput

KINDS = ("datasheet", "microbenchmark", "measured", "derived", "transferred")
"""Where a figure comes from: the maker (sheet or driver), a published measurement, this machine, arithmetic on others,
or another machine of the same architecture."""

_UNIT_BY_ENDING = (
    ("bytes_per_s", "B/s"), ("flops_per_s", "FLOP/s"), ("ops_per_s", "op/s"), ("_bytes", "B"), ("_us", "us"),
    ("_mhz", "MHz"), ("_gb", "GB"), ("_w", "W"), ("sm_count", "SM"),
)
_QUALIFIERS = ("_per_sm", "_per_block_optin", "_per_direction")


@dataclass(frozen=True)
class Figure:
    """One number about a GPU.

    Attributes:
        value: the number in `unit`, finite and not negative.
        unit: B, B/s, op/s, FLOP/s, MHz, us, W, SM, GB, ...
        kind: one of KINDS.
        source: document, record or arithmetic that it comes from; never empty.
        standard_error: of `value`, in `unit`; None where none was estimated.
        note: derivation, conditions, and every other value met.
    """

    value: float
    unit: str
    kind: str
    source: str
    standard_error: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)) or not 0 <= self.value < math.inf:
            raise BadInput(f"a figure's value is {self.value!r}; it must be a finite number of at least 0")
        if self.kind not in KINDS:
            raise BadInput(f"a figure's kind is {self.kind!r}; choose one of {', '.join(KINDS)}")
        if not self.unit or not self.source:
            raise BadInput(f"the figure {self.value!r} lacks its {'source' if self.unit else 'unit'}")
        if self.standard_error is not None and not 0 <= self.standard_error < math.inf:
            raise BadInput(f"a standard error is {self.standard_error!r}; it must be a finite number of at least 0")


@dataclass(frozen=True)
class BandwidthCurve:
    """Whole-chip read bandwidth over the bytes that are read again and again.

    Attributes:
        footprints_bytes: strictly rising, above 0.
        figures: one bandwidth in B/s for each footprint.
    """

    footprints_bytes: tuple[float, ...]
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "footprints_bytes", tuple(float(size) for size in self.footprints_bytes))
        object.__setattr__(self, "figures", tuple(self.figures))
        sizes = self.footprints_bytes
        if not sizes or len(sizes) != len(self.figures):
            raise BadInput(f"a curve has {len(sizes)} footprints and {len(self.figures)} figures; give one figure for each")
        if not sizes[0] > 0 or not all(low < high < math.inf for low, high in zip(sizes, sizes[1:])):
            raise BadInput("the footprints of a curve must be above 0, finite and strictly rising")
        if any(figure.unit != "B/s" or figure.value <= 0 for figure in self.figures):
            raise BadInput("the figures of a curve must be bandwidths above 0 in B/s")

    def at(self, footprint_bytes: float) -> float:
        """Return the bandwidth in B/s: straight lines between points in log-log, flat beyond both ends."""
        if not footprint_bytes > 0:
            raise BadInput(f"a footprint is {footprint_bytes!r} bytes; it must be above 0")
        sizes, values = self.footprints_bytes, [figure.value for figure in self.figures]
        if footprint_bytes <= sizes[0]:
            return float(values[0])
        for low, high, left, right in zip(sizes, sizes[1:], values, values[1:]):
            if footprint_bytes <= high:
                share = math.log(footprint_bytes / low) / math.log(high / low)
                return float(left * (right / left) ** share)
        return float(values[-1])


def expected_unit(name: str) -> str | None:
    """Return the unit that a figure's name promises, or None where the name promises none."""
    for qualifier in _QUALIFIERS:
        name = name.removesuffix(qualifier)
    return next((unit for ending, unit in _UNIT_BY_ENDING if name.endswith(ending)), None)


def figure_from_table(path: Path, name: str, table: Mapping, cite: Callable[[object], str]) -> Figure:
    """Build a Figure from its table in a fact file.

    Args:
        path: the file, named in errors.
        name: the figure's name, named in errors.
        table: value, unit, kind, source; optionally standard_error, note and conflicts (a list of {value, source, note}).
        cite: turns the file's `source` entry into a citation.

    Raises:
        CatalogueError: a key is missing or unknown, or the figure breaks a rule of Figure.
    """
    check_keys(path, name, table, {"value", "unit", "kind", "source"}, {"standard_error", "note", "conflicts"})
    notes = [table["note"]] if table.get("note") else []
    for other in table.get("conflicts", ()):
        check_keys(path, f"a conflict of {name}", other, {"value", "source"}, {"note"})
        reason = f": {other['note']}" if other.get("note") else ""
        notes.append(f"{toml_number(other['value'])} according to {cite(other['source'])}{reason}")
    try:
        source = cite(table["source"])
        return Figure(table["value"], table["unit"], table["kind"], source, table.get("standard_error"), "; ".join(notes))
    except BadInput as error:
        raise CatalogueError(f"{path}: {name}: {error}") from error


def curve_from_table(path: Path, name: str, table: Mapping, cite: Callable[[object], str]) -> BandwidthCurve:
    """Build a BandwidthCurve from its table: `footprints_bytes` and an equally long array of figure tables, `figures`."""
    check_keys(path, name, table, {"footprints_bytes", "figures"})
    figures = [figure_from_table(path, f"{name}[{i}]", one, cite) for i, one in enumerate(table["figures"])]
    try:
        return BandwidthCurve(tuple(table["footprints_bytes"]), tuple(figures))
    except BadInput as error:
        raise CatalogueError(f"{path}: {name}: {error}") from error


def figure_lines(header: str, figure: Figure) -> list[str]:
    """Return the TOML lines of a figure under a header such as `[figures.exchange_us]`."""
    lines = [header, f"value = {toml_number(figure.value)}", f"unit = {toml_text(figure.unit)}"]
    lines += [f"kind = {toml_text(figure.kind)}", f"source = {toml_text(figure.source)}"]
    if figure.standard_error is not None:
        lines.append(f"standard_error = {toml_number(figure.standard_error)}")
    if figure.note:
        lines.append(f"note = {toml_text(figure.note)}")
    return [*lines, ""]


def curve_lines(name: str, curve: BandwidthCurve) -> list[str]:
    """Return the TOML lines of a curve called `name`."""
    sizes = ", ".join(toml_number(size) for size in curve.footprints_bytes)
    lines = [f"[curves.{name}]", f"footprints_bytes = [{sizes}]", ""]
    for figure in curve.figures:
        lines += figure_lines(f"[[curves.{name}.figures]]", figure)
    return lines


def toml_number(value: float) -> str:
    """Write a number so that TOML reads back the same value: whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def toml_text(text: str) -> str:
    """Write a string as a TOML basic string; JSON's escapes are a subset of TOML's once DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
