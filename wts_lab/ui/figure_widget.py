"""Plotly's FigureWidget for panels of many figures: its script is sent to a page once, and its state is the figure as it is now.

Plotly's own widget brings its script, 5 MB, with every figure.  A page gives a widget two seconds to load, and one that takes longer never hears
from Python again: where six load at once on two cores, some are deaf.  Here one hidden widget, the *bundle*, brings the script; a
figure's own script is a few lines, loads at once, keeps what Python says until plotly is there, and then lets plotly's widget catch up.
Reading 5 MB of script keeps a page busy for a second or two as well, so that begins when the first figure is shown: by then all widgets of its
panel have loaded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from wts_lab.ui.plotly_import import graph_objects

if TYPE_CHECKING:
    import anywidget
    import plotly.graph_objects as go

UNTEMPLATED = {"layout": {"template": "none"}}
"""A new figure; plotly would give it a template first, which takes longer than all else and which no spec uses."""

SHARED = """
const shared = (globalThis.wtsPlotly ??= (() => {
  const made = {};
  made.plotly = new Promise((resolve) => { made.give = resolve; });
  made.wanted = new Promise((resolve) => { made.want = () => setTimeout(resolve, 200); });
  return made;
})());
"""
"""JavaScript for what widgets of a page share, made by whoever comes first: the promise of plotly's module, and that somebody wants it."""

BUNDLE = f"""{SHARED}
export default {{ initialize({{ model }}) {{
  shared.wanted.then(() => import(URL.createObjectURL(new Blob([model.get("script")], {{ type: "text/javascript" }})))).then(shared.give);
}} }};
"""

FIGURE = f"""{SHARED}
const ORDERS = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps", "removeTraceProps"];
export default () => {{
  let figure;
  return {{
    initialize({{ model }}) {{
      const kept = [];
      const keepers = ORDERS.map((order) => {{
        const name = `_py2js_${{order}}`;
        const keep = () => {{ if (model.get(name) !== null) kept.push([name, model.get(name)]); }};
        model.on(`change:${{name}}`, keep);
        return [name, keep];
      }});
      figure = shared.plotly.then(({{ default: make }}) => {{
        for (const [name, keep] of keepers) model.off(`change:${{name}}`, keep);
        const own = make();
        own.initialize({{ model }});
        for (const [name, value] of kept) {{ model.set(name, value); model.set(name, null); }}
        return own;
      }});
    }},
    render({{ model, el }}) {{
      let end, isGone = false;
      shared.want();
      figure.then((own) => {{ if (!isGone) end = own.render({{ model, el }}); }});
      return () => {{ isGone = true; end?.(); }};
    }},
  }};
}};
"""


@functools.cache
def figure_type() -> type[go.FigureWidget]:
    """The widget class; made when first wanted.  Raises ImportError where plotly or anywidget is missing.

    Plotly's own keeps the state of its first moment and sends changes to browsers that listen already.  A page that connects later, as
    Voila's does and a reloaded one, asks for the whole state, and would be shown an empty figure.
    """

    class WholeFigureWidget(graph_objects().FigureWidget):
        _esm = FIGURE

        def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
            state = super().get_state(key, drop_defaults)
            if key is None and "_data" in vars(self):  # the widget opens before it holds a figure
                figure = self.to_dict()
                for name, value in (("_widget_data", figure["data"]), ("_widget_layout", figure["layout"])):
                    state[name] = self.trait_metadata(name, "to_json")(value, self)
            return state

    return WholeFigureWidget


def new_figure(config: dict[str, Any]) -> go.FigureWidget:
    """An empty figure whose script every page has, or gets now.  `config` is plotly's, of buttons and behaviour."""
    if _bundle().comm is None:  # somebody closed all widgets
        _bundle.cache_clear()
        _bundle()
    figure = figure_type()(UNTEMPLATED)
    figure._config = config
    return figure


@functools.cache
def _bundle() -> anywidget.AnyWidget:
    """The widget that brings plotly's script to a page."""
    import anywidget
    import traitlets

    class PlotlyBundle(anywidget.AnyWidget):
        """Nothing to see."""

        _esm = BUNDLE
        script = traitlets.Unicode(str(graph_objects().FigureWidget._esm)).tag(sync=True)

    return PlotlyBundle()
