"""The accuracy record: written once, read back, refused where it is foreign or impossible."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")

from cost_model.measurement import RecordError  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from tests.accuracy_examples import measured_rows  # noqa: E402
from wts_lab import accuracy  # noqa: E402
from wts_lab.accuracy import COLUMNS, AccuracyRecordError, accuracy_row, read_accuracy, write_accuracy  # noqa: E402
from wts_lab.projection_formats import FORMATS  # noqa: E402


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """A record's rows of two heads, on the CPU."""
    return measured_rows()


def test_a_record_reads_back_as_it_was_written(tmp_path, rows):
    path = tmp_path / "folder" / "a.parquet"
    assert write_accuracy(path, rows) == path
    assert read_accuracy(path) == rows
    assert [row["format"] for row in rows] == [*accuracy.FORMAT_NAMES] * 2
    assert {row["head_name"]: (row["hidden_size"], row["gru_size"], row["padded_vocab_size"]) for row in rows} == {
        "small-markov": (None, None, 1216), "small-domino": (16, 8, 1216)}


def test_a_record_is_never_changed(tmp_path, rows):
    path = write_accuracy(tmp_path / "a.parquet", rows)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="exists; records are never changed"):
        write_accuracy(path, rows)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("column", "value", "reason"), [
    ("format", "int4", "'int4'; it must be one of bf16"), ("equal_step_share", 1.5, "a share is at most 1"),
    ("equal_walk_share", None, "is null, but must be known"), ("walks", 0, "at least 1"), ("schema_version", 2, "reads version 1"),
    ("prefix_length_mean", 5.0, "longer than the walk's 4 steps"), ("correction_error_max", math.inf, "must be finite"),
    ("magnitude_shares", [1.0], "it must have 28 with the sum 1"), ("level_shares", [0.0] * 28, "sum 0"),
    ("recorded_at_utc", "yesterday", "ISO 8601"),
])
def test_values_that_cannot_be_are_refused(tmp_path, rows, column, value, reason):
    with pytest.raises(AccuracyRecordError, match=f"row 0: {column}.*{reason}"):
        write_accuracy(tmp_path / "a.parquet", [rows[0] | {column: value}])
    assert list(tmp_path.iterdir()) == []


def test_rows_have_the_columns_and_no_others(tmp_path, rows):
    with pytest.raises(AccuracyRecordError, match="no column speed"):
        accuracy_row(speed=1)
    with pytest.raises(AccuracyRecordError, match="row 0 has other columns than an accuracy row: speed"):
        write_accuracy(tmp_path / "a.parquet", [rows[0] | {"speed": 1}])
    with pytest.raises(AccuracyRecordError, match="holds no row"):
        write_accuracy(tmp_path / "a.parquet", [])


def test_foreign_and_broken_files_are_refused(tmp_path, rows):
    import pyarrow
    from pyarrow import parquet

    with pytest.raises(AccuracyRecordError, match="no such file"):
        read_accuracy(tmp_path / "none.parquet")
    path = write_accuracy(tmp_path / "a.parquet", rows)
    (tmp_path / "cut.parquet").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(AccuracyRecordError, match="cut.parquet: is not a whole Parquet file"):
        read_accuracy(tmp_path / "cut.parquet")
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(AccuracyRecordError, match="is not an accuracy record of version 1; its columns differ in .*, x"):
        read_accuracy(tmp_path / "other.parquet")


def test_the_dictionary_prints_the_same_columns():
    section = (data_root() / "README.md").read_text("utf-8").split("## Accuracy records")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines == [f"| `{column.name}` | {column.kind} | {'no' if column.required else 'unknown'} | {column.meaning} |" for column in COLUMNS]


def test_formats_and_their_names_are_one_list():
    assert tuple(form.name for form in FORMATS) == accuracy.FORMAT_NAMES
