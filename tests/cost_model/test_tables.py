"""One row builder, seven formats; and cost tables that refuse to mislead."""

import csv
import json

import pandas
import pytest

from cost_model.gpu import load_gpu
from cost_model.predict import predict
from cost_model.settings import fingerprint
from cost_model.tables import (
    COLUMNS, EXPERIMENTS, READING_TITLES, EngineTable, TableRefused, cell, engine_table, html_table, latex_table, markdown_table, read_engine_table,
    reading_cells, reading_titles, signed_percent, step_cost_rows, way_name, write_csv,
    write_engine_table, write_html, write_json, write_latex, write_markdown, write_parquet,
)
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, exact_fit, series_key, study_h200

GPU = study_h200()
RESIDENT = predict(GPU, QWEN, Workload(), "resident")
ENGINE = predict(GPU, QWEN, Workload(precision="bf16"), "stepwise")
PLACED = (RESIDENT.placement.register_tiles, RESIDENT.placement.shared_tiles, RESIDENT.placement.streamed_tiles, RESIDENT.placement.staging_tiles)
FITS = [(series_key("resident", placement=PLACED), exact_fit(2.5, 12.0)), (series_key("resident", placement=(8, 64, 0, 0)), exact_fit(2.9, 12.0))]
ROWS = step_cost_rows(FITS, [RESIDENT, ENGINE])


def test_rows_pair_each_series_with_its_own_prediction_and_keep_the_rest():
    assert [row["status"] for row in ROWS] == ["ok", "ok", "predicted"]
    assert ROWS[0]["predicted_step_us"] == RESIDENT.step_us and ROWS[0]["step_error"] == pytest.approx(RESIDENT.step_us / 2.5 - 1)
    assert ROWS[1]["predicted_step_us"] is None, "another placement has another prediction"
    assert ROWS[2]["implementation"] == "sglang-0.5.23" and ROWS[2]["step_us"] is None
    assert all(tuple(row) == COLUMNS for row in ROWS) and ROWS[0]["steps"] == "1 7 16"


def test_inconclusive_series_has_no_numbers():
    row = step_cost_rows([(series_key("resident", placement=PLACED), exact_fit(0, 0, status="inconclusive"))], [RESIDENT])[0]
    assert (row["step_us"], row["step_error"], row["status"]) == (None, None, "inconclusive")


def test_csv_json_and_parquet_hold_the_same_rows(tmp_path):
    with open(write_csv(ROWS, tmp_path / "t.csv"), newline="") as file:
        from_csv = list(csv.DictReader(file))
    from_json = json.loads(write_json(ROWS, tmp_path / "t.json").read_text())
    from_parquet = pandas.read_parquet(write_parquet(ROWS, tmp_path / "t.parquet"))
    assert from_json == [dict(row) for row in ROWS]
    assert list(from_parquet.columns) == list(from_csv[0]) == list(COLUMNS)
    for n, row in enumerate(ROWS):
        for name in COLUMNS:
            if row[name] is None:
                assert from_csv[n][name] == "" and pandas.isna(from_parquet[name][n])
            else:
                assert from_csv[n][name] == str(row[name]) and from_parquet[name][n] == row[name]


def test_parquet_types_do_not_depend_on_the_rows(tmp_path):
    import pyarrow.parquet

    schemas = [pyarrow.parquet.read_schema(write_parquet(rows, tmp_path / f"{n}.parquet")) for n, rows in enumerate((ROWS, ROWS[2:], []))]
    assert schemas[0].equals(schemas[1]) and schemas[0].equals(schemas[2])


def test_reading_formats_show_every_row(tmp_path):
    markdown = markdown_table(ROWS).splitlines()
    assert len(markdown) == 2 + len(ROWS) and all(line.count("|") == len(READING_TITLES) + 1 for line in markdown)
    assert write_html(ROWS, tmp_path / "t.html").read_text().count("<tr>") == 1 + len(ROWS)
    assert write_latex(ROWS, tmp_path / "t.tex").read_text().count(r"\\") == 1 + len(ROWS)


def test_a_page_has_a_title_a_legend_the_answer_first_and_experiments_last(tmp_path):
    page = write_markdown(ROWS[:1] + ROWS[2:], tmp_path / "t.md", title="Step costs: NVIDIA H200, replayed", experiments=ROWS[1:2]).read_text()
    assert page.startswith("# Step costs: NVIDIA H200, replayed\n")
    assert "microseconds" in page and "predicted / measured − 1" in page and "95 % interval" in page
    assert page.index("sglang-0.5.23 greedy") < page.index(EXPERIMENTS) < page.index("tiles of a block: 8 registers, 64 shared")
    assert EXPERIMENTS not in write_markdown(ROWS, tmp_path / "t.md").read_text()


