"""The pictures of the panels, and of recorded rounds, in `docs/images`, taken again: ``python -m tests.browser.pictures``.

JupyterLab opens each panel in a headless browser, as a user does; the picture is what its cell shows, down to one of its tables. The numbers in
it come from the records and parameters of this tree, so take them again when those change.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.browser.devtools import Browser
from tests.browser.lab import button, run_notebook, write_notebook
from tests.browser.servers import REPOSITORY, jupyter_lab
from wts_lab.report import find_browser

WIDTH_PX, HEIGHT_PX, MARGIN_PX = 1480, 2600, 10
PANEL = "document.querySelector('.jp-OutputArea-output .jupyter-widgets')"

ONLY_THE_PANEL = ".jp-OutputPrompt, .jp-Collapser {visibility: hidden} .jp-Cell {border: none !important; box-shadow: none !important; outline: none !important}"


@dataclass(frozen=True)
class Picture:
    """A panel's picture: the cell that opens it, what to do before it is taken, and the table that it ends with (0 the first, -1 the last)."""

    source: str
    prepare: Callable[[Browser], None]
    last_table: int


def _drawn(figures: int) -> Callable[[Browser], None]:
    """Wait until so many figures are drawn."""
    return lambda browser: browser.wait_for(
        f"document.querySelectorAll('.jupyter-widgets .js-plotly-plot .main-svg:first-child').length === {figures}", f"{figures} figures", 120
    )


def _replay(browser: Browser) -> None:
    """Press Run and wait for the fit."""
    _drawn(3)(browser)
    browser.click(button("Run"))
    browser.wait_for("document.body.textContent.includes('Done:')", "the end of the run", 180)


ROUNDS = """from ipywidgets import HTML, VBox
from cost_model.gpu import load_gpu
from wts_lab.measured_round_views import tables
from wts_lab.recorded_rounds import recorded_rounds
from wts_lab.ui.live_figure import LiveFigure
from wts_lab.ui.measured_round_figure import measured_round_spec
from wts_lab.ui.tables import rows_html
found = recorded_rounds(load_gpu("h200-sxm"))
title, columns, rows = tables(found)[-1]
figures = [LiveFigure(), LiveFigure()]
for figure, target in zip(figures, ("qwen3-4b", "qwen3-8b")):
    figure.show(measured_round_spec(found, target, title=f"Recorded rounds of {target} on {found.gpu_id}"))
VBox([*(figure.widget for figure in figures), HTML(rows_html((title, *columns[1:]), rows))])"""

PICTURES = {
    "explorer": Picture("from wts_lab.ui.explorer import explorer_panel\npanel, handles = explorer_panel()\npanel", _drawn(6), 0),
    "live": Picture("from wts_lab.ui.panels import quickstart_panel\npanel, handles = quickstart_panel(is_live=False)\npanel", _replay, 0),
    "placement": Picture("from wts_lab.ui.placer import placement_panel\npanel, handles = placement_panel()\npanel", _drawn(3), 0),
    "rounds": Picture(ROUNDS, _drawn(2), 0),
    "decision": Picture("from wts_lab.ui.decider import decision_panel\npanel, handles = decision_panel()\npanel", _drawn(2), -1),
}


def take(name: str, picture: Picture, root: Path, address: Callable[[str], str], out: Path) -> Path:
    """Open a panel, wait for it, and keep its picture."""
    write_notebook(root, f"{name}.ipynb", picture.source)
    with Browser(find_browser()) as browser:
        browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH_PX, height=HEIGHT_PX, deviceScaleFactor=1, mobile=False)
        run_notebook(browser, address(f"{name}.ipynb"), f"{name}.ipynb")
        browser.run("jupyterapp.shell.collapseLeft(), jupyterapp.shell.collapseRight()")
        browser.run(f"jupyterapp.shell.mode = 'single-document', {PANEL}.closest('.jp-Cell').querySelector('.jp-Cell-inputWrapper').remove()")
        browser.run(f"document.head.append(Object.assign(document.createElement('style'), {{ textContent: {ONLY_THE_PANEL!r} }}))")
        picture.prepare(browser)
        browser.run("new Promise(done => setTimeout(done, 1500))")
        x, y, width, bottom = browser.run(
            f"(() => {{ const r = {PANEL}.getBoundingClientRect(), end = [...{PANEL}.querySelectorAll('.wts-table')].at({picture.last_table});"
            " return [r.x, r.y, r.width, end.getBoundingClientRect().bottom]; })()"
        )
        path = out / f"{name}.png"
        clip = dict(x=x - MARGIN_PX, y=y - MARGIN_PX, width=width + 2 * MARGIN_PX, height=bottom - y + MARGIN_PX + 3, scale=1)
        browser.screenshot(path, clip)
    return path


def main() -> None:
    """Take the pictures and say where they are."""
    command = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description="Take the pictures of the panels again.")
    command.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images", help="folder (default: docs/images)")
    command.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    given = command.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wts-pictures-") as folder:
        root = Path(folder) / "notebooks"
        root.mkdir()
        with jupyter_lab(root) as address:
            for name in given.only:
                print(take(name, PICTURES[name], root, address, given.out), flush=True)


if __name__ == "__main__":
    main()
