"""The report: self-contained, labelled, and saying what the result says."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

pytest.importorskip("plotly")
pytest.importorskip("pandas")

from cost_model.units import format_us
from tests.synthetic_records import GPU_NAME, write_synthetic
from wts_lab import report
from wts_lab.compare import gain_split
from wts_lab.report import find_browser, headline, render_report, report_figures, write_picture
from wts_lab.study import StudyRequest, run_study


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory):
    """The replayed study of a synthetic record."""
    return run_study(StudyRequest(records=write_synthetic(tmp_path_factory.mktemp("records")), live=False))


@pytest.fixture(scope="module")
def page(result) -> str:
    """Its report without plotly.js, which is megabytes."""
    return re.sub(r"<script>/\*\*.*?</script>", "", render_report(result), count=1, flags=re.S)


def test_the_report_needs_no_network(result) -> None:
    text = render_report(result)
    assert text.count("plotly.js v") == 1, "plotly.js must be inlined exactly once"
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)\s*=", text)
    assert "@import" not in report.STYLE and "url(" not in report.STYLE


def test_the_verdict_and_its_reasons_stand_above_the_figures(result, page: str) -> None:
    verdict = page.index(result.decision.verdict)
    for reason in result.decision.reasons:
        assert verdict < page.index(html.escape(reason)) < page.index("plotly-graph-div")


def test_the_source_is_on_top_and_in_the_provenance(result, page: str) -> None:
    assert page.count(html.escape(result.source)) >= 2 and GPU_NAME in page
    assert page.index("Where the numbers come from") > page.rindex("plotly-graph-div")
    assert "run id" in page and "driver version" in page


def test_the_headline_compares_with_the_engines_fastest_path(result) -> None:
    text = headline(result.shown(result.heads[0], "warm"), 16)
    assert headline(result.shown(result.heads[0], "warm")[:1], 16).startswith("Too little is known")
    assert "476 µs with sglang-0.5.23 sample (published)" in text and "resident int8x2 (measured)" in text
    ratio = float(re.search(r"([\d.]+)×", text)[1])
    assert ratio == pytest.approx(476.1 / (12 + 16 * 2.5), rel=0.02)


def test_the_gain_is_split_into_parts_that_add_to_the_whole(result, page: str) -> None:
    split = gain_split(result.shown(result.heads[0], "warm"))
    assert split.fusion_us + split.precision_us + split.residency_us == pytest.approx(split.total_us)
    assert split.residency_us == pytest.approx(6.5 - 2.5, rel=0.02) and split.precision_us == pytest.approx(26 - 6.5, rel=0.02)
    assert f"residency {format_us(split.residency_us)}" in page
    assert gain_split(result.shown(result.heads[0], "warm")[:-1]) is None


def test_headline_and_verdict_are_told_apart_by_state_and_kind(result, page: str) -> None:
    steps, head = result.request.longest, result.heads[0]
    warm, serving = (result.shown(head, state) for state in ("warm", "serving"))
    assert headline(warm, steps).split(":")[0].endswith("with warm L2")
    assert f"warm L2: {format_us(warm[-1].call_us(steps))} resident int8x2 (measured) against 476 µs with sglang-0.5.23 sample (published)" in page
    assert f"serving L2: {format_us(serving[-1].call_us(steps))} resident int8x2 (measured)" in page
    assert f"{format_us(serving[1].call_us(steps))} with sglang-0.5.23 sample (predicted)" in page
    assert "sglang-0.5.23 sample is MarkovSampleStep" in page


def test_the_step_cost_table_shows_costs_in_its_first_columns(page: str) -> None:
    table = page[page.index("<h2>Step-cost table</h2>") :]
    titles = re.findall(r"<th(?: class=words)?>(.*?)</th>", table[: table.index("</thead>")])
    assert titles == ["way of walking", "vocabulary × rank", "L2", "step measured", "step predicted", "error", "entry", "16-step call"]
    assert "95 % interval" in table[: table.index("<table>")] and "tiles" not in table[: table.index("</table>")]


def test_numbers_have_real_signs_and_a_gain_is_saved(page: str) -> None:
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert not [cell for cell in cells if re.match(r"-\d", cell)]
    errors = [cell for cell in cells if cell.endswith(" %")]
    assert errors and all(re.fullmatch(r"[+−]?\d+\.\d %", cell) for cell in errors)
    assert "a step saves" in page and "step loses" not in page


def test_every_way_has_a_row_with_prediction_and_measurement(result, page: str) -> None:
    for each in result.shown(result.heads[0], "warm"):
        assert f"<td class=words>{html.escape(each.label)}</td>" in page


def test_the_three_figures_are_there_with_units(result) -> None:
    titles = [figure.layout.title.text for figure in report_figures(result)]
    assert [
        any(words in title for title in titles)
        for words in ("Time of a complete call", "Where a step's time goes", "Where the matrix sits")
    ] == [True] * 3
    for figure in report_figures(result):
        assert re.search(r"\[(µs|steps|KiB|MiB)\]", figure.layout.xaxis.title.text)


def test_text_from_records_is_escaped(result) -> None:
    import dataclasses

    hostile = dataclasses.replace(result, source="replayed: <script>alert(1)</script>", notes=("<b>note</b>",))
    text = render_report(hostile)
    assert "<script>alert(1)" not in text and "<b>note</b>" not in text and "&lt;b&gt;note" in text


def test_a_picture_without_a_browser_says_what_to_install(result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_browser", lambda: None)
    with pytest.raises(ValueError, match="install chromium"):
        write_picture(result, tmp_path / "answer.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.browser
def test_the_picture_is_a_png_of_the_stated_size(result, tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("needs Chromium")
    path = write_picture(result, tmp_path / "images" / "answer.png")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 20_000
    assert int.from_bytes(data[16:20]) == 1920  # 1,280 px at one and a half times
    assert [each.name for each in path.parent.iterdir()] == ["answer.png"]
