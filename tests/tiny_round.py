"""A round small enough for a CPU: a catalogue with one target of two layers, its drafter and head, and a place that times with the host's clock."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from wts_lab.bench_plan import WalkCase
from wts_lab.nvml import ClockReading
from wts_lab.stepwise import StepwiseWalk
from wts_lab.twin_torch import expected_walks

TARGET = """schema_version = 1
name = "tiny"
model = "tiny"
layers = 3
hidden_size = 64
intermediate_size = 96
attention_heads = 4
kv_heads = 2
head_dim = 16
vocab_size = 320
tied_embeddings = {tied}
source = "made up"
"""
DRAFTER = """schema_version = 1
name = "tiny-drafter"
target = "tiny"
layers = 2
target_features = 2
block = {block}
steps = 3
memory = "separate-kv"
head = "tiny-head"
source = "made up"
"""
HEAD = """schema_version = 1
name = "tiny-head"
kind = "markov"
vocab_size = 320
target_vocab_size = 320
padded_vocab_size = 320
rank = 32
source = "made up"
"""


def write_catalogue(root: Path, *, tied: bool = False, block: int = 3) -> None:
    """Fill a folder as `data/` is laid out."""
    for folder, name, text in (("targets", "tiny", TARGET.format(tied=str(tied).lower())), ("drafters", "tiny-drafter", DRAFTER.format(block=block)),
                               ("heads", "tiny-head", HEAD)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{name}.toml").write_text(text)


def use_catalogue(monkeypatch, root: Path, **options: object) -> None:
    """Write a catalogue and let targets, drafters and heads be read from it."""
    write_catalogue(root, **options)
    for module in ("cost_model.targets", "cost_model.head"):
        monkeypatch.setattr(f"{module}.data_root", lambda: root)


class HostTimer:
    """Times calls with the host's clock, which is right for work that a CPU does at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def busy(self, us: float) -> None:
        """Nothing to wake."""

    def burst(self, key, timed, *, repeats, warmup, before=None):
        """As `timing.GateTimer.burst`."""
        self.calls.append((key, repeats))
        samples = []
        for _ in range(repeats):
            if before is not None:
                before()
            began = time.perf_counter()
            timed()
            samples.append((time.perf_counter() - began) * 1e6)
        return samples


class TwinWalk:
    """In place of the resident walk, its twin."""

    def __init__(self, head) -> None:
        self.head = head

    def __call__(self, base_logits, anchor, *, tokens_out=None):
        tokens = expected_walks(self.head, base_logits, anchor).tokens
        return tokens if tokens_out is None else tokens_out.copy_(tokens)


class HostPlace:
    """A CPU as a place to measure."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.timer, self.device, self.dtype = HostTimer(), torch.device("cpu"), dtype
        self.released = 0

    def capture(self, work):
        """Nothing to capture on a CPU."""
        return work

    def walk(self, case: WalkCase, head, steps: int):
        """The reference, or the twin of the fused walk."""
        return TwinWalk(head) if case.fused else StepwiseWalk(head)

    def clocks(self) -> ClockReading:
        """Not known."""
        return ClockReading()

    def rest(self, seconds: float) -> None:
        """Not needed."""

    def release(self) -> None:
        """Count."""
        self.released += 1
