"""Tables: one row builder for fitted step costs beside predictions, and the formats that print it; engine cost tables.

`step_cost_rows` makes the rows; every writer prints the same rows and columns. Files appear whole or not at all. pandas and
pyarrow are imported by the Parquet writer only.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cost_model.engines import short_variant
from cost_model.errors import BadInput
from cost_model.files import write_text_whole, write_whole
from cost_model.fit import SeriesKey, StepFit
from cost_model.predict import Prediction
from cost_model.settings import Fingerprint
from cost_model.units import UNKNOWN
from cost_model.workload import OURS, REFERENCE

PLACEMENT_COLUMNS = ("warps", "register_tiles", "shared_tiles", "tensor_tiles", "streamed_tiles", "staging_tiles")
SERIES_COLUMNS = ("gpu_name", "implementation", "variant", "mode", "precision", "l2_state", "head_kind", "vocab_size", "rank", "batch", "temperature",
                  *PLACEMENT_COLUMNS, "exchange")
FIT_COLUMNS = ("step_us", "step_us_low", "step_us_high", "entry_us", "entry_us_low", "entry_us_high", "repeatability_us", "status", "lack_of_fit_p",
               "r_squared", "processes", "samples", "samples_dropped", "steps", "call_steps", "call_us")
PREDICTION_COLUMNS = ("predicted_step_us", "predicted_step_us_low", "predicted_step_us_high", "predicted_entry_us", "predicted_entry_us_low",
                      "predicted_entry_us_high", "floor_step_us", "predicted_call_us", "step_error", "calibrated")
COLUMNS = (*SERIES_COLUMNS, *FIT_COLUMNS, *PREDICTION_COLUMNS)
"""Columns of the step-cost table. `step_error` is predicted / fitted − 1; `steps` lists the walk lengths that were fitted, and
`call_us` is the complete call of `call_steps` steps, the longest of them."""

READING_TITLES = ("way of walking", "vocabulary × rank", "L2", "step measured", "step predicted", "error", "entry", "call")
"""Columns of the formats meant for reading: Markdown, LaTeX, HTML."""

LEGEND = (
    "All times are in microseconds (µs). A call of n steps takes entry + n × step. In parentheses: the 95 % interval. "
    "Error: the predicted step against the measured one, predicted / measured − 1, so + means predicted too slow. "
    "Entry and call were measured, unless marked as predicted. "
    "L2: warm, calls back to back; cold, L2 flushed before each call; serving, weights cold and base logits just written, as in a draft round."
)
EXPERIMENTS = "Experiments: other placements and exchanges, which the answer does not use"


class TableRefused(BadInput):
    """A table would mislead; the message says why."""


# --- rows -----------------------------------------------------------------------------------------------------------------


def step_cost_rows(fits: Iterable[tuple[SeriesKey, StepFit]], predictions: Iterable[Prediction] = ()) -> list[dict]:
    """Return one row a measured series beside its prediction, then one a prediction that no series matches.

    A prediction belongs to a series when shape, workload, mode, precision, implementation and placement agree (and the
    variant, for an engine).
    """
    left = {_prediction_key(prediction): prediction for prediction in predictions}
    rows, used = [], set()
    for key, fit in fits:
        place = _series_key(key)
        used.add(place)
        rows.append(_row(key, fit, left.get(place)))
    return rows + [_row(None, None, prediction) for place, prediction in left.items() if place not in used]


def _series_key(key: SeriesKey) -> tuple:
    """What a series and its prediction share."""
    placement = None if key.warps is None else tuple(getattr(key, name) or 0 for name in PLACEMENT_COLUMNS)
    return (key.vocab_size, key.rank, key.batch or 1, key.temperature or 0.0, key.l2_state or "warm", key.mode, key.precision, key.implementation,
            _variant(key.implementation, key.variant), placement)


def _prediction_key(prediction: Prediction) -> tuple:
    """The same of a prediction."""
    placement = tuple(getattr(prediction.placement, name) for name in PLACEMENT_COLUMNS) if prediction.placement else None
    head, workload = prediction.head, prediction.workload
    return (head.vocab_size, head.rank, workload.batch, workload.temperature, workload.l2_state, prediction.mode, prediction.precision,
            prediction.implementation, _variant(prediction.implementation, prediction.variant), placement)


def _variant(implementation: str | None, variant: str | None) -> str | None:
    """The variant where it names a path: an engine's, by its short name."""
    return None if implementation in (OURS, REFERENCE) else short_variant(implementation, variant)


