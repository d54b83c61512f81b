"""Reading the TOML fact files under `data/`: one reader that names the file and the reason when something is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cost_model.errors import BadInput


class CatalogueError(BadInput):
    """A fact file cannot be read or does not have the form that `data/README.md` describes."""


def read_facts(path: Path) -> Mapping:
    """Return the parsed TOML of a fact file; treat it as read-only.

    The parse is remembered until the file changes.

    Raises:
        CatalogueError: the file is missing, unreadable or not TOML.
    """
    try:
        facts = path.stat()
        return _parsed(path, facts.st_mtime_ns, facts.st_size)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read as a fact file ({error})") from error


@lru_cache(maxsize=256)
def _parsed(path: Path, mtime_ns: int, size_bytes: int) -> dict:
    """Parse one state of a file; the last two arguments only tell states apart."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def check_keys(path: Path, where: str, table: Mapping, required: set[str], optional: set[str] = frozenset()) -> None:
    """Raise CatalogueError, naming the keys, unless a table has all required keys and no unknown one."""
    missing = sorted(required - table.keys())
    unknown = sorted(table.keys() - required - optional)
    if missing:
        raise CatalogueError(f"{path}: {where} lacks {', '.join(missing)}")
    if unknown:
        known = ", ".join(sorted(required | optional))
        raise CatalogueError(f"{path}: {where} has unknown keys {', '.join(unknown)}; known are {known}")


def check_version(path: Path, table: Mapping, version: int) -> None:
    """Raise CatalogueError unless the file says that it has the version this code reads."""
    if table.get("schema_version") != version:
        given = table.get("schema_version")
        raise CatalogueError(f"{path}: schema_version is {given!r}; this code reads version {version}")
