"""The stress of the exchange as far as it goes without a GPU: launches, verdicts, the record, refusals, and that its kernels compile."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import stress as command
from benchmarks.stress import stress_row
from cost_model.errors import BadInput
from cost_model.measurement import frame_rows, read_walk, walk_row, write_walk
from cost_model.workload import EXCHANGES
from wts_lab import build, environment
from wts_lab.abi import CONSTANTS
from wts_lab.stress import LONG_ROUNDS, ROWS, SHORT_ROUNDS, VOLLEY, VOCAB_TILES, StressResult, build_stress, launch_plan, stress_exchange


@given(st.sampled_from(ROWS), st.integers(0, 1 << 64))
def test_launches_are_long_and_short_in_turn_of_any_batch(rows, seed):
    launches = list(islice(launch_plan(rows, Random(seed)), 40 * VOLLEY))
    assert all((rounds >= LONG_ROUNDS) == (number % VOLLEY == 0) for number, (rounds, _) in enumerate(launches))
    assert {batch for _, batch in launches} <= set(range(1, rows + 1))
    assert rows == 1 or {1, rows} <= {batch for _, batch in launches}


def test_narrow_epochs_wrap_within_a_short_launch_and_rows_come_back_at_every_distance():
    wrap = 1 << CONSTANTS["kNarrowEpochBits"]
    assert SHORT_ROUNDS >= 2 * wrap
    launches = islice(launch_plan(2, Random(0)), 100 * VOLLEY)
    distances, away = set(), 0
    for rounds, batch in launches:
        if batch == 2 and away:
            distances.add(away % wrap)
        away = 0 if batch == 2 else away + rounds
    assert distances == set(range(wrap)), "a row's old words must meet every epoch of the field"


def test_the_blocks_share_the_tiles_unevenly_and_no_row_leaves_a_narrow_word():
    shares = {(block + 1) * VOCAB_TILES // 132 - block * VOCAB_TILES // 132 for block in range(132)}
    assert shares == {71, 72} and 72 * CONSTANTS["kTileRows"] <= CONSTANTS["kNarrowRows"]


@pytest.mark.parametrize(("exchanges", "mismatches", "stalls", "clean"), [(10, 0, 0, True), (10, 1, 0, False), (10, 0, 1, False), (0, 0, 0, False)])
def test_only_exchanges_without_mismatch_and_stall_are_clean(exchanges, mismatches, stalls, clean):
    assert StressResult(exchanges, mismatches, stalls, 132).clean is clean


def test_a_result_is_a_row_of_a_walk_record(tmp_path):
    row = stress_row(4, True, "dense-lines", StressResult(1000, 330, 0, 132, (2.5, 3.5)))
    assert (row["variant"], row["batch"], row["warps"], row["exchange"]) == ("walk-r4-wide", 4, 4, "dense-lines")
    assert row["tokens_match"] == 1 - 330 / 132_000
    shared = {"run_id": "r", "process_index": 0, "recorded_at_utc": "2026-01-31T12:00:00Z"}
    write_walk(tmp_path / "stress.parquet", [walk_row(**shared, **row)])


@pytest.mark.parametrize(("mismatches", "status"), [(0, 0), (1, 1)])
def test_the_command_records_every_kind_of_exchange_and_its_status_says_whether_all_were_clean(mismatches, status, tmp_path, monkeypatch, capsys):
    def stressed(*, seconds, rows, wide, exchange, seed):
        return StressResult(1000, mismatches * (rows == 4 and wide), 0, 132, (2.5, 3.5))

    monkeypatch.setattr(command, "stress_exchange", stressed)
    monkeypatch.setattr(environment, "require_device", lambda: None)
    assert command.main(["--rows", "1", "4", "--gpu", "h200-sxm", "--out", str(tmp_path)]) == status
    (path,) = tmp_path.glob("h200-sxm/*-stress.parquet")
    rows = frame_rows(read_walk(path))
    assert [(row["exchange"], row["variant"]) for row in rows] == [(place, f"walk-r{n}{wide}") for place in EXCHANGES for n in (1, 4) for wide in ("", "-wide")]
    assert {row["tokens_match"] < 1 for row in rows if row["variant"] == "walk-r4-wide"} == {bool(mismatches)} and {row["run_id"] for row in rows} == {rows[0]["run_id"]}
    assert capsys.readouterr().out.count("a round at best") == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rounds": 1, "rows": 3}, "rows is 3; a walk is built for 1, 2, 4"), ({}, "give seconds or rounds"), ({"rounds": 1, "seconds": 1.0}, "give seconds or rounds")],
)
def test_what_cannot_be_stressed_is_refused(options, message):
    with pytest.raises(BadInput, match=message):
        stress_exchange(**options)


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_the_kernels_compile_without_spills_for_every_architecture(arch, tmp_path, monkeypatch):
    try:
        build.find_nvcc(), build.find_ninja()
    except build.BuildError as error:
        pytest.skip(f"needs a CUDA compiler and ninja: {error}")
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path))
    lines: list[str] = []
    assert build_stress(arch, log=lines.append).library.is_file()
    spills = [line for line in lines if "spill stores" in line]
    assert len(spills) == 2 * len(ROWS) and all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
    assert not [line for line in lines if "warning" in line]
