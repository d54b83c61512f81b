"""The command `sweep`: the grid that words mean, and what is refused where nothing can be measured."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.command_line import refused, run  # noqa: E402
from wts_lab import sweep_pools  # noqa: E402


def test_a_grid_is_every_head_at_every_batch_and_temperature():
    words = ("sweep", "--vocab", "1024,2048", "--rank", "32,64", "--batch", "1,8", "--temperature", "0,1", "--logits", "--steps", "1,7", "--dry-run")
    told = json.loads(run(*words, "--mode", "resident,stepwise", "--groups-per-job", "3", "--json").stdout)
    assert (told["cases"], told["groups"], told["jobs"], told["points"]) == (32, 16, 6, 32 * 2 * 2)
    assert "resident int8x2, V 2,048, rank 64, batch 8, temperature 1, logits kept" in told["labels"]
    assert "stepwise torch, V 1,024, rank 32" in told["labels"] and len(set(told["labels"])) == 32
    lines = run(*words).stdout.splitlines()
    assert lines[-1] == "16 cases in 16 groups and 2 jobs, 64 points in each process" and len(lines) == 17


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", ","), "give at least one --batch and one --temperature"), (("--batch", "x"), "--batch has 'x'"), (("--rank", "33"), "rank is 33"),
        (("--head", "dspark-qwen3-4b", "--rank", "256"), "--head fixes the sizes"), (("--mode", "fast"), "--mode is 'fast'"),
        (("--temperature", "1", "--rounding", "none"), "choose rounding once or twice"),
        (("--groups-per-job", "0"), "--groups-per-job is 0; it must be at least 1"), (("--l2-state", "hot"), "l2_state is 'hot'"),
        (("--processes", "0"), "processes is 0"), (("--repeats", "0"), "repeats is 0"), (("--case", "My run"), "case is 'My run'"),
        (("--temperature", "-1"), "temperature is -1"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_a_gpu_is_looked_for(words, message, monkeypatch):
    monkeypatch.setattr(sweep_pools, "local_devices", lambda *_: pytest.fail("a GPU was looked for"))
    assert message in refused("sweep", *words, "--dry-run")
    assert message in refused("sweep", *words)


def test_one_of_a_thing_is_told_as_one():
    assert run("sweep", "--vocab", "1024", "--dry-run").stdout.splitlines()[-1] == "1 case in 1 group and 1 job, 14 points in each process"


def test_where_nothing_can_measure_the_mend_is_said(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert "torch sees none; `wts-lab doctor` says why" in refused("sweep", "--vocab", "1024", "--rank", "32")
    assert "a sweep runs on one or the other" in refused("sweep", "--vocab", "1024", "--gpus", "0,1", "--scheduler", "tcp://127.0.0.1:1")
