"""Walks under compute-sanitizer, without one: what is walked, how its words are read, and what the command answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import sanitize
from benchmarks.sanitize import CASES, ToolResult, adapted, count_reports, find_sanitizer, main, report, run_tool, select_cases
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from wts_lab.walk_plan import plan_walk

H200 = load_gpu("h200-sxm")


def test_the_cases_cover_heads_rows_sampling_streams_parts_and_bf16():
    specs = {case.name: plan_walk(H200, case.head(132), **case.options()).spec for case in CASES}
    assert len(specs) == len(CASES) == len({spec.name() for spec in specs.values()})
    assert {spec.head for spec in specs.values()} == {"markov", "gated", "rnn", "domino"}
    assert {spec.rows for spec in specs.values()} == {1, 4, 8, 32}
    assert {spec.rows for spec in specs.values() if spec.sampling} == {1, 4, 8, 32}
    assert {spec.rows for spec in specs.values() if spec.sampling and spec.streamed_slots} == {8, 32}
    assert {spec.precision for spec in specs.values()} == {"int8x2", "bf16"} and {spec.wide for spec in specs.values()} == {False, True}
    assert any(spec.register_slots and spec.shared_slots and spec.streamed_slots for spec in specs.values())
    assert any(spec.slots == spec.streamed_slots for spec in specs.values())


def test_a_case_that_is_not_there_is_refused_with_those_that_are():
    assert select_cases(()) == CASES and [case.name for case in select_cases(("rnn-1",))] == ["rnn-1"]
    with pytest.raises(BadInput, match="no case is named 'rnn-99'; there are markov-1, "):
        select_cases(("rnn-1", "rnn-99"))


@pytest.mark.parametrize(
    ("output", "reports"),
    [
        ("========= ERROR SUMMARY: 0 errors\n", 0), ("========= ERROR SUMMARY: 1 error\n", 1),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0),
        ("========= RACECHECK SUMMARY: 16 hazards displayed (1 errors, 15 warnings)\n", 16), ("Segmentation fault\n", None),
    ],
)  # fmt: skip
def test_reports_are_counted_from_the_summary(output, reports):
    assert count_reports(output) == reports


@pytest.mark.parametrize(("reports", "status", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (None, 0, 1)])
def test_anything_reported_or_not_said_is_a_failure(capsys, reports, status, code):
    result = ToolResult("racecheck", reports, status, "========= a hazard", 1.0)
    assert report([ToolResult("memcheck", 0, 0, "all well", 1.0), result], 18) == code
    said = capsys.readouterr().out
    assert ("a hazard" in said) == bool(code) and "all well" not in said


@pytest.mark.parametrize(("told", "option"), [("  --kernel-name arg", "--kernel-name"), ("  --kernel-regex arg", "--kernel-regex")])
def test_only_the_walks_kernels_are_instrumented(monkeypatch, told, option):
    called = []

    def run(command, **options):
        called.append(list(map(str, command)))
        return SimpleNamespace(stdout=told if "--help" in called[-1] else "========= ERROR SUMMARY: 0 errors", returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    assert run_tool(Path("compute-sanitizer"), "memcheck", Path("expected.pt")).clean
    command = called[1]
    assert command[command.index(option) + 1] == "kns=walk_kernel"
    assert command[command.index(sys.executable) :] == [sys.executable, "-m", "benchmarks.sanitize", "--tool", "memcheck", "--walk", "expected.pt"]


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_only_racecheck_gets_arrivals_that_wait_and_products_of_the_host(monkeypatch, tool):
    from wts_lab import abi, build, head_terms

    monkeypatch.setattr(build, "load_binding", lambda: None)
    before = abi.csrc_root(), head_terms._product
    with adapted(tool):
        changed = [path.name for path in before[0].rglob("*.cuh") if path.read_text() != (abi.csrc_root() / path.relative_to(before[0])).read_text()]
        assert changed == (["ptx.cuh"] if tool == "racecheck" else [])
        assert ("bar.arrive" in (abi.csrc_root() / "walk" / "ptx.cuh").read_text()) == (tool != "racecheck")
        assert (head_terms._product is before[1]) == (tool != "racecheck")
        rows, weight = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 4.0]])
        assert head_terms._product(rows, weight).tolist() == [[8.5], [-2.5]]
    assert (abi.csrc_root(), head_terms._product) == before


def test_an_arrival_that_is_not_found_is_told(monkeypatch):
    from wts_lab import build

    monkeypatch.setattr(build, "load_binding", lambda: None)
    monkeypatch.setattr(sanitize, "ARRIVE", "barrier.cta.arrive")
    with pytest.raises(RuntimeError, match="ptx.cuh has 0 arrivals"), adapted("racecheck"):
        pass


def test_a_tool_that_hangs_is_a_failure(monkeypatch):
    def run(command, **options):
        if "--help" in command:
            return SimpleNamespace(stdout="")
        raise subprocess.TimeoutExpired(command, options["timeout"], output=b"markov-1 walks")

    monkeypatch.setattr(subprocess, "run", run)
    result = run_tool(Path("compute-sanitizer"), "racecheck", Path("expected.pt"))
    assert not result.clean and result.output.startswith("markov-1 walks") and "ended after 300 s" in result.output


def test_without_the_sanitizer_the_command_says_why_it_checks_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: no compute-sanitizer")
    assert main(["nothing"]) == 2 and "no case is named 'nothing'" in capsys.readouterr().err


def test_the_sanitizer_is_looked_for_on_the_path_and_beside_the_compiler(monkeypatch, tmp_path):
    from wts_lab import build

    (tmp_path / "compute-sanitizer").touch()
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: None)
    monkeypatch.setattr(build, "find_nvcc", lambda: SimpleNamespace(path=tmp_path / "nvcc"))
    assert find_sanitizer() == tmp_path / "compute-sanitizer"
    (tmp_path / "compute-sanitizer").unlink()
    assert find_sanitizer() is None
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: f"/opt/{name}")
    assert find_sanitizer() == Path("/opt/compute-sanitizer")
