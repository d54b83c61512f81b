"""Records: round trips, and a refusal that names file and reason for everything that a record must not be."""

import json
import math
import string
from datetime import datetime, timedelta, timezone

import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from cost_model import measurement
from cost_model.gpu import AnotherGpu, load_gpu
from cost_model.measurement import (
    ROUND_COLUMNS, WALK_COLUMNS, RecordError, frame_rows, read_round, read_walk, read_walk_folder, record_path, require_gpu, round_row,
    walk_row, write_round, write_walk,
)
from cost_model.paths import data_root
from cost_model.record_columns import ROUND_FACTS, WALK_FACTS

DESIGN_COLUMNS = """schema_version, run_id, process_index, recorded_at_utc, command, git_commit, git_dirty, wts_lab_version,
gpu_name, gpu_sm_count, driver_version, cuda_version, torch_version, sm_clock_mhz_before, sm_clock_mhz_after, throttle_reasons,
l2_state, implementation, variant, mode, precision, rounding, head_kind, vocab_size, target_vocab_size, padded_vocab_size, rank,
hidden_size, gru_size, candidate_pool, batch, steps, temperature, logits_kept, grid_blocks, warps, register_tiles, shared_tiles,
tensor_tiles, streamed_tiles, staging_tiles, exchange, probe, work_bytes, work_operations, repeats, registers_per_thread,
spill_bytes, samples_us, samples_dropped, tokens_match, tokens_agree_reference"""


def a_row(**facts):
    """The least that a walk row must state, and whatever a test adds."""
    known = {
        "run_id": "r1", "process_index": 0, "recorded_at_utc": "2026-11-29T20:00:00Z", "implementation": "wts", "probe": "none",
        "samples_us": [58.2, 58.4],
    }
    return walk_row(**(known | facts))


def column_values(column):
    """A strategy for what one column may hold."""
    low = 0 if column.low is None else column.low
    strategies = {
        "text": st.sampled_from(column.words) if column.words else st.text(string.printable + "µγ é", max_size=12),
        "whole": st.integers(int(low), 2**62),
        "number": st.floats(low, 1.0 if column.name.startswith("tokens") else 1e12),
        "flag": st.booleans(),
        "numbers": st.lists(st.floats(0, 1e9), max_size=5),
    }
    values = strategies[column.kind]
    if column.name == "schema_version":
        return st.just(1)
    if column.name == "recorded_at_utc":
        return st.datetimes(timezones=st.just(timezone.utc)).map(lambda moment: moment.isoformat())
    return values if column.required else st.none() | values


WALK_ROWS = st.fixed_dictionaries({column.name: column_values(column) for column in WALK_FACTS})
ROUND_ROWS = st.fixed_dictionaries({column.name: column_values(column) for column in ROUND_FACTS})


def test_the_columns_are_those_of_the_design_in_its_order():
    assert WALK_COLUMNS == tuple(name.strip() for name in DESIGN_COLUMNS.replace("\n", " ").split(","))
    assert ROUND_COLUMNS == WALK_COLUMNS[:16] + (
        "phase", "target", "concurrency", "context_tokens", "draft_tokens", "head_implementation", "head_mode", "samples_us",
        "samples_dropped",
    )
    assert measurement.WALK_SCHEMA.names == list(WALK_COLUMNS)
    assert measurement.ROUND_SCHEMA.field("samples_us").type == pyarrow.list_(pyarrow.float64())


def test_the_dictionary_prints_the_same_columns():
    dictionary = (data_root() / "README.md").read_text("utf-8").split("## Records")[1]
    lines = [line for line in dictionary.splitlines() if line.startswith("| `")]
    shared = len(ROUND_FACTS) - 9
    expected = [
        f"| `{column.name}` | {column.kind} | {'no' if column.required else 'unknown'} | {column.meaning} |"
        for column in (*WALK_FACTS, *ROUND_FACTS[shared:])
    ]
    assert lines == expected


@settings(max_examples=25)
@given(st.lists(WALK_ROWS, min_size=1, max_size=3))
def test_a_walk_record_reads_back_as_it_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("records") / "case.parquet"
    assert write_walk(path, rows) == path
    frame = read_walk(path)
    assert list(frame.columns) == list(WALK_COLUMNS)
    assert frame_rows(frame) == rows
    assert json.loads(json.dumps(frame_rows(frame))) == rows


@settings(max_examples=15)
@given(st.lists(ROUND_ROWS, min_size=1, max_size=3))
def test_a_round_record_reads_back_as_it_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("records") / "case.parquet"
    write_round(path, rows)
    assert frame_rows(read_round(path)) == rows


def test_dtypes_do_not_depend_on_what_is_known(tmp_path):
    known = read_walk(write_walk(tmp_path / "a.parquet", [a_row(batch=1, git_dirty=True, temperature=0.0, mode="resident")]))
    unknown = read_walk(write_walk(tmp_path / "b.parquet", [a_row()]))
    assert known.dtypes.equals(unknown.dtypes)
    assert known["batch"].dtype == "Int64" and known["git_dirty"].dtype == "boolean"
    assert isinstance(known["samples_us"][0], numpy.ndarray) and known["samples_us"][0].dtype == numpy.float64
    assert unknown["mode"][0] is None and math.isnan(unknown["temperature"][0])


