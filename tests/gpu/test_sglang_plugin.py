"""The plugin with its kernel, on a GPU: the same inputs through SGLang's own block (its Triton kernels) and through the plugin."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.settings import Settings, SettingsMismatch, fingerprint, write_settings  # noqa: E402
from tests import sglang_contract  # noqa: E402
from tests.exact_heads import one_hot_head  # noqa: E402
from tests.sglang_contract import RanksInTurn, make_sampler, set_ranks, set_server, settings_in_force  # noqa: E402
from wts_lab import load_settings  # noqa: E402
from wts_lab.build import build_walk  # noqa: E402
from wts_lab.engines import sglang_plugin as plugin  # noqa: E402
from wts_lab.heads import HEAD_CLASSES  # noqa: E402
from wts_lab.tuned import walk_sources_hash  # noqa: E402
from wts_lab.walk import device_arch, device_gpu  # noqa: E402
from wts_lab.walk_plan import plan_walk  # noqa: E402

VOCAB, RANK, HIDDEN, GAMMA, KEY, OFFSET = 32_000, 128, 512, 7, 2**62 + 7, 2**32 - 1
TEMPERATURES = (0.7, 0.0, 1.3, 1.0)
KINDS = ("markov", "gated", "rnn")
WALKS = [("markov", 1, 1.0, "twice"), ("markov", 1, 0.0, "none"), ("markov", 4, 0.0, "twice"), *((kind, 4, 1.0, "twice") for kind in KINDS)]
"""Kind, batch, temperature and rounding of the settings here. SGLang's greedy step for one row compares unrounded sums."""

draft_of = partial(sglang_contract.draft_of, vocab=VOCAB, rank=RANK, hidden=HIDDEN, gamma=GAMMA, padded=VOCAB + 64, device="cuda")


def plan_of(shape, batch: int, temperature: float, rounding: str):
    """The walk that settings of these words name on this GPU."""
    return plan_walk(device_gpu(torch.device("cuda")), shape, mode="resident", max_batch=batch, rounding=rounding, sampling=temperature > 0)


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Build what the tests here walk with, all at once: one after the other they would take most of the time."""
    arch = device_arch(torch.device("cuda", torch.cuda.current_device()))
    shapes = {"markov": one_hot_head(VOCAB, RANK).shape} | {kind: HEAD_CLASSES[kind].random(VOCAB, RANK, hidden_size=HIDDEN).shape for kind in KINDS[1:]}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda walk: build_walk(plan_of(shapes[walk[0]], *walk[1:]).spec, arch), WALKS))


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Deploy settings for a shape on this very GPU, with these kernels."""
    with settings_in_force(monkeypatch, tmp_path) as deploy:

        def serve(shape, batch: int = 4, temperature: float = 1.0, rounding: str = "twice"):
            about = torch.cuda.get_device_properties("cuda")
            here = {"gpu_name": about.name, "gpu_sm_count": about.multi_processor_count, "kernel_hash": walk_sources_hash()}
            gpu, placement = device_gpu(torch.device("cuda")), plan_of(shape, batch, temperature, rounding).placement
            return deploy(Settings("deploy resident", "resident", "int8x2", placement, None, batch, GAMMA, temperature, rounding, "serving", (),
                                   "measured here", 0, fingerprint(gpu, shape, "int8x2", placement, here)))  # fmt: skip

        yield serve


def sampler_of(contract, model, factory, *, batch: int, greedy: bool):
    """SGLang's sampler over its own block (None), or over the plugin's; some rows greedy, some sampled."""
    sampler = make_sampler(contract, model, max_bs=batch, greedy=greedy, key=KEY, offset=OFFSET, plugin=factory)
    sampler.params.step_temperatures[:] = torch.tensor(TEMPERATURES[:batch], device="cuda")
    return sampler


