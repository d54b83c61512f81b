"""Pictures and tables of accuracy hold the record's numbers and the formats' levels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.accuracy_examples import example_rows
from wts_lab.accuracy import FORMAT_NAMES
from wts_lab.accuracy_view import AccuracyStudy, equal_share_interval
from wts_lab.levels import LEVELS
from wts_lab.ui.accuracy_figure import FEWEST, FORMAT_STYLES, equal_steps_spec, levels_spec, logit_error_spec, rounding_spec
from wts_lab.ui.accuracy_tables import equality_table, errors_table, levels_table
from wts_lab.ui.figures import draw

STUDY = AccuracyStudy(tuple(example_rows()), "made up")


def test_levels_and_weights_are_cumulated_to_the_whole() -> None:
    spec = levels_spec(STUDY)
    int8, e4m3, *weights = spec["data"]
    assert e4m3["y"][e4m3["x"].index(32 / 448) - 1] == 95 / 126 and int8["y"][-1] == e4m3["y"][-1] == 1
    assert [trace["name"] for trace in weights] == ["weights of markov", "weights of rnn"]
    assert weights[0]["x"] == pytest.approx(weights[0]["y"]), "the made-up weights are evenly spread"
    text = spec["layout"]["annotations"][0]["text"]
    assert "75.4 % of E4M3's levels" in text and "7.09 % of int8's" in text and "7.14 % of the weights" in text
    draw(spec)


def test_rounding_costs_half_the_distance() -> None:
    int8, e4m3 = rounding_spec()["data"]
    assert int8["y"] == pytest.approx([1 / 254] * len(int8["y"])) and max(e4m3["y"]) == pytest.approx(16 / 448)
    finer = np.array(e4m3["y"]) < np.array(int8["y"])
    assert max(np.array(e4m3["x"])[finer]) < 1 / 14 <= min(np.array(e4m3["x"])[~finer])
    draw(rounding_spec())


def test_logit_errors_are_the_records_and_zero_is_marked() -> None:
    spec = logit_error_spec(STUDY, "rnn")
    assert [trace["name"] for trace in spec["data"]] == list(FORMAT_NAMES)
    row = STUDY.row("rnn", "int8x2")
    assert spec["data"][1]["y"] == [row[f"logit_error_{end}"] for end in ("p50", "p90", "p99", "p999", "max")]
    assert spec["data"][0]["customdata"][0] == 0 and spec["data"][0]["y"][0] == FEWEST
    assert "markov" in logit_error_spec(STUDY)["layout"]["title"]["text"]
    draw(spec)


def test_an_unknown_quantile_is_left_out() -> None:
    rows = example_rows(logit_error_p999=None)
    assert logit_error_spec(AccuracyStudy(tuple(rows), ""))["data"][1]["y"][3] is None


def test_equal_steps_stand_with_their_intervals() -> None:
    spec = equal_steps_spec(STUDY)
    for trace in spec["data"]:
        for head, share, up, down in zip(trace["x"], trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True):
            row = STUDY.row(head, trace["name"])
            assert share == row["equal_step_share"] and (share - down, share + up) == pytest.approx(equal_share_interval(row))
            assert spec["layout"]["yaxis"]["range"][0] <= share - down
    draw(spec)


def test_formats_differ_in_colour_shape_and_line() -> None:
    for look in ("colour", "symbol", "dash"):
        assert len({getattr(style, look) for style in FORMAT_STYLES.values()}) == len(FORMAT_NAMES)


def test_tables_say_the_same() -> None:
    table = levels_table()
    assert table.loc["fp8-e4m3"].tolist() == [126, "0.00195312 to 448", 95, "75.4 %"] and table.loc["int8", "below 1/14 of the highest"] == 9
    assert set(table.index) == set(LEVELS)
    assert errors_table(STUDY).loc[("markov", "fp8-e4m3"), "weight error"] == "0.800 %"
    assert equality_table(STUDY).loc["rnn"].tolist()[:2] == [32, "100 % (89.3 % to 100 %)"] and equality_table(STUDY).loc["rnn", "int8"].startswith("93.8 % (79.9")
