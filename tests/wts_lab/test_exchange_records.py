"""Records of the exchange: the newest of each kind, with its origin; nothing recorded is said, not invented."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cost_model.errors import BadInput
from cost_model.measurement import walk_row, write_walk
from wts_lab import exchange_records
from wts_lab.exchange_records import exchange_steps, exchange_times, exchanges_of, stress_study
from wts_lab.stress import LONG_ROUNDS, SHORT_LAUNCHES, StressResult

PROVENANCE = {"gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "implementation": "wts", "steps": 1, "samples_dropped": 0}


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: None)


def row(run: str, day: int, process: int = 0, **facts):
    """A row of a made-up record."""
    return walk_row(**{**PROVENANCE, "run_id": run, "process_index": process, "recorded_at_utc": f"2026-01-0{day}T00:00:0{process}+00:00", "repeats": len(facts["samples_us"]), **facts})


def probe(run: str, day: int, process: int, variant: str, samples, **facts):
    """A row of the probe of the exchange alone."""
    return row(run, day, process, probe="exchange", variant=variant, samples_us=samples, **{"exchange": "spread-lines", "batch": 1, "grid_blocks": 132, **facts})


def test_times_are_medians_over_processes_of_the_newest_run(tmp_path) -> None:
    old = [probe("a", 1, 0, "walk-r1", [9.0])]
    new = [probe("b", 2, 0, "walk-r1", [1.0, 1.0, 4.0]), probe("b", 2, 1, "walk-r1", [2.0, 2.0, 2.0]), probe("b", 2, 0, "walk-r4-wide", [3.0], batch=4)]
    write_walk(tmp_path / "h200-sxm" / "2026-01-01-probes.parquet", old)
    write_walk(tmp_path / "h200-sxm" / "2026-01-02-probes.parquet", new)
    found = exchange_times(records=tmp_path)
    assert found.source == "NVIDIA H200, recorded 2026-01-02"
    one, four = found.times
    assert (one.rows, one.wide, one.grid_blocks, one.exchange) == (1, False, 132, "spread-lines")
    assert (one.exchange_us, one.exchange_us_low, one.exchange_us_high) == (2.0, 1.0, 2.0)
    assert (four.rows, four.wide, four.exchange_us) == (4, True, 3.0)


def walk(exchange: str, steps: int, process: int, time: float, case_batch: int = 1):
    """A row of a walk that is timed for its exchange."""
    return row("w", 1, process, probe="none", variant=exchange, exchange=exchange, mode="resident", precision="int8x2", rounding="once", head_kind="markov", vocab_size=1000,
               target_vocab_size=1000, padded_vocab_size=1000, rank=32, batch=case_batch, temperature=0.0, l2_state="warm", samples_us=[time] * 3, **{"steps": steps})  # fmt: skip


def test_steps_are_fitted_for_each_exchange_of_records_of_that_name(tmp_path) -> None:
    rows = [walk(name, steps, process, entry + slope * steps) for name, entry, slope in (("spread-lines", 10, 2), ("dense-lines", 11, 3)) for steps in (1, 7, 16) for process in range(3)]
    write_walk(tmp_path / "h200-sxm" / "2026-01-01-exchanges.parquet", rows)
    write_walk(tmp_path / "h200-sxm" / "2026-01-01-walks.parquet", [walk("spread-lines", steps, 0, 10.0 + steps) for steps in (1, 7, 16)])
    found = {(exchange, batch): fit.step_us for exchange, batch, fit in exchange_steps(records=tmp_path)}
    assert found == {("spread-lines", 1): pytest.approx(2.0), ("dense-lines", 1): pytest.approx(3.0)}


def stress(variant: str, match: float, volleys: int = 2, command: str = "python -m benchmarks.stress", **facts):
    """A row of a stress."""
    return row("s", 3, probe="stress", variant=variant, tokens_match=match, command=command, samples_us=[5.0] * volleys, **{"exchange": "spread-lines", "batch": 1, "grid_blocks": 132, **facts})


def test_a_stress_record_is_replayed(tmp_path, no_gpu: None) -> None:
    rows = [stress("walk-r1", 1.0), stress("walk-r32-wide", 1.0, batch=32, exchange="dense-lines"), stress("walk-r1-wide", 0.5, command="python -m benchmarks.stress --seed 4")]
    write_walk(tmp_path / "h200-sxm" / "2026-01-03-stress.parquet", rows)
    study = stress_study(records=tmp_path)
    assert study.source == "NVIDIA H200, recorded 2026-01-03"
    first, second, third = study.rows
    assert (first.rows, first.wide, first.matching_share, first.round_us) == (1, False, 1.0, 5.0) and first.exchanges == exchanges_of(1, 2)
    assert (second.rows, second.wide, second.exchange) == (32, True, "dense-lines") and second.exchanges > first.exchanges
    assert third.matching_share == 0.5 and third.exchanges is None


def test_exchanges_follow_from_the_plan_of_launches() -> None:
    assert 2 * LONG_ROUNDS < exchanges_of(1, 2) < 2 * (LONG_ROUNDS + 64 * (SHORT_LAUNCHES + 1))
    assert exchanges_of(1, 3) > exchanges_of(1, 2) and exchanges_of(1, 2, seed=1) != exchanges_of(1, 2)


def test_a_gpu_is_stressed_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: SimpleNamespace(name="NVIDIA H200"))
    monkeypatch.setattr("wts_lab.stress.stress_exchange", lambda **facts: asked.append(facts) or StressResult(1000, 0, 0, 132, (3.0, 1.0, 2.0)))
    study = stress_study()
    assert [(facts["rows"], facts["wide"]) for facts in asked] == list(exchange_records.LIVE_KINDS) and study.source.startswith("stressed now on NVIDIA H200")
    assert all((each.exchanges, each.matching_share, each.round_us) == (1000, 1.0, 2.0) for each in study.rows)


def test_nothing_recorded_is_said(tmp_path, no_gpu: None) -> None:
    assert exchange_times(records=tmp_path).times == () and "no exchange of h200-sxm is recorded" in exchange_times(records=tmp_path).source
    assert exchange_steps(records=tmp_path) == []
    assert stress_study(records=tmp_path).rows == () and "benchmarks.stress" in stress_study(records=tmp_path).source
    write_walk(tmp_path / "h200-sxm" / "2026-01-02-probes.parquet", [probe("b", 2, 0, "walk-r1", [1.0])])
    assert stress_study(records=tmp_path).rows == ()
    with pytest.raises(BadInput, match="compute capability 8.0"):
        stress_study(live=True)


def test_the_records_that_ship_are_read() -> None:
    found = exchange_times()
    assert found.times == () or all(time.exchange_us_low <= time.exchange_us <= time.exchange_us_high for time in found.times)
    assert all(fit.step_us > 0 for _, _, fit in exchange_steps())
