"""A figure inside a panel: a plotly FigureWidget that is updated in place, or a static one where widgets cannot be had.

FigureWidget needs anywidget.  Where it is missing or will not start, the panel still works: figures are drawn as static
displays that are replaced on every change, with a line that says why and how to mend it.
"""

from __future__ import annotations

import functools
import html
import json
from typing import TYPE_CHECKING, Protocol

from wts_lab.ui.figure_widget import UNTEMPLATED, new_figure
from wts_lab.ui.figures import Spec, draw
from wts_lab.ui.plotly_import import graph_objects

if TYPE_CHECKING:
    import ipywidgets
    import plotly.graph_objects as go


FIT = """
export default { render({ el }) {
  el.style.height = 0;
  const fit = () => {
    const plot = el.closest(".wts-figure")?.querySelector(".js-plotly-plot");
    if (plot?._fullLayout && plot.clientWidth && plot.clientWidth !== plot._fullLayout.width) window.dispatchEvent(new Event("resize"));
  };
  const soon = () => setTimeout(fit, 50);
  const watch = new ResizeObserver(soon);
  watch.observe(el);
  document.addEventListener("plotlywidget-after-render", soon);
  return () => { watch.disconnect(); document.removeEventListener("plotlywidget-after-render", soon); };
} };
"""
"""JavaScript that gives a figure the width of its column: plotly draws one before it is on the page, and then listens to the window only."""

CONFIG = {"responsive": True, "displaylogo": False}


class FigureHolder(Protocol):
    """Something with a `widget` to lay out, the plotly `figure` it shows, and `show` to change it."""

    widget: ipywidgets.Widget
    figure: go.Figure

    def show(self, spec: Spec) -> None:
        """Show this spec instead of the present figure."""


@functools.cache
def probe_figure_widget() -> str | None:
    """None when live figures work in this process, else the reason in words."""
    try:
        import anywidget  # noqa: F401  (FigureWidget falls over later, and less clearly, without it)

        graph_objects().FigureWidget(UNTEMPLATED)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def hold_figure() -> FigureHolder:
    """A live figure where they work, else a static one that says why."""
    reason = probe_figure_widget()
    return LiveFigure() if reason is None else StaticFigure(reason)


@functools.cache
def _fit_type() -> type[ipywidgets.Widget]:
    """The widget class that keeps a figure as wide as its column; made when first wanted, for it needs anywidget."""
    import anywidget

    class Fit(anywidget.AnyWidget):
        """Nothing to see: its script watches the column."""

        _esm = FIT

    return Fit


class LiveFigure:
    """A FigureWidget that is sent only what changed since the last spec."""

    def __init__(self) -> None:
        import ipywidgets as widgets

        self.figure = new_figure(CONFIG)
        self.widget = widgets.VBox([self.figure, _fit_type()()], layout=widgets.Layout(min_width="0", overflow="hidden"))
        self.widget.add_class("wts-figure")
        self._shown: Spec = {"data": [], "layout": {}}

    def show(self, spec: Spec) -> None:
        """Change what differs; nothing is sent where nothing does."""
        if spec != self._shown:
            shown, self._shown = self._shown, spec
            self._send(shown, spec)

    def _send(self, shown: Spec, spec: Spec) -> None:
        """Every property that changed in any trace goes with its value in all of them: a trace left out would lose it in the browser."""
        if [trace["type"] for trace in shown["data"]] != [trace["type"] for trace in spec["data"]]:
            self.figure.data = ()
            self.figure.add_traces(spec["data"])
            shown = {**shown, "data": spec["data"]}
        for kind in dict.fromkeys(trace["type"] for trace in spec["data"]):
            places = [place for place, trace in enumerate(spec["data"]) if trace["type"] == kind]
            keys = dict.fromkeys(key for place in places for key in _changes(shown["data"][place], spec["data"][place]))
            if keys:
                self.figure.plotly_restyle({key: [spec["data"][place].get(key) for place in places] for key in keys}, places)
        with self.figure.batch_update():
            self.figure.layout.update(_changes(shown["layout"], spec["layout"]), overwrite=True)


class StaticFigure:
    """The last figure as a plain display, under a line saying why it is not live."""

    def __init__(self, reason: str) -> None:
        import ipywidgets as widgets

        self.figure = graph_objects().Figure()
        self.output = widgets.Output()
        self.note = widgets.HTML(
            f"<small>Static figure: live ones do not work here ({html.escape(reason)}). Install anywidget and reload the page.</small>"
        )
        self.widget = widgets.VBox([self.note, self.output])

    def show(self, spec: Spec) -> None:
        """Replace the display."""
        self.figure = draw(spec)
        data = {"application/vnd.plotly.v1+json": json.loads(self.figure.to_json()), "text/plain": "plotly figure"}
        self.output.outputs = ({"output_type": "display_data", "metadata": {}, "data": data},)


def _changes(old: Spec, new: Spec) -> Spec:
    """Properties of `new` that differ from `old`; those that `new` lacks become None."""
    gone = {key: None for key in old if key not in new}
    return {**gone, **{key: value for key, value in new.items() if key != "type" and old.get(key) != value}}
