"""The plugin with its kernel, on a GPU: the same inputs through SGLang's own block (its Triton kernels) and through the plugin."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.settings import Settings, fingerprint, write_settings  # noqa: E402
from tests.exact_heads import one_hot_head  # noqa: E402
from tests.sglang_contract import SmallDraft, contract_modules, make_sampler, set_ranks, sglang_head  # noqa: E402
from wts_lab import deploy, load_settings  # noqa: E402
from wts_lab.engines import sglang_plugin as plugin  # noqa: E402
from wts_lab.heads import HEAD_CLASSES  # noqa: E402
from wts_lab.tuned import walk_sources_hash  # noqa: E402
from wts_lab.walk import device_gpu  # noqa: E402
from wts_lab.walk_plan import plan_walk  # noqa: E402

VOCAB, RANK, HIDDEN, GAMMA = 32_000, 128, 512, 7


@pytest.fixture(scope="module")
def contract(sglang_root):
    """SGLang's modules, importable during this file."""
    with contract_modules(sglang_root) as modules:
        yield modules


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """Write and deploy settings for a shape on this very GPU."""

    def settings_of(shape, batch: int, temperature: float):
        gpu, about = device_gpu(torch.device("cuda")), torch.cuda.get_device_properties("cuda")
        placement = plan_walk(gpu, shape, mode="resident", max_batch=batch, rounding="twice", sampling=temperature > 0).placement
        here = {"gpu_name": about.name, "gpu_sm_count": about.multi_processor_count, "kernel_hash": walk_sources_hash()}
        path = write_settings(
            Settings("deploy resident", "resident", "int8x2", placement, None, batch, GAMMA, temperature, "twice", "serving", (), "measured here", 0,
                     fingerprint(gpu, shape, "int8x2", placement, here)), tmp_path / "settings.json",
        )  # fmt: skip
        monkeypatch.setenv("WTS_LAB_SETTINGS", str(path))
        forget()
        return path

    yield settings_of
    forget()


def forget() -> None:
    """What the plugin remembers of an earlier file."""
    for made in (plugin.deployed_settings, plugin._draft_spec, plugin._target_spec):
        made.cache_clear()


def draft_of(contract, kind: str):
    """A draft model on the GPU; Markov corrections are exact in every arithmetic."""
    if kind == "markov":
        head = one_hot_head(VOCAB, RANK, seed=1, device="cuda")
    else:
        head = HEAD_CLASSES[kind].random(VOCAB, RANK, hidden_size=HIDDEN, seed=1, device="cuda")
    generator = torch.Generator().manual_seed(1)
    return head, SmallDraft(contract.models, sglang_head(contract.models, head), hidden_size=HIDDEN, gamma=GAMMA, sample_from_anchor=True,
                            padded=VOCAB + 64, generator=generator)  # fmt: skip


def block_of(batch: int, seed: int):
    generator = torch.Generator("cuda").manual_seed(seed)
    hidden = torch.randn(batch * GAMMA, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    return hidden, torch.randint(VOCAB, (batch * GAMMA,), generator=generator, device="cuda")


def samplers_of(contract, model, built, *, batch: int, greedy: bool):
    """SGLang's sampler over its own block, and over the plugin."""
    pair = [make_sampler(contract, model, max_bs=batch, greedy=greedy, key=2**62 + 7, offset=2**32 - 1, plugin=each) for each in (None, built.draft_sampler)]
    for sampler in pair:
        sampler.params.step_temperatures[:] = torch.tensor([0.7, 0.0, 1.3, 1.0], device="cuda").repeat(8)[:batch]
    return pair


@pytest.mark.parametrize(("batch", "greedy"), [(1, False), (4, False), (4, True)])
def test_a_markov_block_is_sglangs_token_for_token(batch, greedy, contract, settings_of, monkeypatch):
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, "markov")
    settings_of(head.shape, batch, 0.0 if greedy else 1.0)
    assert plugin.draft_faults(model, None) == [] and plugin.device_faults() == []
    built = plugin.build_draft(model, None, None)
    theirs, mine = samplers_of(contract, model, built, batch=batch, greedy=greedy)
    for seed in range(4):
        hidden, ids = block_of(batch, seed)
        theirs(hidden, ids)
        mine(hidden, ids)
        wrong = (theirs.out != mine.out).nonzero().flatten().tolist()
        assert not wrong, f"inputs {seed}: {len(wrong)} tokens differ, first at {wrong[0]}"
        assert torch.equal(theirs.confidence_out, mine.confidence_out) and theirs._noise.offset.item() == mine._noise.offset.item()
        assert greedy or torch.equal(theirs.step_logits, mine.step_logits)
    built.check()


