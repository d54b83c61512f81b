"""The accuracy record, version 1: how much a number format of W2·u changes, one row for each head and format, in Parquet.

This module is the only definition of the columns; `data/README.md` prints them for people, and a test holds the two together.
`accuracy_run.py` measures the rows, `accuracy_report.py` shows them, and docs/accuracy.md explains the measures. A record is written
whole or not at all and never over another; what is not known is null. pyarrow is imported where it is used, torch never.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.files import write_whole
from cost_model.measurement import require_new
from cost_model.record_columns import WALK_FACTS, Column, column_fault

if TYPE_CHECKING:
    import pyarrow

ACCURACY_SCHEMA_VERSION = 1
FORMAT_NAMES = ("bf16", "int8x2", "int8", "fp8-e4m3")
"""Formats of a record, in the order of reports; `projection_formats.FORMATS` has their arithmetic."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""Quantiles of an error by the end of their column's name."""

MAGNITUDE_BINS = 28
"""Equal bins of |w| / max|w| from 0 to 1. Two of them reach 1/14 = 32/448, below which three quarters of E4M3's levels lie."""

BINS_BELOW_FOURTEENTH = 2


class AccuracyRecordError(BadInput):
    """An accuracy record, or a row meant for one, breaks the format. The message names the file and the reason."""


def _shared(*names: str) -> tuple[Column, ...]:
    """Columns that mean the same in a walk record, by name."""
    known = {column.name: column for column in WALK_FACTS}
    return tuple(known[name] for name in names)


def _error_columns(prefix: str, meaning: str) -> tuple[Column, ...]:
    """Quantiles and maximum of one kind of error."""
    quantiles = (Column(f"{prefix}_{name}", "number", f"{share:g} quantile of {meaning}", low=0) for name, share in QUANTILES.items())
    return (*quantiles, Column(f"{prefix}_max", "number", f"largest {meaning}", low=0, required=True))