def test_numpy_values_are_taken(tmp_path):
    row = a_row(batch=numpy.int64(4), temperature=numpy.float32(1.0), samples_us=numpy.array([1.5, 2.5]), logits_kept=numpy.bool_(True))
    back = frame_rows(read_walk(write_walk(tmp_path / "a.parquet", [row])))[0]
    assert (back["batch"], back["temperature"], back["samples_us"], back["logits_kept"]) == (4, 1.0, [1.5, 2.5], True)


def test_a_row_fills_in_version_and_nulls():
    row = walk_row(batch=4)
    assert tuple(row) == WALK_COLUMNS
    assert row["schema_version"] == 1 and row["batch"] == 4 and row["steps"] is None
    assert round_row(phase="verify")["phase"] == "verify"


def test_a_row_refuses_unknown_names():
    with pytest.raises(RecordError, match="a walk row has no column colour, step_us"):
        walk_row(step_us=1.0, colour="red")
    with pytest.raises(RecordError, match="a round row has no column batch"):
        round_row(batch=1)


@pytest.mark.parametrize(("facts", "reason"), [
    ({"batch": -1}, "row 0: batch holds -1; it must be finite and at least 1"),
    ({"samples_us": [1.0, math.nan]}, "samples_us holds nan"),
    ({"samples_us": [1.0, -2.0]}, "samples_us holds -2.0"),
    ({"samples_us": [1.0, None]}, "samples_us holds None"),
    ({"samples_us": None}, "samples_us is null, but must be known"),
    ({"temperature": math.inf}, "temperature holds inf"),
    ({"tokens_match": 1.5}, "a share is at most 1"),
    ({"mode": "fast"}, "mode is 'fast'; it must be one of stepwise, streaming, resident"),
    ({"precision": "fp8"}, "precision is 'fp8'; it must be one of bf16, int8x2"),
    ({"head_kind": "medusa"}, "it must be one of markov, gated, rnn, domino"),
    ({"schema_version": 2}, "schema_version is 2; this code reads version 1"),
    ({"recorded_at_utc": "yesterday"}, "recorded_at_utc is 'yesterday'; write ISO 8601 in UTC"),
    ({"recorded_at_utc": "2026-11-29T20:00:00"}, "write ISO 8601 in UTC"),
    ({"recorded_at_utc": "2026-11-29T20:00:00+01:00"}, "write ISO 8601 in UTC"),
    ({"probe": None}, "probe is null, but must be known"),
    ({"batch": "four"}, "column batch takes whole numbers"),
    ({"batch": 1.5}, "column batch takes whole numbers, not 1.5"),
    ({"batch": True}, "column batch takes whole numbers, not True"),
    ({"git_dirty": 1}, "column git_dirty takes true or false"),
    ({"batch": 2**70}, "column batch takes whole numbers"),
    ({"command": 5}, "column command takes text"),
])
def test_a_value_that_cannot_be_is_refused_and_nothing_is_left_behind(tmp_path, facts, reason):
    path = tmp_path / "case.parquet"
    with pytest.raises(RecordError) as error:
        write_walk(path, [a_row(**facts)])
    assert str(path) in str(error.value) and reason in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_rows_from_elsewhere_are_checked_for_names(tmp_path):
    with pytest.raises(RecordError, match="unknown columns colour"):
        write_walk(tmp_path / "case.parquet", [a_row() | {"colour": "red"}])
    with pytest.raises(RecordError, match="there is no row to write"):
        write_walk(tmp_path / "case.parquet", [])


def test_a_record_is_never_overwritten(tmp_path):
    path = write_walk(tmp_path / "deep" / "case.parquet", [a_row()])
    before = path.read_bytes()
    with pytest.raises(RecordError, match="exists; records are never changed"):
        write_walk(path, [a_row(batch=2)])
    assert path.read_bytes() == before


