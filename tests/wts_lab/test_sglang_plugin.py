"""The plugin against SGLang's own contract: found, checked, installed and run by SGLang's code, with its Markov block as the reference.

The kernel's place is taken by its bit-exact twin (tests/twin_walk.py); tests/gpu/test_sglang_plugin.py runs the kernel itself.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from cost_model.settings import Settings, SettingsMismatch, fingerprint  # noqa: E402
from tests import sglang_contract  # noqa: E402
from tests.sglang_contract import RanksInTurn, make_sampler, set_ranks, set_server, settings_in_force, sglang_head  # noqa: E402
from tests.twin_walk import TwinWalk  # noqa: E402
from wts_lab import deploy  # noqa: E402
from wts_lab.engines import sglang_plugin as plugin  # noqa: E402
from wts_lab.heads import HEAD_CLASSES, DominoHead  # noqa: E402

VOCAB, RANK, HIDDEN, GAMMA, BATCH = 300, 64, 96, 5, 3
H200 = load_gpu("h200-sxm", calibrated=False)
PLACEMENT = Placement(8, 40, 32, 0, 0)
ENTRY_POINTS = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]


def settings_for(shape, **changes) -> Settings:
    """Settings of a deployed int8x2 walk that samples."""
    settings = Settings("deploy resident", "resident", "int8x2", PLACEMENT, None, BATCH, GAMMA, 1.0, "twice", "serving", (), "measured here", 0,
                        fingerprint(H200, shape, "int8x2", PLACEMENT, {"gpu_name": "NVIDIA H200", "kernel_hash": "c0ffee"}))  # fmt: skip
    return replace(settings, **changes)


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Deploy settings, and let this machine be the one that they were made for, with twins as its kernel."""
    monkeypatch.setattr(deploy, "require_device", lambda *about: None)
    monkeypatch.setattr("wts_lab.walk.Walk", TwinWalk)
    with settings_in_force(monkeypatch, tmp_path) as serve:
        yield serve


draft_of = partial(sglang_contract.draft_of, vocab=VOCAB, rank=RANK, hidden=HIDDEN, gamma=GAMMA, padded=VOCAB + 20)


# --- found and registered


