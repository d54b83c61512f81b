"""Tables for notebooks: one function a result, returning a pandas table of formatted text with units in the titles."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from cost_model.tables import signed_percent
from cost_model.units import format_bytes, format_interval_us, format_percent, format_us
from wts_lab.compare import belongs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas

    from cost_model.decide import Decision
    from cost_model.fit import StepFit
    from cost_model.predict import Prediction
    from wts_lab.comparison import Comparison
    from wts_lab.explore import Exploration
    from wts_lab.placed import Placed
    from wts_lab.study import StudyResult


PANEL_STYLE = (
    "<style>.wts-table {font-size:12.5px; line-height:1.35} .wts-table th, .wts-table td {padding:3px 12px 3px 0; text-align:left; vertical-align:top}"
    " .wts-table tbody th {white-space:nowrap}</style>"
)


def panel_html(table: pandas.DataFrame) -> str:
    """A table as a panel shows it."""
    return PANEL_STYLE + table.to_html(border=0, index_names=False, classes="wts-table")


def view_html(view: tuple[str, tuple[str, ...], list[tuple[str, ...]]]) -> str:
    """A table of `wts_lab.round_views` (title, columns, rows of text) as a panel shows it."""
    title, columns, rows = view
    return f"<p style='margin:10px 0 2px'><b>{html.escape(title)}</b></p>{rows_html(columns, rows)}"


def view_table(view: tuple[str, tuple[str, ...], list[tuple[str, ...]]]) -> pandas.DataFrame:
    """The same for a notebook; its first column names the rows."""
    import pandas

    _, columns, rows = view
    return pandas.DataFrame(rows, columns=columns).set_index(columns[0])


def rows_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text as a panel shows them, the first of each as its heading; as `panel_html`, without pandas."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr><th>{html.escape(first)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in rest)}</tr>" for first, *rest in rows)
    return f"{PANEL_STYLE}<table class='dataframe wts-table'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def prediction_table(prediction: Prediction) -> pandas.DataFrame:
    """Entry, step and complete call of a prediction, with intervals and floors, and each term that adds to them."""
    import pandas

    steps = prediction.workload.steps
    rows = [
        (
            "entry",
            format_us(prediction.entry_us),
            format_interval_us(prediction.entry_us_low, prediction.entry_us_high),
            format_us(prediction.floor_entry_us),
            "",
        ),
        (
            "step",
            format_us(prediction.step_us),
            format_interval_us(prediction.step_us_low, prediction.step_us_high),
            format_us(prediction.floor_step_us),
            "",
        ),
        (f"call of {steps} steps", format_us(prediction.call_us()), "", "", ""),
    ]
    rows += [
        (f"{part}: {name.replace('_', ' ')}", format_us(term.exposed_us), "", "", term.resource)
        for part, terms in prediction.terms.items()
        for name, term in terms.items()
        if term.exposed_us > 0
    ]
    return pandas.DataFrame(rows, columns=["what", "time", "95 % interval", "physical floor", "bound by"]).set_index("what")


def run_table(comparisons: Iterable[Comparison], rows: Sequence[Mapping]) -> pandas.DataFrame:
    """What a run found, one series a row: slope and entry beside the prediction, residuals, tokens checked, clocks, throttling.

    Args:
        rows: walk rows of the run (`cost_model.measurement`); those of each comparison are looked up.
    """
    import pandas

    found = []
    for each in comparisons:
        own = [row for row in rows if belongs(row, each)]
        if not own:
            continue
        fit, prediction = each.fit, each.prediction
        known = fit is not None and fit.usable
        found.append(
            (
                each.label,
                f"{format_us(fit.step_us)} ({format_interval_us(fit.step_us_low, fit.step_us_high)})" if known else "n/a",
                format_us(prediction.step_us if prediction else None),
                signed_percent(prediction.step_us / fit.step_us - 1) if known and prediction else "n/a",
                f"{format_us(fit.entry_us)} ({format_interval_us(fit.entry_us_low, fit.entry_us_high)})" if known else "n/a",
                _residual(fit) if known else (fit.reason if fit else "too few walk lengths"),
                _shares(own, "tokens_match"),
                _shares(own, "tokens_agree_reference"),
                _clocks(own),
                _throttling(own),
            )
        )
    titles = ["walk", "step (95 % interval)", "predicted", "error", "entry (95 % interval)", "largest residual"]
    titles += ["tokens as the twin's", "as in bf16", "clock", "throttling"]
    return pandas.DataFrame(found, columns=titles).set_index("walk")


def _residual(fit: StepFit) -> str:
    """The median that lies farthest from the fitted line, and whether the series bends."""
    apart = {steps: median_us - fit.line_us(steps) for steps, median_us in fit.medians_us.items()}
    steps = max(apart, key=lambda each: abs(apart[each]))
    sign = "−" if apart[steps] < 0 else "+"
    return f"{sign}{format_us(abs(apart[steps]))} at {steps} steps{', curved' if fit.curved else ''}"


def _shares(rows: Sequence[Mapping], column: str) -> str:
    """The least share of a column of tokens; n/a where nothing was compared."""
    known = [row[column] for row in rows if row[column] is not None]
    return format_percent(min(known)) if known else "n/a"


def _clocks(rows: Sequence[Mapping]) -> str:
    """Clocks of the multiprocessors, from the lowest to the highest reading."""
    known = [row[name] for row in rows for name in ("sm_clock_mhz_before", "sm_clock_mhz_after") if row[name] is not None]
    if not known:
        return "n/a"
    low, high = (f"{each:,.0f}" for each in (min(known), max(known)))
    return f"{low} MHz" if low == high else f"{low} to {high} MHz"


def _throttling(rows: Sequence[Mapping]) -> str:
    """Why the driver lowered the clock, and how many samples were dropped for it."""
    told = {row["throttle_reasons"] for row in rows}
    reasons = sorted({reason for each in told if each for reason in each.split(",")} - {"none"})
    kept, dropped = sum(len(row["samples_us"]) for row in rows), sum(row["samples_dropped"] or 0 for row in rows)
    words = ", ".join(reasons).replace("_", " ") if reasons else "none" if told - {None} else "n/a"
    return f"{words}; {dropped:,} of {kept + dropped:,} samples dropped"


def configurations_table(explored: Iterable[tuple[str, Exploration]]) -> pandas.DataFrame:
    """Configurations side by side, one a row: what was asked, and the predicted step, entry and call of the chosen walk."""
    import pandas

    columns, rows = configurations(explored)
    return pandas.DataFrame(rows, columns=columns).set_index(columns[0])


def configurations(explored: Iterable[tuple[str, Exploration]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of `configurations_table`."""
    rows = []
    for name, each in explored:
        prediction, workload = each.chosen.prediction, each.workload
        sampled = f"temperature {workload.temperature:g}" if workload.temperature else "greedy"
        rows.append(
            (
                name,
                f"{each.gpu.name}, V {each.head.vocab_size:,}, rank {each.head.rank}, batch {workload.batch}, {workload.steps} steps, "
                f"{sampled}, {workload.l2_state}",
                each.chosen.label,
                format_us(prediction.step_us),
                format_interval_us(prediction.step_us_low, prediction.step_us_high),
                format_us(prediction.floor_step_us),
                format_us(prediction.entry_us),
                format_us(prediction.call_us()),
            )
        )
    return ("", "configuration", "walk", "step", "95 % interval", "physical floor", "entry", "call"), rows