def _row(key: SeriesKey | None, fit: StepFit | None, prediction: Prediction | None) -> dict:
    """Build one row with every column; what is not known is None."""
    row = dict.fromkeys(COLUMNS)
    if prediction is not None:
        row |= _predicted_series(prediction) if key is None else {}
        row |= {f"predicted_{name}": getattr(prediction, name) for name in ("step_us", "step_us_low", "step_us_high", "entry_us", "entry_us_low", "entry_us_high")}
        row |= {"floor_step_us": prediction.floor_step_us, "calibrated": prediction.calibrated}
    if key is not None:
        row |= {name: getattr(key, name) for name in SERIES_COLUMNS}
    if fit is not None:
        row |= {name: getattr(fit, name) for name in FIT_COLUMNS if name not in ("steps", "call_steps", "call_us")}
        row["steps"], row["call_steps"] = " ".join(map(str, fit.steps)), max(fit.steps, default=None)
        row["call_us"] = fit.call_us(row["call_steps"]) if fit.usable else None
        if prediction is not None and fit.usable:
            row["step_error"] = prediction.step_us / fit.step_us - 1
    else:
        row["status"], row["call_steps"] = "predicted", prediction.workload.steps if prediction is not None else None
    if prediction is not None and row["call_steps"] is not None:
        row["predicted_call_us"] = prediction.call_us(row["call_steps"])
    return row


def _predicted_series(prediction: Prediction) -> dict:
    """Series columns of a row that was only predicted; the GPU is the catalogue's."""
    head, workload, placement = prediction.head, prediction.workload, prediction.placement
    counts = {name: getattr(placement, name) for name in PLACEMENT_COLUMNS} if placement else {}
    return {"gpu_name": prediction.gpu_id, "implementation": prediction.implementation, "variant": prediction.variant, "mode": prediction.mode,
            "precision": prediction.precision, "l2_state": workload.l2_state, "head_kind": head.kind, "vocab_size": head.vocab_size,
            "rank": head.rank, "batch": workload.batch, "temperature": workload.temperature, **counts}


# --- formats --------------------------------------------------------------------------------------------------------------


def write_csv(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write all columns as CSV; full precision, unknown is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if row[name] is None else row[name] for name in COLUMNS} for row in rows)
    return write_text_whole(path, text.getvalue())


def write_parquet(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write all columns as Parquet; unknown is null. Column types do not depend on the rows."""
    import pyarrow
    import pyarrow.parquet

    text = {"gpu_name", "implementation", "variant", "mode", "precision", "l2_state", "head_kind", "exchange", "status", "steps"}
    whole = {"vocab_size", "rank", "batch", "processes", "samples", "samples_dropped", "call_steps", *PLACEMENT_COLUMNS}
    kind = {name: pyarrow.string() if name in text else pyarrow.int64() if name in whole else pyarrow.bool_() if name == "calibrated" else pyarrow.float64()
            for name in COLUMNS}
    schema = pyarrow.schema([(name, kind[name]) for name in COLUMNS])
    table = pyarrow.Table.from_pylist([{name: row[name] for name in COLUMNS} for row in rows], schema=schema)
    return write_whole(path, lambda temporary: pyarrow.parquet.write_table(table, temporary))


def write_json(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write all columns as a JSON array of objects; unknown is null."""
    return write_text_whole(path, json.dumps([{name: row[name] for name in COLUMNS} for row in rows], indent=1, ensure_ascii=False) + "\n")


def write_markdown(rows: Sequence[Mapping], path: Path | str, *, title: str = "Step costs", experiments: Sequence[Mapping] = ()) -> Path:
    """Write the answer's rows for reading as a Markdown page: a title, what the columns mean, the table, and experiments last.

    Args:
        title: what was measured: GPU, date and source.
        experiments: rows that the answer does not use; they get a section of their own.
    """
    parts = [f"# {title}", LEGEND, markdown_table(rows).rstrip("\n")]
    if experiments:
        parts += [f"## {EXPERIMENTS}", markdown_table(experiments, placed=True).rstrip("\n")]
    return write_text_whole(path, "\n\n".join(parts) + "\n")


def write_latex(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write the columns for reading as a LaTeX tabular."""
    return write_text_whole(path, latex_table(rows))


def write_html(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write the columns for reading as one HTML table element."""
    return write_text_whole(path, html_table(rows) + "\n")


def markdown_table(rows: Sequence[Mapping], *, placed: bool = False) -> str:
    """Return the rows as a Markdown table; `placed` adds each walk's exchange and tiles to its name."""
    titles = reading_titles(rows)
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join('---' if place < WORD_COLUMNS else '---:' for place in range(len(titles)))}|"]
    lines += [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in reading_cells(row, titles, placed=placed))} |" for row in rows]
    return "\n".join(lines) + "\n"


