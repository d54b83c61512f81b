"""Units: conversions against closed forms, and every formatter against a table."""

import math

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model import units

POSITIVE = st.floats(1e-6, 1e15)


def test_transfer_time_is_bytes_over_rate():
    assert units.us_from_transfer(4.8e12, 4.8e12) == 1e6
    assert units.us_from_transfer(38_895_616, 4.8e12) == pytest.approx(8.1032533, rel=1e-7)
    assert units.us_from_transfer(0, 1.0) == 0


def test_cycles_of_a_clock():
    assert units.us_from_cycles(1980, 1980) == 1
    assert units.us_from_cycles(281, 1980) == pytest.approx(0.1419192, rel=1e-6)
    assert units.us_from_ns(146) == pytest.approx(0.146)


def test_operations_take_operations_over_rate():
    assert units.us_from_operations(2e6, 1e12) == 2
    assert units.operations_per_s_from_time(2e6, 2) == 1e12


@given(POSITIVE, POSITIVE)
def test_rate_and_time_are_inverse(bytes_, rate):
    us = units.us_from_transfer(bytes_, rate)
    assert units.bytes_per_s_from_transfer(bytes_, us) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("call", [
    lambda: units.us_from_transfer(1, 0),
    lambda: units.us_from_operations(1, -1),
    lambda: units.us_from_cycles(1, 0),
    lambda: units.bytes_per_s_from_transfer(1, 0),
    lambda: units.operations_per_s_from_time(1, float("nan")),
])
def test_a_rate_must_be_above_zero(call):
    with pytest.raises(ValueError, match="must be above 0, got"):
        call()


@pytest.mark.parametrize(("value", "text"), [
    (2.5, "2.50 µs"), (29.44, "29.4 µs"), (476.1, "476 µs"), (9.999, "10.0 µs"), (0.146, "0.146 µs"), (0.0506, "50.6 ns"),
    (1234.5, "1,234 µs"), (10_000, "10.0 ms"), (1_234_567, "1,235 ms"), (0, "0 µs"), (-1.25, "-1.25 µs"),
])
def test_format_us(value, text):
    assert units.format_us(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 B"), (512, "512 B"), (1024, "1.00 KiB"), (232_448, "227 KiB"), (38_895_616, "37.1 MiB"), (150_109_945_856, "140 GiB"),
])
def test_format_bytes(value, text):
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (4.8e12, "4.80 TB/s"), (2.46e11, "246 GB/s"), (5e6, "5.00 MB/s"), (12, "12.0 B/s"),
])
def test_format_bandwidth(value, text):
    assert units.format_bandwidth(value) == text


def test_other_formats():
    assert units.format_rate(1.979e15) == "1,979 Top/s"
    assert units.format_percent(0.1234) == "12.3 %"
    assert units.format_ratio(9.104) == "9.10×"
    assert units.format_count(151_936) == "151,936"
    assert units.format_interval_us(2.41, 2.62) == "2.41 to 2.62 µs"


@pytest.mark.parametrize("unknown", [None, math.nan, pandas.NA])
@pytest.mark.parametrize("formatter", [
    units.format_us, units.format_bytes, units.format_bandwidth, units.format_rate, units.format_percent, units.format_ratio,
    units.format_count, lambda value: units.format_interval_us(value, 1.0), lambda value: units.format_interval_us(1.0, value),
])
def test_unknown_is_never_a_number(formatter, unknown):
    assert formatter(unknown) == "n/a"


@given(st.floats(1e-3, 9_999))
def test_format_us_keeps_three_digits(value):
    text, unit = units.format_us(value).replace(",", "").split()
    assert float(text) * {"ns": 1e-3, "µs": 1.0}[unit] == pytest.approx(value, rel=5.1e-3)