def test_the_entry_point_is_the_one_sglang_looks_for(contract, monkeypatch):
    (name, value), = ENTRY_POINTS[contract.plugins.GENERAL_PLUGINS_GROUP].items()
    assert name == contract.spec.ENTRY_POINT
    point = importlib.metadata.EntryPoint(name, value, contract.plugins.GENERAL_PLUGINS_GROUP)
    for module in (contract.plugins, contract.binding):
        monkeypatch.setattr(module, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(contract.plugins, "_plugins_loaded", False)
    monkeypatch.setattr(contract.spec, "_REGISTRY", {})
    assert contract.binding.plugin_reasons() == []
    contract.plugins.load_plugins()
    assert contract.spec.registered_architectures() == sorted(plugin.DRAFTS + plugin.TARGETS)


def test_targets_of_another_plugin_stay_its_own_and_its_drafts_are_a_clash(contract, monkeypatch):
    monkeypatch.setattr(contract.spec, "_REGISTRY", {"Qwen3ForCausalLM": "another:SPEC"})
    plugin.register()
    plugin.register()
    assert contract.spec._REGISTRY["Qwen3ForCausalLM"] == "another:SPEC" and contract.spec._REGISTRY["LlamaForCausalLM"].endswith(":target_spec")
    monkeypatch.setattr(contract.spec, "_REGISTRY", {"Qwen3DSparkModel": "another:SPEC"})
    with pytest.raises(ValueError, match="Qwen3DSparkModel is already registered: another:SPEC"):
        plugin.register()


def test_another_plugin_of_the_same_name_is_run_first_and_not_lost(contract, monkeypatch):
    register = contract.spec.register
    ours, other = (SimpleNamespace(module=module, load=lambda: lambda: register(architecture="Qwen3ForCausalLM", path="another:SPEC"))
                   for module in (plugin.__name__, "another"))  # fmt: skip
    monkeypatch.setattr(plugin, "entry_points", lambda group, name: [other, ours] if (group, name) == ("sglang.srt.plugins", "nvidia_megakernel") else [])
    monkeypatch.setattr(contract.spec, "_REGISTRY", {})
    plugin.register()
    assert contract.spec._REGISTRY["Qwen3ForCausalLM"] == "another:SPEC" and set(plugin.DRAFTS) < set(contract.spec._REGISTRY)


def test_ranks_with_other_settings_have_specs_of_another_name(contract, serve):
    shape = draft_of(contract, "markov")[0].shape
    names = []
    for batch in (1, 1, 2):
        serve(settings_for(shape, batch=batch))
        names.append(plugin.draft_spec.name)
    assert names[0] == names[1] != names[2]


def test_every_architecture_is_one_of_sglangs(sglang_root):
    from wts_lab.engines.sglang_files import locate

    folder = locate(sglang_root)[1] / "sglang" / "srt" / "models"
    texts = [path.read_text("utf-8") for path in folder.glob("*.py")]
    drafters = [text for text in texts if "DSparkDraftModel" in text or "DSparkDraftMixin" in text]
    targets = [text for text in texts if "_layers_to_capture" in text]
    for names, files in ((plugin.DRAFTS, drafters), (plugin.TARGETS, targets)):
        assert [name for name in names if not any(re.search(rf"^class {name}\b", text, re.MULTILINE) and name in text.split("EntryClass")[-1] for text in files)] == []


# --- the specs


def test_both_specs_say_what_the_settings_say(contract, serve):
    serve(settings_for(draft_of(contract, "gated")[0].shape))
    for name in ("draft_spec", "target_spec"):
        spec = getattr(plugin, name)
        assert isinstance(spec, contract.spec.MegakernelSpec) and spec is getattr(plugin, name)
        assert spec.api_version == contract.spec.MEGAKERNEL_API_VERSION and spec.max_rows == 0
        assert spec.requires.isas == {"sm_90"} and spec.requires.tp_sizes == {1, 2, 4, 8} and spec.requires.dtypes == {"bfloat16"}
        assert spec.requires.decode_graph_backends == {"full", "disabled"}
        assert contract.spec.Feature.SPECULATIVE_DECODING in spec.features and contract.spec.Feature.LORA not in spec.features
    assert plugin.draft_spec.requires.resident_blocks == 132 and plugin.target_spec.numerics.kind is contract.spec.NumericsKind.BITWISE


def test_tolerances_are_those_of_the_accuracy_record(contract, serve, repository):
    import pandas

    records = sorted((repository / "data" / "accuracy").glob("*.parquet"))
    rows = pandas.read_parquet(records[-1]).query("head_kind == 'gated' and format == 'int8x2'")
    serve(settings_for(draft_of(contract, "gated")[0].shape))
    numerics = plugin.draft_spec.numerics
    assert numerics.kind is contract.spec.NumericsKind.TOLERANCE
    bound, steps = numerics.tolerances.pop("unequal_step_share_bound"), int((rows.walks * rows.steps).sum())
    unequal = round(steps * (1 - rows.equal_step_share.mean()))
    assert numerics.tolerances == {"logit_error_max": rows.logit_error_max.max()}
    at_bound = sum(math.comb(steps, k) * bound**k * (1 - bound) ** (steps - k) for k in range(unequal + 1))
    assert at_bound == pytest.approx(0.05), "were the share at the bound, so few unequal steps would be seen one time in twenty"


def test_a_broken_file_is_a_refusal_and_no_crash(contract, serve, monkeypatch, tmp_path):
    monkeypatch.setattr(contract.spec, "_REGISTRY", {})
    plugin.register()

    def why(architecture="Qwen3DSparkModel", isa="sm_90"):
        return contract.spec.find_spec(architectures=[architecture], isa=isa)

    monkeypatch.delenv("WTS_LAB_SETTINGS", raising=False)
    assert why()[0] is None and "WTS_LAB_SETTINGS is not set; give it the settings.json" in why()[1]
    monkeypatch.setenv("WTS_LAB_SETTINGS", str(tmp_path / "nowhere.json"))
    assert "nowhere.json: cannot be read" in why("Qwen3ForCausalLM")[1]
    shape = draft_of(contract, "markov")[0].shape
    serve(settings_for(shape, verdict="no material gain", mode="stepwise", precision=None, placement=None, reasons=("0.1 % of a round",),
                       fingerprint=fingerprint(H200, shape, None, None)))  # fmt: skip
    assert "the verdict is 'no material gain', so there is no walk to prepare: 0.1 % of a round" in why()[1]
    domino = DominoHead.random(VOCAB, RANK, hidden_size=HIDDEN, gru_size=64).shape
    serve(settings_for(domino, fingerprint=fingerprint(H200, domino, "int8x2", PLACEMENT)))
    assert "is for a domino head; SGLang's DSpark drafts have markov, gated, rnn" in why()[1]
    serve(settings_for(shape))
    assert "supports ['sm_90'], not sm_100" in why(isa="sm_100")[1]
    assert why() == (plugin.draft_spec, "") and why("Qwen3ForCausalLM") == (plugin.target_spec, "")


SERVER = dict(
    pp_size=1, nnodes=1, enable_dp_attention=False, attn_dp_size=1, ep_size=1, enable_eplb=False, attn_cp_size=1, dcp_size=1, enable_prefill_cp=False,
    speculative_algorithm="DSPARK", enable_two_batch_overlap=False, enable_single_batch_overlap=False, enable_lora=False, lora_paths=None,
    disaggregation_mode="null", enable_return_routed_experts=False, enable_return_indexer_topk=False, enable_hierarchical_cache=False,
    disaggregation_decode_enable_offload_kvcache=False, enable_lmcache=False, enable_flexkv=False, enable_hisparse=False, enable_memory_saver=False,
    enable_weights_cpu_backup=False, cpu_offload_gb=0, offload_group_size=0, enable_torch_compile=False, enable_deterministic_inference=False,
    rl_on_policy_target=None, tp_size=2, cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend="full")), watchdog_timeout=300.0,
)  # fmt: skip
REFUSED = [
    (dict(speculative_algorithm="EAGLE"), "drafts for --speculative-algorithm DSPARK; this server has EAGLE"),
    (dict(speculative_algorithm=None), "this server has None"), (dict(tp_size=3), "tp_size 3 is not one of"), (dict(pp_size=2), "pipeline parallelism is in use"),
    (dict(enable_dp_attention=True), "DP attention is in use"), (dict(enable_lora=True), "LoRA is in use"), (dict(nnodes=2), "multi-node tensor parallelism"),
    (dict(enable_memory_saver=True), "memory release is in use"), (dict(enable_deterministic_inference=True), "deterministic inference is in use"),
    (dict(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend="breakable"))), "decode CUDA graphs 'breakable'"),
]