@pytest.mark.parametrize("kind", ["gated", "rnn"])
def test_a_recurrent_block_is_sglangs_but_for_the_arithmetic(kind, contract, settings_of, monkeypatch, record_property):
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, kind)
    settings_of(head.shape, 4, 1.0)
    built = plugin.build_draft(model, None, None)
    theirs, mine = samplers_of(contract, model, built, batch=4, greedy=False)
    equal = []
    for seed in range(8):
        hidden, ids = block_of(4, seed)
        theirs(hidden, ids)
        mine(hidden, ids)
        equal.append((theirs.out == mine.out).float().mean().item())
        assert (theirs.step_logits[:, 0] - mine.step_logits[:, 0]).abs().max().item() < 0.125
    built.check()
    record_property("share_of_equal_tokens", sum(equal) / len(equal))
    assert sum(equal) / len(equal) > 0.9


@pytest.mark.parametrize("kind", ["markov", "gated", "rnn"])
def test_the_sampler_replays_from_a_graph_and_advances_the_noise_once_a_block(kind, contract, settings_of, monkeypatch):
    """As the draft graph's tail runs it: warmed up, captured, replayed on rewritten inputs and temperatures."""
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, kind)
    settings_of(head.shape, 2, 1.0)
    built = plugin.build_draft(model, None, None)
    _, captured = samplers_of(contract, model, built, batch=2, greedy=False)
    _, eager = samplers_of(contract, model, plugin.build_draft(model, None, None), batch=2, greedy=False)
    hidden, ids = block_of(2, 0)
    captured(hidden, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured(hidden, ids)
    captured._noise.offset.copy_(eager._noise.offset)
    for seed in range(1, 5):
        for buffer, value in zip((hidden, ids), block_of(2, seed), strict=True):
            buffer.copy_(value)
        for sampler in (captured, eager):
            sampler.params.step_temperatures[:] = torch.tensor([0.0 if seed == 2 else 1.0, 0.5 * seed], device="cuda")
        graph.replay()
        eager(hidden, ids)
        assert torch.equal(captured.out, eager.out) and torch.equal(captured.confidence_out, eager.confidence_out)
        assert captured._noise.offset.item() == eager._noise.offset.item() == 2**32 - 1 + seed
    built.check()


def test_settings_give_a_ready_walk_on_this_gpu_and_no_other(settings_of):
    head = one_hot_head(VOCAB, RANK, seed=1, device="cuda")
    path = settings_of(head.shape, 2, 0.0)
    walk = load_settings(path, head)
    assert (walk.steps, walk.max_batch, walk.sampling, walk.mode) == (GAMMA, 2, False, "resident")
    base = torch.randn(2, GAMMA, VOCAB, device="cuda").to(torch.bfloat16)
    with pytest.warns(UserWarning, match="random weights"):
        assert load_settings(path)(base, torch.tensor([0, 1], device="cuda")).shape == (2, GAMMA)
    other = HEAD_CLASSES["markov"].random(VOCAB + 16, RANK)
    with pytest.raises(ValueError, match=f"vocab_size is {VOCAB} in the file and {VOCAB + 16} here"):
        deploy.load_settings(path, other)