def test_a_record_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "case.parquet"
    original = parquet.write_table

    def write_and_lose_the_race(*arguments, **keywords):
        original(*arguments, **keywords)
        path.write_text("the other one")

    monkeypatch.setattr(parquet, "write_table", write_and_lose_the_race)
    with pytest.raises(RecordError, match="appeared while it was being written"):
        write_walk(path, [a_row()])
    assert path.read_text() == "the other one" and list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        write_walk(tmp_path / "case.parquet", [a_row()])
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40)
@given(data=st.data())
def test_a_truncated_record_is_named(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("truncated")
    whole = write_walk(folder / "whole.parquet", [a_row()]).read_bytes()
    part = folder / "part.parquet"
    part.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(RecordError) as error:
        read_walk(part)
    assert str(part) in str(error.value) and "is not a whole Parquet file" in str(error.value)


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_record_is_refused_or_reads_as_it_was(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    path = write_walk(folder / "case.parquet", [a_row()])
    expected = frame_rows(read_walk(path))
    content = bytearray(path.read_bytes())
    pages_end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    place = data.draw(st.integers(0, pages_end - 1) | st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found = frame_rows(read_walk(path))
    except RecordError as error:
        assert str(path) in str(error)
    else:
        assert place >= pages_end or found == expected, "pages carry checksums, so damage to them must not go unseen"


def test_other_files_are_named(tmp_path):
    with pytest.raises(RecordError, match="no such file"):
        read_walk(tmp_path / "absent.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("vocab_size,median_us\n")
    with pytest.raises(RecordError, match="is not a whole Parquet file"):
        read_walk(text)
    with pytest.raises(RecordError, match="is not a whole Parquet file"):
        read_walk(tmp_path)
    foreign = tmp_path / "foreign.parquet"
    pandas.DataFrame({"a": [1], "b": [2]}).to_parquet(foreign)
    with pytest.raises(RecordError, match="is not a walk record: unknown columns a, b; no columns schema_version, run_id"):
        read_walk(foreign)
    with pytest.raises(RecordError, match="must be a whole record: move this one away, or name the records") as refusal:
        read_walk_folder(tmp_path)
    assert str(refusal.value).startswith(str(foreign)) and f"Every .parquet file under {tmp_path} " in str(refusal.value)


def rewritten(tmp_path, change):
    """A good record, changed as a foreign program might."""
    table = parquet.read_table(write_walk(tmp_path / "good.parquet", [a_row(batch=1)]))
    path = tmp_path / "changed.parquet"
    parquet.write_table(change(table), path)
    return path


@pytest.mark.parametrize(("change", "reason"), [
    (lambda t: t.append_column("colour", pyarrow.array(["red"])), "unknown columns colour"),
    (lambda t: t.drop_columns(["batch"]), "no columns batch"),
    (lambda t: t.select(list(reversed(t.column_names))), "its columns are in another order"),
    (lambda t: t.set_column(0, "schema_version", pyarrow.array([2])), "schema_version is 2; this code reads version 1"),
    (lambda t: t.set_column(30, "batch", pyarrow.array(["1"])), "column batch has the type string; the format says int64"),
    (lambda t: t.set_column(30, "batch", pyarrow.array([-1])), "row 0: batch holds -1"),
])
def test_a_changed_record_is_refused(tmp_path, change, reason):
    path = rewritten(tmp_path, change)
    with pytest.raises(RecordError) as error:
        read_walk(path)
    assert str(path) in str(error.value) and reason in str(error.value)


def test_walk_and_round_are_not_mixed_up(tmp_path):
    known = {"run_id": "r", "process_index": 0, "recorded_at_utc": "2026-11-29T20:00:00Z", "phase": "verify", "samples_us": [9.0]}
    rounds = write_round(tmp_path / "round.parquet", [round_row(**known)])
    with pytest.raises(RecordError, match="is a round record, not a walk record"):
        read_walk(rounds)
    with pytest.raises(RecordError, match="holds no walk record"):
        read_walk_folder(tmp_path)
    write_walk(tmp_path / "h200-sxm" / "2026-11-29-b.parquet", [a_row(batch=2)])
    write_walk(tmp_path / "h200-sxm" / "2026-11-28-a.parquet", [a_row(batch=1), a_row(batch=1)])
    (tmp_path / "h200-sxm" / ".half.parquet").write_text("")
    frame = read_walk_folder(tmp_path)
    assert frame["record"].tolist() == ["2026-11-28-a", "2026-11-28-a", "2026-11-29-b"]
    assert frame["batch"].tolist() == [1, 1, 2]
    assert list(frame.columns) == [*WALK_COLUMNS, "record"]


def test_record_path_is_gpu_date_and_case(tmp_path):
    late = datetime(2026, 11, 30, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert record_path(tmp_path, "h200-sxm", late, "resident-152k") == tmp_path / "h200-sxm" / "2026-11-29-resident-152k.parquet"
    with pytest.raises(RecordError, match="case is 'A b'; use small letters"):
        record_path(tmp_path, "h200-sxm", late, "A b")
    with pytest.raises(RecordError, match="gpu_id is '../x'"):
        record_path(tmp_path, "../x", late, "a")
    with pytest.raises(RecordError, match="has no time zone"):
        record_path(tmp_path, "h200-sxm", datetime(2026, 11, 29), "a")


def test_shipped_records_read(repository):
    folder = repository / "data" / "measurements"
    for path in sorted(folder.rglob("*.parquet")) if folder.is_dir() else []:
        schema = parquet.read_schema(path)
        frame = read_round(path) if "phase" in schema.names else read_walk(path)
        assert len(frame) > 0, path


def test_rows_must_be_of_the_gpu_that_is_asked_about():
    frame = pandas.DataFrame([walk_row(gpu_name="NVIDIA H200", gpu_sm_count=132), walk_row()])
    require_gpu(frame, load_gpu("h200-sxm", calibrated=False))
    require_gpu(frame[["steps"]], load_gpu("rtx-4090", calibrated=False))
    with pytest.raises(AnotherGpu, match="'NVIDIA H200' with 132.*not on rtx-4090"):
        require_gpu(frame, load_gpu("rtx-4090", calibrated=False))
