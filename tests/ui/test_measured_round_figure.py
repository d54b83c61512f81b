"""The figure of recorded rounds against the record: parts, whole rounds and gains; and what it says where there is nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="rounds are records")
pytest.importorskip("pyarrow", reason="rounds are records")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.measurement import write_round  # noqa: E402
from cost_model.units import format_percent  # noqa: E402
from tests.synthetic_rounds import synthetic_rows  # noqa: E402
from wts_lab.recorded_rounds import recorded_rounds  # noqa: E402
from wts_lab.ui.figures import draw  # noqa: E402
from wts_lab.ui.measured_round_figure import measured_round_spec  # noqa: E402

GPU = load_gpu("h200-sxm")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    rows = synthetic_rows(GPU, noise=0.01)
    for row in rows:
        if (row["target"], row["concurrency"], row["context_tokens"], row["phase"]) == ("qwen3-4b", 4, 8192, "round"):
            row |= {"samples_us": row["samples_us"][:1], "samples_dropped": 9}
    write_round(folder / "h200-sxm" / "2026-01-30-round.parquet", synthetic_rows(GPU, concurrencies=(2,)))
    write_round(folder / "h200-sxm" / "2026-01-31-round.parquet", rows)
    return recorded_rounds(GPU, folder)


def test_the_newest_record_is_read(found):
    assert {one.part.key.concurrency for one in found.parts} == {1, 4, 16}


def test_what_was_measured_again_takes_the_place_of_what_was_lost(tmp_path):
    def written(name, samples, dropped, **shape):
        rows = [row | {"run_id": name, "samples_us": samples, "samples_dropped": dropped} for row in synthetic_rows(GPU, ("qwen3-4b",), contexts=(1024,), **shape)]
        write_round(tmp_path / "h200-sxm" / f"2026-01-31-{name}.parquet", rows)

    written("round", [5.0], 3, concurrencies=(1, 4))
    written("round-4b-c4", [7.0, 7.0], 0, concurrencies=(4,))
    written("round-lengths", [9.0], 0, concurrencies=(4,), drafted=7)
    verify = {one.part.key.concurrency: one.part.time_us for one in recorded_rounds(GPU, tmp_path).parts if one.part.phase == "verify"}
    assert verify == {1: 5.0, 4: 7.0}


def test_bars_are_the_parts_and_words_the_gains(found):
    spec = measured_round_spec(found, "qwen3-4b")
    time_us = {(one.part.key.target, one.part.key.concurrency, one.part.key.context_tokens, one.part.phase, one.part.implementation): one.part.time_us for one in found.parts}
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"])) for trace in spec["data"] if trace["type"] == "bar"}
    assert list(bars) == ["verify", "backbone", "base logits", "engine's head", "resident head"]
    for concurrency, context in ((1, 1024), (1, 8192), (4, 1024), (16, 1024), (16, 8192)):
        place, round_ = f"<b>{concurrency} × {context:,}</b>, ", ("qwen3-4b", concurrency, context)
        for way, name in (("engine's head", "sglang-0.5.23 MarkovSampleStep"), ("resident head", "wts")):
            assert bars["verify"][f"{place}{way} "] * 1e3 == pytest.approx(time_us[(*round_, "verify", None)])
            assert bars[way][f"{place}{way} "] * 1e3 == pytest.approx(time_us[(*round_, "head", name)])
    whole = spec["data"][-1]
    gains = found.over_taken("qwen3-4b")
    assert len(gains) == 6 and [(gain.key.concurrency, gain.key.context_tokens) for gain in gains if not gain.stands] == [(4, 8192)]
    for gain, words in zip((gain for gain in gains if gain.stands), whole["text"][1::2], strict=True):
        assert f"+{format_percent(gain.gain)}</b> ({format_percent(gain.gain_low)} to" in words
    assert "not drawn: 1 that lost most samples" in spec["layout"]["title"]["text"] and "not drawn" not in measured_round_spec(found, "qwen3-8b")["layout"]["title"]["text"]
    assert not any("+" in words for words in whole["text"][::2])
    draw(spec)


def test_rounds_of_two_block_lengths_have_bars_of_their_own(tmp_path):
    rows = [row for drafted in (7, 15) for row in synthetic_rows(GPU, ("qwen3-4b", "qwen3-8b"), (1,), (1024,), drafted=drafted)]
    write_round(tmp_path / "h200-sxm" / "2026-01-31-round.parquet", rows)
    bars = measured_round_spec(recorded_rounds(GPU, tmp_path), "qwen3-4b")["data"][0]["y"]
    assert bars == [f"<b>1 × 1,024</b>, {drafted} drafted, {way} " for drafted in (7, 15) for way in ("engine's head", "resident head")]


def test_nothing_recorded_is_said(found, tmp_path):
    for nothing, target, words in ((recorded_rounds(GPU, tmp_path), "qwen3-4b", "no round of h200-sxm is recorded"), (found, "qwen3-14b", "No gain of qwen3-14b")):
        spec = measured_round_spec(nothing, target)
        assert spec["data"] == [] and words in spec["layout"]["annotations"][0]["text"]
        draw(spec)
