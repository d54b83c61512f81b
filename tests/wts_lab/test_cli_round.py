"""`wts-lab round`: the answer on a terminal, as JSON and as files, equal to what the functions behind return."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer.testing")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.passes import rates_path  # noqa: E402
from cost_model.phases import ESTIMATED, given  # noqa: E402
from cost_model.round import expected_accepted_length  # noqa: E402
from cost_model.serving import MODELLED, RoundRequest, ask_round, shapes_of  # noqa: E402
from cost_model.substitutes import Alternatives  # noqa: E402
from cost_model.targets import load_drafter  # noqa: E402
from cost_model.units import format_bytes, format_percent, format_us  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from tests.command_line import refused, run, whole_record  # noqa: E402

ASKED = ("round", "--gpu", "h200-sxm", "--drafter", "dspark-qwen3-8b")
LENGTH = ("--accepted-length", "4:3.5:4.5")
TIMES = ("--verify-us", "6000:5800:6300", "--backbone-us", "800", "--base-logits-us", "200")
PRICED = ("--top-k", "2048", "--draft-vocab", "32000", "--ranks", "2", "--collective-us", "3")


@pytest.fixture(scope="module")
def answer():
    """The same question in Python."""
    drafter = load_drafter("dspark-qwen3-8b")
    target, head = shapes_of(drafter)
    times = {"verify": given(6000.0, (5800.0, 6300.0)), "backbone": given(800.0), "base_logits": given(200.0)}
    return ask_round(load_gpu("h200-sxm"), RoundRequest(drafter, target, head, Workload(4, 7, l2_state="serving"), 1000, 4.0, (3.5, 4.5), times,
                                                        alternatives=Alternatives(2048, 32_000, 2, 3.0)))


def test_json_is_what_the_function_returns(answer):
    printed = json.loads(run(*ASKED, *LENGTH, *TIMES, *PRICED, "--concurrency", "4", "--context", "1000", "--json").stdout)
    assert printed == json.loads(json.dumps(answer.as_dict()))


def test_the_terminal_and_the_page_show_every_table_and_the_verdict(answer, tmp_path):
    file = tmp_path / "round.md"
    result = run(*ASKED, *LENGTH, *TIMES, *PRICED, "--concurrency", "4", "--context", "1000", "--out", str(file))
    assert result.exit_code == 0 and f"wrote {file}" in result.stderr
    page = file.read_text()
    for text in (result.stdout, page):
        for each in answer.substitutes:
            assert each.name in text
        for each in answer.outcomes:
            assert format_us(each.gain.round_us_after) in text and format_percent(each.gain.head_share_after) in text
        assert format_bytes(answer.memory.total_bytes) in text and answer.shards[0].way in text
        assert f"Verdict: {answer.decision.verdict}" in text and answer.decision.reasons[0] in text
    rows = [line for line in page.splitlines() if line.startswith("|")]
    tables = [line.count("|") for line in rows]
    assert page.startswith("# dspark-qwen3-8b") and len(rows) > 25 and set(tables) == {3, 5, 6, 9}


def test_a_file_in_json_holds_the_answer(tmp_path):
    file = tmp_path / "round.json"
    printed = run(*ASKED, *LENGTH, *TIMES, "--json", "--out", str(file)).stdout
    assert json.loads(file.read_text()) == json.loads(printed)


def test_the_drafters_own_steps_and_a_rate_are_used():
    plain = json.loads(run("round", "--gpu", "b200-sxm", "--drafter", "domino-qwen3-8b", "--acceptance-rate", "0.8", "--json").stdout)
    assert plain["workload"]["steps"] == 15 and plain["round"]["accepted_length"] == pytest.approx(expected_accepted_length(0.8, 15))
    assert {phase["basis"] for phase in plain["phases"].values()} == {MODELLED if rates_path().is_file() else ESTIMATED}


def test_schedule_and_memory_reach_the_round():
    plain = json.loads(run(*ASKED, *LENGTH, *TIMES, "--schedule", "overlapped", "--hidden-share", "0.9:0.5:1", "--memory", "window", "--window", "512",
                           "--recurrent-layers", "2", "--state-bytes", "1000", "--context", "9000", "--json").stdout)
    assert plain["round"]["schedule"] == "overlapped" and plain["round"]["hidden_share_interval"] == [0.5, 1.0]
    assert plain["memory"]["drafter_context_bytes"] == 512 * 3 * 4096 + 2 * 1000


def test_records_replace_predictions(tmp_path):
    whole_record(tmp_path, entry_us=10.0, step_us=2.5)
    words = (*ASKED, *LENGTH, *TIMES, "--l2-state", "warm", "--json", str(tmp_path))
    plain = json.loads(run(*words).stdout)
    resident = next(row for row in plain["substitutes"] if row["name"] == "resident int8x2")
    assert resident["basis"] == "measured" and resident["call_us"] == pytest.approx(27.5, abs=0.1)
    assert (plain["decision"]["verdict"], plain["decision"]["settings"]["source"]) == ("deploy resident", "replayed")


@pytest.mark.parametrize("words, told", [
    ((), "--acceptance-rate"), ((*LENGTH, "--acceptance-rate", "0.5"), "one of both"), (("--accepted-length", "4:5:6"), "must lie between 5 and 6"),
    (("--accepted-length", "4:3"), "VALUE:LOW:HIGH"), (("--accepted-length", "four"), "must be a number"), (("--accepted-length", "9"), "at most 8"),
    ((*LENGTH, "--out", "round.txt"), ".md or .json"), ((*LENGTH, "--memory", "window"), "window_tokens is None"), ((*LENGTH, "--concurrency", "64"), "batch is 64"),
    ((*LENGTH, "--ranks", "2"), "collective"), ((*LENGTH, "--schedule", "both"), "choose one of serial, overlapped"), ((*LENGTH, "--verify-us", "nan"), "finite"),
    ((*LENGTH, "--steps", "0"), "--steps is 0"), ((*LENGTH, "--head", "dspark-kimi-k3"), "made for this target"),
    ((*LENGTH, "--verify-us", "1e308", "--json"), "verify_us is 1e+308"), (("--accepted-length", "9"), "accepted_length is 9; a round of 7 drafted tokens"),
    ((*LENGTH, *TIMES, "--ranks", "2", "--collective-us", "1e308"), "collective_us is 1e+308; it must be a finite time from 0 to 1e+12"),
])
def test_what_cannot_be_asked_is_refused_in_one_line(words, told):
    assert told in refused(*ASKED, *words)


def test_an_unknown_drafter_lists_the_known_and_one_without_a_head_asks_for_it():
    assert "dspark-qwen3-8b" in refused("round", "--gpu", "h200-sxm", "--drafter", "mine", *LENGTH)
    assert "no serial head" in refused("round", "--gpu", "h200-sxm", "--drafter", "dflash-qwen3-8b", *LENGTH)
    assert run("round", "--gpu", "h200-sxm", "--drafter", "dflash-qwen3-8b", "--head", "dspark-qwen3-8b", *LENGTH).exit_code == 0
