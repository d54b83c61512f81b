"""`wts-lab tune`: what it lists without a GPU, how it refuses, and what it shows, writes and keeps after a run on the simulated GPU."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

typer_testing = pytest.importorskip("typer.testing")
pytest.importorskip("scipy", reason="fits need scipy")
pytest.importorskip("pyarrow", reason="rounds are Parquet records")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.placement import Kernel, Placement, registers_claim, shared_bytes  # noqa: E402
from cost_model.settings import read_settings  # noqa: E402
from cost_model.units import format_us  # noqa: E402
from wts_lab import cli, environment, study, tune  # noqa: E402
from wts_lab.bench_run import work  # noqa: E402
from wts_lab.tune_plan import TuneRequest, candidates  # noqa: E402
from wts_lab.tuned import TunedFor, load_tuned, read_tuned  # noqa: E402

SHAPE = ("--vocab", "151936")
HEAD = Head.markov(151_936, 256)
NAMES = [trial.name for trial in candidates(load_gpu("h200-sxm"), TuneRequest(HEAD, limit=4))]


def run(*arguments: str):
    """Run `tune` in this process; returns exit_code, stdout, stderr."""
    return typer_testing.CliRunner().invoke(cli.app, ["tune", *arguments])


# --- without a GPU --------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_candidates_with_registers_and_shared_bytes():
    answer = json.loads(run(*SHAPE, "--gpu", "h200-sxm", "--dry-run", "--limit", "5", "--json").stdout)
    assert (answer["gpu_id"], len(answer["candidates"])) == ("h200-sxm", 5)
    first = answer["candidates"][0]
    planned = Placement(8, 40, 32, 0, 0)
    assert (first["planned"], first["warps"], first["register_tiles"], first["shared_tiles"]) == (True, 8, 40, 32)
    assert first["predicted_registers_per_thread"] == registers_claim(planned, 256, "int8x2").registers_per_thread
    assert first["shared_bytes"] == shared_bytes(planned, 256, "int8x2")
    assert {row["step_us"] for row in answer["candidates"]} == {None}


def test_a_dry_run_shows_the_same_as_a_table():
    shown = run(*SHAPE, "--gpu", "h200-sxm", "--dry-run", "--limit", "5")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["8", "40", "32", "0", "0"] in [line[:5] for line in lines]
    assert sum(line[:1] in (["4"], ["8"], ["12"], ["16"]) for line in lines) == 5
    assert "spread-lines, dense-lines" in shown.stdout


def test_a_dry_run_takes_warps_and_the_exchanges_given():
    answer = json.loads(run(*SHAPE, "--gpu", "h200-sxm", "--dry-run", "--warps", "4,12", "--exchange", "dense-lines", "--json").stdout)
    assert {row["warps"] for row in answer["candidates"][1:]} == {4, 12}
    assert answer["exchanges"] == ["dense-lines"]


def test_a_dry_run_of_a_candidate_pool_lists_what_its_walk_builds():
    answer = json.loads(run("--head", "domino-qwen3-4b", "--batch", "4", "--gpu", "h200-sxm", "--dry-run", "--warps", "4,8", "--json").stdout)
    first, kernel = answer["candidates"][0], Kernel(head="domino", gru=1024, state_rows=24, projector_rows=2)
    assert (first["planned"], first["warps"], first["register_tiles"]) == (True, 8, 8)
    found = [(row["warps"], row["register_tiles"], row["shared_tiles"], row["residency"]) for row in answer["candidates"]]
    assert sorted(found) == [(4, 0, 4, 1.0), (4, 4, 0, 1.0), (8, 0, 8, 1.0), (8, 8, 0, 1.0)]  # one slot a warp, in either tier
    assert first["shared_bytes"] == shared_bytes(Placement(8, 8, 0, 0, 0), 256, "int8x2", kernel)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dry-run",), "no GPU to plan for; name one with --gpu"),
        ((), "measuring needs torch and a CUDA GPU"),
        (("--mode", "stepwise"), "choose one of resident, streaming"),
        (("--steps", "1,16"), "a step cost needs at least 3"),
        (("--warps", "eight"), "--warps has 'eight'"),
        (("--warps", "40", "--gpu", "h200-sxm", "--dry-run"), "warps is 40"),
        (("--exchange", "ring"), "choose one of spread-lines, dense-lines"),
        (("--limit", "0"), "limit is 0"),
        (("--gpu", "h300", "--dry-run"), "h300"),
        (("--head", "dspark-qwen3-4b"), "--head dspark-qwen3-4b fixes the sizes"),
        (("--gpu", "h200-sxm", "--dry-run", "--batch", "99"), "batch is 99"),
        (("--gpu", "rtx-4090", "--dry-run", "--rank", "512", "--precision", "bf16"), "no resident placement of markov-151936-r512 in bf16 fits"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr(study, "capable_device", lambda: None)
    result = run(*SHAPE, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("wts-lab: error: ") and message in lines[0]


# --- on the simulated GPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def device(simulated, monkeypatch, tmp_path):
    """A machine whose GPU is simulated: (entry, step) by candidate in `costs`, the compiler builds everything."""
    machine = tune.Machine(load_gpu("h200-sxm"), "h200-sxm", "NVIDIA H200", 132, "sm_90", "c0ffee")
    told = SimpleNamespace(costs={NAMES[0]: (12.0, 2.5), NAMES[2]: (12.0, 2.0)}, throttled=(), machine=machine)

    def worker(plan_file, process_index, progress, cancel):
        work(plan_file, process_index, bench=simulated.Bench(told.costs, told.throttled), say=lambda line: None, cancel=cancel)

    def run_tune(request, machine, *, out, progress):
        built = SimpleNamespace(registers_per_thread=168, spill_bytes=8)
        build = lambda cases: [built] * len(cases)  # noqa: E731
        return tune_for_real(request, machine, out=out, progress=False, build=build, run_worker=worker)

    tune_for_real = tune.run_tune
    monkeypatch.setattr(tune, "run_tune", run_tune)
    monkeypatch.setattr(tune.Machine, "here", lambda gpu_id=None: replace(machine, gpu_id=gpu_id or machine.gpu_id))
    monkeypatch.setattr(environment, "require_device", lambda: None)
    monkeypatch.setattr(environment, "snapshot", lambda: {"git_commit": "c0ffee", "git_dirty": False})
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path / "cache"))
    return told


QUICK = ("--limit", "4", "--exchange", "spread-lines", "--processes", "2", "--repeats", "5")


def test_the_winner_is_shown_recorded_and_kept(device, tmp_path):
    result = run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"), "--table", str(tmp_path / "table"))
    assert result.exit_code == 0, result.output
    assert f"{NAMES[2]} is faster than the planner's choice: a step of {format_us(2.0)}, {format_us(2.5)} there." in result.stdout
    records = sorted((tmp_path / "runs" / "h200-sxm").glob("*.parquet"))
    assert [path.name.split("-")[4] for path in records] == ["final", "placements"]
    for path in (*records, tmp_path / "table" / "candidates.csv", tmp_path / "table" / "candidates.md"):
        assert f"wrote {path}" in result.stderr
    wanted = TunedFor.of("NVIDIA H200", 132, "c0ffee", HEAD, mode="resident", precision="int8x2")
    kept = load_tuned(tmp_path / "cache" / "tuned", wanted)
    assert f"kept in {tmp_path / 'cache' / 'tuned' / wanted.file_name}" in result.stderr
    assert kept.record == next(path.stem for path in records if "final" in path.name)
    assert (kept.step_us, kept.planned_step_us) == (pytest.approx(2.0), pytest.approx(2.5))


def test_the_files_hold_every_candidate_with_registers_and_spills(device, tmp_path):
    run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"), "--table", str(tmp_path))
    rows = list(csv.DictReader((tmp_path / "candidates.csv").open()))
    assert len(rows) == 4
    assert {(row["registers_per_thread"], row["spill_bytes"]) for row in rows} == {("168", "8")}
    (kept,) = (row for row in rows if row["kept"] == "True")
    assert (float(kept["step_us"]), kept["verdict"]) == (pytest.approx(2.0), "faster")
    lines = (tmp_path / "candidates.md").read_text().splitlines()
    assert len(lines) == 6 and len({line.count("|") for line in lines}) == 1
    assert "| 168 | 8 |" in lines[2] and "| faster, kept |" in lines[2]


def test_json_has_the_rows_and_where_the_winner_is_kept(device, tmp_path):
    keep = tmp_path / "mine.json"
    answer = json.loads(run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"), "--keep", str(keep), "--json").stdout)
    assert answer["kept"] == str(keep) and len(answer["records"]) == 2
    assert [row["verdict"] for row in answer["candidates"] if row["kept"]] == ["faster"]
    assert read_tuned(keep).placement == Placement(**{name: answer["candidates"][0][name] for name in (
        "warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles", "tensor_tiles")})  # fmt: skip


def test_the_winner_becomes_settings_that_can_be_deployed(device, tmp_path):
    words = ("--limit", "4", "--processes", "2", "--repeats", "5", "--steps", "1,4,7", "--out", str(tmp_path / "runs"))
    load = ("--batch", "4", "--temperature", "0.8", "--rounding", "twice")
    result = run("--head", "dspark-qwen3-8b", "--kind", "gated", *load, *words, "--settings", str(tmp_path / "settings.json"), "--keep", str(tmp_path / "kept.json"))
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'settings.json'}" in result.stderr
    found, kept = read_settings(tmp_path / "settings.json"), read_tuned(tmp_path / "kept.json")
    assert (found.batch, found.steps, found.temperature, found.rounding, found.placement) == (4, 7, 0.8, "twice", kept.placement)
    assert found.fingerprint.head == replace(found.fingerprint.head, kind="gated", hidden_size=4096) and kept.exchange == "spread-lines"
    assert (found.fingerprint.kernel_hash, found.fingerprint.gpu_id, found.source) == ("c0ffee", "h200-sxm", "measured here")


def test_the_planners_choice_stays_where_nothing_is_faster(device, tmp_path):
    device.costs = {NAMES[0]: (12.0, 2.5)}
    result = run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"), "--keep", str(tmp_path / "mine.json"))
    assert f"The planner's choice stays: a step of {format_us(2.5)}." in result.stdout
    assert read_tuned(tmp_path / "mine.json").placement == Placement(8, 40, 32, 0, 0)


def test_nothing_is_kept_on_a_throttled_gpu(device, tmp_path):
    device.throttled = range(100_000)
    result = run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"), "--keep", str(tmp_path / "mine.json"))
    assert result.exit_code == 0
    assert "nothing is kept: samples are left for 0 of 3 walk lengths" in result.stderr
    assert not (tmp_path / "mine.json").exists()


def test_the_same_command_again_reads_its_records(device, tmp_path):
    first = run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs"))
    device.costs = {NAMES[0]: (12.0, 1.0)}  # would be another answer, were anything measured
    assert run(*SHAPE, *QUICK, "--out", str(tmp_path / "runs")).stdout == first.stdout
