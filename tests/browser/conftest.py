"""JupyterLab and a headless browser for the tests, both started once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.browser.servers import REPOSITORY, jupyter_lab
from tests.synthetic_records import write_synthetic
from wts_lab.recordings import recorded_gpus
from wts_lab.report import find_browser


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JupyterLab shows: a copy of the notebooks."""
    notebooks = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(REPOSITORY / "notebooks", notebooks)
    return notebooks


@pytest.fixture(scope="session")
def lab(lab_root: Path) -> Iterator[Callable[[str], str]]:
    """Notebook to its address in a JupyterLab on `lab_root`."""
    if not recorded_gpus():
        _use_synthetic(lab_root, lab_root.parent / "records")
    with jupyter_lab(lab_root) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One headless browser for the tests of a file: one that leaves an unsaved notebook asks whether it may."""
    with Browser(find_browser()) as started:
        yield started


def _use_synthetic(notebooks: Path, records: Path) -> None:
    """Point the notebooks at made-up records, for a tree in which nothing was recorded yet."""
    write_synthetic(records, vocab_size=151_936)
    for path in notebooks.glob("*.ipynb"):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            cell["source"] = text.replace("live=False)", f"live=False, records={str(records)!r})").replace(
                "quickstart_panel()", f"quickstart_panel(records={str(records)!r})"
            )
        path.write_text(json.dumps(notebook))
