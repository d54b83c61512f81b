"""The files of a study: step-cost tables, settings, report.  Each appears whole or not at all."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.files import write_text_whole

if TYPE_CHECKING:
    from wts_lab.study import StudyResult

TABLE, SETTINGS, REPORT = "step_costs", "settings.json", "report.html"


@dataclass(frozen=True)
class Written:
    """What `write_outputs` left in the folder: the files, and a line for each that could not be written and why."""

    files: tuple[Path, ...]
    left_out: tuple[str, ...] = ()

    def __iter__(self):
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def write_outputs(result: StudyResult, out: Path | str) -> Written:
    """Write `step_costs.csv`, `.parquet` and `.md`, `settings.json`, and `report.html` where plotly is installed.

    With several heads, the settings of the others go to `settings-<head name>.json`.
    """
    from cost_model.settings import write_settings
    from cost_model.tables import write_csv, write_markdown, write_parquet

    out = Path(out)
    rows = list(result.rows)
    files = [
        write_csv(rows, out / f"{TABLE}.csv"),
        write_parquet(rows, out / f"{TABLE}.parquet"),
        write_markdown(rows, out / f"{TABLE}.md"),
    ]
    for number, head in enumerate(result.heads):
        name = SETTINGS if number == 0 else f"settings-{head.name}.json"
        files.append(write_settings(result.decisions[head].settings, out / name))
    if importlib.util.find_spec("plotly") is None:
        return Written(
            tuple(files),
            (f"{out / REPORT} was not written: plotly is not installed. `pip install plotly` and run the study again.",),
        )
    from wts_lab.report import render_report

    return Written((*files, write_text_whole(out / REPORT, render_report(result))))
