"""The benchmark of rounds: its cases, its command line, and what it refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks import round as benchmark  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from wts_lab.round_parts import RoundShape  # noqa: E402
from wts_lab.round_plan import RoundCase  # noqa: E402


def test_the_cases_are_those_of_the_issue():
    cases = benchmark.declared(engine=True)
    assert len(cases) == len(set(cases)) == 20
    assert {case.target for case in cases} == {"qwen3-4b", "qwen3-8b"}
    assert {(case.concurrency, case.context_tokens) for case in cases} == {(batch, context) for batch in (1, 2, 4, 8, 16) for context in (1024, 8192)}
    assert {case.steps for case in cases} == {16} and all(case.engine for case in cases)
    assert [case.target for case in cases] == ["qwen3-4b"] * 10 + ["qwen3-8b"] * 10  # weights are drawn once for each


def test_the_largest_round_fits_an_h200():
    held = {}
    for case in benchmark.declared(engine=True):
        shape = RoundShape.of(case.drafter, case.steps, case.concurrency, case.context_tokens)
        weights = 2 * (shape.target.layers * shape.target.layer_parameters + 2 * shape.target.output_parameters + shape.drafter.parameters(shape.target))
        logits = 2 * case.concurrency * (shape.verified + shape.steps) * shape.target.vocab_size
        held[case] = weights + shape.cache_bytes() + len(case.heads) * logits  # every graph of a whole round keeps logits of its own
    largest = max(held, key=held.get)
    assert (largest.target, largest.concurrency, largest.context_tokens) == ("qwen3-8b", 16, 8192)
    assert shape.cache_bytes() == 16 * 4096 * (36 * 8209 + 5 * 8225)
    assert 40e9 < held[largest] < 0.5 * load_gpu("h200-sxm").value("dram_visible_bytes")


def test_a_plan_takes_the_engine_where_its_files_are_named(tmp_path):
    words = ["--only", "qwen3-8b", "--only", "c1,c16", "--only", "k8", "--gpu", "h200-sxm", "--processes", "2", "--repeats", "5"]
    plan = benchmark.plan_of(benchmark.parser().parse_args([*words, "--sglang-root", str(tmp_path)]))
    assert plan.cases == tuple(RoundCase("dspark-qwen3-8b", 16, concurrency, 8192) for concurrency in (1, 16))
    assert (plan.processes, plan.repeats, plan.gpu_id, plan.engine_root) == (2, 5, "h200-sxm", str(tmp_path))
    assert plan.provenance["command"] == "python -m benchmarks.round --record round --only qwen3-8b --only c1,c16 --only k8"
    without = benchmark.plan_of(benchmark.parser().parse_args(words))
    assert [head.implementation for head in without.cases[0].heads] == ["torch-stepwise", "wts"] and without.engine_root is None


def test_blocks_of_several_lengths_are_cases_of_their_own(capsys):
    plan = benchmark.plan_of(benchmark.parser().parse_args(["--steps", "7,15", "--only", "qwen3-4b", "--only", "c2", "--only", "k1", "--gpu", "h200-sxm"]))
    assert [(case.steps, case.concurrency) for case in plan.cases] == [(7, 2), (15, 2)]
    assert "--steps 7,15 --only" in plan.provenance["command"]
    assert benchmark.parser().parse_args(["--steps", "15,7,7"]).steps == (7, 15)
    for wrong in ("0", "7;15", "seven"):
        with pytest.raises(SystemExit):
            benchmark.parser().parse_args(["--steps", wrong])
        assert wrong in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    from cost_model.errors import BadInput

    def refuse():
        raise BadInput("this machine has none")

    monkeypatch.setattr(benchmark, "require_device", refuse)
    assert benchmark.main(["--only", "c1"]) == 2
    assert "this machine has none" in capsys.readouterr().err


def test_words_that_no_case_has_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "require_device", lambda: None)
    assert benchmark.main(["--only", "c3", "--gpu", "h200-sxm"]) == 2
    assert "known are c1, c16, c2, c4, c8" in capsys.readouterr().err


def test_what_fails_while_measuring_has_a_status_of_its_own(capsys, monkeypatch, tmp_path):
    from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed

    monkeypatch.setattr(benchmark, "require_device", lambda: None)
    for error, status in ((WorkerFailed("it broke"), 1), (MeasurementInterrupted("go on"), 130)):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(benchmark, "measure_rounds", fail)
        assert benchmark.main(["--gpu", "h200-sxm", "--out", str(tmp_path)]) == status
        assert str(error) in capsys.readouterr().err
