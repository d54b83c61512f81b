"""The quickstart panel: choose, predict, run, fit.

The panel holds no numerics.  Controls are a `RequestForm`, every change becomes a new valid request, one call each gives
predictions, points and fits, and `figures` draws them.  `quickstart_panel` returns the widget together
with its handles, so that a test or a notebook can set a control, press the button and read the figure without a browser.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.files import require_writable
from wts_lab import compare, study
from wts_lab.ui import figures, live
from wts_lab.ui.fields import describe
from wts_lab.ui.form import side_by_side, titled
from wts_lab.ui.handles import PanelHandles, panel_parts, take_away
from wts_lab.ui.requests import PanelRequest
from wts_lab.ui.step_figure import SHORT_BAR_WORDS, step_terms_spec
from wts_lab.ui.tables import panel_html, run_table
from wts_lab.ui.tier_figure import memory_tiers_spec

if TYPE_CHECKING:
    import ipywidgets

    from wts_lab.comparison import Comparison


FIGURES = ("call time", "step terms", "memory tiers")


@dataclass
class Handles(PanelHandles):
    """Everything in the panel that can be set, pressed or read; its figures are those of FIGURES.

    `wait` blocks until the run started by `run_button.click()` is over, and `refusal` says why the last press of run_button started
    nothing.  `comparisons` is what the figures show and `source` where its points come from.  `summary` has what the last run found, one row
    a series.  `record_path` is the record that the last live run wrote, or None.
    """

    run_button: Any
    cancel_button: Any
    progress: Any
    status: Any
    log: Any
    summary: Any
    run: live.BackgroundRun | None = None
    refusal: str = ""
    record_path: Path | None = None
    comparisons: tuple[Comparison, ...] = ()
    source: str = "predicted"
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def message(self) -> Any:
        """The line under the controls."""
        return self.form.message

    def wait(self, timeout_s: float) -> live.Outcome:
        """Wait for the run that run_button started last.

        Raises RuntimeError when it started none, with the reason where it was refused; TimeoutError when it takes longer.
        """
        if self.run is None:
            raise RuntimeError(f"no run was started: {self.refusal or 'press run_button first'}")
        return self.run.wait(timeout_s)


def quickstart_panel(
    request: PanelRequest | None = None,
    *,
    records: Path | None = None,
    out: Path | str = "out/records",
    is_live: bool | None = None,
    pace_s: float = 0.06,
    repeats: int = 100,
) -> tuple[ipywidgets.Widget, Handles]:
    """Build the panel.

    Args:
        request: what to show first; by default the usual head on the GPU here, or on an H200.
        records: folder of recorded runs to replay; those that ship with the lab by default.
        out: folder where a live run writes its record; figures and the panel's state are saved beside it.
        is_live: True launches kernels and complains where it cannot; False replays; None does what this machine allows.
        pace_s: seconds between replayed rows.
        repeats: timed calls a point in a live run.
    """
    actions = _Actions(records, Path(out), is_live, pace_s, repeats)
    parts = panel_parts(request or _first_request(is_live), FIGURES, actions.show_request, Path(out).parent, "run")
    handles = actions.handles = _make_handles(parts)
    handles.run_button.on_click(lambda _button: actions.start())
    handles.cancel_button.on_click(lambda _button: actions.cancel())
    handles.form.set(handles.request)
    return _arrange(handles), handles


def _first_request(is_live: bool | None) -> PanelRequest:
    """The default request, about the GPU in this machine where that can be used and is in the catalogue."""
    device = None if is_live is False else study.capable_device()
    here = study.recognise(device).id if device is not None else None
    return PanelRequest(gpu=here) if here in describe(PanelRequest)["gpu"].choices else PanelRequest()


def _make_handles(parts: dict[str, Any]) -> Handles:
    import ipywidgets as widgets

    return Handles(
        **parts,
        run_button=widgets.Button(
            description="Run", icon="play", button_style="success", tooltip="Launch the walk, or replay its recorded run"
        ),
        cancel_button=widgets.Button(
            description="Cancel", icon="stop", disabled=True, tooltip="End the run after the point in hand"
        ),
        progress=widgets.IntProgress(min=0, max=1, value=0, layout=widgets.Layout(width="220px")),
        status=widgets.HTML(value="Nothing was run yet."),
        log=widgets.Textarea(
            disabled=True, rows=5, placeholder="Build and run messages appear here.", layout=widgets.Layout(width="98%")
        ),
        summary=widgets.HTML(),
    )


def _arrange(handles: Handles) -> ipywidgets.Widget:
    """Controls and run on the left, figures of times on the right with what the run found; memory tiers and messages below."""
    import ipywidgets as widgets

    buttons = widgets.HBox([handles.run_button, handles.cancel_button])
    left = [handles.form.widget, buttons, handles.progress, handles.status]
    times, terms, tiers = (handles.figures[name].widget for name in FIGURES)
    log = titled("Messages of the run", handles.log)
    return widgets.VBox([side_by_side(left, [times, handles.summary, terms]), tiers, log, *take_away(handles)])


def write_record(rows: Sequence[live.Row], out: Path) -> Path:
    """Keep a live run's rows as an immutable record under `out`; returns its path."""
    from datetime import datetime, timezone

    from cost_model.measurement import record_path, write_walk

    device = study.capable_device()
    gpu_id = study.recognise(device).id if device is not None else "unknown-gpu"
    name = study.free_case_name(out, gpu_id, "panel")
    return write_walk(record_path(out, gpu_id, datetime.now(timezone.utc), name), rows)