def resolve(contract, **server):
    """What SGLang's argument resolution says of a server whose target is Qwen3."""
    config = SimpleNamespace(architectures=["Qwen3ForCausalLM"])
    return contract.binding.megakernel_disable_reasons(cfg=SimpleNamespace(**SERVER | server), hf_config=config, isa="sm_90")


@pytest.fixture
def registered(contract, monkeypatch):
    monkeypatch.setattr(contract.spec, "_REGISTRY", {})
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    plugin.register()


def test_a_dspark_server_passes_the_argument_resolution(contract, serve, registered):
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    assert resolve(contract) == (plugin.target_spec, [])
    assert resolve(contract, ep_size=2, enable_eplb=True, enable_hierarchical_cache=True) == (plugin.target_spec, [])


@pytest.mark.parametrize(("server", "reason"), REFUSED)
def test_other_servers_are_refused_before_the_weights_load(server, reason, contract, serve, registered):
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    _, reasons = resolve(contract, **server)
    assert len(reasons) == 1 and reason in reasons[0]


def test_another_machine_is_refused_before_the_weights_load(contract, serve, registered, monkeypatch):
    def differs(path, settings, device=None, head=None):
        raise SettingsMismatch(path, {"gpu_id": ("h200-sxm", "h100-sxm"), "kernel_hash": ("c0ffee", "decade")})

    serve(settings_for(draft_of(contract, "markov")[0].shape))
    monkeypatch.setattr(deploy, "require_device", differs)
    (reason,) = resolve(contract)[1]
    assert "gpu_id is 'h200-sxm' in the file and 'h100-sxm' here; kernel_hash is 'c0ffee' in the file and 'decade' here" in reason


# --- the draft model


def test_a_head_that_fits_has_no_faults(contract, serve):
    for kind in ("markov", "gated", "rnn"):
        head, model = draft_of(contract, kind)
        serve(settings_for(head.shape))
        assert plugin.draft_faults(model, None) == []
        mine = plugin.draft_head(model.markov_head)
        assert mine.kind == kind and mine.projection.data_ptr() == model.markov_head.markov_w2.weight.data_ptr()
        assert all(torch.equal(weight, head.get_parameter(name)) for name, weight in mine.named_parameters())


