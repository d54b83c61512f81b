"""Figures in TOML: every number and text reads back as it was written, and conflicts end up in the note."""

import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.catalogue import CatalogueError
from cost_model.figures import Figure, curve_from_table, expected_unit, figure_from_table, figure_lines, toml_number, toml_text

PATH = Path("file.toml")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53))
def test_numbers_survive_toml(value):
    assert tomllib.loads(f"x = {toml_number(value)}")["x"] == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_survive_toml(text):
    assert tomllib.loads(f"x = {toml_text(text)}")["x"] == text


@given(st.floats(0, 1e300), st.none() | st.floats(0, 1e10), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_figure_survives_toml(value, error, note):
    figure = Figure(value, "us", "measured", "record a", error, note)
    table = tomllib.loads("\n".join(figure_lines("[f]", figure)))["f"]
    assert figure_from_table(PATH, "f", table, str) == figure


def test_conflicts_are_told_in_the_note_and_not_used():
    table = {
        "value": 60, "unit": "B", "kind": "datasheet", "source": ["a"], "note": "as printed",
        "conflicts": [{"value": 50, "source": ["b"], "note": "a database"}, {"value": 4.5, "source": ["c"]}],
    }
    figure = figure_from_table(PATH, "l2_bytes", table, lambda keys: "+".join(keys))
    assert figure == Figure(60, "B", "datasheet", "a", note="as printed; 50 according to b: a database; 4.5 according to c")


@pytest.mark.parametrize(("change", "reason"), [
    ({"colour": 1}, "x has unknown keys colour"),
    ({"value": "many"}, "x: a figure's value is 'many'"),
    ({"conflicts": [{"value": 1}]}, "a conflict of x lacks source"),
])
def test_a_bad_table_names_file_and_figure(change, reason):
    table = {"value": 1.0, "unit": "B", "kind": "datasheet", "source": "s"} | change
    with pytest.raises(CatalogueError) as error:
        figure_from_table(PATH, "x", table, str)
    assert str(error.value).startswith("file.toml: ") and reason in str(error.value)


def test_a_bad_curve_names_file_and_curve():
    with pytest.raises(CatalogueError, match="file.toml: read: a curve has 1 footprints and 0 figures"):
        curve_from_table(PATH, "read", {"footprints_bytes": [1.0], "figures": []}, str)


@pytest.mark.parametrize(("name", "unit"), [
    ("exchange_us", "us"), ("boost_clock_mhz", "MHz"), ("l2_bytes", "B"), ("smem_bytes_per_block_optin", "B"),
    ("dram_bandwidth_bytes_per_s", "B/s"), ("shared_read_bytes_per_s_per_sm", "B/s"), ("mma_s8_ops_per_s_per_sm", "op/s"),
    ("mma_bf16_flops_per_s_per_sm", "FLOP/s"), ("nvlink_bytes_per_s_per_direction", "B/s"), ("sm_count", "SM"), ("tdp_w", "W"),
    ("dram_nominal_gb", "GB"), ("mig_max_instances", None),
])
def test_a_name_promises_its_unit(name, unit):
    assert expected_unit(name) == unit


def test_not_a_number_is_no_figure():
    with pytest.raises(CatalogueError):
        figure_from_table(PATH, "x", {"value": math.nan, "unit": "B", "kind": "measured", "source": "s"}, str)
