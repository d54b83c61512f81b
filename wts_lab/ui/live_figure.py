"""A figure inside a panel: a plotly FigureWidget that is updated in place, or a static one where widgets cannot be had.

FigureWidget needs anywidget.  Where it is missing or will not start, the panel still works: figures are drawn as static
displays that are replaced on every change, with a line that says why and how to mend it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ipywidgets
    import plotly.graph_objects as go


class FigureHolder(Protocol):
    """Something with a `widget` to lay out, the `figure` it shows, and `show` to change it."""

    widget: ipywidgets.Widget
    figure: go.Figure

    def show(self, fresh: go.Figure) -> None:
        """Show `fresh` instead of the present figure."""


def probe_figure_widget() -> str | None:
    """None when live figures work here, else the reason in words."""
    try:
        import anywidget  # noqa: F401  (FigureWidget falls over later, and less clearly, without it)
        import plotly.graph_objects as go

        go.FigureWidget()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def hold_figure() -> FigureHolder:
    """A live figure where they work, else a static one that says why."""
    reason = probe_figure_widget()
    return LiveFigure() if reason is None else StaticFigure(reason)


class LiveFigure:
    """A FigureWidget whose traces are updated in place as long as their number stays."""

    def __init__(self) -> None:
        import plotly.graph_objects as go

        self.widget = self.figure = go.FigureWidget()

    def show(self, fresh: go.Figure) -> None:
        """Change data and layout in one message to the browser."""
        if len(self.figure.data) != len(fresh.data):
            self.figure.data = ()
            self.figure.add_traces(fresh.data)
        with self.figure.batch_update():
            for old, new in zip(self.figure.data, fresh.data):
                old.update(_updatable(new), overwrite=True)
            self.figure.layout.update(fresh.layout.to_plotly_json(), overwrite=True)


class StaticFigure:
    """The last figure as a plain display, under a line saying why it is not live."""

    def __init__(self, reason: str) -> None:
        import ipywidgets as widgets
        import plotly.graph_objects as go

        self.figure = go.Figure()
        self.output = widgets.Output()
        self.note = widgets.HTML(f"<small>Static figure: live ones do not work here ({reason}). Install anywidget and reload the page.</small>")
        self.widget = widgets.VBox([self.note, self.output])

    def show(self, fresh: go.Figure) -> None:
        """Replace the display."""
        self.figure = fresh
        self.output.outputs = ({"output_type": "display_data", "metadata": {}, "data": {
            "application/vnd.plotly.v1+json": _as_plain_json(fresh), "text/plain": "plotly figure"}},)


def _as_plain_json(figure: go.Figure) -> dict[str, Any]:
    """The figure as JSON-ready values: no arrays, no tuples."""
    import json

    return json.loads(figure.to_json())


def _updatable(trace: Any) -> dict[str, Any]:
    """A trace's properties without those that cannot be changed."""
    return {key: value for key, value in trace.to_plotly_json().items() if key not in ("type", "uid")}
