"""`wts-lab accuracy`: heads from sizes, the catalogue and checkpoints; what it writes, prints and refuses."""

from __future__ import annotations

import json
import re

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")
typer_testing = pytest.importorskip("typer.testing")

from cost_model.head import HEAD_KINDS, Head  # noqa: E402
from wts_lab import cli  # noqa: E402
from wts_lab.accuracy import FORMAT_NAMES, read_accuracy  # noqa: E402
from wts_lab.accuracy_report import accuracy_markdown, accuracy_tables  # noqa: E402
from wts_lab.heads import random_head  # noqa: E402

FEW = ("--walks", "2", "--steps", "3", "--device", "cpu")


def run(*arguments: str):
    """Run the command in this process; returns exit_code, stdout, stderr."""
    return typer_testing.CliRunner().invoke(cli.app, ["accuracy", *map(str, arguments)])


def refused(*arguments: str) -> str:
    """Run a command that must be refused: status 2, no output, one line on standard error, which is returned."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("wts-lab: error: ")
    return line


def sizes(kind: str) -> tuple[str, ...]:
    """Options of a small head."""
    return ("--vocab", "90", "--rank", "32", "--kind", kind, *(("--hidden", "16") if kind != "markov" else ()), *(("--gru", "8") if kind == "domino" else ()))


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_random_head_of_every_kind(tmp_path, kind):
    result = run(*sizes(kind), *FEW, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "accuracy").glob(f"????-??-??-{kind}-90-r32.parquet")
    rows = read_accuracy(path)
    assert [row["format"] for row in rows] == list(FORMAT_NAMES)
    assert {(row["head_kind"], row["head_source"], row["walks"], row["steps"], row["device"]) for row in rows} == {(kind, "random", 2, 3, "cpu")}
    assert accuracy_markdown(rows) in path.with_suffix(".md").read_text("utf-8")
    for title, _, cells in accuracy_tables(rows):
        assert title in result.stdout
        for line in cells:
            assert re.search(r"\s+".join(map(re.escape, line)), result.stdout), line
    assert "fp8-e4m3: 75.4 % of the positive levels serve the" in result.stdout
    assert f"wrote {path} and {path.with_suffix('.md')}" in result.stderr


def test_json_is_the_record(tmp_path):
    result = run(*sizes("gated"), *FEW, "--out", tmp_path, "--case", "mine", "--seed", "3", "--base-spread", "0.5", "--rounding", "twice", "--json")
    answer = json.loads(result.stdout)
    assert answer["record"].endswith("-mine.parquet") and answer["rows"] == read_accuracy(answer["record"])
    assert {(row["seed"], row["base_spread"], row["rounding"]) for row in answer["rows"]} == {(3, 0.5, "twice")}


def test_another_seed_draws_other_weights_and_inputs_and_the_same_seed_the_same(tmp_path):
    def errors(seed: int, case: str) -> list[float]:
        rows = json.loads(run(*sizes("markov"), *FEW, "--out", tmp_path, "--case", case, "--seed", seed, "--json").stdout)["rows"]
        return [row["correction_error_rms"] for row in rows]

    assert errors(1, "a") == errors(1, "b") != errors(2, "c")


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_checkpoint_of_every_kind(tmp_path, kind):
    save_file = pytest.importorskip("safetensors.torch").save_file
    head = random_head(Head("x", kind, 96, 96, 96, 32, None if kind == "markov" else 16, 8 if kind == "domino" else None), seed=5)
    prefix = "" if kind == "domino" else "markov_head."
    save_file({prefix + name: tensor.contiguous() for name, tensor in head.state_dict().items()}, tmp_path / "My_Head.safetensors")
    result = run("--checkpoint", tmp_path / "My_Head.safetensors", "--vocab", "90", *FEW, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert re.search(r"\d\d-my-head\.parquet$", answer["record"])
    row = answer["rows"][0]
    assert (row["head_kind"], row["head_source"], row["head_name"]) == (kind, "My_Head.safetensors", "My_Head")
    assert (row["vocab_size"], row["padded_vocab_size"], row["rank"]) == (90, 96, 32)


def test_a_domino_checkpoint_takes_the_embedding_from_another(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    tensors = dict(random_head(Head("x", "domino", 96, 96, 96, 32, 16, 8)).state_dict())
    embedding = tensors.pop("embed_tokens.weight")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "head.safetensors")
    save_file({"model.embed_tokens.weight": embedding.contiguous()}, tmp_path / "target.safetensors")
    arguments = ("--checkpoint", tmp_path / "head.safetensors", *FEW, "--out", tmp_path)
    assert "lacks the target's embedding" in refused(*arguments)
    assert run(*arguments, "--embedding", tmp_path / "target.safetensors").exit_code == 0


def test_a_record_that_is_there_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    assert run(*sizes("markov"), *FEW, "--out", tmp_path).exit_code == 0
    monkeypatch.setattr("wts_lab.accuracy_run.measure_head", None)
    assert "exists; records are never changed" in refused(*sizes("markov"), *FEW, "--out", tmp_path)


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "no head was given; give --vocab"),
    (("--head", "dspark-qwen3-4b", "--rank", "64"), "--rank cannot be given with --head dspark-qwen3-4b"),
    (("--head", "nobody"), "unknown head 'nobody'"),
    (("--vocab", "90", "--kind", "lstm"), "--kind is 'lstm'"),
    (("--vocab", "90", "--hidden", "16"), "--hidden cannot be given with --kind markov"),
    (("--vocab", "90", "--kind", "gated", "--gru", "8"), "--gru cannot be given with --kind gated"),
    (("--vocab", "90", "--rank", "33"), "rank is 33"),
    (("--vocab", "90", "--embedding", "x"), "--embedding belongs to --checkpoint"),
    (("--checkpoint", "none.safetensors"), "no safetensors file at none.safetensors"),
    (("--checkpoint", "none.safetensors", "--head", "x", "--gru", "8"), "--head and --gru cannot be given with --checkpoint"),
    (("--vocab", "90", "--steps", "0"), "--steps"),
    (("--vocab", "90", "--rank", "32", "--walks", "0"), "walks"),
    (("--vocab", "90", "--rank", "32", "--rounding", "up"), "rounding is 'up'"),
    (("--vocab", "90", "--rank", "32", "--base-spread", "-1"), "at least 0"),
    (("--vocab", "90", "--device", "tpu"), "--device is 'tpu'"),
    (("--vocab", "90", "--seed", str(10**23)), "--seed is 100,000,000,000,000,000,000,000; it must be from 0 to 4,294,967,295"),
    (("--vocab", "90", "--case", "Not So"), "case is 'Not So'"),
])
def test_bad_input_is_one_line(tmp_path, arguments, message):
    assert message in refused(*arguments, *(() if "--device" in arguments else ("--device", "cpu")), "--out", tmp_path)


def test_a_gpu_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device is cuda, and torch sees no CUDA device" in refused(*sizes("markov"), "--device", "cuda", "--out", tmp_path)


def test_a_rounding_is_refused_before_a_checkpoint_is_read():
    assert "--rounding is 'up'; choose one of once, twice, none" in refused("--checkpoint", "nowhere", "--rounding", "up")
