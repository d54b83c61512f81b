"""The panels as a page of their own: a one-cell notebook, served by Voila."""

from __future__ import annotations

import importlib.util
import json
import socket
import tempfile
from pathlib import Path

from cost_model.errors import BadInput
from cost_model.workload import require_whole

MAX_PORT = 65_535


def serve(state: Path | None, port: int, browser: bool) -> None:
    """Serve until it is interrupted.

    Args:
        state: a file that one of the panels saved.
        port: on this machine.
        browser: whether to open the page in one.

    Raises:
        BadInput: the port is taken or none, the state cannot be read, or, known last, Voila is missing.
    """
    require_whole("port", port, 1, MAX_PORT)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise BadInput(f"port {port} is taken by another program; name a free one with --port")
    notebook = page_notebook(state)
    if importlib.util.find_spec("voila") is None:
        raise BadInput("the page needs Voila, which is not installed; `pip install 'weights-that-stay[lab]'`, or open the notebooks in JupyterLab")
    with tempfile.TemporaryDirectory(prefix="wts-page-") as folder:
        path = Path(folder) / "weights-that-stay.ipynb"
        path.write_text(json.dumps(notebook), encoding="utf-8")
        from voila.app import Voila

        Voila.launch_instance([str(path), f"--port={port}", "--show_tracebacks=True", *([] if browser else ["--no-browser"])])


def page_notebook(state: Path | None) -> dict:
    """A notebook whose only cell shows all panels, one of them in the state of a file, and writes into `out/` of the present folder.

    Raises BadInput where the file is no state of a panel.
    """
    from wts_lab.ui.requests import ExplorerRequest

    if state is None:
        request = ExplorerRequest()
    else:
        from wts_lab.ui.app import load_state

        request = load_state(state)
    kind = type(request)
    source = (
        "from wts_lab.ui.app import lab_app\n"
        f"from {kind.__module__} import {kind.__name__}\n"
        f"page, handles = lab_app({kind.__name__}.from_json({request.to_json()!r}), out={str(Path.cwd() / 'out')!r})\n"
        "page"
    )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cell = {"cell_type": "code", "id": "page", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
    return {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