class _Actions:
    """What the controls and buttons do: each edits the request or the run, calls one function, shows one result."""

    handles: Handles

    def __init__(self, records: Path | None, out: Path, is_live: bool | None, pace_s: float, repeats: int) -> None:
        self.records, self.out = records, out
        self.is_live, self.pace_s, self.repeats = is_live, pace_s, repeats
        self._predicted: tuple[Comparison, ...] = ()
        self._refusal = ""
        self._seen: list[live.Row] = []
        self._first_s: float | None = None
        self._doing = ""

    def show_request(self, request: PanelRequest) -> None:
        """Draw the predictions of a request.  Raises BadInput where there are none, and leaves the figures alone."""
        handles = self.handles
        with handles._lock:
            self._predicted, self._refusal = (), ""
            try:
                head, gpu = request.load_head(), request.load_gpu()
                predicted = compare.predicted_comparisons(gpu, head, request.workload(), live.ways_of(request))
                tiers = compare.tiers_of(gpu, head, predicted[0])
            except BadInput as error:
                self._refusal = str(error)
                raise
            self._predicted = handles.comparisons = predicted
            handles.summary.value = ""
            self._draw()
            handles.state.tell()
            handles.figures["memory tiers"].show(memory_tiers_spec(tiers, title=f"Where the matrix sits: {predicted[0].label}"))

    def _draw(self, source: str = "predicted") -> None:
        """Both figures of times from the comparisons in hand."""
        request, comparisons, self.handles.source = self.handles.request, self.handles.comparisons, source
        title = f"Call time <span style='font-weight:normal;font-size:14px'>{html.escape(source)}</span>"
        self.handles.figures["call time"].show(
            figures.call_time_spec(
                comparisons, steps=request.steps, title=title, height_px=460, subtitle=figures.SHORT_LINE_WORDS
            )
        )
        self.handles.figures["step terms"].show(step_terms_spec(comparisons, subtitle=SHORT_BAR_WORDS))

    def start(self) -> None:
        """The Run button: find a source, start pulling it."""
        handles = self.handles
        if handles.run is not None and handles.run.is_running:
            return
        handles.run, handles.refusal = None, ""
        if not self._predicted:  # the message says why, and there is nothing to set a run beside
            handles.refusal = self._refusal
            return
        handles.form.say("")
        handles.log.value, handles.summary.value, handles.record_path = "", "", None
        try:
            source = self._source()
            if source.is_live:
                require_writable(self.out, folder=True)
        except (BadInput, RuntimeError) as error:
            handles.refusal = str(error)
            handles.form.say(handles.refusal, is_error=True)
            return
        self._set_running(True, source)
        self._seen, self._first_s, self._doing = [], None, ""
        handles.run = live.BackgroundRun(
            source,
            on_row=lambda row, count: self._add(source, row, count),
            on_log=self._append_log,
            on_end=lambda outcome: self._finish(source, outcome),
            on_tick=lambda: self._tell_progress(source),
        )
        handles.run.start()

    def _add(self, source: live.RowSource, row: live.Row, count: int) -> None:
        """A row came (in the run's thread): show its point."""
        handles = self.handles
        self._first_s = self._first_s or handles.run.elapsed_s
        with handles._lock:
            self._seen.append(row)
            handles.comparisons = compare.with_points(self._predicted, self._seen)
            self._draw(source.label)
        handles.progress.value = count
        self._tell_progress(source)

    def _tell_progress(self, source: live.RowSource) -> None:
        """Points so far, elapsed and remaining time; before the first point what is being done."""
        handles, run = self.handles, self.handles.run
        words = live.progress_words(len(self._seen), source.total, run.elapsed_s, self._first_s)
        if not self._seen:
            words = f"{self._doing} {words}"
        if run.is_cancelled:
            words = f"Cancelling after the point in hand. {words}"
        handles.status.value = html.escape(words)

    def _source(self) -> live.RowSource:
        """The kernels where the GPU here is the chosen one (or must be, when `is_live`), else the chosen GPU's recorded run."""
        chosen = self.handles.request.gpu
        device = None if self.is_live is False else study.capable_device()
        if device is None and self.is_live:
            raise study.no_device()
        here = study.recognise(device).id if device is not None else None
        if here == chosen:
            return live.launch(self.handles.request, device, repeats=self.repeats)
        if self.is_live:
            raise study.NoDevice(f"the GPU here is {here}, and {chosen} is chosen; choose {here} to launch the walk on it")
        if here is not None:
            self._append_log(f"The GPU here is {here}; {chosen} is chosen, so its recorded run is replayed.")
        return live.replay(self.handles.request, self.records, pace_s=self.pace_s)

    def cancel(self) -> None:
        """The Cancel button."""
        if self.handles.run is not None:
            self.handles.run.cancel()
            self._tell_progress(self.handles.run.source)

    def _finish(self, source: live.RowSource, outcome: live.Outcome) -> None:
        """The run ended (in its thread): fit, write the record, say how it went, give the button back."""
        handles = self.handles
        try:
            if outcome.status == "failed":
                raise outcome.error
            if outcome.status == "done":
                self._show_fit(source, outcome)
            how = f"{outcome.status.capitalize()}: {len(outcome.rows)} points in {outcome.elapsed_s:.1f} s."
            handles.status.value = f"{how} {html.escape(source.label)}"
        except Exception as error:  # shown where the user looks; the button works again
            handles.form.say(f"{type(error).__name__}: {error}", is_error=True)
            handles.status.value = (
                f"Failed after {len(outcome.rows)} points. Change the request or the machine, then press Run again."
            )
        finally:
            self._set_running(False)

    def _show_fit(self, source: live.RowSource, outcome: live.Outcome) -> None:
        handles = self.handles
        if source.is_live:
            handles.record_path = write_record(outcome.rows, self.out)
            self._append_log(f"Wrote {handles.record_path}.")
        with handles._lock:
            handles.comparisons = compare.with_fits(self._predicted, outcome.rows)
            self._draw(source.label)
            handles.summary.value = panel_html(run_table(handles.comparisons, outcome.rows))

    def _set_running(self, is_running: bool, source: live.RowSource | None = None) -> None:
        handles = self.handles
        handles.run_button.disabled, handles.cancel_button.disabled = is_running, not is_running
        if source is not None:
            handles.progress.max, handles.progress.value = max(source.total, 1), 0
            handles.status.value = html.escape(source.label)
        handles.form.disable(is_running)

    def _append_log(self, line: str) -> None:
        if line.endswith("."):  # a sentence of the lab's own; a compiler's lines are none
            self._doing = line
        self.handles.log.value += line.rstrip("\n") + "\n"
