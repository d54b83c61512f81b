"""JupyterLab and a headless browser for the tests: both are started once, and only the processes started here are ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.synthetic_records import write_synthetic
from wts_lab.recordings import recorded_gpus
from wts_lab.report import find_browser

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JupyterLab shows: a copy of the notebooks."""
    notebooks = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(REPOSITORY / "notebooks", notebooks)
    return notebooks


@pytest.fixture(scope="session")
def lab(lab_root: Path) -> Iterator[Callable[[str], str]]:
    """Notebook to its address in a JupyterLab on `lab_root`, whose application object is exposed to the page.

    Each notebook opens in a workspace of its own, so that no tab of another one is there.
    """
    notebooks, root = lab_root, lab_root.parent
    if not recorded_gpus():
        _use_synthetic(notebooks, root / "records")
    token, port = secrets.token_hex(8), _free_port()
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_DATA_DIR": str(root / "data"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={notebooks}",
        "--LabApp.expose_app_in_browser=True",
    ]
    settings = root / "config" / "labconfig" / "page_config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))
    log = (root / "lab.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=root)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{address}/api?token={token}", process, root / "lab.log")
        yield lambda notebook: f"{address}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?token={token}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless browser."""
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(address: str, process: subprocess.Popen, log: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at once:\n{log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(address, timeout=5).read()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"JupyterLab was not up after {timeout_s} s:\n{log.read_text()[-2000:]}")
