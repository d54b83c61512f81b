"""Figures: the numbers in them are those of the results, and sums, places and labels are right."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.fit import fit_steps
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.placement import Placement, plan
from cost_model.workload import Workload
from tests.synthetic_records import synthetic_rows
from wts_lab.compare import ALL_WAYS, predicted_comparisons, with_fits
from wts_lab.tiers import memory_tiers
from wts_lab.ui.figures import (
    LINE_WORDS,
    SHORT_LINE_WORDS,
    STYLES,
    SUBTITLE_CHARACTERS,
    TRACES_PER_SERIES,
    call_time_figure,
    call_time_spec,
    draw,
    heading,
    spread,
    wrapped,
)
from wts_lab.ui.step_figure import BAR_WORDS, OWN_AXIS_FROM, TERM_COLOURS, step_terms_spec
from wts_lab.ui.tier_figure import TIER_WORDS, memory_tiers_spec

HEAD = Head.markov(151_936, 256)


@pytest.fixture(scope="module")
def comparisons():
    """All ways on an H200, predicted, with fits of synthetic rows."""
    gpu = load_gpu("h200-sxm")
    return with_fits(predicted_comparisons(gpu, HEAD, Workload(), ALL_WAYS), synthetic_rows(l2_states=("warm",)))


def named(spec: dict, name: str) -> dict:
    """The one trace of that name."""
    (found,) = [trace for trace in spec["data"] if trace["name"] == name]
    return found


def test_lines_and_points_are_those_of_the_results(comparisons) -> None:
    spec = call_time_spec(comparisons, steps=16)
    assert len(spec["data"]) == TRACES_PER_SERIES * len(comparisons)
    resident = next(each for each in comparisons if each.role == "resident-int8x2")
    predicted, fit, points = (named(spec, f"resident int8x2, {part}") for part in ("predicted", "fit", "measured"))
    assert predicted["x"][0] == 1 and predicted["x"][-1] == 16
    assert predicted["y"][-1] == pytest.approx(resident.prediction.entry_us + 16 * resident.prediction.step_us)
    assert fit["y"][0] == pytest.approx(resident.fit.entry_us + resident.fit.step_us)
    assert points["x"] == [1, 2, 4, 7, 11, 15, 16]
    assert points["y"][-1] == pytest.approx(12 + 16 * 2.5, rel=0.02)
    low, high = points["error_y"]["arrayminus"], points["error_y"]["array"]
    assert all(value >= 0 for value in low + high)


def test_a_fit_is_not_drawn_beyond_the_walks_that_were_timed(comparisons) -> None:
    spec = call_time_spec(comparisons, steps=32)
    fit, predicted = named(spec, "resident int8x2, fit"), named(spec, "resident int8x2, predicted")
    assert (fit["x"][0], fit["x"][-1], len(fit["x"])) == (1, 16, len(fit["y"])) and predicted["x"][-1] == 32


@pytest.mark.parametrize("words", [LINE_WORDS, BAR_WORDS, TIER_WORDS, SHORT_LINE_WORDS])
def test_subtitles_break_into_lines_that_a_narrow_figure_holds(words: str) -> None:
    lines = wrapped(words)
    assert " · ".join(lines) == words and all(len(line) <= SUBTITLE_CHARACTERS for line in lines)
    assert heading("T", words)["text"].count("<br>") == len(lines) <= 2


SEEN = {  # Machado, Oliveira and Fernandes 2009, severity 1, linear RGB
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranope": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanope": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}


def lab(colour: str, eye: str) -> tuple[float, ...]:
    """CIELAB of an sRGB colour as an eye sees it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    red, green, blue = (min(1, max(0, sum(a * b for a, b in zip(row, linear)))) for row in SEEN[eye])
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eye", SEEN)
def test_no_two_terms_look_alike(eye: str) -> None:
    pairs = itertools.combinations(TERM_COLOURS.items(), 2)
    alike = [(one, other) for (one, a), (other, b) in pairs if math.dist(lab(a, eye), lab(b, eye)) < 15]
    assert alike == []


def test_published_points_are_hollow_and_measured_ones_filled(comparisons) -> None:
    spec = call_time_spec(comparisons, steps=16)
    published = named(spec, "sglang-0.5.23 sample, published")
    assert dict(zip(published["x"], published["y"]))[16] == 476.1
    assert published["marker"]["color"] == "#ffffff"
    assert named(spec, "resident int8x2, measured")["marker"]["color"] == STYLES["resident-int8x2"].colour


def test_axes_have_units_and_the_range_holds_every_point(comparisons) -> None:
    spec = call_time_spec(comparisons, steps=16)
    assert spec["layout"]["xaxis"]["title"]["text"] == "walk length [steps]"
    assert "[µs]" in spec["layout"]["yaxis"]["title"]["text"] and spec["layout"]["yaxis"]["type"] == "log"
    low, high = spec["layout"]["yaxis"]["range"]
    assert all(10**low < y < 10**high for trace in spec["data"] for y in trace["y"])


def test_a_series_without_results_keeps_its_traces_empty(comparisons) -> None:
    bare = dataclasses.replace(comparisons[-1], prediction=None, fit=None, points=())
    spec = call_time_spec([bare], steps=16)
    assert len(spec["data"]) == TRACES_PER_SERIES and all(list(trace["x"]) == [] for trace in spec["data"])
    assert spec["layout"]["annotations"] == []


