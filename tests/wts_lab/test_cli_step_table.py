"""The command `step-table`: from a round record to a file that the engine's own code reads, and what is refused on the way."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer.testing")
pytest.importorskip("pandas")

from cost_model.engine_tables import FINGERPRINT_KEY, ORIGIN_KEY  # noqa: E402
from cost_model.measured_round import measured_parts  # noqa: E402
from cost_model.measurement import read_round, round_row, write_round  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from tests.command_line import refused, run  # noqa: E402

SHARED = {"run_id": "one", "recorded_at_utc": "2026-01-31T12:00:00Z", "gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "driver_version": "580.1",
          "target": "qwen3-8b", "context_tokens": 1024, "samples_dropped": 0}  # fmt: skip
HEADS = (("wts", "resident", 0.0), ("sglang-0.5.23 MarkovGreedyStep", "stepwise", 500.0), ("sglang-0.5.23 MarkovSampleStep", "stepwise", 400.0))
RESIDENT = ("--head", "dspark-qwen3-8b")


def record(folder, *, drafted=(7,), requests=(1, 2, 4), processes=(0, 1), per_token_us=10.0, noise_us=4.0, contexts=(1024,)):
    """A record whose rounds take 4000 us, 50 for each request and so much for each token; heads on top."""
    rows = [
        round_row(**SHARED | {"context_tokens": context}, process_index=process, phase=phase, concurrency=n, draft_tokens=k, head_implementation=name, head_mode=mode,
                  samples_us=[4000 + 50 * n + per_token_us * n * (k + 1) + more + noise_us * process] * 3)
        for phase in ("round", "head") for context in contexts for k in drafted for n in requests for process in processes for name, mode, more in HEADS
    ]  # fmt: skip
    return str(write_round(folder / "2026-01-31-round.parquet", rows))


def test_an_sps_table_holds_the_measured_steps_and_is_checked_again(tmp_path):
    out = tmp_path / "sps.json"
    told = json.loads(run("step-table", record(tmp_path), *RESIDENT, "--out", str(out), "--max-batch-tokens", "64", "--json").stdout)
    times_us = [4000 + 50 * n + 80 * n + 2 for n in (1, 2, 4)]
    assert told["table"]["sample_batch_tokens"] == [8, 16, 32] and told["table"]["max_batch_tokens"] == 64
    assert told["table"]["sample_steps_per_sec"] == pytest.approx([1e6 / time_us for time_us in times_us])
    written = json.loads(out.read_text())
    assert written[ORIGIN_KEY] == {"gpu_name": "NVIDIA H200", "target": "qwen3-8b", "context_tokens": 1024, "head_implementation": "wts", "head_mode": "resident",
                                   "records": ["2026-01-31-round"], "format": "sps"}  # fmt: skip
    assert (written[FINGERPRINT_KEY]["gpu_id"], written[FINGERPRINT_KEY]["driver_version"], written[FINGERPRINT_KEY]["vocab_size"]) == ("h200-sxm", "580.1", 151_936)
    assert "is sound, and holds for h200-sxm" in run("step-table", "--check", str(out), "--gpu", "h200-sxm", *RESIDENT).stderr
    line = refused("step-table", "--check", str(out), "--gpu", "h100-sxm", "--head", "dspark-qwen3-4b")
    assert "gpu_id is 'h200-sxm' in the file and 'h100-sxm' here" in line and "Measure rounds here" in line
    out.write_text(json.dumps(written | {"sample_batch_tokens": [-8, 16, 32]}))
    assert "each above the one before" in refused("step-table", "--check", str(out), "--gpu", "h200-sxm", *RESIDENT)


@pytest.mark.parametrize("kind", ["additive", "tensorrt"])
def test_parts_of_requests_and_tokens_need_blocks_of_several_lengths(kind, tmp_path):
    path = record(tmp_path, drafted=(3, 7, 15), requests=(1, 2, 4), noise_us=1.0)
    table = json.loads(run("step-table", path, *RESIDENT, "--format", kind, "--json").stdout)["table"]
    tokens, requests = [4, 8, 16, 32, 64], [1, 2, 4]
    if kind == "additive":
        assert (table["m_probes"], table["bs_probes"]) == (tokens, requests) and table["bias_seconds"] == pytest.approx((4000 + 50 + 40 + 0.5) * 1e-6)
        assert table["theta_seconds"] == pytest.approx([10e-6 * (m - 4) for m in tokens]) and table["alpha_seconds"] == pytest.approx([0, 50e-6, 150e-6], abs=1e-12)
    else:
        assert (table["token_counts"], table["batch_sizes"]) == (tokens, requests) and table["fixed_overhead_ms"] == 0
        assert table["step_time_ms"] == pytest.approx([4.0905 + 0.01 * (m - 4) for m in tokens]) and table["batch_overhead_ms"] == pytest.approx([0, 0.05, 0.15], abs=1e-9)


@pytest.mark.parametrize(
    ("made", "words", "message"),
    [
        ({}, ("--format", "additive"), "cannot be told apart"), ({"requests": (1,)}, (), "1 steps were measured; a table needs two"),
        ({"processes": (0,)}, (), "measured in one process"), ({"noise_us": 5000.0}, (), "not above the measured noise"),
        ({"per_token_us": -20.0}, (), "fall by"), ({"contexts": (1024, 8192)}, (), "a table is of one context_tokens; the 12 rows"),
        ({}, ("--mode", "stepwise"), "a table is of one head_implementation"), ({}, ("--mode", "streaming"), "no whole round has head_mode streaming; there are resident, stepwise"),
        ({}, ("--target", "llama"), "no whole round has target llama; there are qwen3-8b"), ({}, ("--format", "sgl"), "format is 'sgl'"),
        ({}, ("--gpu", "b200-sxm"), "H200"), ({}, ("--format", "additive", "--max-batch-tokens", "64"), "has no place for"), ({}, ("--mode", "slow"), "--mode is 'slow'"),
    ],
)  # fmt: skip
def test_what_would_mislead_a_scheduler_is_refused(made, words, message, tmp_path):
    out = tmp_path / "table.json"
    assert message in refused("step-table", record(tmp_path, **made), *RESIDENT, *words, "--out", str(out)) and not out.exists()


def test_several_heads_and_contexts_are_told_apart_by_options(tmp_path):
    path = record(tmp_path, contexts=(1024, 8192))
    words = ("--mode", "stepwise", "--implementation", "sglang-0.5.23 MarkovSampleStep", "--context", "8192")
    told = json.loads(run("step-table", path, *RESIDENT, *words, "--json").stdout)
    assert told["origin"]["context_tokens"] == 8192 and told["steps"][0]["step_us"] == pytest.approx(4000 + 50 + 80 + 400 + 2)
    shown = run("step-table", path, *RESIDENT, "--context", "1024").stdout
    assert "Steps of qwen3-8b at 1,024 tokens of context, head wts resident, on " in shown


def test_what_is_not_given_is_asked_for(tmp_path):
    assert "name the drafter's head" in refused("step-table", record(tmp_path))
    assert "no record was given" in refused("step-table", *RESIDENT)
    assert "name the GPU with --gpu" in refused("step-table", "--check", str(tmp_path / "t.json"), *RESIDENT)


def test_sglang_loads_what_the_command_wrote(tmp_path, contract):
    flat, parts = tmp_path / "sps.json", tmp_path / "additive.json"
    run("step-table", record(tmp_path), *RESIDENT, "--out", str(flat))
    (tmp_path / "more").mkdir()
    run("step-table", record(tmp_path / "more", drafted=(3, 7, 15), noise_us=1.0), *RESIDENT, "--format", "additive", "--out", str(parts))
    loaded = [contract.sps.load_sps_table_from_path(str(path)) for path in (flat, parts)]
    assert [type(table) for table in loaded] == [contract.sps.SpsCostTable, contract.sps.SpsAdditiveCostTable]
    assert loaded[0].lookup(16) == pytest.approx(1e6 / (4000 + 100 + 160 + 2))
    assert loaded[1].step_time(num_reqs=2, budget=14) == pytest.approx((4000 + 100 + 160 + 0.5) * 1e-6)


# --- the record that ships


SHIPPED = sorted((data_root() / "measurements").glob("*/*-round.parquet"))


@pytest.mark.parametrize("target", ["qwen3-4b", "qwen3-8b"])
def test_sglang_loads_the_table_of_the_rounds_that_ship(target, tmp_path, contract):
    (record_path,) = SHIPPED
    out = tmp_path / "sps.json"
    told = run("step-table", str(record_path), "--head", f"dspark-{target}", "--context", "1024", "--out", str(out), "--json")
    whole = [part for part in measured_parts(read_round(record_path)) if (part.phase, part.mode) == ("round", "resident")]
    times_us = {part.key.concurrency * 17: part.time_us for part in whole if (part.key.target, part.key.context_tokens) == (target, 1024) and part.kept_share >= 0.5}
    loaded = contract.sps.load_sps_table_from_path(str(out))
    assert type(loaded) is contract.sps.SpsCostTable and len(times_us) >= 4
    for tokens, time_us in times_us.items():
        assert loaded.lookup(tokens) == pytest.approx(1e6 / time_us)
    assert loaded.lookup(17) > loaded.lookup(max(times_us))
    assert json.loads(out.read_text())[ORIGIN_KEY]["target"] == target  # of two in the record: that of the head's drafter
    thinned = [part for part in whole if part.key.target == target and part.key.context_tokens == 1024 and part.kept_share < 0.5]
    assert ("left out" in told.stderr) is (len(times_us) < 5) and all(f"{part.key.concurrency} requests" in told.stderr for part in thinned)


@pytest.mark.parametrize("kind", ["additive", "tensorrt"])
def test_rounds_of_one_block_length_make_no_table_of_parts(kind):
    (record_path,) = SHIPPED
    line = refused("step-table", str(record_path), "--head", "dspark-qwen3-4b", "--context", "1024", "--format", kind)
    assert "cannot be told apart" in line and "measure several block lengths" in line
