"""A request's controls: made from its field metadata, each change a new valid request or a refusal beside the control.

The form keeps the last good request.  What a field refuses is said under that field with the allowed range, and nothing else
changes; the next good change of any field puts the refused one back.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from wts_lab.ui.fields import FieldSpec, Request, describe
from wts_lab.ui.requests import OWN_SIZES, PRECISIONS_BY_MODE

if TYPE_CHECKING:
    import ipywidgets

SIZE_FIELDS = ("vocab_size", "rank")
ERROR_COLOUR, QUIET_COLOUR = "#b42318", "#6b7280"
WIDTH, CAPTION_WIDTH, COLUMN_WIDTH = "366px", "178px", "380px"


class RequestForm:
    """The controls of one request.

    Attributes:
        request: the last good request.
        controls: field name -> widget.
        notes: field name -> what is wrong with the value in that control, as HTML; empty where nothing is.
        message: what is wrong with the request as a whole, such as a prediction that cannot be made.
        widget: controls, each with its note under it, and the message.
    """

    def __init__(self, request: Request, on_change: Callable[[Request], None]) -> None:
        import ipywidgets as widgets

        self.request, self._on_change, self._is_syncing, self._is_disabled = request, on_change, False, False
        specs = describe(type(request))
        self.controls = {name: make_control(spec, getattr(request, name)) for name, spec in specs.items()}
        self.notes = {name: widgets.HTML(layout=widgets.Layout(display="none", width=WIDTH)) for name in specs}
        self.message = widgets.HTML()
        self.widget = widgets.VBox([*(each for name in specs for each in (self.controls[name], self.notes[name])), self.message])
        for name, control in self.controls.items():
            control.observe(lambda change, name=name: self._changed(name, change["new"]), names="value")
        self._sync()

    def set(self, request: Request) -> None:
        """Take up another request of the same type, as if the user had made it."""
        self.request = request
        self._sync()
        self._tell()

    def say(self, text: str, is_error: bool = False) -> None:
        """Show a line under the controls, or none."""
        self.message.value = _line(text, is_error) if text else ""

    def disable(self, is_disabled: bool) -> None:
        """Lock the controls while a run uses the request, or free them."""
        self._is_disabled = is_disabled
        self._sync()

    def _changed(self, name: str, value: object) -> None:
        """A control changed: make the new request, or say beside the control why not and keep the last one."""
        if self._is_syncing:
            return
        try:
            self.request = self.request.with_values(**{name: value})
        except BadInput as error:
            at_fault = getattr(error, "field_name", name)
            self._note(at_fault if at_fault in self.notes else name, str(error))
            return
        self._sync()
        self._tell()

    def _tell(self) -> None:
        """Let the panel show the request; what it cannot show is said, and its figures stay."""
        try:
            self._on_change(self.request)
        except BadInput as error:
            self.say(str(error), is_error=True)
        else:
            self.say("")

    def _sync(self) -> None:
        """Bring the controls in line with the request, and take the notes away."""
        request, self._is_syncing = self.request, True
        try:
            precision, allowed = self.controls.get("precision"), PRECISIONS_BY_MODE[request.mode]
            if precision is not None and tuple(precision.options) != allowed:
                precision.options = allowed
            for name, control in self.controls.items():
                if control.value != getattr(request, name):
                    control.value = getattr(request, name)
                control.disabled = self._is_disabled or (name in SIZE_FIELDS and request.head != OWN_SIZES)
                self._note(name, "")
        finally:
            self._is_syncing = False

    def _note(self, name: str, text: str) -> None:
        note = self.notes[name]
        note.value = _line(text, is_error=True) if text else ""
        note.layout.display = None if text else "none"


def make_control(spec: FieldSpec, value: object) -> ipywidgets.Widget:
    """The widget for a field: choices, a slider, a number or a text; caption and help come from the spec.

    A box takes any number, for a box that corrects what was typed would hide the refusal.
    """
    import ipywidgets as widgets

    common = dict(
        description=spec.caption,
        tooltip=f"{spec.help} Allowed: {spec.allowed}.",
        value=value,
        style=dict(description_width=CAPTION_WIDTH),
        layout=widgets.Layout(width=WIDTH),
    )
    if spec.choices is not None:
        return widgets.Dropdown(options=list(spec.choices), **common)
    if spec.min is None:
        return widgets.Text(continuous_update=False, **common)
    if spec.slider:
        kind = widgets.IntSlider if spec.whole else widgets.FloatSlider
        return kind(min=spec.min, max=spec.max, step=spec.step, **common)
    return (widgets.IntText if spec.whole else widgets.FloatText)(step=spec.step, **common)


def _line(text: str, is_error: bool) -> str:
    colour = ERROR_COLOUR if is_error else QUIET_COLOUR
    role = " role='alert'" if is_error else ""
    return f"<div{role} style='color:{colour};line-height:1.35;max-width:{WIDTH}'>{html.escape(text)}</div>"


def titled(title: str, *children: ipywidgets.Widget) -> ipywidgets.Widget:
    """Widgets under a heading that can be folded away."""
    import ipywidgets as widgets

    return widgets.Accordion([widgets.VBox(list(children))], titles=[title])


def side_by_side(left: Sequence[ipywidgets.Widget], right: Sequence[ipywidgets.Widget]) -> ipywidgets.Widget:
    """A column of controls, and the rest of the width for figures."""
    import ipywidgets as widgets

    column = widgets.VBox(list(left), layout=widgets.Layout(width=COLUMN_WIDTH, min_width=COLUMN_WIDTH))
    wide = widgets.VBox(list(right), layout=widgets.Layout(flex="1 1 auto", min_width="0"))
    return widgets.HBox([column, wide])


def halves(left: ipywidgets.Widget, right: ipywidgets.Widget) -> ipywidgets.Widget:
    """Two widgets that share the width."""
    import ipywidgets as widgets

    for each in (left, right):
        each.layout.flex, each.layout.min_width = "1 1 0", "0"
    return widgets.HBox([left, right])
