"""Measurement records: the only definition of the result formats *walk* and *round*, version 1, in Parquet.

A record is immutable: it is written whole or not at all, and never over another. A reader refuses unknown columns, unknown
versions, and values that cannot be. What is not known is null, never a stand-in number.

`cost_model.record_columns` lists the columns with their types and meanings; this module is the only one that reads and
writes them. pyarrow and pandas are imported where they are used.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.files import naming, place_new, require_writable
from cost_model.gpu import Gpu, require_same_gpu
from cost_model.record_columns import RECORD_SCHEMA_VERSION, ROUND_FACTS, WALK_FACTS, Column, column_fault

if TYPE_CHECKING:
    import pandas
    import pyarrow

RECORD_SUFFIX = ".parquet"
_KIND_WORDS = {"text": "text", "whole": "whole numbers", "number": "numbers", "flag": "true or false", "numbers": "lists of numbers"}
NO_PROBE = "none"
"""Value of `probe` in a row that times a whole walk."""


class RecordError(BadInput):
    """A record, or a row meant for one, breaks the format. The message names the file and the reason."""


WALK_COLUMNS = tuple(column.name for column in WALK_FACTS)
ROUND_COLUMNS = tuple(column.name for column in ROUND_FACTS)
FORMATS = {"walk": WALK_FACTS, "round": ROUND_FACTS}
"""Columns of each record format, by its name."""


def __getattr__(name: str) -> pyarrow.Schema:
    """Return WALK_SCHEMA or ROUND_SCHEMA, the Arrow schemas, built when asked for so that importing needs no pyarrow."""
    if name in ("WALK_SCHEMA", "ROUND_SCHEMA"):
        return _schema(FORMATS[name.removesuffix("_SCHEMA").lower()])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def walk_row(**facts: object) -> dict:
    """Return a row of a walk record with every column; those not given are None, and the version is filled in.

    Raises:
        RecordError: a name is not a column.
    """
    return _row("walk", facts)


def round_row(**facts: object) -> dict:
    """Return a row of a round record with every column; see `walk_row`."""
    return _row("round", facts)


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
    try:
        walks = [path for path in paths if _format_of(path, _arrow_columns(path)) == "walk"]
    except RecordError as error:
        raise RecordError(f"{error}. Every {RECORD_SUFFIX} file under {folder} must be a whole record: move this one away, or name the records") from error
    if not walks:
        raise RecordError(f"{folder}: holds no walk record (*{RECORD_SUFFIX}); give a folder such as data/measurements/<gpu>")
    return pandas.concat([read_walk(path).assign(record=path.stem) for path in walks], ignore_index=True)


def frame_rows(frame: pandas.DataFrame) -> list[dict]:
    """Return a frame's rows as plain Python values (None for what is not known), ready for JSON or for writing."""
    return [{name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def require_gpu(frame: pandas.DataFrame, gpu: Gpu) -> None:
    """Raise AnotherGpu, naming both, unless every row of a frame of records was measured on `gpu`.

    A row that does not know its device, or its multiprocessors, is not refused for that.
    """
    names = [name for name in ("gpu_name", "gpu_sm_count") if name in frame]
    for row in frame_rows(frame[names].drop_duplicates()) if names else ():
        require_same_gpu(gpu, row.get("gpu_name"), row.get("gpu_sm_count"))


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
    _require_name("gpu_id", gpu_id)
    _require_name("case", case)
    if utc.tzinfo is None:
        raise RecordError(f"the time {utc!r} has no time zone; use datetime.now(timezone.utc)")
    return Path(folder) / gpu_id / f"{utc.astimezone(timezone.utc):%Y-%m-%d}-{case}{RECORD_SUFFIX}"


def require_place(folder: Path | str, case: str) -> None:
    """Refuse a folder of records that cannot be written in, and a case that cannot name a record: before a device is known.

    Raises:
        RecordError: the case is no such word as `record_path` takes.
        BadInput: as `cost_model.files.require_writable`.
    """
    _require_name("case", case)
    require_writable(folder, folder=True)


def require_new(path: Path) -> None:
    """Refuse a record that could not be written, before anything is measured for it.

    Raises:
        RecordError: there is one of that name.
        BadInput: as `cost_model.files.require_writable`.
    """
    if path.exists():
        raise RecordError(f"{path}: exists; records are never changed, so choose another name or folder, or remove it yourself")
    require_writable(path)


def _require_name(name: str, word: str) -> None:
    """Raise RecordError unless a word can be part of a record's path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", word):
        raise RecordError(f"{name} is {word!r}; use small letters, digits, points and hyphens")


def _schema(columns: tuple[Column, ...]) -> pyarrow.Schema:
    """Build the Arrow schema of some columns."""
    import pyarrow

    types = {
        "text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64(), "flag": pyarrow.bool_(),
        "numbers": pyarrow.list_(pyarrow.float64()),
    }
    return pyarrow.schema([pyarrow.field(column.name, types[column.kind], not column.required) for column in columns])


def _row(format_name: str, facts: Mapping) -> dict:
    """Spread facts over the columns of a format."""
    columns = FORMATS[format_name]
    unknown = sorted(facts.keys() - {column.name for column in columns})
    if unknown:
        raise RecordError(f"a {format_name} row has no column {', '.join(unknown)}; columns are in data/README.md")
    return {column.name: None for column in columns} | {"schema_version": RECORD_SCHEMA_VERSION} | dict(facts)


def _write(path: Path, columns: tuple[Column, ...], rows: Iterable[Mapping]) -> Path:
    """Check rows, write them beside the target and link the file into place, which fails if the target exists."""
    import pyarrow

    require_new(path)
    rows = list(rows)
    if not rows:
        raise RecordError(f"{path}: there is no row to write")
    table = pyarrow.Table.from_arrays(
        [_array(path, column, [row.get(column.name) for row in rows]) for column in columns], schema=_schema(columns))
    unknown = sorted({name for row in rows for name in row} - set(table.column_names))
    if unknown:
        raise RecordError(f"{path}: unknown columns {', '.join(unknown)}; columns are in data/README.md")
    _check(path, columns, table)
    with naming(path):
        _write_table(path, table)
    return path


def _write_table(path: Path, table: pyarrow.Table) -> None:
    """Write a checked table under a temporary name and give it its own, unless that is taken."""
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            parquet.write_table(table, file, compression="zstd", write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        place_new(Path(temporary), path)
    except FileExistsError as error:
        raise RecordError(f"{path}: appeared while it was being written; choose another name") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _array(path: Path, column: Column, values: list) -> pyarrow.Array:
    """Build one Arrow column, naming it if a value has another type. Arrow itself would cut 1.5 down to 1."""
    import pyarrow

    if column.kind == "whole":
        for value in values:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise RecordError(f"{path}: column {column.name} takes whole numbers, not {value!r}")
    try:
        return pyarrow.array(values, type=_schema((column,)).field(0).type)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, TypeError) as error:
        raise RecordError(f"{path}: column {column.name} takes {_KIND_WORDS[column.kind]}: {error}") from error


@contextmanager
def _refusing_broken_files(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises on a missing, truncated, damaged or foreign file into a RecordError that names it."""
    import pyarrow

    try:
        yield
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file") from error
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise RecordError(f"{path}: is not a whole Parquet file ({error})") from error


def _arrow_columns(path: Path) -> list[str]:
    """Return a Parquet file's column names, or raise RecordError."""
    from pyarrow import parquet

    with _refusing_broken_files(path):
        return parquet.read_schema(path).names


def _format_of(path: Path, names: list[str]) -> str:
    """Tell which format a file's columns make, or raise RecordError saying what differs from the nearest one."""
    for format_name, columns in FORMATS.items():
        if names == [column.name for column in columns]:
            return format_name
    nearest = "round" if "phase" in names else "walk"
    expected = [column.name for column in FORMATS[nearest]]
    unknown = [name for name in names if name not in expected]
    missing = [name for name in expected if name not in names]
    reasons = [f"unknown columns {', '.join(unknown)}"] * bool(unknown) + [f"no columns {', '.join(missing)}"] * bool(missing)
    raise RecordError(f"{path}: is not a {nearest} record: {'; '.join(reasons) or 'its columns are in another order'}")


def _read(path: Path, format_name: str) -> pandas.DataFrame:
    """Read and check a record of the named format."""
    import pandas
    from pyarrow import parquet

    found = _format_of(path, _arrow_columns(path))
    if found != format_name:
        raise RecordError(f"{path}: is a {found} record, not a {format_name} record")
    columns = FORMATS[format_name]
    with _refusing_broken_files(path):
        table = parquet.ParquetFile(path, page_checksum_verification=True).read()
        _check_types(path, columns, table)
        _check(path, columns, table)
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
            reason = column_fault(column, value)
            if reason:
                raise RecordError(f"{path}: row {number}: {column.name} {reason}")


def _plain(value: object) -> object:
    """Turn a cell into a plain Python value; missing values become None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