@given(st.lists(st.floats(0, 3), max_size=8).map(sorted))
def test_labels_keep_their_order_and_distance(heights: list[float]) -> None:
    placed = spread(heights, 0.1, 3.0)
    assert all(after - before > 0.1 - 1e-9 for before, after in zip(placed, placed[1:]))
    assert all(height <= 3.0 for height in placed)


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert spread([1.0, 1.5, 2.0], 0.1, 3.0) == [1.0, 1.5, 2.0]


def test_stacked_terms_add_to_the_step_of_every_prediction(comparisons) -> None:
    spec = step_terms_spec(comparisons)
    names = [trace["name"] for trace in spec["data"]]
    totals: dict[tuple[str, float], float] = {}
    for trace in spec["data"]:
        if trace["type"] == "bar" and trace["name"] != "measured":
            for y, x in zip(trace["y"], trace["x"]):
                totals[trace["yaxis"], y] = totals.get((trace["yaxis"], y), 0.0) + x
    steps_us = sorted(each.prediction.step_us for each in comparisons)
    assert sorted(totals.values()) == pytest.approx(steps_us)
    assert "physical floor" in names and "exchange" in names


def test_short_steps_get_an_axis_of_their_own(comparisons) -> None:
    layout = step_terms_spec(comparisons)["layout"]
    shortest = min(each.prediction.step_us for each in comparisons)
    short = [each for each in comparisons if each.prediction.step_us <= OWN_AXIS_FROM * shortest]
    assert len(layout["yaxis2"]["ticktext"]) == len(short) and "resident int8x2" in layout["yaxis2"]["ticktext"][-1]
    assert layout["xaxis2"]["title"]["text"] == "time of one step [µs]"
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]


def test_measured_step_stands_beside_the_prediction_with_its_interval(comparisons) -> None:
    bars = [trace for trace in step_terms_spec(comparisons)["data"] if trace["name"] == "measured"]
    fitted = sorted(each.fit.step_us for each in comparisons if each.fit is not None)
    assert sorted(x for bar in bars for x in bar["x"]) == pytest.approx(fitted)


def test_tiers_hold_the_whole_matrix_when_resident() -> None:
    gpu = load_gpu("h200-sxm")
    placement = plan(gpu, HEAD, "int8x2", "resident")
    tiers = {(tier.scope, tier.name): tier for tier in memory_tiers(gpu, HEAD, "int8x2", placement)}
    on_chip = tiers["chip", "registers"].kept_bytes + tiers["chip", "shared memory"].kept_bytes
    assert on_chip >= 151_936 * 256 and on_chip == gpu.sm_count * placement.tiles * 16 * 256
    assert tiers["chip", "L2"].kept_bytes == 0 and tiers["chip", "HBM"].kept_bytes == 0
    assert tiers["chip", "HBM"].at_rest_bytes == 151_936 * 256
    assert tiers["block", "registers"].kept_bytes == placement.register_tiles * 16 * 256


@pytest.mark.parametrize("vocab_size, tier", [(151_936, "L2"), (248_320, "HBM")])
def test_what_streams_is_read_from_l2_only_where_it_fits(vocab_size: int, tier: str) -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(vocab_size, 256)
    tiers = {
        each.name: each
        for each in memory_tiers(gpu, head, "int8x2", plan(gpu, head, "int8x2", "streaming"))
        if each.scope == "chip"
    }
    other = {"L2": "HBM", "HBM": "L2"}[tier]
    assert tiers[tier].kept_bytes == vocab_size * 256 and tiers[other].kept_bytes == 0


def test_tier_bars_are_to_scale_and_describe_themselves() -> None:
    gpu = load_gpu("h200-sxm")
    spec = memory_tiers_spec(memory_tiers(gpu, HEAD, "int8x2", Placement(8, 40, 32, 0, 0)))
    block_kept = [trace for trace in spec["data"] if trace["name"] == "kept" and trace["xaxis"] == "x"][0]
    assert block_kept["x"] == [40 * 4, 32 * 4]  # KiB: a tile of rank 256 in int8 is 4 KiB
    texts = [note["text"] for note in spec["layout"]["annotations"]]
    assert "160 KiB of W2 read each step, of 256 KiB" in texts and "continues →" in texts


def test_specs_are_valid_plotly(comparisons) -> None:
    pytest.importorskip("plotly")
    assert len(call_time_figure(comparisons, steps=16).data) == TRACES_PER_SERIES * len(comparisons)
    draw(step_terms_spec(comparisons))
    draw(step_terms_spec([]))
    draw(memory_tiers_spec(memory_tiers(load_gpu("h200-sxm"), HEAD, "int8x2", None)))


def test_fit_of_synthetic_rows_is_the_line_they_were_made_from() -> None:
    import pandas

    fit = fit_steps(pandas.DataFrame(synthetic_rows(l2_states=("warm",), ways=[("wts", "resident", "resident", "int8x2")])))
    assert fit.step_us == pytest.approx(2.5, rel=0.02) and fit.entry_us == pytest.approx(12, rel=0.03)


def test_a_page_that_connects_later_is_given_the_figure_as_it_is_now() -> None:
    pytest.importorskip("anywidget")
    from wts_lab.ui.live_figure import LiveFigure

    holder = LiveFigure()
    for y in ([1.0, 2.0], [3.0, 4.0]):
        holder.show({"data": [{"type": "scatter", "x": [0, 1], "y": y}], "layout": {"height": 300}})
    state = holder.figure.get_state()
    (trace,) = state["_widget_data"]
    assert list(trace["y"]) == [3.0, 4.0] and state["_widget_layout"]["height"] == 300
