"""SGLang's own contract and draft classes for tests of the plugin, imported from its files; and a draft model small enough for a CPU.

The tests on the CPU and on a GPU share what is here: the modules, a server's state, settings in force, models and their inputs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from cost_model.settings import Settings, write_settings
from tests.exact_heads import one_hot_head
from wts_lab.engines import sglang_plugin as plugin
from wts_lab.engines.sglang_files import importable, locate
from wts_lab.heads import HEAD_CLASSES

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


@contextmanager
def settings_in_force(monkeypatch, folder: Path) -> Iterator[Callable[[Settings], Path]]:
    """A function that writes settings and makes them those that the plugin is driven by; what it remembers is forgotten before and after."""

    def forget() -> None:
        for made in (plugin.deployed_settings, plugin._draft_spec, plugin._target_spec):
            made.cache_clear()

    def deploy(settings: Settings) -> Path:
        path = write_settings(settings, folder / "settings.json")
        monkeypatch.setenv("WTS_LAB_SETTINGS", str(path))
        forget()
        return path

    forget()
    yield deploy
    forget()


def set_server(contract: SimpleNamespace, monkeypatch, *, draft_tokens: int, **changes: object) -> None:
    """What SGLang's installer reads of a server that drafts with DSpark under the flag; ``changes`` are names of its module."""
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend="full")))
    spec = SimpleNamespace(speculative_algorithm="DSPARK", speculative_num_draft_tokens=draft_tokens)
    values = {"megakernel_enabled": True, "get_exec": SimpleNamespace(graph=graph), "get_spec": spec, "get_device": SimpleNamespace(watchdog_timeout=300)}
    for name, value in (values | changes).items():
        monkeypatch.setattr(contract.binding, name, lambda value=value: value)


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
        self.markov_head, self.gamma, self.sample_from_anchor, self.hidden_size = markov_head, gamma, sample_from_anchor, hidden_size
        rank, device = markov_head.markov_rank, markov_head.markov_w1.weight.device
        self.confidence_head = models.DSparkConfidenceHead(hidden_size=hidden_size, markov_rank=rank, dtype=torch.float32).to(device)
        self.compute_confidence = models.DSparkDraftMixin.compute_confidence.__get__(self)
        weight = torch.randn(padded, hidden_size, generator=generator) * (2 * hidden_size**-0.5)
        self.lm_head = SimpleNamespace(weight=weight.to(device, torch.bfloat16), org_vocab_size=markov_head.vocab_size)

    def block(self, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs of a draft sampler's call: the backbone's hidden vectors and input ids."""
        rows, device = batch * (self.gamma + (not self.sample_from_anchor)), self.lm_head.weight.device
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(rows, self.hidden_size, generator=generator).to(device, torch.bfloat16)
        return hidden, torch.randint(self.markov_head.vocab_size, (rows,), generator=generator).to(device)

    def compute_base_logits(self, hidden):
        """Base logits, a strided view of the padded product, and the confidence features."""
        return (hidden @ self.lm_head.weight.T)[..., : self.lm_head.org_vocab_size], hidden


def draft_of(
    contract: SimpleNamespace, kind: str, *, vocab: int, rank: int, hidden: int, gamma: int, padded: int, anchored: bool = True, seed: int = 1,
    device: str = "cpu",
):
    """A head of ours and a draft model with the same weights; corrections of Markov heads are exact in every arithmetic, so that all walks agree."""
    if kind == "markov":
        head = one_hot_head(vocab, rank, seed=seed, device=device)
    else:
        head = HEAD_CLASSES[kind].random(vocab, rank, hidden_size=hidden, seed=seed, device=device)
    generator = torch.Generator().manual_seed(seed)
    theirs = sglang_head(contract.models, head)
    return head, SmallDraft(contract.models, theirs, hidden_size=hidden, gamma=gamma, sample_from_anchor=anchored, padded=padded, generator=generator)


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


class RanksInTurn:
    """Two tensor-parallel ranks of one process, which draft one after the other: rank 1 is given what rank 0 sent."""

    world_size = 2

    def __init__(self) -> None:
        self.rank_in_group, self.own = 0, []

    def broadcast(self, tokens: torch.Tensor, src: int) -> torch.Tensor:
        """Rank 0 sends its tokens, rank 1 receives them; each rank's own are kept."""
        assert src == 0
        self.own.append(tokens.clone())
        return tokens if self.rank_in_group == 0 else tokens.copy_(self.own[0])


def make_sampler(contract: SimpleNamespace, model: SmallDraft, *, max_bs: int, greedy: bool, key: int, offset: int, plugin=None):
    """SGLang's own draft sampler over a model; with the plugin's factory, or its own Markov block."""
    device = model.lm_head.weight.device
    return contract.sampler.DsparkDraftSampler(
        model=model, gamma=model.gamma, max_bs=max_bs, device=device, greedy_draft=greedy, megakernel_sampler=plugin,
        noise=contract.draft.DraftNoise(key=key, offset=torch.tensor([offset], device=device)), tp_sync=SimpleNamespace(sync=lambda site, values: values),
    )  # fmt: skip
