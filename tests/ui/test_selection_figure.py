"""Pictures and tables of selection hold the records, the schemes and the needs, and say so where nothing is recorded."""

from __future__ import annotations

import dataclasses

from cost_model.fit import fit_steps
from tests.wts_lab.test_exchange_records import walk
from wts_lab.exchange_records import ExchangeTime, ExchangeTimes, StressRow, StressStudy
from wts_lab.memory_order import exchange_accesses, exchange_needs
from wts_lab.schemes import check_scheme, first_fault, scheme_named
from wts_lab.ui.figures import draw
from wts_lab.ui.selection_figure import exchange_spec
from wts_lab.ui.selection_tables import accesses_table, checked_table, fault_table, needs_table, steps_table, stress_table, words_table

TIMES = ExchangeTimes(
    (
        ExchangeTime(4, "spread-lines", False, 132, 0.9, 0.8, 1.0),
        ExchangeTime(1, "spread-lines", False, 132, 0.7, 0.6, 0.8),
        ExchangeTime(1, "spread-lines", False, 8, 0.5, 0.5, 0.5),
        ExchangeTime(1, "dense-lines", False, 132, 0.8, 0.8, 0.8),
        ExchangeTime(1, "spread-lines", True, 132, 0.75, 0.7, 0.8),
    ),
    "NVIDIA H200, recorded 2026-01-02",
)


def test_lines_are_the_records_in_order() -> None:
    spec = exchange_spec(TIMES)
    spread, dense, wide, blocks = spec["data"]
    assert (spread["x"], spread["y"], spread["error_y"]["array"][0]) == ([1, 4], [0.7, 0.9], 0.8 - 0.7) and spread["name"] == "32-bit words, a line for each unit"
    assert dense["y"] == [0.8] and wide["name"].startswith("64-bit") and wide["y"] == [0.75]
    assert (blocks["x"], blocks["y"], blocks["xaxis"]) == ([8, 132], [0.5, 0.7], "x2")
    assert "recorded 2026-01-02" in spec["layout"]["title"]["text"] and "132 blocks" in spec["layout"]["xaxis"]["title"]["text"]
    draw(spec)


def test_nothing_recorded_is_drawn_as_words() -> None:
    spec = exchange_spec(ExchangeTimes((), "no exchange is recorded"))
    assert spec["data"] == [] and spec["layout"]["annotations"][0]["text"] == "no exchange is recorded"
    draw(spec)
    table = stress_table(StressStudy((), "no stress is recorded; run it")).data
    assert table["words on"].tolist() == ["no stress is recorded; run it"]


def test_tables_say_what_was_found() -> None:
    assert words_table().loc["narrow"].tolist() == [32, 16, 11, 5, 32, 4]
    checked = checked_table([check_scheme(scheme_named(name), blocks=3, epochs=5, seeds=8) for name in ("words", "maximum, relaxed")]).data
    assert checked["found"].tolist() == ["never wrong", "goes wrong"] and checked["exchanges"].tolist() == ["40", "40"]
    assert needs_table().data["given by"].tolist() == [need.given_by for need in exchange_needs()]
    assert accesses_table()["instruction"].tolist() == [each.instruction for each in exchange_accesses()]


def test_a_fault_reads_event_by_event() -> None:
    fault = first_fault(scheme_named("maximum, relaxed"))
    table = fault_table(fault)
    assert len(table) == len(fault[1]) and set(table["block"]) == {0, 1}
    stale = table[(table["what it does"] == "reads the maximum") & (table[""] == "stale")]
    assert len(stale) >= 1 and "of row" in stale["value"].iloc[0] and "raises the count" in table["what it does"].tolist()


def test_steps_and_stress_are_formatted() -> None:
    import pandas

    fit = fit_steps(pandas.DataFrame([walk("spread-lines", steps, process, 10.0 + 2 * steps) for steps in (1, 7, 16) for process in range(3)]))
    table = steps_table([("spread-lines", 8, fit), ("dense-lines", 1, fit)])
    assert table.index.tolist() == [("dense-lines", 1), ("spread-lines", 8)] and table.loc[("spread-lines", 8), "step, measured"] == "2.00 µs"
    assert steps_table([]).empty
    row = StressRow(32, "spread-lines", True, 132, 1_234_567, 1.0, 4.0)
    stressed = stress_table(StressStudy((row, dataclasses.replace(row, rows=8, exchanges=None), row), "now"))
    assert stressed.data.loc[0].tolist() == ["spread-lines", 64, 32, 132, "1,234,567", "100 %", "4.00 µs"] == stressed.data.loc[2].tolist()
    assert stressed.to_html().count("spread-lines") == 3  # rows of one place, even equal ones, are shown all
