"""`wts-lab rounds`, and `wts-lab round --measured`: what a round record says, as text, JSON and files."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("typer.testing")
pandas = pytest.importorskip("pandas")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.measured_round import compare_rounds, measured_parts  # noqa: E402
from cost_model.measurement import read_round, write_round  # noqa: E402
from cost_model.pass_fit import fit_passes  # noqa: E402
from cost_model.passes import load_rates  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from cost_model.units import format_percent, format_us  # noqa: E402
from tests.command_line import refused, run  # noqa: E402
from tests.synthetic_rounds import synthetic_rows  # noqa: E402
from wts_lab.cli_rounds import read_rounds  # noqa: E402
from wts_lab.measured_round_views import markdown  # noqa: E402

GPU = load_gpu("h200-sxm")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return write_round(tmp_path_factory.mktemp("rounds") / "2026-01-31-round.parquet", synthetic_rows(GPU, noise=0.01))


@pytest.fixture(scope="module")
def found(record):
    return compare_rounds(GPU, read_round(record))


def test_json_is_what_the_function_returns(record, found):
    assert json.loads(run("rounds", str(record), "--json").stdout) == json.loads(json.dumps(found.as_dict()))


def test_text_has_every_gain_and_error(record, found, tmp_path):
    shown = " ".join(run("rounds", str(record), "--out", str(tmp_path / "rounds.md")).stdout.split())
    page = (tmp_path / "rounds.md").read_text()
    for gain in found.gains:
        assert f"{format_percent(gain.gain)} ({format_percent(gain.gain_low)} to {format_percent(gain.gain_high)})" in page
    assert format_percent(found.median_error("verify")) in page and format_percent(found.median_error("round")) in page
    most = max(found.gains, key=lambda gain: gain.gain)
    assert f"Over the fastest path that the engine has for each round it is {format_percent(min(gain.gain for gain in found.gains))} to {format_percent(most.gain)}." in page
    assert f"{format_percent(most.gain)} more tokens per second" in page and "Published: up to 12.3 %" in page
    assert "coefficients of each target fitted to the other targets' passes" in shown and "12.3 %" in shown


def test_files_are_json_or_markdown(record, found, tmp_path):
    run("rounds", str(record), "--out", str(tmp_path / "rounds.json"))
    assert json.loads((tmp_path / "rounds.json").read_text()) == json.loads(json.dumps(found.as_dict()))
    assert "end the name in .md or .json" in refused("rounds", str(record), "--out", str(tmp_path / "rounds.txt"))


def test_another_gpu_and_another_file_are_refused(record, tmp_path):
    assert "H200" in refused("rounds", str(record), "--gpu", "b200-sxm")
    assert "no such file" in refused("rounds", str(tmp_path / "none.parquet"))
    nameless = write_round(tmp_path / "nameless.parquet", [row | {"gpu_name": None} for row in synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,))])
    assert "name it with --gpu" in refused("rounds", str(nameless))


ASKED = ("round", "--gpu", "h200-sxm", "--drafter", "dspark-qwen3-8b", "--accepted-length", "4", "--steps", "16")


def test_a_round_takes_recorded_times_and_given_ones_before_them(record, found):
    printed = json.loads(run(*ASKED, "--concurrency", "4", "--context", "8192", "--measured", str(record), "--backbone-us", "900", "--json").stdout)
    verify = next(one.part for one in found.parts if one.part.phase == "verify" and one.part.key.target == "qwen3-8b"
                  and (one.part.key.concurrency, one.part.key.context_tokens) == (4, 8192))
    assert printed["phases"]["verify"] == {"time_us": verify.time_us, "time_us_low": verify.time_us_low, "time_us_high": verify.time_us_high, "basis": "measured"}
    assert printed["phases"]["backbone"]["time_us"] == 900 and printed["phases"]["backbone"]["basis"] == "given"
    assert not any("estimated" in note for note in printed["notes"])


def test_a_round_that_was_not_recorded_is_refused(record):
    line = refused(*ASKED, "--concurrency", "2", "--context", "8192", "--measured", str(record))
    assert "2 sequences of 8,192 tokens" in line and "recorded are" in line


def test_times_are_shown_with_half_their_interval(record, found):
    part = next(one.part for one in found.parts if one.part.phase == "base_logits")
    shown = run("rounds", str(record)).stdout
    assert format_us(part.time_us) in shown and "±" in shown


def test_describing_a_record_writes_the_coefficients_that_it_gives(record, tmp_path, monkeypatch, capsys):
    from benchmarks.round import main
    from cost_model import passes
    from tests.synthetic_rounds import RATES

    monkeypatch.setattr(passes, "rates_path", lambda: tmp_path / "passes.toml")
    assert main(["--describe", str(record)]) == 0
    assert str(tmp_path / "passes.toml") in capsys.readouterr().out
    rates = passes.load_rates(GPU)
    assert rates.read_share == pytest.approx(RATES.read_share, rel=0.02) and 0.002 < rates.relative_error < 0.02
    assert "h200-sxm: 2026-01-31-round" in (tmp_path / "passes.toml").read_text()


def test_figures_that_rest_on_few_samples_are_marked_and_left_out_of_the_range(tmp_path):
    rows = synthetic_rows(GPU, noise=0.01)
    for row in rows:
        if (row["target"], row["concurrency"], row["phase"]) == ("qwen3-4b", 1, "round"):  # the greatest gains
            row |= {"samples_us": row["samples_us"][:1], "samples_dropped": 3 * len(row["samples_us"]), "throttle_reasons": "sw_power_cap"}
    compared = compare_rounds(GPU, read_round(write_round(tmp_path / "2026-01-31-round.parquet", rows)))
    page = markdown(compared)
    thin = [line for line in page.splitlines() if line.startswith("| qwen3-4b, 1 ×")]
    assert thin and all(" * |" in line for line in thin) and "| qwen3-4b, 4 ×" in page
    assert not any(" * |" in line for line in page.splitlines() if line.startswith("| qwen3-4b, 4 ×"))
    said = next(line for line in page.splitlines() if "samples were dropped" in line)
    assert "(sw_power_cap): of qwen3-4b 1 × 1,024, qwen3-4b 1 × 8,192." in said
    assert not max(compared.gains, key=lambda gain: gain.gain).stands
    most = max((gain for gain in compared.gains if gain.stands), key=lambda gain: gain.gain)
    assert f"the most with {most.key.target} {most.key.concurrency} × {most.key.context_tokens:,}: {format_percent(most.gain)}" in page


def test_rounds_of_two_block_lengths_are_told_apart(tmp_path):
    rows = [row for drafted in (7, 15) for row in synthetic_rows(GPU, concurrencies=(1,), contexts=(1024,), drafted=drafted)]
    page = markdown(compare_rounds(GPU, read_round(write_round(tmp_path / "2026-01-31-round.parquet", rows))))
    assert "the most with qwen3-4b 1 × 1,024, 15 drafted:" in page and "## qwen3-8b, 7 drafted: phases and heads" in page


SHIPPED = [path for name in ("*-round.parquet", "*-round-*-c*.parquet") for path in sorted((data_root() / "measurements").glob(f"*/{name}"))]
"""All concurrencies and contexts, and what was measured again since the GPU throttled."""
PAGE = data_root().parent / "docs" / "measured-rounds.md"


def test_the_coefficients_that_ship_are_those_of_the_shipped_record():
    frame, gpu = read_rounds(SHIPPED, None)
    fitted, shipped = fit_passes(gpu, measured_parts(frame)), load_rates(gpu)
    assert asdict(shipped) == pytest.approx(asdict(fitted), rel=0.005), "make them again: python -m benchmarks.round --describe RECORD"
    compared = compare_rounds(gpu, frame)
    assert all(compared.median_error(phase) < 0.1 for phase in ("verify", "backbone", "base_logits", "head", "round"))  # the goal, held out by target


def test_the_page_of_the_shipped_records_is_what_they_say():
    frame, gpu = read_rounds(SHIPPED, None)
    names = " ".join(path.name for path in SHIPPED)
    assert PAGE.read_text("utf-8") == markdown(compare_rounds(gpu, frame)), f"make it again: wts-lab rounds {names} --out docs/{PAGE.name}"