def placements_table(placed: Iterable[Placed]) -> pandas.DataFrame:
    """Placements of a shape, one a row: tiles of a block by tier, predicted and measured step, registers and spills."""
    import pandas

    rows = []
    for each in placed:
        placement, fit = each.placement, each.measured
        rows.append(
            (
                " ".join(["planned"] * each.is_planned + ["chosen"] * each.is_chosen),
                placement.warps,
                placement.register_tiles,
                placement.shared_tiles,
                placement.streamed_tiles,
                placement.staging_tiles,
                format_us(each.predicted_us),
                format_us(fit.step_us if fit else None),
                format_interval_us(fit.step_us_low, fit.step_us_high) if fit else "n/a",
                "n/a" if each.registers_per_thread is None else each.registers_per_thread,
                "n/a" if each.spill_bytes is None else format_bytes(each.spill_bytes),
            )
        )
    titles = ["", "warps", "register tiles", "shared tiles", "streamed tiles", "staging tiles", "step, predicted", "step, measured"]
    titles += ["95 % interval", "registers a thread", "spilled"]
    return pandas.DataFrame(rows, columns=titles).set_index("")


def options_table(decision: Decision) -> pandas.DataFrame:
    """Every way to run the head that a decision compared, fastest call first."""
    import pandas

    marks = ((decision.best, "best fused"), (decision.fastest, "engine's fastest"), (decision.taken, "engine takes"))
    rows = [
        (
            option.name,
            ", ".join(words for marked, words in marks if marked == option),
            format_us(option.call_us),
            format_interval_us(*option.interval_us),
            format_us(option.step_us),
            format_us(option.entry_us),
            option.basis,
        )
        for option in decision.options
    ]
    titles = ["option", "role", "call", "95 % interval", "step", "entry", "basis"]
    return pandas.DataFrame(rows, columns=titles).set_index("option")


def decision_table(decision: Decision) -> pandas.io.formats.style.Styler:
    """The verdict, what to run, and the reasons, one a row; long reasons wrap (the frame itself is the styler's `data`)."""
    import pandas

    settings = decision.settings
    placement = settings.placement
    rows = [
        ("verdict", decision.verdict),
        ("mode", settings.mode),
        ("precision", settings.precision or settings.engine_path or "n/a"),
    ]
    if placement is not None:
        rows.append(
            (
                "placement of a block",
                f"{placement.warps} warps; tiles: {placement.register_tiles} in registers, {placement.shared_tiles} in shared memory, "
                f"{placement.streamed_tiles} streamed",
            )
        )
    rows += [("more device memory", format_bytes(settings.extra_memory_bytes)), ("L2 state", settings.l2_state)]
    rows += [(f"reason {number}", reason) for number, reason in enumerate(decision.reasons, start=1)]
    wrapped = {"text-align": "left", "white-space": "normal", "max-width": "60em"}
    return pandas.DataFrame(rows, columns=["what", "answer"]).set_index("what").style.set_properties(**wrapped)


def step_cost_table(study: StudyResult) -> pandas.DataFrame:
    """Every way of walking of the studied heads: fitted step and entry beside their predictions."""
    import pandas

    rows = [
        (
            each.shape_label,
            each.l2_state,
            each.label,
            format_us(fit.step_us if fit else None),
            format_interval_us(fit.step_us_low, fit.step_us_high) if fit else "n/a",
            format_us(each.prediction.step_us if each.prediction else None),
            signed_percent(each.prediction.step_us / fit.step_us - 1) if fit and each.prediction else "n/a",
            format_us(fit.entry_us if fit else None),
            format_us(each.prediction.entry_us if each.prediction else None),
        )
        for each in study.comparisons
        for fit in [each.fit if each.is_fitted else None]
    ]
    titles = [
        "head",
        "L2",
        "way",
        "step, measured",
        "95 % interval",
        "step, predicted",
        "error",
        "entry, measured",
        "entry, predicted",
    ]
    return pandas.DataFrame(rows, columns=titles).set_index(titles[:3])
