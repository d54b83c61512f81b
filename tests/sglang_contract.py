"""SGLang's own contract and draft classes for tests of the plugin, imported from its files; and a draft model small enough for a CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch

from wts_lab.engines.sglang_files import importable, locate

DSPARK, COMPONENTS = "sglang.kernels.ops.speculative.dspark", "sglang.srt.speculative.dspark_components"
MODULES = {
    "spec": "sglang.kernels.plugin_kernels.nvidia.spec",
    "binding": "sglang.srt.kernel_plugins.nvidia.binding",
    "plugins": "sglang.srt.plugins",
    "models": "sglang.srt.models.dspark",
    "draft": f"{COMPONENTS}.dspark_draft",
    "sampler": f"{COMPONENTS}.dspark_draft_sampler",
    "sps": f"{COMPONENTS}.dspark_sps",
}
"""What tests name, and the module of SGLang."""

BENEATH = (
    f"{DSPARK}.dispatch", f"{DSPARK}.markov_sample", f"{DSPARK}.dspark_draft_model", "sglang.srt.environ", "sglang.srt.plugins.hook_registry",
    "sglang.srt.utils.invariants", "sglang.srt.speculative.spec_tp_sync", "sglang.srt.model_executor.cuda_graph_config",
)  # fmt: skip
"""Real modules beneath those; everything else of SGLang is a stand-in."""


@contextmanager
def contract_modules(root) -> Iterator[SimpleNamespace]:
    """SGLang's modules by the names of `MODULES`, importable for as long as this is open; skips where msgspec is missing."""
    _, folder = locate(root)
    with importable(folder, frozenset({*MODULES.values(), *BENEATH})):
        if not hasattr(importlib.import_module("msgspec"), "json"):
            pytest.skip("needs msgspec, which SGLang's contract is written in; `make sglang` puts it beside the wheel")
        yield SimpleNamespace(**{name: importlib.import_module(path) for name, path in MODULES.items()})


def set_ranks(contract: SimpleNamespace, monkeypatch, group: object | None = None) -> None:
    """Make the process one of a tensor-parallel group; None: the only rank. A torch without CUDA captures no graphs."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    group = SimpleNamespace(world_size=1, rank_in_group=0) if group is None else group
    parallel = SimpleNamespace(tp_group=group, tp_size=group.world_size)
    runtime: ModuleType = sys.modules["sglang.srt.runtime_context"]
    for module in (runtime, contract.binding):
        monkeypatch.setattr(module, "get_parallel", lambda: parallel, raising=False)
    monkeypatch.setattr(contract.sampler, "get_dp_tp_group", lambda: SimpleNamespace(world_size=1))


class SmallDraft(torch.nn.Module):
    """As much of a DSpark draft model as its draft sampler uses: SGLang's heads, a projection whose padding is cropped, no backbone."""

    def __init__(self, models: ModuleType, markov_head: torch.nn.Module, *, hidden_size: int, gamma: int, sample_from_anchor: bool, padded: int, generator):
        super().__init__()
        self.markov_head, self.gamma, self.sample_from_anchor = markov_head, gamma, sample_from_anchor
        rank, device = markov_head.markov_rank, markov_head.markov_w1.weight.device
        self.confidence_head = models.DSparkConfidenceHead(hidden_size=hidden_size, markov_rank=rank, dtype=torch.float32).to(device)
        self.compute_confidence = models.DSparkDraftMixin.compute_confidence.__get__(self)
        weight = torch.randn(padded, hidden_size, generator=generator) * (2 * hidden_size**-0.5)
        self.lm_head = SimpleNamespace(weight=weight.to(device, torch.bfloat16), org_vocab_size=markov_head.vocab_size)

    def compute_base_logits(self, hidden):
        """Base logits, a strided view of the padded product, and the confidence features."""
        return (hidden @ self.lm_head.weight.T)[..., : self.lm_head.org_vocab_size], hidden


def sglang_head(models: ModuleType, ours) -> torch.nn.Module:
    """SGLang's module with the weights of one of our heads."""
    sizes = {"vocab_size": ours.vocab_size, "markov_rank": ours.rank}
    if ours.kind == "markov":
        head = models.VanillaMarkov(**sizes)
    else:
        head = {"gated": models.GatedMarkovHead, "rnn": models.RNNHead}[ours.kind](**sizes, hidden_size=ours.hidden_size)
    head = head.to(ours.embedding.device, torch.bfloat16)
    head.load_state_dict(ours.state_dict())
    return head


def make_sampler(contract: SimpleNamespace, model: SmallDraft, *, max_bs: int, greedy: bool, key: int, offset: int, plugin=None):
    """SGLang's own draft sampler over a model; with the plugin's factory, or its own Markov block."""
    device = model.lm_head.weight.device
    return contract.sampler.DsparkDraftSampler(
        model=model, gamma=model.gamma, max_bs=max_bs, device=device, greedy_draft=greedy, megakernel_sampler=plugin,
        noise=contract.draft.DraftNoise(key=key, offset=torch.tensor([offset], device=device)), tp_sync=SimpleNamespace(sync=lambda site, values: values),
    )  # fmt: skip