def test_a_row_for_reading_shows_costs_with_intervals_sign_and_kind():
    titles = reading_titles(ROWS)
    assert titles[-1] == "16-step call"
    measured, _, predicted = (reading_cells(row, titles) for row in ROWS)
    assert measured[:3] == ("resident int8x2", "151,936 × 256", "warm")
    assert measured[3].startswith("2.50 (") and measured[5] == signed_percent(RESIDENT.step_us / 2.5 - 1) and measured[6:] == ("12.0", "52.0")
    assert predicted[3] == "n/a" and predicted[5] == "n/a" and predicted[7] == f"{cell(ENGINE.call_us(16))} predicted"


def test_calls_of_different_lengths_say_their_own():
    rows = [ROWS[0], {**ROWS[2], "call_steps": 7}]
    assert reading_titles(rows)[-1] == "call"
    assert [reading_cells(row, reading_titles(rows))[-1].endswith(f"of {steps} steps") for row, steps in zip(rows, (16, 7))] == [True, True]


@pytest.mark.parametrize("share, text", [(0.0662, "+6.6 %"), (-0.0276, "−2.8 %"), (0.000234, "0.0 %"), (-0.0001, "0.0 %"), (None, "n/a"), (float("nan"), "n/a"), (1.5, "+150.0 %")])
def test_errors_have_a_sign_and_one_decimal(share, text):
    assert signed_percent(share) == text


@pytest.mark.parametrize("us, text", [(2.4412, "2.44"), (41.0, "41.0"), (485.2, "485"), (999.7, "1,000"), (12345.6, "12,346"), (0.5642, "0.564"), (-3.2, "−3.20"), (None, "n/a")])
def test_times_have_three_digits(us, text):
    assert cell(us) == text


def test_ways_are_named_once_for_all():
    assert way_name("wts", "registers-3-of-9", "resident", "int8x2") == "resident int8x2"
    assert (way_name("torch-stepwise", "graph", "stepwise", "bf16"), way_name("sglang-0.5.23", "sample", "stepwise", "bf16")) == ("stepwise torch", "sglang-0.5.23 sample")


def test_markup_in_values_is_escaped():
    rows = [{**ROWS[2], "variant": "<b>|a_b&c"}]
    assert "&lt;b&gt;" in html_table(rows) and r"a\_b\&c" in latex_table(rows) and "\\|a_b" in markdown_table(rows)


# --- cost tables ---------------------------------------------------------------------------------------------------------------

PRINT = fingerprint(load_gpu("h200-sxm"), QWEN, "int8x2", RESIDENT.placement)


def test_cost_table_reads_back_as_the_engine_would(tmp_path):
    table = engine_table(exact_fit(2.5, 12.0), [1, 4, 7, 16], PRINT)
    assert table.call_us == {1: 14.5, 4: 22.0, 7: 29.5, 16: 52.0} and table.noise_us == pytest.approx(0.02 * 15)
    assert read_engine_table(write_engine_table(table, tmp_path / "table.json")) == table


def test_flat_table_is_refused():
    with pytest.raises(TableRefused, match="noise"):
        engine_table(exact_fit(0.1, 12.0, half_us=0.2), [1, 4, 16], PRINT)


@pytest.mark.parametrize("entries, word", [({1: 5.0, 2: 4.0}, "fall"), ({1: 1.0, 2: float("nan")}, "finite"), ({1: 0.0, 2: 3.0}, "above 0"),
                                           ({1: 1.0, 2: float("inf")}, "finite"), ({1: 5.0}, "two or more"), ({0: 1.0, 2: 3.0}, "at least 1"), ({1: 2.0, 2: 2.05}, "noise")])
def test_misleading_tables_are_refused(entries, word):
    with pytest.raises(TableRefused, match=word):
        EngineTable(entries, 0.1, PRINT)


def test_inconclusive_series_makes_no_table():
    with pytest.raises(TableRefused, match="throttled"):
        engine_table(exact_fit(0, 0, status="inconclusive"), [1, 2], PRINT)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"form": "weights-that-stay step costs", "schema_version": 1}'])
def test_foreign_cost_tables_are_refused(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(TableRefused, match="not a cost table"):
        read_engine_table(path)