def latex_table(rows: Sequence[Mapping], *, placed: bool = False) -> str:
    """Return the rows as a LaTeX tabular."""
    titles = reading_titles(rows)
    aligned = "".join("l" if place < WORD_COLUMNS else "r" for place in range(len(titles)))
    lines = [rf"\begin{{tabular}}{{{aligned}}}", " & ".join(map(_latex, titles)) + r" \\ \hline"]
    lines += [" & ".join(map(_latex, reading_cells(row, titles, placed=placed))) + r" \\" for row in rows]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def html_table(rows: Sequence[Mapping], *, placed: bool = False) -> str:
    """Return the rows as an HTML table element; cells of words have the class `words`."""
    titles = reading_titles(rows)

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=words' if place < WORD_COLUMNS else ''}>{html.escape(text)}</{tag}>" for place, text in enumerate(texts))

    body = "".join(f"<tr>{cells('td', reading_cells(row, titles, placed=placed))}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>"


# --- cells for reading ------------------------------------------------------------------------------------------------------

WORD_COLUMNS = 3
"""The first columns hold words, the others numbers."""


def reading_titles(rows: Sequence[Mapping]) -> tuple[str, ...]:
    """Return the titles for some rows: the call's says its steps where those are the same in every row."""
    steps = {row["call_steps"] for row in rows if row["call_steps"] is not None}
    return READING_TITLES if len(steps) != 1 else (*READING_TITLES[:-1], f"{steps.pop()}-step call")


def reading_cells(row: Mapping, titles: Sequence[str], *, placed: bool = False) -> tuple[str, ...]:
    """Return the cells of one row under `reading_titles`. What is not known is `n/a`."""
    name = way_name(row["implementation"], row["variant"], row["mode"], row["precision"])
    call = _measured_or_predicted(row["call_us"], row["predicted_call_us"])
    if titles[-1] == READING_TITLES[-1] and row["call_steps"] is not None:
        call += f" of {row['call_steps']} steps"
    return (
        f"{name}{_placed(row)}" if placed else name, f"{row['vocab_size']:,} × {row['rank']}", row["l2_state"] or UNKNOWN,
        _with_interval(row, "step_us"), _with_interval(row, "predicted_step_us"), signed_percent(row["step_error"]),
        _measured_or_predicted(row["entry_us"], row["predicted_entry_us"]), call,
    )


def way_name(implementation: str | None, variant: str | None, mode: str | None, precision: str | None) -> str:
    """Name a way of walking, for instance `resident int8x2`, `stepwise torch` or `sglang-0.5.23 greedy`."""
    if implementation == OURS:
        return f"{mode} {precision}"
    name = "stepwise torch" if implementation == REFERENCE else str(implementation)
    path = _variant(implementation, variant)
    return f"{name} {path}" if path not in (None, "none", "default") else name


def signed_percent(share: float | None) -> str:
    """Write a relative error with its sign and one decimal, for instance `+6.6 %` or `−2.8 %`; 0 has no sign."""
    if share is None or math.isnan(share):
        return UNKNOWN
    text = f"{share:+.1%}".replace("%", " %").replace("-", "−")
    return "0.0 %" if text[1:] == "0.0 %" else text


def _placed(row: Mapping) -> str:
    """Exchange and tiles of a fused walk, to tell experiments apart."""
    if row["warps"] is None:
        return ""
    counts = ((row["register_tiles"], "registers"), (row["shared_tiles"], "shared"), (row["streamed_tiles"], "streamed"))
    tiles = ", ".join(f"{count} {where}" for count, where in counts if count)
    return f", {row['exchange']}, tiles of a block: {tiles}" if row["exchange"] else f", tiles of a block: {tiles}"


def _with_interval(row: Mapping, name: str) -> str:
    """A time with its 95 % interval."""
    return UNKNOWN if row[name] is None else f"{cell(row[name])} ({cell(row[f'{name}_low'])} to {cell(row[f'{name}_high'])})"


def _measured_or_predicted(measured_us: float | None, predicted_us: float | None) -> str:
    """The measured time, else the predicted one, marked as such."""
    return cell(measured_us) if measured_us is not None or predicted_us is None else f"{cell(predicted_us)} predicted"


def cell(us: float | None) -> str:
    """Write a time in microseconds without its unit: three significant digits, whole numbers from 1,000 on."""
    if us is None or math.isnan(us):
        return UNKNOWN
    text = f"{us:,.0f}" if abs(us) >= 999.5 else f"{us:#.3g}".rstrip(".")
    return text.replace("-", "−")


def _latex(text: str) -> str:
    """Escape what LaTeX would take for markup."""
    return text.replace("\\", r"\textbackslash ").translate({ord(mark): "\\" + mark for mark in "&%$#_{}"})


# --- engine cost tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineTable:
    """Cost of a head call by walk length, as a scheduler loads it.

    Attributes:
        call_us: walk length -> microseconds.
        noise_us: how far two measurements of one entry may lie apart.
        fingerprint: what the table is valid for.
    """

    call_us: Mapping[int, float]
    noise_us: float
    fingerprint: Fingerprint

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_us", {int(steps): float(value) for steps, value in sorted(self.call_us.items())})
        values = list(self.call_us.values())
        bad = {steps: value for steps, value in self.call_us.items() if not 0 < value < math.inf}
        if bad or len(values) < 2 or any(steps < 1 for steps in self.call_us):
            raise TableRefused(f"a cost table needs two or more walk lengths of at least 1 with finite times above 0; given {dict(self.call_us)}")
        if any(low > high for low, high in zip(values, values[1:])):
            raise TableRefused(f"the times fall as the walk grows: {dict(self.call_us)}; measure again, a longer walk cannot cost less")
        if not values[-1] - values[0] > self.noise_us >= 0:
            raise TableRefused(f"the table spans {values[-1] - values[0]:.3g} us, not above the measured noise of {self.noise_us:.3g} us; "
                               "a flat table would mislead a scheduler. Measure more processes or longer walks")


def engine_table(fit: StepFit, steps: Sequence[int], fingerprint: Fingerprint) -> EngineTable:
    """Return the cost table of a fitted series over walk lengths.

    Noise is the larger of repeatability and the interval's half-width, over the span of walk lengths.
    """
    if not fit.usable:
        raise TableRefused(f"the series has no fit: {fit.reason}")
    span = max(steps) - min(steps) if steps else 0
    noise = max(fit.repeatability_us or 0.0, (fit.step_us_high - fit.step_us_low) / 2) * span
    return EngineTable({count: fit.line_us(count) for count in steps}, noise, fingerprint)


ENGINE_TABLE_FORM = "weights-that-stay step costs"
ENGINE_TABLE_VERSION = 1


def write_engine_table(table: EngineTable, path: Path | str) -> Path:
    """Write a cost table as JSON and read it back as an engine would; what does not come back equal is an error."""
    plain = {"form": ENGINE_TABLE_FORM, "schema_version": ENGINE_TABLE_VERSION, "call_us": {str(steps): value for steps, value in table.call_us.items()},
             "noise_us": table.noise_us, "fingerprint": asdict(table.fingerprint)}

    def write(temporary: Path) -> None:
        temporary.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if read_engine_table(temporary) != table:
            raise TableRefused(f"{path}: the table does not read back as it was written")

    return write_whole(path, write)


def read_engine_table(path: Path | str) -> EngineTable:
    """Read a cost table.

    Raises:
        TableRefused: the file is missing, truncated, foreign or misleading.
    """
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
        if plain["form"] != ENGINE_TABLE_FORM or plain["schema_version"] != ENGINE_TABLE_VERSION:
            raise KeyError("form or schema_version")
        return EngineTable({int(steps): value for steps, value in plain["call_us"].items()}, plain["noise_us"], Fingerprint(**plain["fingerprint"]))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TableRefused):
            raise
        raise TableRefused(f"{path}: is not a cost table of this tool ({error})") from error