@pytest.mark.parametrize(("batch", "temperature", "rounding"), [walk[1:] for walk in WALKS if walk[0] == "markov"])
def test_a_markov_block_is_sglangs_token_for_token(batch, temperature, rounding, contract, serve, monkeypatch):
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, "markov")
    serve(head.shape, batch, temperature, rounding)
    assert plugin.draft_faults(model, None) == [] and plugin.device_faults() == []
    built, greedy = plugin.build_draft(model, None, None), not temperature
    theirs, mine = (sampler_of(contract, model, factory, batch=batch, greedy=greedy) for factory in (None, built.draft_sampler))
    assert mine._megakernel_steps(batch) is not None
    for seed in range(4):
        for sampler in (theirs, mine):
            sampler(*model.block(batch, seed))
        wrong = (theirs.out != mine.out).nonzero().flatten().tolist()
        assert not wrong, f"inputs {seed}: {len(wrong)} tokens differ, first at {wrong[0]}"
        assert torch.equal(theirs.confidence_out, mine.confidence_out)
        assert theirs._noise.offset.item() == mine._noise.offset.item() == OFFSET + (0 if greedy else seed + 1)
        assert greedy or torch.equal(theirs.step_logits, mine.step_logits)
    built.check()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_recurrent_block_is_sglangs_but_for_the_arithmetic(kind, contract, serve, monkeypatch, record_property):
    """Latents and states are fp32 here and bf16 there. The first step's logits have no history: they differ by the number formats alone."""
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, kind)
    serve(head.shape)
    built = plugin.build_draft(model, None, None)
    theirs, mine = (sampler_of(contract, model, factory, batch=4, greedy=False) for factory in (None, built.draft_sampler))
    equal, errors = [], []
    for seed in range(8):
        for sampler in (theirs, mine):
            sampler(*model.block(4, seed))
        equal.append((theirs.out == mine.out).float().mean().item())
        errors.append((theirs.step_logits[:, 0].float() - mine.step_logits[:, 0].float()).abs())
    built.check()
    record_property("share_of_equal_tokens", sum(equal) / len(equal))
    assert sum(equal) / len(equal) > 0.9
    assert torch.stack(errors).mean().item() < 0.01 and torch.stack(errors).max().item() <= 0.25  # a last place of logits from 32 on


