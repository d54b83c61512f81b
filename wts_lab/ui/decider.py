"""The decision panel: a round goes in, a verdict with its reasons comes out, and the files to deploy it.

The panel holds no numerics: `wts_lab.decided` answers a request, and the figures and tables show it.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from wts_lab.decided import Decided, decided, write_decision
from wts_lab.explore import explore
from wts_lab.ui.export import ExportBox, StateBox
from wts_lab.ui.form import RequestForm, side_by_side, titled
from wts_lab.ui.gain_figure import gain_spec
from wts_lab.ui.live_figure import FigureHolder, hold_figure
from wts_lab.ui.requests import DecisionRequest
from wts_lab.ui.round_figure import break_even_spec
from wts_lab.ui.tables import options_table, panel_html

if TYPE_CHECKING:
    import ipywidgets

FIGURES = ("break-even", "gain")


@dataclass
class DecisionHandles:
    """Everything in the panel that can be set, pressed or read.

    Attributes:
        form: controls and request.
        figures: name (one of FIGURES) -> the figure's holder.
        verdict: the verdict and its reasons, as HTML.
        table: every option side by side, as HTML.
        folder, write_button, written: where the settings and tables go, the button, and what was written.
        export, state: the rows that save figures and the panel's state.
        answer: what is shown.
    """

    form: RequestForm
    figures: dict[str, FigureHolder]
    verdict: Any
    table: Any
    folder: Any
    write_button: Any
    written: Any
    export: ExportBox
    state: StateBox
    answer: Decided | None = None

    @property
    def request(self) -> DecisionRequest:
        """The panel's whole state."""
        return self.form.request

    @property
    def controls(self) -> dict[str, Any]:
        """Field name to its widget."""
        return self.form.controls


def decision_panel(
    request: DecisionRequest | None = None, *, records: Path | None = None, out: Path | str = "out"
) -> tuple[ipywidgets.Widget, DecisionHandles]:
    """Build the panel; returns the widget and its handles.

    Args:
        request: what to show first.
        records: folder of recorded runs; those that ship with the lab by default.
        out: folder for settings, tables, figures and saved states.
    """
    import ipywidgets as widgets

    holders = {name: hold_figure() for name in FIGURES}
    form = RequestForm(request or DecisionRequest(), lambda asked: _show(handles, asked, records))
    handles = DecisionHandles(
        form=form,
        figures=holders,
        verdict=widgets.HTML(),
        table=widgets.HTML(),
        folder=widgets.Text(value=str(out), description="Folder", layout=widgets.Layout(width="340px")),
        write_button=widgets.Button(description="Write", icon="save", tooltip="Write settings.json and the step-cost table as CSV, Parquet, Markdown and LaTeX"),
        written=widgets.HTML(),
        export=ExportBox(holders, Path(out) / "figures"),
        state=StateBox(form, Path(out) / "decision.json"),
    )
    handles.write_button.on_click(lambda _button: _write(handles))
    form.set(handles.request)
    right = [handles.verdict, holders["break-even"].widget, holders["gain"].widget]
    widget = widgets.VBox(
        [
            side_by_side([form.widget], right),
            handles.table,
            titled("Settings and tables", widgets.HBox([handles.folder, handles.write_button]), handles.written),
            titled("Export a figure", handles.export.widget),
            titled("Save and reload", handles.state.widget),
        ]
    )
    return widget, handles


def _show(handles: DecisionHandles, request: DecisionRequest, records: Path | None) -> None:
    """Answer the request and show it.  Raises BadInput before anything was changed."""
    gpu, head, workload, rest = request.load_gpu(), request.load_head(), request.workload(), request.round()
    answer = decided(gpu, head, workload, rest, records=records)
    gain = explore(gpu, head, workload, ("stepwise", "bf16")).gain
    handles.answer = answer
    handles.figures["break-even"].show(break_even_spec(answer.curve, rest.rest_us))
    handles.figures["gain"].show(gain_spec(gain, title="Where a step's gain comes from (predicted)"))
    handles.verdict.value = _verdict_html(answer, request.target)
    handles.table.value = panel_html(options_table(answer.decision))
    handles.written.value = ""
    handles.state.tell()


def _verdict_html(answer: Decided, target: str) -> str:
    """The verdict, where its times come from, and the reasons."""
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in answer.decision.reasons)
    about = html.escape(" · ".join(text for text in (target, answer.source) if text))
    return (
        f"<div role='status' style='line-height:1.4'><b style='font-size:18px'>{html.escape(answer.decision.verdict)}</b>"
        f"<div>{about}</div><ul style='margin:4px 0;padding-left:1.2em'>{reasons}</ul></div>"
    )


def _write(handles: DecisionHandles) -> None:
    """Write settings and tables; say which files, or why none."""
    try:
        files = write_decision(handles.answer, handles.folder.value)
        handles.written.value = html.escape(f"Wrote {', '.join(map(str, files))}.")
    except (BadInput, OSError) as error:
        handles.written.value = f"<span role='alert'>{html.escape(f'{error}. Name another folder.')}</span>"
