"""JupyterLab and the lab's own page for a browser to open: started as programs of their own, and only those started here are ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 180
"""Two cores that other programs share start JupyterLab within this."""


@contextlib.contextmanager
def jupyter_lab(notebooks: Path) -> Iterator[Callable[[str], str]]:
    """Notebook to its address in a JupyterLab on a folder, whose application object is exposed to the page.

    Each notebook opens in a workspace of its own, so that no tab of another one is there.  The server's own files lie beside the folder.
    """
    root, token, port = notebooks.parent, secrets.token_hex(8), free_port()
    settings = root / "config" / "labconfig" / "page_config.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))
    every_cell = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}  # cells out of sight are drawn, too
    (settings.parent / "default_setting_overrides.json").write_text(json.dumps(every_cell))
    words = [
        "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={notebooks}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    folders = {f"JUPYTER_{kind.upper()}_DIR": str(root / kind) for kind in ("config", "data", "runtime")}
    address = f"http://127.0.0.1:{port}"
    with _served(words, root, folders, f"{address}/api?token={token}"):
        yield lambda notebook: f"{address}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?token={token}"


@contextlib.contextmanager
def lab_page(folder: Path) -> Iterator[str]:
    """The address of the page that `wts-lab app` serves from a folder."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    with _served(["wts_lab", "app", "--no-browser", f"--port={port}"], folder, {}, f"{address}voila/static/voila.js"):
        yield address


@contextlib.contextmanager
def _served(words: Sequence[str], folder: Path, environment: dict[str, str], asked: str) -> Iterator[None]:
    """A Python module that serves, from the time it answers until the end of the block."""
    log = folder / f"{words[0]}.log"
    tree = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=written, stderr=subprocess.STDOUT, env={**os.environ, **environment, "PYTHONPATH": tree}, cwd=folder
        )
    try:
        _wait_until_up(asked, process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(address: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at once:\n{log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(address, timeout=5).read()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"nothing answered at {address} after {START_S} s:\n{log.read_text()[-2000:]}")