@pytest.mark.parametrize("kind", KINDS)
def test_the_sampler_replays_from_a_graph_and_advances_the_noise_once_a_block(kind, contract, serve, monkeypatch):
    """As the draft graph's tail runs it: warmed up, captured, replayed on rewritten inputs and temperatures."""
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, kind)
    serve(head.shape)
    walks = [plugin.build_draft(model, None, None) for _ in range(2)]
    captured, eager = (sampler_of(contract, model, built.draft_sampler, batch=2, greedy=False) for built in walks)
    hidden, ids = model.block(2, 0)
    captured(hidden, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured(hidden, ids)
    captured._noise.offset.copy_(eager._noise.offset)
    for seed in range(1, 5):
        for buffer, value in zip((hidden, ids), model.block(2, seed), strict=True):
            buffer.copy_(value)
        for sampler in (captured, eager):
            sampler.params.step_temperatures[:] = torch.tensor([0.0 if seed == 2 else 1.0, 0.5 * seed], device="cuda")
        graph.replay()
        eager(hidden, ids)
        for name in ("out", "confidence_out", "step_logits"):
            assert torch.equal(getattr(captured, name), getattr(eager, name)), name
        assert captured._noise.offset.item() == eager._noise.offset.item() == OFFSET + seed
    for built in walks:
        built.check()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_draft_alike_and_take_the_tokens_of_rank_0(kind, contract, serve, monkeypatch):
    """Two ranks on one GPU, each with a walk of its own; then hidden vectors of one rank go wrong, which a recurrent head notices."""
    ranks = RanksInTurn()
    set_ranks(contract, monkeypatch, ranks)
    head, model = draft_of(contract, kind)
    serve(head.shape)
    walks = [plugin.build_draft(model, None, None) for _ in range(2)]
    samplers = [sampler_of(contract, model, built.draft_sampler, batch=4, greedy=False) for built in walks]
    for wrong in (0.0, 1.0):
        ranks.own.clear()
        for ranks.rank_in_group, sampler in enumerate(samplers):
            hidden, ids = model.block(4, 5)
            sampler(hidden + wrong * ranks.rank_in_group * hidden.flip(0), ids)
        assert torch.equal(*ranks.own) is not bool(wrong) and torch.equal(samplers[0].out, samplers[1].out)
        assert torch.equal(samplers[0].out, ranks.own[0].flatten())
    for built in walks:
        built.check()


# --- SGLang's own registry and installer


@pytest.fixture
def registered(contract, monkeypatch):
    """The plugin's specs in SGLang's registry, and a server that drafts with DSpark."""
    set_ranks(contract, monkeypatch)
    monkeypatch.setattr(contract.spec, "_REGISTRY", {})
    plugin.register()
    set_server(contract, monkeypatch, draft_tokens=GAMMA + 1)


def install(contract, model, architecture: str, *, is_draft: bool) -> None:
    """As SGLang does once a model's weights are loaded."""
    config = SimpleNamespace(architectures=[architecture])
    contract.binding.install_megakernel(model=model, hf_config=config, capture_tail_hooks=[], is_draft=is_draft)


def test_sglang_installs_it_on_this_gpu_and_folds_it_into_its_draft_graph(contract, serve, registered):
    head, model = draft_of(contract, "markov")
    serve(head.shape)
    _, target = draft_of(contract, "markov")
    install(contract, target, "Qwen3ForCausalLM", is_draft=False)
    assert contract.binding.built_megakernel(target).summary() == "the model's own forward" and "forward" not in target.__dict__
    assert contract.binding.megakernel_draft_sampler(target) is None
    install(contract, model, "Qwen3DSparkModel", is_draft=True)
    theirs = sampler_of(contract, model, None, batch=4, greedy=False)
    mine = contract.sampler.maybe_build_draft_sampler(
        draft_model=model, gamma=GAMMA, max_bs=8, device="cuda", tp_rank=0, greedy_draft=False, tp_sync=theirs._tp_sync,
        noise=contract.draft.DraftNoise(key=KEY, offset=torch.tensor([OFFSET], device="cuda")),
    )
    assert [mine._megakernel_steps(batch) is not None for batch in (1, 4, 5, 8)] == [True, True, False, False]
    mine.params.step_temperatures[:4] = theirs.params.step_temperatures
    for sampler in (theirs, mine):
        sampler(*model.block(4, 1))
    assert torch.equal(theirs.out, mine.out[: 4 * GAMMA])
    contract.binding.built_megakernel(model).check()


def test_sglang_refuses_other_ranks_and_partitions(contract, serve, registered, monkeypatch):
    head, model = draft_of(contract, "markov")
    serve(head.shape)
    about = torch.cuda.get_device_properties("cuda")
    blocks, half = about.multi_processor_count, about.multi_processor_count // 2
    assert plugin.draft_spec.requires.resident_blocks == blocks and plugin.draft_spec.requires.isas == {contract.binding.device_isa()}
    with monkeypatch.context() as changed:
        set_ranks(contract, changed, SimpleNamespace(world_size=3, rank_in_group=0))
        changed.setattr(contract.binding, "_gather_tp", lambda value, group=None: [value] * 3)
        with pytest.raises(ValueError, match=r"tp_size 3 is not one of \[1, 2, 4, 8\]"):
            install(contract, model, "Qwen3DSparkModel", is_draft=True)
    seen = {name: getattr(about, name) for name in dir(about) if not name.startswith("_")} | {"multi_processor_count": half}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: SimpleNamespace(**seen))
    with pytest.raises(ValueError, match=f"partitioned GPUs: {half} SMs, the persistent grids need {blocks}") as refusal:
        install(contract, model, "Qwen3DSparkModel", is_draft=True)
    assert f"sm_count is {blocks} in the file and {half} here" in str(refusal.value)


# --- settings


def test_settings_give_a_ready_walk_on_this_gpu_and_no_other(serve, tmp_path):
    head = one_hot_head(VOCAB, RANK, seed=1, device="cuda")
    path = serve(head.shape, 4, 0.0)
    walk = load_settings(path, head)
    assert (walk.steps, walk.max_batch, walk.sampling, walk.mode) == (GAMMA, 4, False, "resident")
    base = torch.randn(4, GAMMA, VOCAB, device="cuda").to(torch.bfloat16)
    with pytest.warns(UserWarning, match="random weights"):
        assert load_settings(path)(base, torch.tensor([0, 1, 2, 3], device="cuda")).shape == (4, GAMMA)
    other = HEAD_CLASSES["markov"].random(VOCAB + 16, RANK)
    with pytest.raises(SettingsMismatch, match=f"vocab_size is {VOCAB} in the file and {VOCAB + 16} here"):
        load_settings(path, other)
    _, settings = plugin.deployed_settings()
    elsewhere = fingerprint(load_gpu("b200-sxm"), head.shape, "int8x2", settings.placement, {"kernel_hash": walk_sources_hash()})
    with pytest.raises(SettingsMismatch, match="gpu_id is 'b200-sxm' in the file"):
        load_settings(write_settings(replace(settings, fingerprint=elsewhere), tmp_path / "b200.json"), head)