COLUMNS = (
    Column("schema_version", "whole", "version of this format", low=1, required=True),
    *_shared("run_id", "recorded_at_utc", "command", "git_commit", "git_dirty", "wts_lab_version", "gpu_name", "gpu_sm_count",
             "driver_version", "cuda_version", "torch_version"),
    Column("device", "text", "where the run computed: cpu or cuda", words=("cpu", "cuda"), required=True),
    Column("head_name", "text", "name of the head", required=True),
    Column("head_source", "text", "`random`, or the checkpoint's file or folder name", required=True),
    *_shared("head_kind", "vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "hidden_size", "gru_size"),
    Column("seed", "whole", "seed of the inputs, and of the head where it is random", required=True),
    Column("base_spread", "number", "standard deviation of the random base logits; null for base logits from elsewhere", low=0),
    Column("walks", "whole", "walks compared", low=1, required=True),
    Column("steps", "whole", "steps of each walk", low=1, required=True),
    Column("rounding", "text", "rounding of the format's logits; the reference rounds twice", words=("once", "twice", "none"), required=True),
    Column("format", "text", "number format of the product: bf16, int8x2, int8 or fp8-e4m3", words=FORMAT_NAMES, required=True),
    Column("equal_step_share", "number", "share of steps whose token is the reference's, given the reference's history", low=0, required=True),
    Column("prefix_length_mean", "number", "steps that a walk on its own history shares with the reference's before the first difference", low=0,
           required=True),
    Column("equal_walk_share", "number", "share of walks that are equal from end to end", low=0, required=True),
    Column("preference_max", "number", "largest amount by which the reference's logits prefer its token to the one chosen instead; 0 for ties",
           low=0, required=True),
    Column("correction_std", "number", "standard deviation of the exact corrections, in logits", low=0, required=True),
    Column("correction_error_rms", "number", "root mean square of the correction's error, over `correction_std`", low=0, required=True),
    *_error_columns("correction_error", "absolute error of a correction, over `correction_std`"),
    *_error_columns("logit_error", "absolute difference of a logit from the reference's"),
    Column("error_samples", "whole", "errors that the quantiles rest on, evenly spaced; maxima and root mean squares rest on all", low=1, required=True),
    Column("weight_error_rms", "number", "root mean square of the stored weights' error, over the weights' standard deviation", low=0, required=True),
    Column("magnitude_shares", "numbers", f"share of weights in each of {MAGNITUDE_BINS} equal bins of \\|w\\| / max\\|w\\| of their row", low=0,
           required=True),
    Column("level_shares", "numbers", "share of the format's positive levels in the same bins of level / highest level; null for bf16, which has no scale",
           low=0),
)  # fmt: skip
"""Columns of the record, in order."""

COLUMN_NAMES = tuple(column.name for column in COLUMNS)


def accuracy_row(**facts: object) -> dict:
    """Return a row with every column; those not given are None, and the version is filled in.

    Raises:
        AccuracyRecordError: a name is not a column.
    """
    unknown = sorted(facts.keys() - set(COLUMN_NAMES))
    if unknown:
        raise AccuracyRecordError(f"an accuracy row has no column {', '.join(unknown)}; columns are in data/README.md")
    return dict.fromkeys(COLUMN_NAMES) | {"schema_version": ACCURACY_SCHEMA_VERSION} | facts


def below_fourteenth(shares: list[float]) -> float:
    """Share of weights, or of levels, below 1/14 of the maximum, from `magnitude_shares` or `level_shares`."""
    return sum(shares[:BINS_BELOW_FOURTEENTH])


def write_accuracy(path: Path | str, rows: Iterable[Mapping]) -> Path:
    """Write a record whole or not at all, and return its path; folders are made.

    Raises:
        RecordError: the file exists.
        AccuracyRecordError: there is no row, or a row breaks the format (names row, column and value).
    """
    import pyarrow
    from pyarrow import parquet

    path, rows = Path(path), [dict(row) for row in rows]
    require_new(path)
    _check(path, rows)
    table = pyarrow.Table.from_pylist(rows, schema=_schema())
    return write_whole(path, lambda temporary: parquet.write_table(table, temporary, compression="zstd", write_page_checksum=True))


def read_accuracy(path: Path | str) -> list[dict]:
    """Return the rows of a record as plain values, None for what is not known.

    Raises:
        AccuracyRecordError: the file is missing, no whole Parquet file, another format or version, or has impossible values.
    """
    import pyarrow
    from pyarrow import parquet

    path = Path(path)
    try:
        table = parquet.ParquetFile(path, page_checksum_verification=True).read()
    except FileNotFoundError as error:
        raise AccuracyRecordError(f"{path}: no such file") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise AccuracyRecordError(f"{path}: is not a whole Parquet file ({error})") from error
    if not table.schema.equals(_schema()):
        differing = sorted(set(table.column_names) ^ set(COLUMN_NAMES)) or ["their order or types"]
        raise AccuracyRecordError(f"{path}: is not an accuracy record of version {ACCURACY_SCHEMA_VERSION}; its columns differ in {', '.join(differing)}")
    rows = table.to_pylist()
    _check(path, rows)
    return rows


def _schema() -> pyarrow.Schema:
    """Arrow schema of the record."""
    import pyarrow

    types = {"text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64(), "flag": pyarrow.bool_(),
             "numbers": pyarrow.list_(pyarrow.float64())}
    return pyarrow.schema([pyarrow.field(column.name, types[column.kind], not column.required) for column in COLUMNS])


def _check(path: Path, rows: list[dict]) -> None:
    """Raise AccuracyRecordError, naming file, row, column and value, where a value cannot be."""
    if not rows:
        raise AccuracyRecordError(f"{path}: holds no row")
    for number, row in enumerate(rows):
        if set(row) != set(COLUMN_NAMES):
            raise AccuracyRecordError(f"{path}: row {number} has other columns than an accuracy row: {', '.join(sorted(set(row) ^ set(COLUMN_NAMES)))}")
        for column in COLUMNS:
            fault = _fault(column, row)
            if fault:
                raise AccuracyRecordError(f"{path}: row {number}: {column.name} {fault}")


def _fault(column: Column, row: Mapping) -> str | None:
    """Return why a value cannot stand in its column, or None if it can."""
    value = row[column.name]
    if column.name == "schema_version":
        return None if value == ACCURACY_SCHEMA_VERSION else f"is {value}; this code reads version {ACCURACY_SCHEMA_VERSION}"
    if column_fault(column, value) or value is None:
        return column_fault(column, value)
    if column.name.endswith("_share") and value > 1:
        return f"is {value!r}; a share is at most 1"
    if column.kind == "numbers" and (len(value) != MAGNITUDE_BINS or not math.isclose(sum(value), 1, abs_tol=1e-9)):
        return f"has {len(value)} shares with the sum {sum(value):g}; it must have {MAGNITUDE_BINS} with the sum 1"
    if column.name == "prefix_length_mean" and value > row["steps"]:
        return f"is {value!r}, longer than the walk's {row['steps']} steps"
    return None
