"""The command line as a whole: its commands, and how it refuses what nobody can mean."""

from __future__ import annotations

import pytest

pytest.importorskip("typer.testing")

from cost_model.gpu import list_gpus  # noqa: E402
from cost_model.head import list_heads  # noqa: E402
from tests.command_line import SHAPE, refused, run, run_process  # noqa: E402
from wts_lab import cli  # noqa: E402

COMMANDS = ("study", "predict", "plan", "measure", "sweep", "tune", "calibrate", "fit", "decide", "accuracy", "acceptance", "agreement", "doctor", "app", "round",
            "step-table", "rounds")  # fmt: skip
SERVES = ("app",)
"""Commands that end with no result to print: they serve until they are stopped."""


# --- every command --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_is_for_and_takes_json_where_it_answers(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert ("--json" in result.stdout) is (command not in SERVES)
    assert len(result.stdout.splitlines()[2].split()) > 4


def test_commands_are_those_of_the_design():
    assert tuple(command.name or command.callback.__name__ for command in cli.app.registered_commands) == COMMANDS


def test_version_is_that_of_the_package():
    from wts_lab import __version__

    assert run("--version").stdout.strip() == f"wts-lab {__version__}"


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
