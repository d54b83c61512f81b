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


DRAFT_TOKEN_US = 30.0
"""What a token costs that is drafted, verified or not."""


def record(folder, *, drafted=(7,), requests=(1, 2, 4), processes=(0, 1), per_token_us=10.0, noise_us=4.0, contexts=(1024,)):
    """A record whose rounds take 4000 us, 50 for each request, 30 for each drafted token of a request and so much for each token verified; heads on top."""
    points = [(context, k, n, process) for context in contexts for k in drafted for n in requests for process in processes]
    heads = [(phase, *head) for phase in ("round", "head") for head in HEADS]
    rows = [
        round_row(**SHARED | {"context_tokens": context}, process_index=process, phase=phase, concurrency=n, draft_tokens=k, head_implementation=name, head_mode=mode,
                  samples_us=[3000 + per_token_us * n * (k + 1) + (0 if phase == "verify" else 1000 + 50 * n + DRAFT_TOKEN_US * k) + more + noise_us * process] * 3)
        for context, k, n, process in points for phase, name, mode, more in (("verify", None, None, 0.0), *heads)
    ]  # fmt: skip
    return str(write_round(folder / "2026-01-31-round.parquet", rows))


def test_an_sps_table_holds_the_measured_steps_and_is_checked_again(tmp_path):
    out = tmp_path / "sps.json"
    told = json.loads(run("step-table", record(tmp_path), *RESIDENT, "--out", str(out), "--max-batch-tokens", "64", "--json").stdout)
    times_us = [4000 + 50 * n + 80 * n + 7 * DRAFT_TOKEN_US + 2 for n in (1, 2, 4)]
    assert told["table"]["sample_batch_tokens"] == [8, 16, 32] and told["table"]["max_batch_tokens"] == 64
    assert told["table"]["sample_steps_per_sec"] == pytest.approx([1e6 / time_us for time_us in times_us])
    written = json.loads(out.read_text())
    assert written[ORIGIN_KEY] == {"gpu_name": "NVIDIA H200", "target": "qwen3-8b", "context_tokens": 1024, "head_implementation": "wts", "head_mode": "resident",
                                   "draft_tokens": 7, "records": ["2026-01-31-round"], "format": "sps"}  # fmt: skip
    assert (written[FINGERPRINT_KEY]["gpu_id"], written[FINGERPRINT_KEY]["driver_version"], written[FINGERPRINT_KEY]["vocab_size"]) == ("h200-sxm", "580.1", 151_936)
    assert "is sound, and holds for h200-sxm" in run("step-table", "--check", str(out), "--gpu", "h200-sxm", *RESIDENT).stderr
    line = refused("step-table", "--check", str(out), "--gpu", "h100-sxm", "--head", "dspark-qwen3-4b")
    assert "gpu_id is 'h200-sxm' in the file and 'h100-sxm' here" in line and "Measure rounds here" in line
    out.write_text(json.dumps(written | {"sample_batch_tokens": [-8, 16, 32]}))
    assert "each above the one before" in refused("step-table", "--check", str(out), "--gpu", "h200-sxm", *RESIDENT)


@pytest.mark.parametrize("kind", ["additive", "tensorrt"])
def test_parts_of_requests_and_tokens_are_of_one_draft_of_which_fewer_tokens_are_verified(kind, tmp_path):
    """Blocks of 3 and 7 tokens tell what verifying so few costs; 15 are drafted in each step."""
    path = record(tmp_path, drafted=(3, 7, 15), requests=(1, 2, 4), noise_us=1.0)
    told = json.loads(run("step-table", path, *RESIDENT, "--format", kind, "--json").stdout)
    table, tokens, requests = told["table"], [4, 8, 16, 32, 64], [1, 2, 4]
    assert told["origin"]["draft_tokens"] == 15 and len(told["steps"]) == 9
    if kind == "additive":
        bias_us = 4000 + 50 + 40 + 15 * DRAFT_TOKEN_US + 0.5
        assert (table["m_probes"], table["bs_probes"]) == (tokens, requests) and table["bias_seconds"] == pytest.approx(bias_us * 1e-6)
        assert table["theta_seconds"] == pytest.approx([10e-6 * (m - 4) for m in tokens]) and table["alpha_seconds"] == pytest.approx([0, 50e-6, 150e-6], abs=1e-12)
    else:
        assert (table["token_counts"], table["batch_sizes"]) == (tokens, requests) and table["fixed_overhead_ms"] == 0
        assert table["step_time_ms"] == pytest.approx([4.5405 + 0.01 * (m - 4) for m in tokens]) and table["batch_overhead_ms"] == pytest.approx([0, 0.05, 0.15], abs=1e-9)


