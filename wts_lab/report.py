"""The report: one self-contained HTML file that works offline, and the one picture of the answer.

`render_report` turns a StudyResult into HTML: the verdict and its reasons on top, three figures, the table of every series, and
where the numbers come from.  plotly.js is inlined once.  `write_picture` draws the answer as a PNG through a Chromium that is
installed.  `python -m wts_lab.report --picture docs/images/answer.png` makes the README's picture from the recorded runs.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.engines import load_engine
from cost_model.tables import EXPERIMENTS, LEGEND, html_table, signed_percent
from cost_model.units import format_interval_us, format_us
from wts_lab.compare import gain_split, tiers_of
from wts_lab.headline import best_and_rival, call_words, headline

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from cost_model.head import Head
    from wts_lab.comparison import Comparison
    from wts_lab.study import StudyResult

PLOTLY_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
"""A browser without a screen, and without a network of its own."""
PICTURE_SIZE_PX = (1280, 876)

QUESTION = (
    "What would fusing the draft walk give on this GPU, what would keeping its weights on chip add, and is it worth deploying?"
)
L2_WORDS = {
    "warm": "called back to back (warm L2)",
    "serving": "in a draft round (serving L2: weights cold, base logits just written)",
    "cold": "with L2 flushed (cold)",
}

STYLE = """
:root { --ink:#2b2f36; --quiet:#6b7280; --line:#e3e6ea; --soft:#f7f8f9; }
* { box-sizing:border-box; }
body { margin:0; background:#fff; color:var(--ink); font:16px/1.5 Inter,'Segoe UI','Helvetica Neue',Arial,sans-serif; }
main { max-width:1220px; margin:0 auto; padding:36px 24px 64px; }
h1 { font-size:30px; line-height:1.25; margin:6px 0 10px; letter-spacing:-.01em; }
h2 { font-size:19px; margin:44px 0 10px; }
.question, .note { color:var(--quiet); margin:0; }
.note { font-size:14.5px; margin-top:12px; }
.legend { margin:0 0 10px; }
.badge { display:inline-block; padding:3px 11px; margin:0 6px 6px 0; border:1px solid var(--line); border-radius:999px;
  background:var(--soft); font-size:14px; }
.badge.source { background:#eef6ff; border-color:#c7def5; }
.decision { border:1px solid var(--line); border-left:5px solid #009E73; border-radius:8px; padding:16px 22px; margin:22px 0 8px;
  background:var(--soft); }
.decision.no { border-left-color:#D55E00; }
.decision b.verdict { font-size:20px; }
ul { margin:8px 0 0; padding-left:1.2em; }
li { margin:3px 0; }
table { border-collapse:collapse; width:100%; font-size:14.5px; font-variant-numeric:tabular-nums; }
th, td { white-space:nowrap; text-align:right; padding:7px 10px; }
th { font-weight:600; color:var(--quiet); border-bottom:1.5px solid #c9ced6; vertical-align:bottom; }
td { border-bottom:1px solid var(--line); }
th.words, td.words { text-align:left; }
td.prose { white-space:normal; min-width:22em; }
.scroll { overflow-x:auto; }
.figure { margin:26px -6px 0; }
dl { display:grid; grid-template-columns:max-content 1fr; gap:4px 20px; font-size:14px; margin:0; }
dt { color:var(--quiet); }
dd { margin:0; overflow-wrap:anywhere; }
"""

PICTURE_STYLE = "main { padding:20px 24px 0; } h1 { font-size:24px; } .modebar { display:none !important; }"


def render_report(result: StudyResult) -> str:
    """The report as one HTML document.  Needs plotly."""
    from plotly.offline import get_plotlyjs

    head = result.heads[0]
    shown = result.shown(head, _shown_state(result))
    parts = [_header(result, shown), _decision(result), _states_note(result), _ways_table(shown, result.request.longest, _shown_state(result))]
    parts += [_figure_html(figure) for figure in report_figures(result)]
    parts += [_other_decisions(result), _all_series(result), _provenance(result)]
    title = html.escape(f"{result.decision.verdict}: {head.name} on {result.gpu.name}")
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def report_figures(result: StudyResult) -> tuple[go.Figure, ...]:
    """Call time over steps, where each step's time goes, and where the matrix sits, for the first head."""
    from wts_lab.ui import figures
    from wts_lab.ui.step_figure import step_terms_figure

    head = result.heads[0]
    shown = result.shown(head, _shown_state(result))
    tiers = _tiers_figure(result, head, shown)
    return (figures.call_time_figure(shown, steps=result.request.longest), step_terms_figure(shown), *([tiers] if tiers else []))


def _tiers_figure(result: StudyResult, head: Head, shown: Sequence[Comparison]) -> go.Figure | None:
    """The memory tiers of the resident walk, or of another fused one; None where the GPU's sizes are not known."""
    from wts_lab.ui.tier_figure import memory_tiers_figure

    placed = sorted((each for each in shown if each.placement is not None), key=lambda each: each.mode == "resident")
    try:
        tiers = tiers_of(result.gpu, head, placed[-1])
    except (BadInput, IndexError):
        return None
    return memory_tiers_figure(tiers, title=f"Where the matrix sits: {placed[-1].label}")


def _shown_state(result: StudyResult) -> str:
    """The L2 state that the figures show: warm if it was studied, for that is how kernels are compared; else the first."""
    states = result.request.l2_states
    return "warm" if "warm" in states else states[0]


def _figure_html(figure: go.Figure) -> str:
    import plotly.io

    options = dict(full_html=False, include_plotlyjs=False, include_mathjax=False, config=PLOTLY_CONFIG)
    return f"<div class='figure'>{plotly.io.to_html(figure, **options)}</div>"


def _header(result: StudyResult, shown: Sequence[Comparison]) -> str:
    head = result.heads[0]
    badges = [
        ("source", result.source),
        ("", result.gpu.name),
        ("", " · ".join((*([] if head.kind == "markov" else [f"{head.kind} head"]), f"V {head.vocab_size:,}", f"rank {head.rank}", *result.request.load))),
        ("", L2_WORDS[_shown_state(result)]),
    ]
    spans = "".join(f"<span class='badge {kind}'>{html.escape(text)}</span>" for kind, text in badges)
    return (
        f"<p class='question'>{QUESTION}</p>"
        f"<h1>{html.escape(headline(shown, result.request.longest))}</h1>{spans}"
    )


def _states_note(result: StudyResult) -> str:
    """Why headline and verdict name different times: each L2 state with its calls and what they rest on."""
    steps, head = result.request.longest, result.heads[0]
    states = dict.fromkeys((_shown_state(result), result.decision.settings.l2_state))
    if len(states) < 2:
        return ""
    parts = []
    for state in states:
        rivals = best_and_rival(result.shown(head, state), steps)
        if rivals is not None:
            parts.append(f"{state} L2: {' against '.join(call_words(each, steps) for each in rivals)}")
    text = (
        f"Headline and figures are about {next(iter(states))} L2, the state in which kernels are compared and engines' times are published; "
        f"the verdict is about {result.decision.settings.l2_state} L2, the state in a draft round. {'; '.join(parts)}."
    )
    return f"<p class='note'>{html.escape(text)}</p>"


def _decision(result: StudyResult, most_reasons: int | None = None) -> str:
    decision = result.decision
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in decision.reasons[:most_reasons])
    kind = "decision" if decision.verdict.startswith("deploy") else "decision no"
    where = html.escape(L2_WORDS[decision.settings.l2_state])
    return f"<div class='{kind}'>Verdict, {where}: <b class='verdict'>{html.escape(decision.verdict)}</b><ul>{reasons}</ul></div>"


def _other_decisions(result: StudyResult) -> str:
    if len(result.heads) < 2:
        return ""
    rows = [
        (
            f"V {head.vocab_size:,}, rank {head.rank}",
            result.decisions[head].verdict,
            result.decisions[head].reasons[0] if result.decisions[head].reasons else "",
        )
        for head in result.heads
    ]
    return "<h2>Every shape studied</h2>" + _table(("shape", "verdict", "first reason"), rows, words=3, prose=2)


def _ways_table(shown: Sequence[Comparison], steps: int, l2_state: str) -> str:
    """One row a way: predicted and measured step and entry, the error between them, and the complete call."""
    titles = (
        "way of walking",
        "step, predicted",
        "measured",
        "95 % interval",
        "error",
        "entry, predicted",
        "measured",
        f"{steps}-step call",
        "call is",
    )
    table = _table(titles, [_way_cells(each, steps) for each in shown])
    title = f"The ways of walking, {html.escape(L2_WORDS[l2_state])}"
    return f"<h2>{title}</h2>{table}{_gain_line(shown)}{_engine_note(shown)}"


def _engine_note(shown: Sequence[Comparison]) -> str:
    """What an engine's paths are, for readers who do not know the engine; nothing where it is not described."""
    lines = []
    for each in shown:
        try:
            paths = load_engine(each.implementation).paths if each.is_engine else ()
        except BadInput:
            continue
        lines += [f"{each.label} is {path.kernel} ({path.what})." for path in paths if path.variant == each.variant]
    return f"<p class='note'>{html.escape(' '.join(lines))} Both give the same greedy walk.</p>" if len(lines) > 1 else ""


def _gain_line(shown: Sequence[Comparison]) -> str:
    """What fusion, precision and residency give a step, in that order; nothing where a way is missing."""
    split = gain_split(shown)
    if split is None:
        return ""
    parts = (("fusion", split.fusion_us), ("int8x2", split.precision_us), ("residency", split.residency_us))
    gains = ", ".join(f"<b>{name} {_minus(format_us(us))}</b>" for name, us in parts)
    return (
        f"<p class='note'>From the engine's fastest path to the resident walk, a step saves {_minus(format_us(split.total_us))}: {gains}. "
        "A part below 0 costs time. Steps are measured ones where they were measured, else predicted.</p>"
    )


def _minus(text: str) -> str:
    """A number with a minus sign in place of a hyphen."""
    return text.replace("-", "−")


def _way_cells(each: Comparison, steps: int) -> tuple[str, ...]:
    fit, prediction = each.fit, each.prediction
    measured = each.is_fitted
    error = signed_percent(prediction.step_us / fit.step_us - 1 if measured and prediction is not None else None)
    return (
        each.label,
        format_us(prediction.step_us if prediction is not None else None),
        format_us(fit.step_us if measured else None),
        format_interval_us(fit.step_us_low, fit.step_us_high) if measured else "n/a",
        error,
        format_us(prediction.entry_us if prediction is not None else None),
        format_us(fit.entry_us if measured else None),
        format_us(each.call_us(steps)),
        each.basis(steps) or "n/a",
    )


def _all_series(result: StudyResult) -> str:
    """The step-cost table of every head and L2 state, as step_costs.md has it, experiments last."""
    if not result.rows:
        return ""
    answer, experiments = result.rows[: result.answer_rows], result.rows[result.answer_rows :]
    page = f"<h2>Step-cost table</h2><p class='note legend'>{html.escape(LEGEND)}</p><div class='scroll'>{html_table(answer)}</div>"
    if not experiments:
        return page
    return f"{page}<h2>{html.escape(EXPERIMENTS)}</h2><div class='scroll'>{html_table(experiments, placed=True)}</div>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1, prose: int | None = None) -> str:
    """An HTML table; the first `words` columns hold text and are left-aligned, the rest numbers; column `prose` wraps."""

    def look(place: int) -> str:
        return " class='words prose'" if place == prose else " class=words" if place < words else ""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(f"<{tag}{look(place)}>{html.escape(value)}</{tag}>" for place, value in enumerate(values))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table></div>"


def _provenance(result: StudyResult) -> str:
    """Where the numbers come from, and what the reader should know."""
    facts: dict[str, Any] = {
        "source": result.source,
        **{name.replace("_", " "): value for name, value in result.origin.items() if value is not None},
    }
    predictions = [each.prediction for each in result.comparisons if each.prediction is not None]
    facts["calibration of the model"] = (
        result.gpu.calibration or "none for this GPU: parameters are published or carried over, and bands are wide"
    )
    kinds: Mapping[str, str] = {name: kind for prediction in predictions for name, kind in prediction.kinds.items()}
    facts["parameters"] = ", ".join(f"{name} ({kind})" for name, kind in sorted(kinds.items()))
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(_words(value))}</dd>" for name, value in facts.items())
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in result.notes)
    return f"<h2>Where the numbers come from</h2><dl>{items}</dl>" + (
        f"<h2>Notes</h2><ul class='note'>{notes}</ul>" if notes else ""
    )


def _words(value: Any) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, (list, tuple)) else str(value)


def picture_html(result: StudyResult) -> str:
    """The README's picture as a page: headline, source, verdict, call times."""
    from plotly.offline import get_plotlyjs

    from wts_lab.ui import figures

    head, l2_state = result.heads[0], _shown_state(result)
    shown = result.shown(head, l2_state)
    body = _figure_html(figures.call_time_figure(shown, steps=result.request.longest, height_px=520))
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><style>{STYLE}{PICTURE_STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body><main>{_header(result, shown)}{_decision(result, most_reasons=2)}{body}</main></body></html>"
    )


def find_browser() -> str | None:
    """A Chromium or Chrome on the path, or None."""
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


def write_picture(result: StudyResult, path: Path) -> Path:
    """Draw the answer as a PNG, whole or not at all.  Raises BadInput where no Chromium is installed."""
    browser = find_browser()
    if browser is None:
        raise BadInput(
            f"a picture needs one of {', '.join(BROWSERS)}, and none is installed; "
            "install chromium, or open report.html and save the figures"
        )
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page, drawn = Path(folder) / "answer.html", Path(folder) / "answer.png"
        page.write_text(picture_html(result), encoding="utf-8")
        command = [
            browser,
            *BROWSER_FLAGS,
            f"--user-data-dir={folder}/profile",
            "--force-device-scale-factor=1.5",
            f"--window-size={PICTURE_SIZE_PX[0]},{PICTURE_SIZE_PX[1]}",
            "--virtual-time-budget=8000",
            f"--screenshot={drawn}",
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if not drawn.is_file():
            raise BadInput(
                f"{browser} drew no picture: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no message'}"
            )
        partial = path.with_name(f".{path.name}.part")
        shutil.copyfile(drawn, partial)
        partial.replace(path)
    return path


def main() -> None:
    """`python -m wts_lab.report --picture FILE [--gpu ID] [--records FOLDER]`: the picture of the recorded answer."""
    import argparse

    from wts_lab.study import StudyRequest, run_study

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--picture", type=Path, required=True, help="PNG to write")
    parser.add_argument("--gpu", default=None, help="GPU whose records to draw; the one recorded last if left out")
    parser.add_argument(
        "--records", type=Path, default=None, help="folder of recorded runs; those that ship with the lab if left out"
    )
    given = parser.parse_args()
    try:
        print(write_picture(run_study(StudyRequest(gpu=given.gpu, records=given.records, live=False)), given.picture))
    except BadInput as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
