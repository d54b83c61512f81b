"""The command line: what it prints, how it refuses, and its exit status. Numbers are checked against the functions behind."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

typer_testing = pytest.importorskip("typer.testing")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import list_gpus, load_gpu  # noqa: E402
from cost_model.head import Head, list_heads  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from wts_lab import cli, cli_inputs, cli_output  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SHAPE = ("--vocab", "151936", "--rank", "256")
COMMANDS = ("study", "predict", "plan", "measure", "calibrate", "fit", "decide", "doctor")


def run(*arguments: str):
    """Run a command in this process; returns exit_code, stdout, stderr."""
    return typer_testing.CliRunner().invoke(cli.app, list(arguments))


def refused(*arguments: str) -> str:
    """Run a command that must be refused: status 2, nothing on standard output, one line on standard error, which is returned."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("wts-lab: error: "), result.stderr
    return lines[0]


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run the command line as its own process from the checkout."""
    return subprocess.run([sys.executable, "-m", "wts_lab", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


# --- every command --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_is_for_and_takes_json(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert len(result.stdout.splitlines()[2].split()) > 4


def test_commands_are_those_of_the_design():
    assert tuple(command.name or command.callback.__name__ for command in cli.app.registered_commands) == COMMANDS


def test_version_is_that_of_the_package():
    from wts_lab import __version__

    assert run("--version").stdout.strip() == f"wts-lab {__version__}"


# --- predict --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prediction() -> dict:
    """The example of the documentation, with all defaults."""
    return json.loads(run("predict", "--gpu", "h200-sxm", *SHAPE, "--mode", "resident", "--json").stdout)


def test_predict_prints_what_the_function_returns(prediction):
    from cost_model.predict import predict

    direct = predict(load_gpu("h200-sxm"), Head.markov(151_936, 256), Workload(), "resident")
    assert prediction == json.loads(json.dumps(direct.as_dict()))


def test_predict_defaults_are_batch_1_greedy_16_steps(prediction):
    workload = prediction["workload"]
    assert (workload["batch"], workload["temperature"], workload["steps"]) == (1, 0.0, 16)


@pytest.mark.parametrize("part", ["entry", "step"])
def test_exposed_terms_sum_to_the_total(prediction, part):
    terms = prediction["terms"][part].values()
    assert sum(term["exposed_us"] for term in terms) == pytest.approx(prediction[f"{part}_us"], rel=1e-12)
    assert all(term.keys() == {"exposed_us", "hidden_us", "resource"} for term in terms)


def test_predicted_interval_holds_the_step_and_the_floor_is_below(prediction):
    assert prediction["floor_step_us"] <= prediction["step_us_low"] <= prediction["step_us"] <= prediction["step_us_high"]


def test_stepwise_defaults_to_sglang_and_to_bf16():
    answer = json.loads(run("predict", "--gpu", "h200-sxm", *SHAPE, "--mode", "stepwise", "--json").stdout)
    assert (answer["implementation"], answer["precision"], answer["placement"]) == ("sglang-0.5.23", "bf16", None)


def test_a_named_head_is_predicted_as_its_sizes(prediction):
    named = json.loads(run("predict", "--gpu", "h200-sxm", "--head", "dspark-qwen3-4b", "--json").stdout)
    assert named["step_us"] == prediction["step_us"]


def test_a_given_placement_is_the_one_predicted():
    answer = json.loads(run("predict", "--gpu", "h200-sxm", *SHAPE, "--placement", "8,32,40,0,0", "--json").stdout)
    assert (answer["placement"]["register_tiles"], answer["placement"]["shared_tiles"]) == (32, 40)


def test_the_table_shows_the_same_step_as_the_json(prediction):
    from cost_model.units import format_us

    assert format_us(prediction["step_us"]) in run("predict", "--gpu", "h200-sxm", *SHAPE).stdout


def test_predict_answers_soon_after_process_start():
    """The budget is 1 s on two idle cores; the best of three must keep twice that on a machine that others load."""
    times_s = []
    for _ in range(3):
        begun = time.perf_counter()
        assert run_process("predict", "--gpu", "h200-sxm", *SHAPE, "--json").returncode == 0
        times_s.append(time.perf_counter() - begun)
    assert min(times_s) < 2.0, times_s


def test_predict_imports_nothing_slow():
    code = ("import sys; from typer.testing import CliRunner; from wts_lab.cli import app; "
            "r = CliRunner().invoke(app, ['predict', '--gpu', 'h200-sxm', '--vocab', '151936', '--json']); assert r.exit_code == 0; "
            "print([m for m in ('torch', 'pandas', 'scipy', 'pyarrow', 'plotly', 'rich', 'numpy') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- plan -----------------------------------------------------------------------------------------------------------------


def test_plan_holds_the_whole_vocabulary_within_the_gpu():
    answer = json.loads(run("plan", "--gpu", "h200-sxm", *SHAPE, "--all", "--json").stdout)
    gpu = load_gpu("h200-sxm")
    assert answer["grid_blocks"] == gpu.sm_count
    for row in (answer["placement"], *answer["others"]):
        tiles = row["register_tiles"] + row["shared_tiles"] + row["streamed_tiles"]
        assert tiles * answer["grid_blocks"] * 16 >= 151_936
        assert row["shared_bytes"] <= gpu.value("smem_bytes_per_block_optin") and not row["spills"]


def test_plan_offers_the_modes_that_it_can_plan():
    shown = " ".join(run("plan", "--help").stdout.split())
    assert "One of streaming, resident; a stepwise walk has no placement" in shown
    assert "stepwise" in refused("plan", "--gpu", "h200-sxm", *SHAPE, "--mode", "stepwise")


def test_plan_lists_each_placement_once():
    answer = json.loads(run("plan", "--gpu", "h200-sxm", *SHAPE, "--all", "--json").stdout)
    rows = [tuple(sorted(row.items())) for row in (answer["placement"], *answer["others"])]
    assert len(rows) == len(set(rows)) > 1


# --- decide and settings --------------------------------------------------------------------------------------------------


def test_decide_writes_settings_that_hold_on_that_gpu_and_no_other(tmp_path):
    file = tmp_path / "settings.json"
    assert run("decide", "--gpu", "h200-sxm", *SHAPE, "--out", str(file)).exit_code == 0
    assert run("decide", "--gpu", "h200-sxm", *SHAPE, "--check", str(file)).exit_code == 0
    line = refused("decide", "--gpu", "h100-sxm", *SHAPE, "--check", str(file))
    assert "gpu_id" in line and "'h200-sxm'" in line and "'h100-sxm'" in line


def test_decide_end_to_end_uses_the_round(tmp_path):
    words = ("decide", "--gpu", "h200-sxm", *SHAPE, "--json", "--verify-us", "9000", "--backbone-us", "900", "--accepted-length", "4")
    gain = json.loads(run(*words).stdout)["gain"]
    assert gain["tokens_per_s_before"] == pytest.approx(4 / gain["round_us_before"] * 1e6)


def test_a_round_is_given_whole_or_not_at_all():
    line = refused("decide", "--gpu", "h200-sxm", *SHAPE, "--verify-us", "9000")
    assert "--backbone-us" in line and "--accepted-length" in line


# --- refusals -------------------------------------------------------------------------------------------------------------


def test_an_unknown_gpu_lists_the_known_ones():
    line = refused("predict", "--gpu", "h300", *SHAPE)
    assert "'h300'" in line and all(gpu in line for gpu in list_gpus())


def test_an_unknown_head_lists_the_known_ones():
    line = refused("predict", "--gpu", "h200-sxm", "--head", "nobody")
    assert "'nobody'" in line and all(head in line for head in list_heads())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vocab", "-5"), "-5"),
        (("--vocab", "0"), "0"),
        (("--vocab", "2000000"), "1,048,576"),
        (("--vocab", "151936", "--rank", "250"), "multiple of 32"),
        (("--vocab", "151936", "--rank", "0"), "rank"),
        (("--vocab", "151936", "--rank", "-32"), "-32"),
        (("--vocab", "151936", "--batch", "0"), "batch"),
        (("--vocab", "151936", "--steps", "0"), "steps"),
        (("--vocab", "151936", "--steps", "-1"), "steps"),
        (("--vocab", "151936", "--temperature", "-0.5"), "temperature"),
        (("--vocab", "151936", "--temperature", "nan"), "temperature"),
        (("--vocab", "151936", "--mode", "fast"), "resident"),
        (("--vocab", "151936", "--precision", "fp4"), "int8x2"),
        (("--vocab", "151936", "--l2-state", "hot"), "serving"),
        (("--vocab", "151936", "--placement", "8,40"), "W,R,S,X,G"),
        (("--vocab", "151936", "--placement", "8,40,32,0,x"), "whole number"),
        (("--vocab", "151936", "--placement", "8,8,0,0,0"), "tiles"),
        (("--vocab", "151936", "--mode", "stepwise", "--implementation", "nobody"), "sglang-0.5.23"),
        (("--head", "dspark-qwen3-4b", "--vocab", "5"), "--vocab"),
        ((), "--head"),
    ],
)
def test_bad_input_is_refused_in_one_line(words, said):
    assert said in refused("predict", "--gpu", "h200-sxm", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "--gpu", "h200-sxm", "--vocab", "many"), "--vocab"),
        (("predict", "--gpu", "h200-sxm", "--speed", "5"), "No such option: --speed"),
        (("predict", *SHAPE), "--gpu"),
        (("predicted",), "predicted"),
        (("fit",), "RECORDS"),
    ],
)
def test_usage_errors_are_one_line_too(words, said):
    line = refused(*words)
    assert said in line and "--help" in line


def test_usage_errors_of_the_process_are_one_line_with_status_2():
    done = run_process("predict", "--gpux")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and "--gpux" in done.stderr


def test_without_a_command_the_help_is_shown():
    assert "Usage" in run().output and run().exit_code in (0, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "--gpu", "h200-sxm", *SHAPE, "--steps", "9" * 21), "4,096"),
        (("predict", "--gpu", "h200-sxm", *SHAPE, "--steps", "4097"), "4,096"),
        (("decide", "--gpu", "h200-sxm", *SHAPE, "--steps", "4097"), "4,096"),
        (("study", "--replay", "--steps", "1,7,4097"), "4,096"),
        (("predict", "--gpu", "h200-sxm", "--vocab", "151936", "--target-vocab", "5"), "every draft token"),
        (("decide", "--gpu", "h200-sxm", *SHAPE, "--verify-us", "9000", "--backbone-us", "900", "--accepted-length", "17.5"), "at most 17"),
        (("decide", "--gpu", "h200-sxm", *SHAPE, "--out", ""), "--out"),
        (("study", "--replay", "--out", ""), "--out"),
        (("calibrate", "anything.parquet", "--engines", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)
    assert list(tmp_path.iterdir()) == [], "a refused command leaves nothing behind"


def test_the_longest_walk_and_the_longest_accepted_length_are_taken():
    assert run("predict", "--gpu", "h200-sxm", *SHAPE, "--steps", "4096").exit_code == 0
    words = ("decide", "--gpu", "h200-sxm", *SHAPE, "--verify-us", "9000", "--backbone-us", "900", "--accepted-length", "17")
    assert run(*words).exit_code == 0
    assert run("predict", "--gpu", "h200-sxm", "--vocab", "32000", "--target-vocab", "151936").exit_code == 0


@pytest.mark.parametrize("command", ["fit", "calibrate"])
def test_a_foreign_or_truncated_record_is_refused(command, tmp_path):
    pytest.importorskip("pyarrow")
    foreign, truncated, empty = (tmp_path / name for name in ("foreign.parquet", "truncated.parquet", "empty.parquet"))
    foreign.write_text("a,b\n1,2\n")
    truncated.write_bytes(whole_record(tmp_path).read_bytes()[:-20])
    empty.write_bytes(b"")
    for file in (foreign, truncated, empty, tmp_path / "missing.parquet"):
        assert file.name in refused(command, str(file))


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "other.parquet"
    parquet.write_table(pyarrow.table({"price": [1.0]}), file)
    assert "other.parquet" in refused("fit", str(file))


def test_a_folder_without_records_is_refused(tmp_path):
    assert "no walk record" in refused("fit", str(tmp_path))


@pytest.mark.parametrize(("command", "gpu"), [("decide", "rtx-4090"), ("decide", "h100-sxm"), ("calibrate", "h200-nvl"), ("calibrate", "h100-sxm")])
def test_records_of_another_gpu_are_refused_naming_both(command, gpu, tmp_path):
    record = whole_record(tmp_path)
    shape = SHAPE if command == "decide" else ()
    out = tmp_path / "out.file"
    line = refused(command, "--gpu", gpu, *shape, str(record), "--out", str(out))
    assert "NVIDIA H200" in line and gpu in line and not out.exists()


def test_calibrate_makes_calibration_and_engine_table_from_the_shipped_records(tmp_path):
    pytest.importorskip("pyarrow")
    from cost_model.gpu import load_gpu, read_calibration
    from cost_model.paths import data_root

    records = data_root() / "measurements" / "h200-sxm"
    if not records.is_dir():
        pytest.skip("no records of an H200 ship")
    out = tmp_path / "h200-sxm.toml"
    result = run("calibrate", str(records), "--gpu", "h200-sxm", "--out", str(out), "--engines", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert {row["mode"] for row in answer["errors"]} == {"stepwise", "streaming", "resident"}
    assert answer["calibration"] == str(out) and answer["engine"] == str(tmp_path / "torch-stepwise.toml")
    assert 'name = "torch-stepwise"' in (tmp_path / "torch-stepwise.toml").read_text()
    shown = run("calibrate", str(records), "--gpu", "h200-sxm", "--out", str(out)).stderr
    assert str(data_root() / "gpus" / "calibrated" / "h200-sxm.toml") in shown, "where the file must go to be used"
    assert read_calibration(out, load_gpu("h200-sxm", calibrated=False)).has("stream_efficiency")


def test_a_live_run_without_a_gpu_is_refused():
    from wts_lab.study import capable_device

    if capable_device() is not None:
        pytest.skip("there is a GPU here")
    assert "wts-lab doctor" in refused("measure", *SHAPE)
    assert "wts-lab doctor" in refused("calibrate")
    result = run("study", "--live", "--out", "nowhere")
    assert result.exit_code == 2 and "wts-lab doctor" in result.stderr


# --- fit ------------------------------------------------------------------------------------------------------------------


def whole_record(
    folder: Path, entry_us: float = 10.0, step_us: float = 2.5, *, name: str = "line", processes: int = 3, probe: str = "none", **facts: object
) -> Path:
    """Write a record of some processes whose call times lie on a line, with a small spread between processes."""
    from cost_model.measurement import walk_row, write_walk

    rows = [
        walk_row(
            **{
                "run_id": name, "process_index": process, "recorded_at_utc": "2026-01-01T00:00:00+00:00", "gpu_name": "NVIDIA H200",
                "gpu_sm_count": 132, "l2_state": "warm", "implementation": "wts", "variant": "resident", "mode": "resident",
                "precision": "int8x2", "rounding": "once", "head_kind": "markov", "vocab_size": 151_936, "target_vocab_size": 151_936,
                "padded_vocab_size": 151_936, "warps": 8,
                "register_tiles": 40, "shared_tiles": 32, "streamed_tiles": 0, "staging_tiles": 0, "exchange": "slots-x1", "rank": 256, "batch": 1, "steps": steps, "temperature": 0.0, "probe": probe, "repeats": 3,
                "samples_us": [entry_us + step_us * steps + 0.01 * process] * 3, "samples_dropped": 0, "tokens_match": 1.0, **facts,
            }
        )
        for process in range(processes)
        for steps in (1, 4, 7, 16)
    ]
    return write_walk(folder / f"{name}.parquet", rows)


def test_fit_recovers_the_line_of_a_record(tmp_path):
    pytest.importorskip("pandas")
    (answer,) = json.loads(run("fit", str(whole_record(tmp_path)), "--json").stdout)
    assert answer["fit"]["step_us"] == pytest.approx(2.5, rel=1e-3)
    assert answer["fit"]["entry_us"] == pytest.approx(10.01, abs=0.02)
    assert answer["series"]["record"] == "line" and answer["fit"]["processes"] == 3


def test_fit_takes_folders_and_shows_a_table(tmp_path):
    pytest.importorskip("pandas")
    whole_record(tmp_path)
    result = run("fit", str(tmp_path))
    assert result.exit_code == 0 and "2.50 µs" in result.stdout


def quick_look_and_full_run(folder: Path) -> None:
    """A full run of 2.5 µs a step, and a quick look at the same configuration that seems faster."""
    whole_record(folder, step_us=2.5, name="full")
    whole_record(folder, step_us=2.4, name="quick", processes=1)


def test_fit_takes_the_fullest_run_and_says_what_it_left_out(tmp_path):
    pytest.importorskip("pandas")
    quick_look_and_full_run(tmp_path)
    result = run("fit", str(tmp_path), "--json")
    (answer,) = json.loads(result.stdout)
    assert answer["series"]["record"] == "full" and answer["fit"]["step_us"] == pytest.approx(2.5, rel=1e-3)
    assert "left out 4 of 16 rows, from quick" in result.stderr and "--all" in result.stderr


def test_fit_of_all_runs_names_each_apart(tmp_path):
    pytest.importorskip("pandas")
    quick_look_and_full_run(tmp_path)
    whole_record(tmp_path, name="split", register_tiles=32, shared_tiles=40)
    shown = [line for line in run("fit", str(tmp_path), "--all").stdout.splitlines() if line.strip().startswith("resident int8x2")]
    assert len(shown) == len({line.split("151,936")[0] for line in shown}) == 3
    assert sum("record quick" in line for line in shown) == 1 and sum("placement 8,32,40,0,0" in line for line in shown) == 1
    assert "left out" not in run("fit", str(tmp_path), "--all").stderr


def test_fit_names_no_two_series_of_the_shipped_records_alike():
    pytest.importorskip("pandas")
    from cost_model.fit import fit_frame
    from cost_model.paths import data_root
    from wts_lab import cli_views

    for every in (False, True):
        keys = [key for key, _ in fit_frame(cli_inputs.read_walks([data_root() / "measurements"], every)[0])]
        rows = [(name, key.vocab_size, key.rank, key.l2_state) for name, key in zip(cli_views.series_names(keys), keys)]
        assert len(rows) == len(set(rows)) > 40


def test_a_table_that_is_piped_breaks_no_cell_over_lines(tmp_path):
    pytest.importorskip("pandas")
    whole_record(tmp_path)
    assert sum("to" in line.split() and line.rstrip().endswith("ok") for line in run("fit", str(tmp_path)).stdout.splitlines()) == 1


def test_fit_of_probes_alone_says_that_there_is_no_walk(tmp_path):
    pytest.importorskip("pandas")
    assert "holds no walk" in refused("fit", str(whole_record(tmp_path, probe="exchange")))


def test_decide_takes_the_fullest_run_as_a_replay_does(tmp_path):
    pytest.importorskip("pandas")
    quick_look_and_full_run(tmp_path)
    answer = json.loads(run("decide", "--gpu", "h200-sxm", *SHAPE, "--l2-state", "warm", str(tmp_path), "--json").stdout)
    (resident,) = [option for option in answer["options"] if option["name"] == "resident int8x2"]
    assert resident["measured"] and resident["step_us"] == pytest.approx(2.5, rel=1e-3)


def test_decide_and_study_say_the_same_of_the_shipped_records(tmp_path):
    pytest.importorskip("pandas")
    from cost_model.paths import data_root
    from wts_lab.study import StudyRequest, run_study

    head, records = Head.markov(151_936, 256), data_root() / "measurements"
    for state in ("warm", "serving"):
        answer = json.loads(run("decide", "--gpu", "h200-sxm", *SHAPE, "--l2-state", state, str(records / "h200-sxm"), "--json").stdout)
        replayed = run_study(StudyRequest(gpu="h200-sxm", heads=(head,), l2_states=(state,), live=False, out=tmp_path)).decision
        assert answer["verdict"] == replayed.verdict
        told = {option["name"]: option["call_us"] for option in answer["options"]}
        for option in replayed.options:
            assert told[option.name] == pytest.approx(option.call_us), option.name


def test_settings_say_what_the_records_know_of_their_machine(tmp_path):
    pytest.importorskip("pandas")
    record = whole_record(tmp_path, driver_version="580.1", cuda_version="13.0")
    out = tmp_path / "settings.json"
    assert run("decide", "--gpu", "h200-sxm", *SHAPE, "--l2-state", "warm", str(record), "--out", str(out)).exit_code == 0
    settings = json.loads(out.read_text())
    told = settings["fingerprint"]
    assert settings["source"] == "replayed"
    assert (told["gpu_name"], told["driver_version"], told["cuda_version"], told["sm_count"]) == ("NVIDIA H200", "580.1", "13.0", 132)


def test_fit_writes_its_table_in_three_formats(tmp_path):
    pandas = pytest.importorskip("pandas")
    record = whole_record(tmp_path)
    assert run("fit", str(record), "--out", str(tmp_path / "tables")).exit_code == 0
    for frame in (pandas.read_csv(tmp_path / "tables" / "step_costs.csv"), pandas.read_parquet(tmp_path / "tables" / "step_costs.parquet")):
        assert frame["step_us"].tolist() == pytest.approx([2.5], rel=1e-3)
    assert "2.5" in (tmp_path / "tables" / "step_costs.md").read_text()


# --- interruption and faults ----------------------------------------------------------------------------------------------


def status_of(error: BaseException) -> int:
    """Exit status that an error inside a command leads to."""
    with pytest.raises(cli_output.typer.Exit) as raised, cli_output.user_errors("parts are kept in x"):
        raise error
    return raised.value.exit_code


def test_an_interrupt_says_what_was_kept(capsys):
    assert status_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "wts-lab: interrupted: parts are kept in x\n"


def test_a_measurement_that_was_stopped_says_how_to_go_on(capsys):
    from wts_lab.bench_run import MeasurementInterrupted

    assert status_of(MeasurementInterrupted("2 of 3 parts kept; give the same command again")) == 130
    assert "same command again" in capsys.readouterr().err


def test_a_failed_build_has_status_1_and_the_compilers_words(capsys):
    from wts_lab.build import BuildError

    assert status_of(BuildError("ninja failed:\nerror: no such instruction")) == 1
    assert "no such instruction" in capsys.readouterr().err


def test_bad_input_over_several_lines_becomes_one(capsys):
    assert status_of(BadInput("one\n  two")) == 2
    assert capsys.readouterr().err == "wts-lab: error: one two\n"


def test_a_missing_folder_is_named(tmp_path, capsys):
    try:
        (tmp_path / "no" / "file").read_text()
    except OSError as error:
        assert status_of(error) == 2
    assert "no/file" in capsys.readouterr().err


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
"""What a write into an open file raises on a full disk: it names no file."""


def test_a_full_disk_is_one_line_that_names_the_output(capsys, tmp_path):
    with pytest.raises(cli_output.typer.Exit) as raised, cli_output.user_errors(out=tmp_path):
        raise FULL
    said = capsys.readouterr().err
    assert raised.value.exit_code == 2 and said.count("\n") == 1 and str(tmp_path) in said and "No space left" in said


@pytest.mark.parametrize("command", ["decide", "study", "fit", "calibrate"])
def test_every_command_that_writes_refuses_a_full_disk(command, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    from cost_model import files
    from cost_model.paths import data_root

    def full(*_, **__):
        raise FULL

    record = whole_record(tmp_path)
    monkeypatch.setattr(files, "write_whole", full)
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "replace", full)
    out, records = tmp_path / "out", data_root() / "measurements" / "h200-sxm"
    words = {
        "decide": ("--gpu", "h200-sxm", *SHAPE), "fit": (str(record),),
        "study": ("--replay", "--vocab", "151936"), "calibrate": (str(records),),
    }[command]
    result = run(command, *words, "--out", str(out))
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert "No space left" in line and str(out) in line and "Traceback" not in result.stderr


def test_a_reader_that_leaves_is_no_error_of_the_input():
    with pytest.raises(BrokenPipeError), cli_output.user_errors():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), cli_output.user_errors():
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError), cli_output.user_errors():
        raise RuntimeError("not one of ours")


def test_a_terminal_without_unicode_gets_its_table():
    done = run_process("predict", "--gpu", "h200-sxm", *SHAPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "Traceback" not in done.stderr


# --- inputs and output ----------------------------------------------------------------------------------------------------


def test_lists_are_split_sorted_and_freed_of_repeats():
    assert cli_inputs.wholes_from("--steps", "16, 1,7,7") == (1, 7, 16)
    assert cli_inputs.words_from(["a,b", "b", " c ,"]) == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["", "0", "-1,2", "1,x", "1.5"])
def test_lists_of_steps_hold_whole_numbers_of_at_least_1(text):
    with pytest.raises(BadInput, match="--steps"):
        cli_inputs.wholes_from("--steps", text)


def test_a_placement_is_read_in_the_order_of_its_help():
    assert cli_inputs.placement_from("8,40,16,16,8") == Placement(8, 40, 16, 16, 8)


def test_plain_values_of_results():
    numpy = pytest.importorskip("numpy")
    assert cli_output.plain({1: (numpy.float64(0.5), Path("a"), Placement(1, 1, 0, 0, 0))}) == {
        "1": [0.5, "a", Placement(1, 1, 0, 0, 0).as_dict()]
    }


def test_a_narrow_terminal_folds_cells_and_cuts_no_name(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(cli_output, "PIPED_WIDTH", 80)
    times = ("38.3 µs", "38.2 to 38.5 µs", "38.2 µs", "35.0 to 41.5 µs", "4.01 µs", "617 µs")
    cli_output.print_table("Times", ("way", "step", "interval", "predicted", "interval", "entry", "call of 16 steps"), [("sglang-0.5.23 greedy", *times)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("sglang-0.5.23", "greedy", "38.3", "617")) and "…" not in shown


def test_json_refuses_what_json_cannot_hold():
    with pytest.raises(ValueError):
        cli_output.print_json({"step_us": float("nan")})
