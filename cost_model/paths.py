"""Where the files that ship with the packages lie: beside the checkout's packages, or inside an installed wheel.

A checkout has `data/`, `csrc/` and `notebooks/` next to the package folders. A wheel carries the same folders under
`wts_lab/_shipped/`. Nothing here imports `wts_lab`; its folder is only located.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cost_model.errors import BadInput

SHIPPED_FOLDER = "_shipped"
"""Folder inside the installed `wts_lab` package that holds what a checkout has beside the packages."""

_MARKERS = {"data": "gpus", "csrc": "walk", "notebooks": ""}


class MissingFiles(BadInput):
    """A folder that ships with the packages is in neither place; the message names both."""


def resource_root(name: str) -> Path:
    """Return the folder `data`, `csrc` or `notebooks`.

    The checkout's copy wins over the installed one, so that an editable checkout sees its own edits.

    Raises:
        MissingFiles: the name is none of the three, or the folder is in none of the places looked at.
    """
    if name not in _MARKERS:
        raise MissingFiles(f"no shipped folder is called {name!r}; there are {', '.join(sorted(_MARKERS))}")
    candidates = _candidates(name)
    for folder in candidates:
        if (folder / _MARKERS[name]).is_dir():
            return folder
    places = ", ".join(str(folder) for folder in candidates)
    raise MissingFiles(
        f"the folder {name!r} was not found; looked at {places}. "
        "Run from a checkout, or reinstall the wheel of weights-that-stay"
    )


def data_root() -> Path:
    """Return the `data` folder: catalogues, published figures and recorded runs."""
    return resource_root("data")


def _candidates(name: str) -> list[Path]:
    """List the places where the folder may lie, best first, without importing `wts_lab`."""
    packages = Path(__file__).resolve().parent.parent
    places = [packages / name, packages / "wts_lab" / SHIPPED_FOLDER / name]
    spec = importlib.util.find_spec("wts_lab")
    for location in (spec.submodule_search_locations or []) if spec else []:
        shipped = Path(location) / SHIPPED_FOLDER / name
        if shipped not in places:
            places.append(shipped)
    return places