@pytest.mark.parametrize(
    ("made", "words", "message"),
    [
        ({}, ("--format", "additive"), "cannot be told apart"), ({"drafted": (3, 7, 15)}, ("--format", "additive", "--steps", "3"), "cannot be told apart"),
        ({"drafted": (3, 7)}, ("--steps", "5"), "5 was chosen and whole rounds of 3, 7 tokens drafted are recorded"), ({}, ("--steps", "0"), "0 was chosen"), ({"requests": (1,)}, (), "1 steps were measured; a table needs two"),
        ({"processes": (0,)}, (), "measured in one process"), ({"noise_us": 5000.0}, (), "not above the measured noise"),
        ({"per_token_us": -20.0}, (), "fall by"), ({"contexts": (1024, 8192)}, (), "rows of whole rounds have 1024, 8192; choose one"),
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
    assert told["origin"]["context_tokens"] == 8192 and told["steps"][0]["step_us"] == pytest.approx(4000 + 50 + 80 + 7 * DRAFT_TOKEN_US + 400 + 2)
    shown = run("step-table", path, *RESIDENT, "--context", "1024").stdout
    assert "Steps of qwen3-8b at 1,024 tokens of context, 7 drafted, head wts resident, on " in shown


def test_what_is_not_given_is_asked_for(tmp_path):
    assert "name the drafter's head" in refused("step-table", record(tmp_path))
    assert "no record was given" in refused("step-table", *RESIDENT)
    assert "unknown head 'mine'" in refused("step-table", record(tmp_path / "again"), "--head", "mine")
    assert "name the GPU with --gpu" in refused("step-table", "--check", str(tmp_path / "t.json"), *RESIDENT)


def test_sglang_loads_what_the_command_wrote(tmp_path, contract):
    flat, parts = tmp_path / "sps.json", tmp_path / "additive.json"
    run("step-table", record(tmp_path), *RESIDENT, "--out", str(flat))
    (tmp_path / "more").mkdir()
    run("step-table", record(tmp_path / "more", drafted=(3, 7, 15), noise_us=1.0), *RESIDENT, "--format", "additive", "--out", str(parts))
    loaded = [contract.sps.load_sps_table_from_path(str(path)) for path in (flat, parts)]
    assert [type(table) for table in loaded] == [contract.sps.SpsCostTable, contract.sps.SpsAdditiveCostTable]
    assert loaded[0].lookup(16) == pytest.approx(1e6 / (4000 + 100 + 160 + 7 * DRAFT_TOKEN_US + 2))
    assert loaded[1].step_time(num_reqs=2, budget=14) == pytest.approx((4000 + 100 + 160 + 15 * DRAFT_TOKEN_US + 0.5) * 1e-6)


def test_a_flat_table_of_several_block_lengths_is_of_one(tmp_path):
    path = record(tmp_path, drafted=(7, 15))
    for words, drafted in (((), 15), (("--steps", "7"), 7)):
        told = json.loads(run("step-table", path, *RESIDENT, *words, "--json").stdout)
        assert told["table"]["sample_batch_tokens"] == [n * (drafted + 1) for n in (1, 2, 4)] and told["origin"]["draft_tokens"] == drafted
        assert told["steps"][0]["step_us"] == pytest.approx(4000 + 50 + 10 * (drafted + 1) + drafted * DRAFT_TOKEN_US + 2)


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


LENGTHS, FALLING = (sorted((data_root() / "measurements").glob(f"*/*-round-lengths-{name}.parquet")) for name in ("4b", "8b"))
"""Records of rounds of two block lengths, of one target each. Of Qwen3-8B a pass that verifies 8 tokens took longer than one of 16, so there is no table of it."""


@pytest.mark.parametrize("form", ["additive", "tensorrt"])
@pytest.mark.parametrize("record_path", FALLING, ids=lambda path: path.stem)
def test_passes_that_get_shorter_with_more_tokens_make_no_table(record_path, form, tmp_path):
    out = tmp_path / "table.json"
    said = run("step-table", str(record_path), "--head", "dspark-qwen3-8b", "--context", "1024", "--format", form, "--out", str(out))
    assert said.exit_code == 2 and "error: the part of tokens fall by 219 us as the batch grows" in said.stderr and not out.exists()


@pytest.mark.parametrize("record_path", LENGTHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("words", [(), ("--mode", "stepwise", "--implementation", "sglang-0.5.23 MarkovSampleStep")], ids=["resident", "stepwise"])
def test_sglang_loads_the_parts_of_the_rounds_of_two_lengths_that_ship(record_path, words, tmp_path, contract):
    parts = measured_parts(read_round(record_path))
    (target,), (shorter, drafted) = {part.key.target for part in parts}, sorted({part.key.draft_tokens for part in parts})
    mode, implementation = (words[1], words[3]) if words else ("resident", "wts")
    time_us = {(part.phase, part.key.concurrency, part.key.draft_tokens): part.time_us for part in parts if part.key.context_tokens == 1024 and part.kept_share >= 0.5
               and (part.phase == "verify" or (part.phase, part.mode, part.implementation) == ("round", mode, implementation))}  # fmt: skip
    files = {}
    for kind in ("additive", "tensorrt", "sps"):
        files[kind] = tmp_path / f"{kind}.json"
        run("step-table", str(record_path), "--head", f"dspark-{target}", "--context", "1024", *words, "--format", kind, "--out", str(files[kind]))
    loaded, plain = contract.sps.load_sps_table_from_path(str(files["additive"])), json.loads(files["tensorrt"].read_text())
    assert type(loaded) is contract.sps.SpsAdditiveCostTable and not contract.sps.is_uninitialized_sps_table(loaded)
    assert type(contract.sps.load_sps_table_from_path(str(files["sps"]))) is contract.sps.SpsCostTable
    wholes = [requests for phase, requests, length in time_us if (phase, length) == ("round", drafted)]
    assert len(wholes) >= 4
    for requests in wholes:
        for verified in {length for phase, n, length in time_us if (phase, n) == ("verify", requests)}:
            wanted_us = time_us["round", requests, drafted] - time_us["verify", requests, drafted] + time_us["verify", requests, verified]
            assert loaded.step_time(num_reqs=requests, budget=requests * verified) == pytest.approx(wanted_us * 1e-6, rel=0.01)
            step_ms = plain["step_time_ms"][plain["token_counts"].index(requests * (verified + 1))] + plain["batch_overhead_ms"][plain["batch_sizes"].index(requests)]
            assert step_ms + plain["fixed_overhead_ms"] == pytest.approx(wanted_us * 1e-3, rel=0.01)
    assert shorter < drafted == json.loads(files["additive"].read_text())[ORIGIN_KEY]["draft_tokens"]


@pytest.mark.parametrize("kind", ["additive", "tensorrt"])
def test_rounds_of_one_block_length_make_no_table_of_parts(kind):
    (record_path,) = SHIPPED
    line = refused("step-table", str(record_path), "--head", "dspark-qwen3-4b", "--context", "1024", "--format", kind)
    assert "cannot be told apart" in line and "measure several block lengths" in line
