"""Taking figures and states away: PNG and SVG through the browser, HTML and requests as files.

A browser draws PNG and SVG itself: the buttons press the picture button that every plotly figure has, with the format chosen.
"""

from __future__ import annotations

import functools
import html
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.files import write_whole
from wts_lab.ui.live_figure import FigureHolder, probe_figure_widget

if TYPE_CHECKING:
    import ipywidgets

    from wts_lab.ui.form import RequestForm

NUMBERS = itertools.count(1)
PICTURE_BUTTONS = """
export default { render({ model, el }) {
  el.style.display = "flex";
  for (const format of ["png", "svg"]) {
    const button = document.createElement("button");
    button.className = "jupyter-button widget-button";
    button.textContent = format.toUpperCase();
    button.title = `Download the chosen figure as ${format.toUpperCase()}`;
    button.onclick = () => {
      const plot = document.querySelector(`.${model.get("figure_class")} .js-plotly-plot`);
      plot._context.toImageButtonOptions = { format, filename: model.get("file_name"), scale: format === "png" ? 2 : 1 };
      plot.querySelector(".modebar-btn[data-attr=toImage], .modebar-btn[data-title^='Download plot']").click();
    };
    el.appendChild(button);
  }
} };
"""


class ExportBox:
    """A row that saves one of a panel's figures.

    Attributes:
        choice: the figure, by name.
        folder: where HTML files go.
        html_button: writes the figure as a page of its own that needs no network.
        pictures: the PNG and SVG buttons; None where figures are static and have no such button to press.
        status: what was written, or why nothing was.
    """

    def __init__(self, figures: Mapping[str, FigureHolder], folder: Path | str = "out/figures") -> None:
        import ipywidgets as widgets

        self._figures, self._classes = dict(figures), {name: f"wts-figure-{next(NUMBERS)}" for name in figures}
        for name, holder in self._figures.items():
            holder.widget.add_class(self._classes[name])
        self.choice = widgets.Dropdown(options=list(figures), description="Figure", layout=widgets.Layout(width="260px"))
        self.folder = widgets.Text(value=str(folder), description="HTML into", layout=widgets.Layout(width="260px"))
        self.html_button = widgets.Button(description="HTML", tooltip="Write the chosen figure as a page that needs no network")
        self.status = widgets.HTML()
        self.pictures = _picture_buttons() if probe_figure_widget() is None else None
        self.html_button.on_click(lambda _button: self.write_html())
        self.choice.observe(lambda _change: self._point(), names="value")
        self._point()
        row = [self.choice, *([self.pictures] if self.pictures is not None else []), self.folder, self.html_button]
        self.widget = widgets.VBox([widgets.HBox(row, layout=widgets.Layout(flex_flow="row wrap")), self.status])

    def write_html(self) -> Path | None:
        """Write the chosen figure; its path, or None where it cannot be written, which the status says."""
        path = Path(self.folder.value) / f"{_file_name(self.choice.value)}.html"
        try:
            write_whole(path, lambda temporary: self._figures[self.choice.value].figure.write_html(temporary, include_plotlyjs=True))
        except (BadInput, OSError) as error:
            self.status.value = f"<span role='alert'>{html.escape(f'{path} cannot be written: {error}. Name another folder.')}</span>"
            return None
        self.status.value = html.escape(f"Wrote {path}.")
        return path

    def _point(self) -> None:
        """Let the picture buttons press the chosen figure."""
        if self.pictures is not None:
            self.pictures.figure_class = self._classes[self.choice.value]
            self.pictures.file_name = _file_name(self.choice.value)


class StateBox:
    """A row that saves a panel's request to a file and takes it up again, and says it as Python and as a command.

    Attributes:
        path: the file.
        save_button, load_button: what they say.
        told: the request in Python and for the command line.
        status: what was done, or why not.
    """

    def __init__(self, form: RequestForm, path: Path | str) -> None:
        import ipywidgets as widgets

        self._form = form
        self.path = widgets.Text(value=str(path), description="File", layout=widgets.Layout(width="340px"))
        self.save_button = widgets.Button(description="Save", icon="save", tooltip="Write this panel's whole state to the file")
        self.load_button = widgets.Button(description="Load", icon="folder-open", tooltip="Take up the state in the file")
        self.told, self.status = widgets.HTML(), widgets.HTML()
        self.save_button.on_click(lambda _button: self._do(self._save))
        self.load_button.on_click(lambda _button: self._do(self._load))
        self.widget = widgets.VBox([widgets.HBox([self.path, self.save_button, self.load_button]), self.status, self.told])

    def tell(self) -> None:
        """Say the present request as Python and as a command."""
        request = self._form.request
        kind = type(request).__name__
        lines = [f"from {type(request).__module__} import {kind}", f'{kind}.load("{self.path.value}")', "", request.command()]
        self.told.value = f"<pre style='white-space:pre-wrap;line-height:1.35'>{html.escape(chr(10).join(lines))}</pre>"

    def _save(self) -> str:
        return f"Wrote {self._form.request.save(self.path.value)}."

    def _load(self) -> str:
        self._form.set(type(self._form.request).load(self.path.value))
        return f"Loaded {self.path.value}."

    def _do(self, action) -> None:
        try:
            self.status.value = html.escape(action())
        except (BadInput, OSError) as error:
            self.status.value = f"<span role='alert'>{html.escape(str(error))}</span>"


@functools.cache
def _picture_widget() -> type:
    """The widget class of the picture buttons; made when first wanted, for it needs anywidget."""
    import anywidget
    import traitlets

    class PictureButtons(anywidget.AnyWidget):
        """Two buttons, PNG and SVG, that press the picture button of the figure inside `figure_class`."""

        _esm = PICTURE_BUTTONS
        figure_class = traitlets.Unicode().tag(sync=True)
        file_name = traitlets.Unicode().tag(sync=True)

    return PictureButtons


def _picture_buttons() -> ipywidgets.Widget:
    return _picture_widget()()


def _file_name(name: str) -> str:
    """A figure's name as a file's."""
    return "-".join(name.lower().split())
