"""Measurement records: the only definition of the result formats *walk* and *round*, version 1, in Parquet.

A record is immutable: it is written whole or not at all, and never over another. A reader refuses unknown columns, unknown
versions, and values that cannot be. What is not known is null, never a stand-in number.

`WALK_COLUMNS` and `ROUND_COLUMNS` give each column's name, type and meaning, in order; `data/README.md` prints the same
list for people. pyarrow and pandas are imported where they are used.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.head import HEAD_KINDS
from cost_model.workload import L2_STATES, MODES, PRECISIONS, ROUNDINGS

if TYPE_CHECKING:
    import pandas
    import pyarrow

RECORD_SCHEMA_VERSION = 1
RECORD_SUFFIX = ".parquet"
NO_PROBE = "none"
"""Value of `probe` in a row that times a whole walk."""


class RecordError(BadInput):
    """A record, or a row meant for one, breaks the format. The message names the file and the reason."""


@dataclass(frozen=True)
class Column:
    """One column of a record.

    Attributes:
        name: column name, ending in its unit where it has one.
        kind: text, whole (int64), number (float64), flag (bool) or numbers (list of float64).
        meaning: one line for the dictionary.
        words: allowed values of a text column; empty where any text may stand.
        low: least allowed number; None where any number may stand.
        required: whether null is refused.
    """

    name: str
    kind: str
    meaning: str
    words: tuple[str, ...] = ()
    low: float | None = None
    required: bool = False


_PROVENANCE = (
    Column("schema_version", "whole", "version of this format", low=1, required=True),
    Column("run_id", "text", "one id for all rows of one command", required=True),
    Column("process_index", "whole", "which of the run's processes, from 0; each has fresh allocations", low=0, required=True),
    Column("recorded_at_utc", "text", "time of the row, ISO 8601 in UTC", required=True),
    Column("command", "text", "command line that made the run"),
    Column("git_commit", "text", "commit of the code"),
    Column("git_dirty", "flag", "whether tracked files differed from the commit"),
    Column("wts_lab_version", "text", "version of the package"),
    Column("gpu_name", "text", "device name from the driver"),
    Column("gpu_sm_count", "whole", "multiprocessors that the process saw", low=1),
    Column("driver_version", "text", "NVIDIA driver"),
    Column("cuda_version", "text", "CUDA that the kernels were built with"),
    Column("torch_version", "text", "torch"),
    Column("sm_clock_mhz_before", "number", "clock of the multiprocessors before the samples", low=0),
    Column("sm_clock_mhz_after", "number", "the same after them", low=0),
    Column("throttle_reasons", "text", "reasons the driver gave for a lower clock, joined by commas; `none` where it gave none"),
)

WALK_FACTS = (
    *_PROVENANCE,
    Column("l2_state", "text", "warm, cold or serving", words=L2_STATES),
    Column("implementation", "text", "wts, torch-stepwise, or an engine with version", required=True),
    Column("variant", "text", "path within the implementation"),
    Column("mode", "text", "stepwise, streaming or resident", words=MODES),
    Column("precision", "text", "bf16 or int8x2", words=PRECISIONS),
    Column("rounding", "text", "once, twice or none", words=ROUNDINGS),
    Column("head_kind", "text", "markov, gated, rnn or domino", words=HEAD_KINDS),
    Column("vocab_size", "whole", "rows of W2 that may be chosen", low=1),
    Column("target_vocab_size", "whole", "rows of W1", low=1),
    Column("padded_vocab_size", "whole", "rows of W2 as stored", low=1),
    Column("rank", "whole", "elements of the latent", low=1),
    Column("hidden_size", "whole", "elements of the backbone's hidden vector", low=1),
    Column("gru_size", "whole", "elements of the GRU state", low=1),
    Column("candidate_pool", "whole", "candidates rescored; null for the whole vocabulary", low=0),
    Column("batch", "whole", "rows walked together", low=1),
    Column("steps", "whole", "walk length of each timed call; for a probe, its repetitions in a call", low=0),
    Column("temperature", "number", "sampling temperature, 0 is greedy", low=0),
    Column("logits_kept", "flag", "whether the step logits were stored"),
    Column("grid_blocks", "whole", "thread blocks launched", low=1),
    Column("warps", "whole", "warps a block", low=1),
    Column("register_tiles", "whole", "tiles a block keeps in registers", low=0),
    Column("shared_tiles", "whole", "tiles a block keeps in shared memory", low=0),
    Column("tensor_tiles", "whole", "tiles a block keeps in tensor memory", low=0),
    Column("streamed_tiles", "whole", "tiles a block reads again each step", low=0),
    Column("staging_tiles", "whole", "tiles of on-chip landing space for streamed ones", low=0),
    Column("exchange", "text", "how the blocks agree on the winning token"),
    Column("probe", "text", "what the row isolates; `none` for a whole walk", required=True),
    Column("work_bytes", "whole", "bytes that one call moves, for a probe", low=0),
    Column("work_operations", "whole", "operations that one call does, for a probe", low=0),
    Column("repeats", "whole", "samples asked for", low=1),
    Column("registers_per_thread", "whole", "as ptxas reports", low=0),
    Column("spill_bytes", "whole", "as ptxas reports", low=0),
    Column("samples_us", "numbers", "time of every kept call in microseconds, in order", low=0, required=True),
    Column("samples_dropped", "whole", "samples dropped because the GPU throttled", low=0),
    Column("tokens_match", "number", "share of tokens equal to the twin's; under 1 is a wrong kernel", low=0),
    Column("tokens_agree_reference", "number", "share equal to the bf16 reference, teacher-forced", low=0),
)

ROUND_FACTS = (
    *_PROVENANCE,
    Column("phase", "text", "part of the round that was timed", required=True),
    Column("target", "text", "target model"),
    Column("concurrency", "whole", "requests served together", low=1),
    Column("context_tokens", "whole", "tokens of context a request", low=0),
    Column("draft_tokens", "whole", "tokens drafted a round", low=1),
    Column("head_implementation", "text", "implementation of the head in that round"),
    Column("head_mode", "text", "stepwise, streaming or resident", words=MODES),
    Column("samples_us", "numbers", "time of every kept sample in microseconds, in order", low=0, required=True),
    Column("samples_dropped", "whole", "samples dropped because the GPU throttled", low=0),
)

WALK_COLUMNS = tuple(column.name for column in WALK_FACTS)
ROUND_COLUMNS = tuple(column.name for column in ROUND_FACTS)
_SHARES = ("tokens_match", "tokens_agree_reference")


def walk_schema() -> pyarrow.Schema:
    """Return the Arrow schema of a walk record."""
    return _schema(WALK_FACTS)


def round_schema() -> pyarrow.Schema:
    """Return the Arrow schema of a round record."""
    return _schema(ROUND_FACTS)


def walk_row(**facts: object) -> dict:
    """Return a row of a walk record with every column; those not given are None, and the version is filled in.

    Raises:
        RecordError: a name is not a column.
    """
    return _row("walk", ROUND_OR_WALK["walk"], facts)


def round_row(**facts: object) -> dict:
    """Return a row of a round record with every column; see `walk_row`."""
    return _row("round", ROUND_OR_WALK["round"], facts)


def write_walk(path: Path | str, rows: Iterable[Mapping]) -> Path:
    """Write a walk record whole or not at all, and return its path.

    Args:
        path: file to create; folders are made.
        rows: rows as `walk_row` returns them; a missing column is null.

    Raises:
        RecordError: the file exists, there is no row, or a row breaks the format (names row, column and value).
    """
    return _write(Path(path), WALK_FACTS, rows)


def write_round(path: Path | str, rows: Iterable[Mapping]) -> Path:
    """Write a round record whole or not at all, and return its path; see `write_walk`."""
    return _write(Path(path), ROUND_FACTS, rows)


def read_walk(path: Path | str) -> pandas.DataFrame:
    """Return a walk record as a frame with WALK_COLUMNS in order.

    Whole numbers have dtype Int64, flags boolean, numbers float64 (NaN where null), texts object (None where null), and
    each entry of `samples_us` is a float64 array.

    Raises:
        RecordError: the file is missing, truncated, not Parquet, another format or version, or has impossible values.
    """
    return _read(Path(path), "walk")


def read_round(path: Path | str) -> pandas.DataFrame:
    """Return a round record as a frame with ROUND_COLUMNS in order; see `read_walk`."""
    return _read(Path(path), "round")


def read_walk_folder(folder: Path | str) -> pandas.DataFrame:
    """Return all walk records under a folder as one frame, with the file's stem in an added last column `record`.

    Round records and names that begin with a point are passed over.

    Raises:
        RecordError: there is no walk record, or one of them cannot be read.
    """
    import pandas

    folder = Path(folder)
    paths = [path for path in sorted(folder.rglob(f"*{RECORD_SUFFIX}")) if not path.name.startswith(".")]
    walks = [path for path in paths if _format_of(path, _arrow_columns(path)) == "walk"]
    if not walks:
        raise RecordError(f"{folder}: holds no walk record (*{RECORD_SUFFIX}); give a folder such as data/measurements/<gpu>")
    return pandas.concat([read_walk(path).assign(record=path.stem) for path in walks], ignore_index=True)


def frame_rows(frame: pandas.DataFrame) -> list[dict]:
    """Return a frame's rows as plain Python values (None for what is not known), ready for JSON or for writing."""
    return [{name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def record_path(folder: Path | str, gpu_id: str, utc: datetime, case: str) -> Path:
    """Return where a record belongs: `<folder>/<gpu_id>/<date>-<case>.parquet`.

    Args:
        folder: such as `data/measurements`.
        gpu_id: catalogue id.
        utc: time of the run; must carry its time zone.
        case: small letters, digits, points and hyphens.

    Raises:
        RecordError: the id or the case is not such a word, or the time has no zone.
    """
    for name, word in (("gpu_id", gpu_id), ("case", case)):
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", word):
            raise RecordError(f"{name} is {word!r}; use small letters, digits, points and hyphens")
    if utc.tzinfo is None:
        raise RecordError(f"the time {utc!r} has no time zone; use datetime.now(timezone.utc)")
    return Path(folder) / gpu_id / f"{utc.astimezone(timezone.utc):%Y-%m-%d}-{case}{RECORD_SUFFIX}"


ROUND_OR_WALK = {"walk": WALK_FACTS, "round": ROUND_FACTS}


def _schema(columns: tuple[Column, ...]) -> pyarrow.Schema:
    """Build the Arrow schema of some columns."""
    import pyarrow

    types = {
        "text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64(), "flag": pyarrow.bool_(),
        "numbers": pyarrow.list_(pyarrow.float64()),
    }
    return pyarrow.schema([pyarrow.field(column.name, types[column.kind], not column.required) for column in columns])


def _row(format_name: str, columns: tuple[Column, ...], facts: Mapping) -> dict:
    """Spread facts over the columns of a format."""
    unknown = sorted(facts.keys() - {column.name for column in columns})
    if unknown:
        raise RecordError(f"a {format_name} row has no column {', '.join(unknown)}; columns are in data/README.md")
    return {column.name: None for column in columns} | {"schema_version": RECORD_SCHEMA_VERSION} | dict(facts)


def _write(path: Path, columns: tuple[Column, ...], rows: Iterable[Mapping]) -> Path:
    """Check rows, write them beside the target and link the file into place, which fails if the target exists."""
    import pyarrow
    from pyarrow import parquet

    if path.exists():
        raise RecordError(f"{path}: exists; records are never changed, so choose another name or remove it yourself")
    rows = list(rows)
    if not rows:
        raise RecordError(f"{path}: there is no row to write")
    table = pyarrow.Table.from_arrays(
        [_array(path, column, [row.get(column.name) for row in rows]) for column in columns], schema=_schema(columns))
    unknown = sorted({name for row in rows for name in row} - set(table.column_names))
    if unknown:
        raise RecordError(f"{path}: unknown columns {', '.join(unknown)}; columns are in data/README.md")
    _check(path, columns, table)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        _place(Path(temporary), path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _place(temporary: Path, path: Path) -> None:
    """Give a finished file its name unless the name is taken; a hard link refuses a taken name in one step."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise RecordError(f"{path}: appeared while it was being written; choose another name") from error
    except OSError:
        os.rename(temporary, path)


def _array(path: Path, column: Column, values: list) -> pyarrow.Array:
    """Build one Arrow column, naming it if a value has another type."""
    import pyarrow

    try:
        return pyarrow.array(values, type=_schema((column,)).field(0).type)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, TypeError) as error:
        raise RecordError(f"{path}: column {column.name} takes {column.kind}: {error}") from error


def _arrow_columns(path: Path) -> list[str]:
    """Return a Parquet file's column names, or raise RecordError."""
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_schema(path).names
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"{path}: is not a whole Parquet file ({error})") from error


def _format_of(path: Path, names: list[str]) -> str:
    """Tell which format a file's columns make, or raise RecordError saying what differs from the nearest one."""
    for format_name, columns in ROUND_OR_WALK.items():
        if names == [column.name for column in columns]:
            return format_name
    nearest = "round" if "phase" in names else "walk"
    expected = [column.name for column in ROUND_OR_WALK[nearest]]
    unknown = [name for name in names if name not in expected]
    missing = [name for name in expected if name not in names]
    reasons = [f"unknown columns {', '.join(unknown)}"] * bool(unknown) + [f"no columns {', '.join(missing)}"] * bool(missing)
    raise RecordError(f"{path}: is not a {nearest} record: {'; '.join(reasons) or 'its columns are in another order'}")


def _read(path: Path, format_name: str) -> pandas.DataFrame:
    """Read and check a record of the named format."""
    import pandas
    import pyarrow
    from pyarrow import parquet

    found = _format_of(path, _arrow_columns(path))
    if found != format_name:
        raise RecordError(f"{path}: is a {found} record, not a {format_name} record")
    columns = ROUND_OR_WALK[format_name]
    try:
        table = parquet.ParquetFile(path).read()
        _check_types(path, columns, table)
        _check(path, columns, table)
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"{path}: is not a whole Parquet file ({error})") from error
    return pandas.DataFrame({column.name: _series(column, table[column.name]) for column in columns}, columns=list(table.column_names))


def _series(column: Column, values: pyarrow.ChunkedArray) -> pandas.Series:
    """Turn one Arrow column into a pandas column of the documented dtype."""
    import numpy
    import pandas

    plain = values.to_pylist()
    if column.kind == "numbers":
        arrays = [numpy.asarray(samples, dtype=numpy.float64) for samples in plain]
        return pandas.Series(arrays, dtype=object)
    dtype = {"text": object, "whole": "Int64", "number": "float64", "flag": "boolean"}[column.kind]
    return pandas.Series(plain, dtype=dtype)


def _check_types(path: Path, columns: tuple[Column, ...], table: pyarrow.Table) -> None:
    """Raise RecordError unless every column has the type of the format."""
    expected = _schema(columns)
    for name in table.column_names:
        if not table.schema.field(name).type.equals(expected.field(name).type):
            given, wanted = table.schema.field(name).type, expected.field(name).type
            raise RecordError(f"{path}: column {name} has the type {given}; the format says {wanted}")


def _check(path: Path, columns: tuple[Column, ...], table: pyarrow.Table) -> None:
    """Raise RecordError, naming file, row, column and value, where a value cannot be."""
    for column in columns:
        values = table[column.name].to_pylist()
        for number, value in enumerate(values):
            reason = _fault(column, value)
            if reason:
                raise RecordError(f"{path}: row {number}: {column.name} {reason}")


def _fault(column: Column, value: object) -> str | None:
    """Return why a value cannot stand in a column, or None if it can."""
    if value is None:
        return "is null, but must be known" if column.required else None
    if column.name == "schema_version" and value != RECORD_SCHEMA_VERSION:
        return f"is {value}; this code reads version {RECORD_SCHEMA_VERSION}"
    if column.name == "recorded_at_utc":
        return None if _is_utc(value) else f"is {value!r}; write ISO 8601 in UTC, such as 2026-01-31T12:00:00Z"
    if column.words and value not in column.words:
        return f"is {value!r}; it must be one of {', '.join(column.words)}"
    numbers = value if column.kind == "numbers" else [value] if column.kind in ("whole", "number") else []
    for one in numbers:
        if one is None or not math.isfinite(one) or (column.low is not None and one < column.low):
            return f"holds {one!r}; it must be finite and at least {column.low:g}"
    if column.name in _SHARES and value > 1:
        return f"is {value!r}; a share is at most 1"
    return None


def _is_utc(text: str) -> bool:
    """Tell whether a text is an ISO 8601 time with the zone UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment.utcoffset() == timezone.utc.utcoffset(None)


def _plain(value: object) -> object:
    """Turn a cell into a plain Python value; missing values become None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
