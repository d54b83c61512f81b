"""`wts-lab measure`: which walks it asks for, what it hands on, and what it refuses. No GPU is used."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer.testing")

from cost_model.head import Head, load_head  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from tests.command_line import SHAPE, refused, run  # noqa: E402
from wts_lab import bench, environment  # noqa: E402
from wts_lab.bench_plan import comparison_cases, engine_case, resident_case, stepwise_case, streaming_case  # noqa: E402
from wts_lab.cli_measure import as_kind  # noqa: E402

HEAD = Head.markov(151_936, 256)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Runs `measure`, and returns the cases and options that the measurement was given."""
    given: dict = {}

    def measure(cases, **options):
        given.update(options, cases=cases)
        return tmp_path / "record.parquet"

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(environment, "require_device", lambda: None)

    def ask(*words: str) -> dict:
        result = run("measure", *words, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["cases"] == [case.label for case in given["cases"]]
        return given

    return ask


def test_unless_told_otherwise_it_times_what_splits_the_gain(asked):
    given = asked(*SHAPE)
    assert given["cases"] == comparison_cases(HEAD)
    assert (given["steps"], given["l2_states"], given["processes"], given["engine_root"]) == ((1, 2, 4, 7, 11, 15, 16), ("warm",), 3, None)


def test_precisions_that_are_named_count_for_every_mode(asked):
    assert asked(*SHAPE, "--precision", "bf16")["cases"] == (resident_case(HEAD, precision="bf16"), streaming_case(HEAD, "bf16"), stepwise_case(HEAD))
    assert asked(*SHAPE, "--precision", "int8x2")["cases"] == (resident_case(HEAD), streaming_case(HEAD))
    assert asked(*SHAPE, "--mode", "resident", "--precision", "bf16,int8x2")["cases"] == (
        resident_case(HEAD, precision="bf16"), resident_case(HEAD)
    )


def test_batches_and_temperatures_multiply(asked):
    given = asked(*SHAPE, "--mode", "resident", "--batch", "1,8", "--temperature", "0,0.7", "--logits")
    assert given["cases"] == tuple(
        resident_case(HEAD, batch=batch, temperature=temperature, logits_kept=True) for batch in (1, 8) for temperature in (0.0, 0.7)
    )


def test_placement_and_exchange_go_to_fused_walks_and_rounding_to_torchs_too(asked):
    given = asked(*SHAPE, "--mode", "resident,stepwise", "--placement", "8,40,32,0,0", "--exchange", "dense-lines", "--rounding", "none")
    assert given["cases"] == (
        resident_case(HEAD, Placement(8, 40, 32, 0, 0), exchange="dense-lines", rounding="none"), stepwise_case(HEAD, rounding="none")
    )


def test_the_engines_walks_are_timed_where_its_folder_is_given(asked, tmp_path):
    root = ("--sglang-root", str(tmp_path), "--mode", "stepwise")
    given = asked(*SHAPE, *root)
    assert str(given["engine_root"]) == str(tmp_path)
    assert given["cases"] == (stepwise_case(HEAD), engine_case(HEAD, "MarkovGreedyStep"), engine_case(HEAD, "MarkovSampleStep"))
    for words, fields in ((("--batch", "4"), {"batch": 4}), (("--temperature", "1"), {"temperature": 1.0}), (("--logits",), {"logits_kept": True})):
        assert asked(*SHAPE, *root, *words)["cases"] == (stepwise_case(HEAD, **fields), engine_case(HEAD, "MarkovSampleStep", **fields))
    assert [case.implementation for case in asked("--head", "domino-qwen3-4b", *root)["cases"]] == ["torch-stepwise"]


def test_heads_of_every_kind_bring_their_sizes(asked):
    domino = load_head("domino-qwen3-4b")
    assert asked("--head", "domino-qwen3-4b")["cases"] == (resident_case(domino), streaming_case(domino), stepwise_case(domino))
    rnn = as_kind(load_head("dspark-qwen3-4b"), "rnn")
    assert (rnn.kind, rnn.name, rnn.vocab_size, rnn.hidden_size, rnn.gru_size) == ("rnn", "rnn-dspark-qwen3-4b", 151_936, 2560, None)
    assert asked("--head", "dspark-qwen3-4b", "--kind", "rnn")["cases"] == (resident_case(rnn), streaming_case(rnn), stepwise_case(rnn))
    assert as_kind(domino, "domino") is domino and as_kind(domino, "gated").candidate_pool is None
    assert as_kind(domino, "markov").hidden_size is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SHAPE, "--mode", "fast"), "--mode"),
        ((*SHAPE, "--precision", "fp8"), "--precision"),
        ((*SHAPE, "--mode", "stepwise", "--precision", "int8x2"), "stepwise walks are bf16"),
        (("--head", "domino-qwen3-4b", "--mode", "resident", "--precision", "bf16"), "no walk of domino-qwen3-4b runs resident in bf16"),
        (("--head", "domino-qwen3-4b", "--temperature", "1"), "domino heads walk greedily"),
        (("--head", "domino-qwen3-4b", "--logits"), "leave logits_kept out"),
        ((*SHAPE, "--batch", "33"), "batch is 33; it must be from 1 to 32"),
        ((*SHAPE, "--batch", "two"), "--batch has 'two'"),
        ((*SHAPE, "--batch", ""), "--batch"),
        ((*SHAPE, "--temperature", ""), "--temperature"),
        ((*SHAPE, "--temperature", "warm"), "--temperature has 'warm'"),
        ((*SHAPE, "--temperature", "nan"), "temperature is nan"),
        ((*SHAPE, "--temperature", "1", "--rounding", "none"), "choose rounding once or twice"),
        ((*SHAPE, "--exchange", "slots-x1"), "spread-lines"),
        ((*SHAPE, "--placement", "8,40"), "W,R,S,X,G"),
        ((*SHAPE, "--kind", "rnn"), "--kind is rnn, and markov-151936-r256 does not give all sizes"),
        (("--head", "dspark-qwen3-4b", "--kind", "domino"), "gru_size"),
        ((*SHAPE, "--kind", "transformer"), "--kind"),
        ((*SHAPE, "--sglang-root", "nowhere"), "nowhere"),
        ((*SHAPE, "--gpu", "h300"), "'h300'"),
        ((*SHAPE, "--steps", "0"), "--steps is '0'"),
        ((*SHAPE, "--l2-state", "hot"), "l2_state is 'hot'; choose one of warm, cold, serving"),
        ((*SHAPE, "--l2-state", ","), "give at least one walk length and one L2 state"),
        ((*SHAPE, "--processes", "0"), "processes is 0; it must be at least 1"),
        ((*SHAPE, "--repeats", "0"), "repeats is 0; it must be at least 1"),
        ((*SHAPE, "--case", "My run"), "case is 'My run'; use small letters, digits, points and hyphens"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_device_is_looked_for(words, said, monkeypatch):
    monkeypatch.setattr(environment, "require_device", lambda: pytest.fail("a device was looked for"))
    assert said in refused("measure", *words)
