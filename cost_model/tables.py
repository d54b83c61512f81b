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

from cost_model.errors import BadInput
from cost_model.files import write_text_whole, write_whole
from cost_model.fit import SeriesKey, StepFit
from cost_model.predict import Prediction
from cost_model.settings import Fingerprint
from cost_model.workload import OURS, REFERENCE

PLACEMENT_COLUMNS = ("warps", "register_tiles", "shared_tiles", "tensor_tiles", "streamed_tiles", "staging_tiles")
SERIES_COLUMNS = ("gpu_name", "implementation", "variant", "mode", "precision", "l2_state", "head_kind", "vocab_size", "rank", "batch", "temperature",
                  *PLACEMENT_COLUMNS)
FIT_COLUMNS = ("step_us", "step_us_low", "step_us_high", "entry_us", "entry_us_low", "entry_us_high", "repeatability_us", "status", "lack_of_fit_p",
               "r_squared", "processes", "samples", "samples_dropped", "steps")
PREDICTION_COLUMNS = ("predicted_step_us", "predicted_step_us_low", "predicted_step_us_high", "predicted_entry_us", "predicted_entry_us_low",
                      "predicted_entry_us_high", "floor_step_us", "step_error", "calibrated")
COLUMNS = (*SERIES_COLUMNS, *FIT_COLUMNS, *PREDICTION_COLUMNS)
"""Columns of the step-cost table. `step_error` is predicted / fitted − 1; `steps` lists the walk lengths that were fitted."""

SHORT_COLUMNS = ("implementation", "variant", "mode", "precision", "l2_state", "vocab_size", "rank", "batch", "register_tiles", "shared_tiles", "streamed_tiles",
                 "step_us", "step_us_low", "step_us_high", "entry_us", "entry_us_low", "entry_us_high", "status",
                 "predicted_step_us", "predicted_step_us_low", "predicted_step_us_high", "predicted_entry_us", "floor_step_us", "step_error")
"""Columns of the formats meant for reading: Markdown, LaTeX, HTML."""

TABLE_DIGITS = 4


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
    """The variant where it names a path: an engine's."""
    return None if implementation in (OURS, REFERENCE) else variant


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
        row |= {name: getattr(fit, name) for name in FIT_COLUMNS if name != "steps"}
        row["steps"] = " ".join(map(str, fit.steps))
        if prediction is not None and fit.usable:
            row["step_error"] = prediction.step_us / fit.step_us - 1
    else:
        row["status"] = "predicted"
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

    text = {"gpu_name", "implementation", "variant", "mode", "precision", "l2_state", "head_kind", "status", "steps"}
    whole = {"vocab_size", "rank", "batch", "processes", "samples", "samples_dropped", *PLACEMENT_COLUMNS}
    kind = {name: pyarrow.string() if name in text else pyarrow.int64() if name in whole else pyarrow.bool_() if name == "calibrated" else pyarrow.float64()
            for name in COLUMNS}
    schema = pyarrow.schema([(name, kind[name]) for name in COLUMNS])
    table = pyarrow.Table.from_pylist([{name: row[name] for name in COLUMNS} for row in rows], schema=schema)
    return write_whole(path, lambda temporary: pyarrow.parquet.write_table(table, temporary))


def write_json(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write all columns as a JSON array of objects; unknown is null."""
    return write_text_whole(path, json.dumps([{name: row[name] for name in COLUMNS} for row in rows], indent=1, ensure_ascii=False) + "\n")


def write_markdown(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write the columns for reading as a Markdown table."""
    return write_text_whole(path, markdown_table(rows))


def write_latex(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write the columns for reading as a LaTeX tabular."""
    return write_text_whole(path, latex_table(rows))


def write_html(rows: Sequence[Mapping], path: Path | str) -> Path:
    """Write the columns for reading as one HTML table element."""
    return write_text_whole(path, html_table(rows) + "\n")


def markdown_table(rows: Sequence[Mapping]) -> str:
    """Return the rows as a Markdown table."""
    lines = [f"| {' | '.join(SHORT_COLUMNS)} |", f"|{'|'.join('---' for _ in SHORT_COLUMNS)}|"]
    lines += [f"| {' | '.join(cell(row[name]).replace('|', chr(92) + '|') for name in SHORT_COLUMNS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def latex_table(rows: Sequence[Mapping]) -> str:
    """Return the rows as a LaTeX tabular."""
    lines = [rf"\begin{{tabular}}{{{'l' * len(SHORT_COLUMNS)}}}", " & ".join(map(_latex, SHORT_COLUMNS)) + r" \\ \hline"]
    lines += [" & ".join(_latex(cell(row[name])) for name in SHORT_COLUMNS) + r" \\" for row in rows]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def html_table(rows: Sequence[Mapping]) -> str:
    """Return the rows as an HTML table element."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in SHORT_COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell(row[name]))}</td>" for name in SHORT_COLUMNS) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell(value: object) -> str:
    """Write one value for reading: four significant digits, empty where unknown. Units are in the column names."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{TABLE_DIGITS}g}" if isinstance(value, float) else str(value)


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