def test_every_fault_of_a_draft_model_is_listed(contract, serve):
    _, model = draft_of(contract, "gated")
    other = HEAD_CLASSES["gated"].random(VOCAB + 1, RANK, hidden_size=HIDDEN + 8)
    serve(settings_for(other.shape, steps=GAMMA - 1))
    faults = plugin.draft_faults(model, None)
    assert [fault.split(" ")[0] for fault in faults] == ["vocab_size", "target_vocab_size", "hidden_size", "the"]
    assert "vocab_size is 301 in the settings and 300 in the draft model" in faults and "drafts 5 tokens a block, the settings are for 4" in faults[-1]


def test_heads_that_may_compute_something_else_are_refused(contract, serve):
    head, model = draft_of(contract, "markov")
    serve(settings_for(head.shape))
    model.markov_head = type("Tuned", (contract.models.VanillaMarkov,), {})(vocab_size=VOCAB, markov_rank=RANK)
    assert plugin.draft_faults(model, None) == ["the draft model's markov_head is Tuned; weights-that-stay walks VanillaMarkov, GatedMarkovHead, RNNHead"]
    model.markov_head = None
    assert "markov_head is NoneType" in plugin.draft_faults(model, None)[0]
    model.markov_head = sglang_head(contract.models, head).float()
    assert plugin.draft_faults(model, None) == ["the head's weights must be torch.bfloat16: markov_w1.weight is torch.float32, markov_w2.weight is torch.float32"]


# --- the block


def both_blocks(contract, kind, *, greedy, anchored, batch, rows, plugin_step=True, seed=1):
    """SGLang's sampler over its own block and over the plugin, called on the same three blocks; the second one's walk beside them."""
    _, model = draft_of(contract, kind, anchored=anchored, seed=seed)
    assert plugin.draft_faults(model, None) == []
    built = plugin.build_draft(model, None, None)
    samplers = [make_sampler(contract, model, max_bs=rows, greedy=greedy, key=2**62 + 12345, offset=2**32 - 2, plugin=each)
                for each in (None, built.draft_sampler)]  # fmt: skip
    found = []
    for block in range(3):
        hidden, ids = model.block(batch, seed=10 * seed + block)
        for sampler in samplers:
            sampler.params.step_temperatures[:] = torch.tensor([0.7, 0.0, 1.3, 1.0])[:rows]
            sampler(hidden, ids)
        found.append([(sampler.out[: batch * GAMMA].clone(), sampler.step_logits, sampler.confidence_out[:batch].clone()) for sampler in samplers])
    return found, samplers, built


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize(("greedy", "batch"), [(False, 3), (False, 1), (True, 2)])
def test_a_markov_block_is_sglangs_token_for_token(greedy, batch, anchored, contract, serve, monkeypatch):
    set_ranks(contract, monkeypatch)
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    found, samplers, built = both_blocks(contract, "markov", greedy=greedy, anchored=anchored, batch=batch, rows=4)
    for theirs, mine in found:
        assert torch.equal(theirs[0], mine[0]) and torch.equal(theirs[2], mine[2])
        assert greedy or torch.equal(theirs[1][:batch], mine[1][:batch])
    assert built.walk.calls == 3 and len(set(found[0][0][0].tolist())) > 3
    offsets = [sampler._noise.offset.item() for sampler in samplers]
    assert offsets == [2**32 - 2 + (0 if greedy else 3)] * 2


@pytest.mark.parametrize("kind", ["gated", "rnn"])
@pytest.mark.parametrize("anchored", [True, False])
def test_a_recurrent_block_is_sglangs_but_for_the_arithmetic(kind, anchored, contract, serve, monkeypatch):
    """Fused heads keep latents in fp32 and W2 in int8, so ties may fall otherwise; hidden vectors of other positions would change most tokens."""
    set_ranks(contract, monkeypatch)
    serve(settings_for(draft_of(contract, kind)[0].shape))
    equal, errors = [], []
    for seed in range(1, 5):
        found, *_ = both_blocks(contract, kind, greedy=False, anchored=anchored, batch=3, rows=4, seed=seed)
        equal += [theirs[0] == mine[0] for theirs, mine in found]
        first = [(theirs[1][:3, 0] - mine[1][:3, 0]).abs().max().item() for theirs, mine in found[-1:]]
        errors += first
    assert torch.stack(equal).float().mean() > 0.9 and max(errors) < 0.125


