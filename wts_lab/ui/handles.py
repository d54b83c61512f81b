"""What every panel has: a form, figures by name, rows that save figures and state; and how these are made and laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wts_lab.ui.export import ExportBox, StateBox
from wts_lab.ui.fields import Request
from wts_lab.ui.form import RequestForm, titled
from wts_lab.ui.live_figure import FigureHolder, hold_figure

if TYPE_CHECKING:
    import ipywidgets


@dataclass
class PanelHandles:
    """Everything in a panel that can be set, pressed or read.

    Attributes:
        form: controls and request; `controls` of it maps a field to its widget.
        figures: name -> the figure's holder.
        export, state: the rows that save figures and the panel's state.
    """

    form: RequestForm
    figures: dict[str, FigureHolder]
    export: ExportBox
    state: StateBox

    @property
    def request(self) -> Any:
        """The panel's whole state: the last good request."""
        return self.form.request

    @property
    def controls(self) -> dict[str, Any]:
        """Field name to its widget."""
        return self.form.controls


def panel_parts(request: Request, figures: Sequence[str], show: Callable[[Any], None], out: Path | str, name: str) -> dict[str, Any]:
    """The fields that PanelHandles has, made anew.

    Args:
        request: what to show first; it is shown by `form.set`.
        figures: their names.
        show: called with each good request.
        out: folder for what the panel saves; name: of the file of its state there.
    """
    holders = {each: hold_figure() for each in figures}
    form = RequestForm(request, show)
    return dict(form=form, figures=holders, export=ExportBox(holders, Path(out) / "figures"), state=StateBox(form, Path(out) / f"{name}.json"))


def take_away(handles: PanelHandles) -> list[ipywidgets.Widget]:
    """The rows that save figures and state, folded."""
    return [titled("Export a figure", handles.export.widget), titled("Save and reload", handles.state.widget)]
