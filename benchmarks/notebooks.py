"""Execute the notebooks on this machine and keep them with what they show: ``python -m benchmarks.notebooks --out executed``.

On a machine with a usable GPU the panels that a notebook opens launch the kernels, and their records land under ``work/out/records``
of the folder; elsewhere recorded runs are replayed. Notebooks run one after the other, so that no two are timed at once, with a real
kernel and nobody looking: buttons are pressed through their handles. Figures are kept as plotly's own data, widgets are not kept.

Exit status: 0 every notebook ran to its end, 1 one did not (its name and error are printed), 2 the request cannot be used.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.files import require_writable

REPOSITORY = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600
"""Longest that one cell may take; the first live run on a machine builds its kernels."""


def notebooks(only: Sequence[str] = ()) -> list[Path]:
    """The notebooks in order, or those whose names begin with one of `only`.  Raises BadInput where one of them names none."""
    found = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    for start in only:
        if not any(path.name.startswith(start) for path in found):
            raise BadInput(f"no notebook begins with {start!r}; there are {', '.join(path.name for path in found)}")
    return [path for path in found if not only or path.name.startswith(tuple(only))]


def execute(path: Path, out: Path) -> str | None:
    """Run one notebook and write it with its outputs into a folder, also when it fails; returns the error that ended it, or None.

    Args:
        path: the notebook, which stays as it is.
        out: folder of the executed ones; the kernel runs in `work` inside, which keeps what the notebook writes.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(work)}}, store_widget_state=False)
    error = None
    try:
        client.execute(env=kernel_environment())
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as ended:
        error = str(ended)
    nbformat.write(notebook, out / path.name)
    return error


def kernel_environment() -> dict[str, str]:
    """The environment of a notebook's kernel: this tree can be imported from any folder, and figures come as plotly's own data."""
    tree = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": tree, "PLOTLY_RENDERER": "plotly_mimetype"}


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Execute, print a line for each notebook, and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.notebooks", description="Execute the notebooks and keep what they show.")
    command.add_argument("--out", type=Path, default=Path("executed"), help="folder of executed notebooks (default: %(default)s)")
    command.add_argument("--only", nargs="+", default=[], metavar="NAME", help="first letters of those to run, such as 01")
    given = command.parse_args(arguments)
    chosen = notebooks(given.only)
    require_writable(given.out, folder=True)
    failed = 0
    for path in chosen:
        begin = time.monotonic()
        error = execute(path, given.out)
        print(f"{path.name}: {'ran' if error is None else 'FAILED'} in {time.monotonic() - begin:.1f} s", flush=True)
        if error is not None:
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