def test_batches_beyond_the_settings_stay_sglangs_own(contract, serve, monkeypatch):
    set_ranks(contract, monkeypatch)
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    found, samplers, built = both_blocks(contract, "markov", greedy=False, anchored=True, batch=4, rows=4)
    assert built.walk.calls == 0 and all(torch.equal(theirs[0], mine[0]) for theirs, mine in found)
    assert [samplers[1]._megakernel_steps(size) is not None for size in range(1, 6)] == [True, True, True, False, False]


def test_all_ranks_take_the_tokens_of_rank_0(contract, serve, monkeypatch):
    """Also where rank 1 alone got other tokens, as after a stall: here because its hidden vectors differ."""
    ranks = RanksInTurn()
    set_ranks(contract, monkeypatch, ranks)
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    _, model = draft_of(contract, "markov")
    samplers = [make_sampler(contract, model, max_bs=2, greedy=True, key=1, offset=0, plugin=plugin.build_draft(model, None, None).draft_sampler)
                for _ in range(2)]  # fmt: skip
    _, ids = model.block(2, seed=3)
    for ranks.rank_in_group, sampler in enumerate(samplers):
        hidden, _ = model.block(2, seed=3 + ranks.rank_in_group)
        sampler(hidden, ids)
    assert len(ranks.own) == 2 and ranks.own[0].shape == (2, GAMMA) and not torch.equal(*ranks.own)
    assert torch.equal(samplers[0].out, ranks.own[0].flatten()) and torch.equal(samplers[1].out, samplers[0].out)
    expected, _ = model.compute_confidence(anchor_tokens=ids.view(2, GAMMA)[:, 0], draft_tokens=ranks.own[0], confidence_features=hidden)
    assert torch.equal(samplers[1].confidence_out, expected), "the confidence belongs to the tokens that all ranks took"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: None, "samples its drafts and the settings are for temperature 0"),
        (lambda model: setattr(model.markov_head, "vocab_shard", object()), "set SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=0"),
        (lambda model: setattr(model.lm_head, "org_vocab_size", VOCAB + 4), "base logits have 304 columns, the head 300"),
        (lambda model: setattr(model, "gamma", GAMMA + 1), "blocks of 6 tokens were asked for; the walk was prepared for 5"),
    ],
)
def test_a_sampler_that_would_be_wrong_is_refused(change, message, contract, serve, monkeypatch):
    set_ranks(contract, monkeypatch)
    head, model = draft_of(contract, "markov")
    serve(settings_for(head.shape, temperature=0.0 if "temperature 0" in message else 1.0))
    built = plugin.build_draft(model, None, None)
    change(model)
    with pytest.raises(BadInput, match=message):
        make_sampler(contract, model, max_bs=2, greedy=False, key=1, offset=0, plugin=built.draft_sampler)


# --- installed by SGLang


@pytest.mark.parametrize("is_draft", [True, False])
def test_sglang_installs_it_without_touching_the_models_forward(is_draft, contract, serve, registered, monkeypatch):
    binding = contract.binding
    set_ranks(contract, monkeypatch)
    serve(settings_for(draft_of(contract, "markov")[0].shape))
    set_server(contract, monkeypatch, draft_tokens=GAMMA + 1, device_isa="sm_90")
    multiprocessors = SimpleNamespace(multi_processor_count=132)
    for name, value in {"current_device": 0, "mem_get_info": (2**30, 2**31), "get_device_properties": multiprocessors}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *about, value=value: value)
    _, model = draft_of(contract, "markov")
    config = SimpleNamespace(architectures=["Qwen3DSparkModel" if is_draft else "Qwen3ForCausalLM"])

    def install(hooks):
        binding.install_megakernel(model=model, hf_config=config, capture_tail_hooks=hooks, is_draft=is_draft)

    install(hooks := [])
    built = binding.built_megakernel(model)
    assert "forward" not in model.__dict__ and not hooks and built.widths == ()
    assert (binding.megakernel_draft_sampler(model) is not None) is is_draft
    assert built.plan(None, None) is None and built.forward(None, lambda value: value + 1, 2) == 3
    assert built.summary() == ("resident int8x2 walk of markov heads, up to 3 requests" if is_draft else "the model's own forward")
    assert "Online weight updates are not supported" in model._derived_weight_cache_error
    if is_draft:
        multiprocessors.multi_processor_count = 66
        with pytest.raises(ValueError, match="partitioned GPUs: 66 SMs, the persistent grids need 132"):
            install([])
