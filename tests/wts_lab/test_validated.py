"""Validation as shown: every recorded walk once a kind, groups that are parts of the whole, and a page that says what its points say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")
pytest.importorskip("scipy", reason="calibration needs SciPy")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.fit import SeriesKey  # noqa: E402
from cost_model.measurement import read_walk_folder  # noqa: E402
from cost_model.validation import DATASHEET, HELD_OUT_BATCH, HELD_OUT_VOCABULARY, Accuracy, ValidationPoint, accuracy, walks_of  # noqa: E402
from wts_lab.recordings import measurements_root, recorded_gpus  # noqa: E402
from wts_lab.ui.validation_figure import OFF_SHARE, parity_spec, summary_rows, validation_summary_table, validation_table, worst_table  # noqa: E402
from wts_lab.validated import (  # noqa: E402
    ALL, ENGINE_PATHS, GOALS, HELD_OUT_GOAL, IN_SAMPLE, KIND_WORDS, KINDS, Validated, group_of, shortfalls, validated, walk_words,
)
from wts_lab.validation_page import main, render  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "validation.html"
LARGEST_BYTES = 600_000
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")

KEY = SeriesKey(
    gpu_name="NVIDIA H200", l2_state="warm", implementation="wts", mode="resident", precision="int8x2", rounding="once", head_kind="markov", vocab_size=151_936,
    target_vocab_size=151_936, padded_vocab_size=151_936, rank=256, batch=1, temperature=0.0, logits_kept=False, record="made-up",
)  # fmt: skip


def point(kind: str = HELD_OUT_BATCH, error: float = 0.0, half: float = 0.1, **key: object) -> ValidationPoint:
    """A made-up walk of 4 us a step, predicted with an error and an interval of so much."""
    us = 4.0 * (1 + error)
    return ValidationPoint(kind, 1, replace(KEY, **key), 4.0, 3.9, 4.1, us, us * (1 - half), us * (1 + half), 10.0, 9.0, 8.0, 10.0)


MADE_UP = Validated("h200-sxm", "NVIDIA H200, made up", {
    HELD_OUT_BATCH: (point(error=0.04), point(error=-0.3, batch=4), point(error=0.02, temperature=1.0)), ENGINE_PATHS: (
        point(ENGINE_PATHS, 0.01, implementation="sglang-0.5.23", variant="MarkovGreedyStep", mode="stepwise", precision="bf16"),),
})  # fmt: skip
needs_records = pytest.mark.skipif("h200-sxm" not in recorded_gpus(), reason="the H200's records are not here")


def test_groups_are_told_by_head_way_and_load() -> None:
    assert group_of(point()) == "resident int8x2, greedy, batch 1" and group_of(point(batch=4)) == "resident int8x2, greedy, more rows"
    assert group_of(point(temperature=1.0, batch=4)) == "resident int8x2, sampled" and group_of(point(head_kind="rnn")) == "rnn heads, resident int8x2, greedy, batch 1"
    assert group_of(MADE_UP.points[ENGINE_PATHS][0]) == "MarkovGreedyStep, greedy, batch 1"
    assert walk_words(replace(KEY, head_kind="domino", candidate_pool=2048, hidden_size=2560, batch=8, rounding="twice")) == (
        "domino of 2,048 candidates, V 151,936, rank 256, hidden 2,560, resident int8x2, rounding twice, batch 8, greedy, warm")


def test_groups_hold_each_point_once_beside_the_whole() -> None:
    groups = MADE_UP.groups(HELD_OUT_BATCH)
    whole = groups.pop(ALL)
    described = groups.pop("walks that the model is fitted to", ())
    assert whole == MADE_UP.points[HELD_OUT_BATCH] and set(described) <= set(whole)
    assert sorted(map(repr, (each for own in groups.values() for each in own))) == sorted(map(repr, whole))


@pytest.mark.parametrize(("change", "missed"), [
    ({}, ()), ({"median_share": 0.051}, ("median",)), ({"worst_share": 0.16}, ("worst",)), ({"inside_share": 0.89}, ("held",)), ({"inside_share": 1.0}, ("held",)),
    ({"half_width_share": 0.09, "worst_share": 0.2}, ("worst", "half-width")),
])
def test_a_goal_is_met_in_all_that_it_asks_or_says_in_what_not(change: dict, missed: tuple) -> None:
    found = replace(Accuracy(100, 0.05, 0.15, 0.95, 0.08), **change)
    assert shortfalls(found, HELD_OUT_GOAL) == missed
    assert shortfalls(replace(found, worst_share=9.0, half_width_share=0.2), GOALS[DATASHEET]) == (("held",) if found.inside_share < 0.9 else ())


def test_rows_sum_up_their_points() -> None:
    rows = {row[0]: row[1:] for row in summary_rows(MADE_UP, HELD_OUT_BATCH)}
    assert rows[ALL] == ("3", "4.00 %", "30.0 %", "66.7 %", "10.0 %", "missed: worst, held, half-width")
    assert rows["resident int8x2, greedy, more rows"] == ("1", "30.0 %", "30.0 %", "0 %", "10.0 %", "n/a")
    assert list(worst_table(MADE_UP.points[HELD_OUT_BATCH], 2)["error"]) == ["−30.0 %", "+4.0 %"]
    table = validation_summary_table(MADE_UP)
    assert table.loc[(ENGINE_PATHS, ALL), "predicted from"] == KIND_WORDS[ENGINE_PATHS] and table.loc[(ENGINE_PATHS, ALL), "goal"] == "n/a"
    assert list(validation_table(MADE_UP, HELD_OUT_BATCH).index)[0] == ALL


def test_the_picture_has_every_point_between_lines_of_equality() -> None:
    spec = parity_spec(MADE_UP.points[HELD_OUT_BATCH])
    lines = {trace["name"]: trace for trace in spec["data"] if trace["mode"] == "lines"}
    assert lines["equal"]["x"] == lines["equal"]["y"] and lines["15 % too slow"]["y"][0] == pytest.approx((1 + OFF_SHARE) * lines["15 % too slow"]["x"][0])
    (markers,) = [trace for trace in spec["data"] if trace["mode"] == "markers"]
    assert markers["x"] == [4.0] * 3 and markers["y"] == pytest.approx([4.16, 2.8, 4.08]) and markers["error_y"]["array"] == pytest.approx([0.416, 0.28, 0.408])


# --- the page ------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Rows of tables as lists of cells, tags met, and how many stay open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self.tags[-1] in ("td", "th", "span"):
            self.rows[-1][-1] += data.rstrip("\n")


def check_is_self_contained(text: str) -> Page:
    """No script, no address, nothing loaded; small."""
    page = Page(text)
    assert not page.addresses and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in text and "//" not in text and len(text.encode()) < LARGEST_BYTES
    return page


def test_the_page_has_every_walk_with_what_each_kind_says_of_it() -> None:
    text = render(MADE_UP)
    page = check_is_self_contained(text)
    assert text.count("<svg") == text.count("</svg>") == 2
    walks = [row for row in page.rows if row[0].startswith("markov, ")]
    assert len(walks) == 4
    (batched,) = [row for row in walks if "batch 4" in row[0]]
    assert batched[1:4] == ["4.00 µs (3.90 to 4.10)", "2.80 ± 10 %, −30.0 %", ""] and batched[-1] == "made-up"
    assert text.count("<span class=out>") == 2, "one in the words that explain it, one for the walk whose interval does not hold"
    assert not re.search(r"=[^'\"\s>]+/>", text), "an unquoted value before the end of a tag would swallow its slash"


def test_the_command_says_what_it_cannot_do(tmp_path, capsys) -> None:
    (tmp_path / "records").mkdir()
    assert main(["--records", str(tmp_path / "records"), "--out", str(tmp_path / "page.html")]) == 2
    assert "nothing is recorded of h200-sxm" in capsys.readouterr().err and not (tmp_path / "page.html").exists()
    with pytest.raises(BadInput, match="nothing is recorded"):
        validated("h200-sxm", tmp_path / "records")


@needs_records
def test_every_recorded_walk_is_predicted_once_a_kind() -> None:
    result = validated()
    walks = sorted(repr(key) for key, _ in walks_of(read_walk_folder(measurements_root() / "h200-sxm")))
    assert set(result.points) <= set(KINDS) and {HELD_OUT_VOCABULARY, HELD_OUT_BATCH, IN_SAMPLE, DATASHEET} <= set(result.points)
    for kind in (HELD_OUT_VOCABULARY, HELD_OUT_BATCH, IN_SAMPLE, DATASHEET):
        assert sorted(repr(point.series) for point in result.points[kind]) == walks
        assert {point.kind for point in result.points[kind]} == {kind}
    assert all(point.series.implementation == "sglang-0.5.23" for point in result.points.get(ENGINE_PATHS, ()))
    assert accuracy(result.points[IN_SAMPLE]).median_share <= 0.05
    assert result.seen and "in-sample" in result.seen[0]


@needs_records
def test_the_committed_page_is_what_the_command_makes_of_the_committed_records() -> None:
    """Words must be equal, and numbers but for what another version of NumPy or SciPy may do to a last digit."""
    made, kept = render(validated()), PAGE.read_text("utf-8")
    check_is_self_contained(kept)
    stale = "docs/validation.html is of other records or another model; run `python -m wts_lab.validation_page`"
    assert NUMBER.sub("#", made) == NUMBER.sub("#", kept), stale
    for now, then in zip(NUMBER.findall(made), NUMBER.findall(kept)):
        first, second = (float(number.replace(",", "").replace("−", "-")) for number in (now, then))
        assert first == pytest.approx(second, rel=0.02, abs=0.3), stale
