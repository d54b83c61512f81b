"""The files of a study: step-cost tables, settings, report.  Each appears whole or not at all."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
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

    With several heads, the settings of the others go to `settings-<head name>.json`.  Settings and a report that an earlier
    study left in the folder, and that this one does not replace, are deleted: they would pass for answers of this one.
    """
    from cost_model.settings import write_settings
    from cost_model.tables import write_csv, write_markdown, write_parquet

    out = Path(out)
    has_plotly = importlib.util.find_spec("plotly") is not None
    report = _rendered(result) if has_plotly else ""  # takes seconds; an interrupt in them leaves the folder as it was
    rows = list(result.rows)
    files = [
        write_csv(rows, out / f"{TABLE}.csv"),
        write_parquet(rows, out / f"{TABLE}.parquet"),
        write_markdown(
            rows[: result.answer_rows],
            out / f"{TABLE}.md",
            title=f"Step costs on {result.gpu.name}, {result.source}",
            experiments=rows[result.answer_rows :],
        ),
    ]
    for number, head in enumerate(result.heads):
        name = SETTINGS if number == 0 else f"settings-{head.name}.json"
        files.append(write_settings(result.decisions[head].settings, out / name))
    _delete_stale_settings(out, files)
    if not has_plotly:
        (out / REPORT).unlink(missing_ok=True)
        return Written(
            tuple(files),
            (f"{out / REPORT} was not written: plotly is not installed. `pip install plotly` and run the study again.",),
        )
    return Written((*files, write_text_whole(out / REPORT, report)))


def _rendered(result: StudyResult) -> str:
    """The report's page."""
    from wts_lab.report import render_report

    return render_report(result)


def _delete_stale_settings(out: Path, written: Sequence[Path]) -> None:
    """Delete settings of an earlier study's further heads; files that are no settings of this tool are left alone."""
    from cost_model.settings import SettingsError, read_settings

    for path in sorted(out.glob("settings-*.json")):
        if path in written:
            continue
        try:
            read_settings(path)
        except SettingsError:
            continue
        path.unlink()
