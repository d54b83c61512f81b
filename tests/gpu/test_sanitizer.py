"""compute-sanitizer over a few walks of a real GPU: nothing to report, and the twin's tokens under every tool."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.sanitize import TOOLS, sanitize, select_cases  # noqa: E402

NAMES = ("markov-1", "markov-8-partial", "markov-4-sampling", "gated-4", "rnn-1", "domino-8")


def test_no_tool_has_anything_to_report():
    results = sanitize(select_cases(NAMES))
    if isinstance(results, str):
        pytest.skip(results)
    assert [result.tool for result in results] == list(TOOLS)
    for result in results:
        assert result.clean, f"{result.tool}: {result.reports} reports, status {result.status}\n{result.output[-4000:]}"
        assert all(f"{name} walks as its twin does" in result.output for name in NAMES)
