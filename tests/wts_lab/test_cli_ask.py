"""The commands that only think: predict, plan, fit and decide. Numbers are checked against the functions behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

pytest.importorskip("typer.testing")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from tests.command_line import ROOT, SHAPE, quick_look_and_full_run, refused, run, run_process, whole_record  # noqa: E402
from wts_lab import cli_inputs  # noqa: E402


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


# --- fit ------------------------------------------------------------------------------------------------------------------


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
