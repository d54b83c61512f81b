"""The decision panel: a round goes in, a verdict with its reasons comes out, and the files to deploy it.

The panel holds no numerics: `wts_lab.decided` answers a request, and the figures and tables show it.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from wts_lab import round_views
from wts_lab.decided import Decided, decided, decided_drafter, write_decision
from wts_lab.explore import explore
from wts_lab.ui.decision_request import OWN_ROUND, DecisionRequest
from wts_lab.ui.form import side_by_side, titled
from wts_lab.ui.gain_figure import gain_spec
from wts_lab.ui.handles import PanelHandles, panel_parts, take_away
from wts_lab.ui.round_figure import break_even_spec
from wts_lab.ui.tables import options_table, panel_html, view_html

if TYPE_CHECKING:
    import ipywidgets

FIGURES = ("break-even", "gain")


@dataclass
class DecisionHandles(PanelHandles):
    """Everything in the panel that can be set, pressed or read; its figures are those of FIGURES.

    Attributes:
        verdict: the verdict and its reasons, as HTML.
        table: every option, and every substitute, side by side, as HTML; of a released drafter its phases and memory too.
        folder, write_button, written: where the settings and tables go, the button, and what was written.
        answer: what is shown.
    """

    verdict: Any
    table: Any
    folder: Any
    write_button: Any
    written: Any
    answer: Decided | None = None


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

    handles = DecisionHandles(
        **panel_parts(request or DecisionRequest(), FIGURES, lambda asked: _show(handles, asked, records), out, "decision"),
        verdict=widgets.HTML(),
        table=widgets.HTML(),
        folder=widgets.Text(value=str(out), description="Folder", layout=widgets.Layout(width="340px")),
        write_button=widgets.Button(description="Write", icon="save", tooltip="Write settings.json, a report, and the step-cost table as CSV, Parquet, Markdown and LaTeX"),
        written=widgets.HTML(),
    )
    handles.write_button.on_click(lambda _button: _write(handles))
    handles.form.set(handles.request)
    right = [handles.verdict, *(holder.widget for holder in handles.figures.values())]
    widget = widgets.VBox(
        [
            side_by_side([handles.form.widget], right),
            handles.table,
            titled("Settings, report and tables", widgets.HBox([handles.folder, handles.write_button]), handles.written),
            *take_away(handles),
        ]
    )
    return widget, handles


def _show(handles: DecisionHandles, request: DecisionRequest, records: Path | None) -> None:
    """Answer the request and show it.  Raises BadInput before anything was changed."""
    gpu, head, workload = request.load_gpu(), request.load_head(), request.workload()
    if request.drafter == OWN_ROUND:
        answer = decided(gpu, head, workload, request.round(), request.alternatives(), records=records)
    else:
        question = request.question()
        head, answer = question.head, decided_drafter(gpu, question, records=records)
    gain = explore(gpu, head, workload, ("stepwise", "bf16")).gain
    handles.answer = answer
    handles.figures["break-even"].show(break_even_spec(answer.curve, answer.rest.rest_us))
    handles.figures["gain"].show(gain_spec(gain, title="Where a step's gain comes from (predicted)"))
    handles.verdict.value = _verdict_html(answer, request.target)
    handles.table.value = _tables_html(answer)
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


def _tables_html(answer: Decided) -> str:
    """Options and substitutes; of a released drafter its phases, the round with each head, and memory."""
    known = answer.round_answer
    more = round_views.tables(known) if known else [round_views.substitutes_table(answer.substitutes), *round_views.shard_tables(answer.shards, answer.alternatives)]
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in (known.notes if known else ()))
    return f"<ul>{notes}</ul>{panel_html(options_table(answer.decision))}{''.join(map(view_html, more))}"


def _write(handles: DecisionHandles) -> None:
    """Write settings and tables; say which files, or why none."""
    try:
        files = write_decision(handles.answer, handles.folder.value)
        handles.written.value = html.escape(f"Wrote {', '.join(map(str, files))}.")
    except (BadInput, OSError) as error:
        handles.written.value = f"<span role='alert'>{html.escape(f'{error}. Name another folder.')}</span>"
