"""Small JSON files that this project writes (settings, tuned placements, step tables): read, checked field by field, refused elsewhere.

A file of a form of our own starts with ``form`` and ``schema_version``; the rest are the fields of a frozen dataclass, which checks their values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from cost_model.errors import BadInput
from cost_model.files import why_unreadable, write_text_whole


class FormError(BadInput):
    """A file of a form cannot be read, or has another form or version."""


class FormMismatch(BadInput):
    """A file was made for something else; `differences` and the message list every differing field.

    Attributes:
        differences: field -> (in the file, here).
    """

    about = "was made for something else"
    advice = "make it anew"

    def __init__(self, path: Path | str, differences: Mapping[str, tuple[object, object]]) -> None:
        self.differences = dict(differences)
        told = "; ".join(f"{name} is {there!r} in the file and {here!r} here" for name, (there, here) in differences.items())
        super().__init__(f"{path}: {self.about}: {told}. {self.advice}")


def write_form(path: Path | str, plain: Mapping[str, Any]) -> Path:
    """Write a form's plain values as JSON, whole or not at all."""
    return write_text_whole(path, json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def read_form(path: Path, form: str, version: int) -> dict[str, Any]:
    """Return a file's values without form and version.

    Raises:
        FormError: the file is missing, truncated, foreign, or of another version; names what it is and what was wanted.
    """
    plain = read_object(path)
    if plain.pop("form", None) != form:
        raise FormError(f"{path}: is no file of this tool with the form {form!r}")
    found = plain.pop("schema_version", None)
    if found != version or isinstance(found, bool):
        raise FormError(f"{path}: schema_version is {found!r}; this code reads version {version}")
    return plain


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; FormError where it is missing, truncated or holds something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormError(f"{path}: cannot be read ({why_unreadable(error)})") from error
    if not isinstance(plain, dict):
        raise FormError(f"{path}: cannot be read (it holds no JSON object)")
    return plain


def checked_fields(what: str, kind: type, values: object) -> dict[str, Any]:
    """Return a table's values if its names are those of a dataclass, else raise BadInput with what is missing or unknown."""
    if not isinstance(values, dict):
        raise BadInput(f"{what} is {values!r}; it must be a table of fields")
    known = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    told = [f"lacks {', '.join(sorted(needed - set(values)))}"] * bool(needed - set(values))
    told += [f"has unknown fields {', '.join(sorted(set(values) - known))}"] * bool(set(values) - known)
    if told:
        raise BadInput(f"{what} {' and '.join(told)}")
    return dict(values)


def require_texts(values: Mapping[str, object], *, or_null: bool = False) -> None:
    """Raise BadInput unless all values are texts, or null where that is fine: a fact that is not known."""
    for name, given in values.items():
        if not isinstance(given, str) and not (or_null and given is None):
            raise BadInput(f"{name} is {given!r}; it must be a text{', or null where it is not known' if or_null else ''}")


def require_number(name: str, given: object, low: float, *, above: bool = False) -> None:
    """Raise BadInput unless `given` is a finite number of at least `low`, or above it."""
    if not is_number(given) or given < low or (above and given == low):
        raise BadInput(f"{name} is {given!r}; it must be a finite number {'above' if above else 'of at least'} {low:g}")


def is_number(given: object) -> bool:
    """Whether a value is a finite number, and no boolean."""
    return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)


def differing(there: Mapping[str, object], here: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Fields of `here` that a file has otherwise: name -> (in the file, here)."""
    return {name: (there[name], value) for name, value in here.items() if there[name] != value}
