"""The commands `acceptance` and `agreement` say what their functions return, as text and as JSON."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer.testing")

from cost_model.accepted_length import accepted_length, length_change, read_log  # noqa: E402
from tests.command_line import refused, run  # noqa: E402


@pytest.fixture
def logs(tmp_path):
    """Two runs of the same 40 prompts; the second accepts one token more a round."""
    paths = []
    for gain in (0, 1):
        paths.append(tmp_path / f"run{gain}.jsonl")
        rounds = [{"prompt": prompt, "drafted": 7, "accepted": prompt % 6 + gain} for prompt in range(40) for _ in range(3)]
        paths[-1].write_text("\n".join(map(json.dumps, rounds)))
    return [str(path) for path in paths]


def test_one_log_gives_what_other_commands_take(logs):
    estimate = accepted_length(read_log(logs[0]))
    assert f"--accepted-length {estimate.told}" in run("acceptance", logs[0]).stdout
    told = json.loads(run("acceptance", logs[0], "--json").stdout)
    assert told["accepted_length"] == {"value": estimate.value, "low": estimate.low, "high": estimate.high} and told["prompts"] == 40
    answer = run("round", "--gpu", "h200-sxm", "--drafter", "dspark-qwen3-8b", "--accepted-length", estimate.told, "--json")
    assert answer.exit_code == 0, answer.stderr


def test_two_logs_give_the_change(logs):
    change = length_change(*map(read_log, logs))
    told = json.loads(run("acceptance", *logs, "--json").stdout)
    assert told["difference"]["value"] == pytest.approx(1) and told == json.loads(json.dumps({**change.as_dict(), "position_shares": told["position_shares"]}))
    shown = " ".join(run("acceptance", *logs).stdout.split())
    assert "Change: +1 tokens a round (+1 to +1)" in shown and "the same prompts, drawn together. The runs differ." in shown
    assert "Not distinguishable: the interval holds 0." in run("acceptance", logs[0], logs[0]).stdout


def test_few_prompts_are_said_and_wrong_logs_refused(logs, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(json.dumps({"prompt": prompt, "drafted": 7, "accepted": prompt}) for prompt in range(5)))
    assert "only 5 prompts: from about 30 on" in run("acceptance", str(few)).stderr
    assert "share 5 prompts, the first log has 40 and the second 5" in run("acceptance", logs[0], str(few)).stderr
    few.write_text('{"prompt": 1}')
    assert "row 1: lacks drafted, accepted" in refused("acceptance", str(few))
    assert "one of .jsonl, .parquet" in refused("acceptance", str(tmp_path / "log.txt"))


def test_agreement_is_the_functions(tmp_path):
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    from wts_lab.agreement import estimate_agreement, read_blocks
    from wts_lab.heads import GatedHead

    head = GatedHead.random(300, 64, hidden_size=96, seed=1)
    files.save_file({f"markov_head.{name}": weight for name, weight in head.state_dict().items()}, tmp_path / "head.safetensors")
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(320, 96, generator=generator).to(torch.bfloat16) * 0.2
    files.save_file({"lm_head.weight": weight}, tmp_path / "target.safetensors")
    hidden = torch.randn(30, 5, 96, generator=generator).to(torch.bfloat16)
    files.save_file({"hidden": hidden, "anchor": torch.arange(30), "prompt": torch.arange(30) // 3}, tmp_path / "blocks.safetensors")
    words = ("agreement", str(tmp_path / "blocks.safetensors"), "--checkpoint", str(tmp_path / "head.safetensors"), "--device", "cpu")
    whole = (*words, "--target", str(tmp_path / "target.safetensors"), "--format", "int8", "--rounding", "twice")
    found = estimate_agreement(head, read_blocks(tmp_path / "blocks.safetensors", head, tmp_path / "target.safetensors"), format="int8", rounding="twice")
    assert json.loads(run(*whole, "--json").stdout) == vars(found)
    shown = run(*whole).stdout
    assert "of 150 steps" in shown and "over 30 blocks of 10 prompts" in shown
    assert "give the target's checkpoint" in refused(*words)
    assert "gate_proj.weight" in refused(*words[:2], "--checkpoint", str(tmp_path / "target.safetensors"), "--kind", "gated")
    assert "--device is 'gpu'" in refused(*words[:-1], "gpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--format", "fp9"), "--format is 'fp9'; choose one of bf16, int8x2"), (("--rounding", "up"), "--rounding is 'up'"), (("--kind", "gru"), "--kind is 'gru'")],
)
def test_words_are_refused_before_a_checkpoint_is_read(words, said):
    assert said in refused("agreement", "nowhere.safetensors", "--checkpoint", "nowhere", *words)
