"""The fused walk as a plugin of SGLang 0.5.23: its megakernel contract, version 1, for DSpark drafts with vanilla, gated and RNN heads.

SGLang finds `register` by the entry point ``nvidia_megakernel`` of the group ``sglang.srt.plugins`` and, started with
``--enable-nvidia-megakernel``, asks for two specs, which are made when they are asked for: ``target_spec`` for the target model, which
changes nothing there, and ``draft_spec`` for the draft model, whose draft sampler takes the place of base logits and Markov block. Both
are driven by the settings file that the environment variable WTS_LAB_SETTINGS names, and refused with every reason where it does not fit.
docs/sglang.md says what that costs.

Importing this module needs neither SGLang nor torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.settings import Settings, read_settings
from wts_lab import deploy

if TYPE_CHECKING:
    import torch

    from wts_lab.heads import DraftHead
    from wts_lab.walk import Walk

GROUP, ENTRY_POINT = "sglang.srt.plugins", "nvidia_megakernel"
API_VERSION = 1
"""Version of the contract that this plugin is written against."""

TP_SIZES = (1, 2, 4, 8)
NAME = "weights-that-stay"

DRAFTS = ("DSparkDraftModel", "DSparkMiniMaxDraftModel", "Lfm2DSparkDraftModel", "LingDSparkModel", "Qwen3DSparkModel")
"""Architectures of draft models whose head is one of `HEADS`. DeepSeek V4's draft shards a head of its own."""

TARGETS = (
    "BailingMoeV3ForCausalLM", "BeamForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM",
    "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Glm4MoeLiteForCausalLM", "Glm5NextForConditionalGeneration",
    "GptOssForCausalLM", "InklingForConditionalGeneration", "KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration",
    "KimiK3LinearForCausalLM", "KimiLinearForCausalLM", "LagunaForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM",
    "Lfm2VlForConditionalGeneration", "LlamaForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiniCPMV",
    "MiniCPMV4_6ForConditionalGeneration", "MiniCPMV4_7ForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration",
    "MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration", "NanbeigeForCausalLM", "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2", "NemotronH_Omni_Reasoning_V3",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3VLForConditionalGeneration", "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip
"""Architectures of target models that hand their hidden vectors to a parallel drafter."""

HEADS = {"VanillaMarkov": "markov", "GatedMarkovHead": "gated", "RNNHead": "rnn"}
"""SGLang's head classes, and the kinds of `wts_lab.heads` with the same tensors under the same names."""

ACCEPTED_FEATURES = (
    "SPECULATIVE_DECODING", "RAGGED_VERIFY", "EXPERT_PARALLEL", "EPLB", "KV_OFFLOAD", "RETURN_ROUTED_EXPERTS", "RETURN_INDEXER_TOPK",
)  # fmt: skip
"""Features that stay inside the target's forward or the verify step, which this plugin leaves alone; all others are refused."""


def register() -> None:
    """Register the specs with SGLang. A target that another plugin has registered keeps that plugin's spec.

    SGLang runs one plugin of a name. Where that is this one, it runs the others of its name first, so that none is lost by installing it.

    :raises ValueError: a draft architecture is registered already; SGLang's message names the other spec.
    """
    for point in entry_points(group=GROUP, name=ENTRY_POINT):
        if point.module != __name__:
            point.load()()
    from sglang.kernels.plugin_kernels.nvidia.spec import register as register_spec
    from sglang.kernels.plugin_kernels.nvidia.spec import registered_architectures

    taken = registered_architectures()
    for architecture in DRAFTS:
        register_spec(architecture=architecture, path=f"{__name__}:draft_spec")
    for architecture in set(TARGETS).difference(taken):
        register_spec(architecture=architecture, path=f"{__name__}:target_spec")


def __getattr__(name: str) -> Any:
    """``draft_spec`` and ``target_spec``, made when SGLang asks for them; what is wrong with the settings is then its reason to refuse."""
    makers = {"draft_spec": _draft_spec, "target_spec": _target_spec}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name]()


# --- the settings


@cache
def deployed_settings() -> tuple[Path, Settings]:
    """The settings file that WTS_LAB_SETTINGS names, and what it says.

    :raises BadInput: it names none; the file cannot be read; its verdict is to keep the engine's path, or its head no DSpark head.
    """
    path = os.environ.get("WTS_LAB_SETTINGS")
    if not path:
        raise BadInput("WTS_LAB_SETTINGS is not set; give it the settings.json that `wts-lab study` wrote on this GPU")
    settings = read_settings(path)
    deploy.require_fused(path, settings)
    if settings.fingerprint.head_kind not in HEADS.values():
        raise BadInput(f"{path}: is for a {settings.fingerprint.head_kind} head; SGLang's DSpark drafts have {', '.join(HEADS.values())}")
    return Path(path), settings


def device_faults() -> list[str]:
    """Why the settings do not hold on this process's GPU and with these kernels; empty where they do."""
    path, settings = deployed_settings()
    try:
        deploy.require_device(path, settings)
    except BadInput as error:
        return [str(error)]
    return []


def tolerances(settings: Settings) -> dict[str, float]:
    """What the number format was measured to change (docs/accuracy.md), of the latest record of this kind of head.

    ``unequal_step_share_bound``: upper 95 % bound (Clopper and Pearson's) of the share of steps whose token is not the bf16 reference's, given its
    history. ``logit_error_max``: largest difference of a step logit met.
    """
    from scipy.stats import beta

    from cost_model.paths import data_root
    from wts_lab.accuracy import read_accuracy

    wanted = (settings.fingerprint.head_kind, settings.precision)
    for path in sorted((data_root() / "accuracy").glob("*.parquet"), reverse=True):
        rows = [row for row in read_accuracy(path) if (row["head_kind"], row["format"]) == wanted]
        if rows:
            steps = sum(row["walks"] * row["steps"] for row in rows)
            equal = round(sum(row["walks"] * row["steps"] * row["equal_step_share"] for row in rows))
            bound = float(beta.ppf(0.95, steps - equal + 1, equal)) if equal else 1.0
            return {"unequal_step_share_bound": bound, "logit_error_max": max(row["logit_error_max"] for row in rows)}
    raise BadInput(f"no accuracy record of {wanted[0]} heads in {wanted[1]}; make one with `wts-lab accuracy`")


# --- the specs


@cache
def _draft_spec() -> Any:
    """The spec of a draft model. Its name tells the settings file, because SGLang refuses ranks whose specs differ by name."""
    from sglang.kernels.plugin_kernels.nvidia.spec import Numerics, NumericsKind

    path, settings = deployed_settings()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return _spec(
        f"{NAME} {settings.mode} draft walk of settings {digest}", settings, build=build_draft, model_disable_reasons=draft_faults,
        numerics=Numerics(NumericsKind.TOLERANCE, tolerances(settings)), resident_blocks=settings.fingerprint.sm_count,
    )  # fmt: skip


@cache
def _target_spec() -> Any:
    """The spec of a target model: no rows, the model's own forward, bit for bit."""
    from sglang.kernels.plugin_kernels.nvidia.spec import Numerics, NumericsKind

    _, settings = deployed_settings()
    return _spec(
        f"{NAME} pass-through", settings, build=lambda model, hf_config, context: PassThrough(), config_disable_reasons=config_faults,
        numerics=Numerics(NumericsKind.BITWISE),
    )  # fmt: skip


def _spec(name: str, settings: Settings, *, resident_blocks: int = 0, **options: Any) -> Any:
    """What both specs share: the GPU of the settings, sizes, dtype and features; no rows of the model's own forward are covered."""
    from sglang.kernels.plugin_kernels.nvidia.spec import Feature, MegakernelSpec, Requirements

    major, minor = load_gpu(settings.fingerprint.gpu_id).compute_capability
    requires = Requirements(
        isas=frozenset({f"sm_{major}{minor}"}), tp_sizes=frozenset(TP_SIZES), resident_blocks=resident_blocks, dtypes=frozenset({"bfloat16"})
    )
    features = frozenset(Feature[feature] for feature in ACCEPTED_FEATURES)
    return MegakernelSpec(name=name, requires=requires, features=features, max_rows=0, api_version=API_VERSION, **options)


def config_faults(server: Any, hf_config: Any) -> list[str]:
    """Before the weights load: why the plugin could not serve this server, as far as its arguments and its GPU tell."""
    algorithm = str(server.speculative_algorithm)
    faults = [] if algorithm.upper() == "DSPARK" else [f"{NAME} drafts for --speculative-algorithm DSPARK; this server has {algorithm}"]
    return faults + device_faults()


def draft_faults(model: Any, hf_config: Any) -> list[str]:
    """After the weights are loaded: why the settings' walk cannot stand for this draft model's Markov block."""
    _, settings = deployed_settings()
    faults, head = device_faults(), getattr(model, "markov_head", None)
    kind = head_kind(head)
    if kind is None:
        return [*faults, f"the draft model's markov_head is {type(head).__name__}; {NAME} walks {', '.join(HEADS)}"]
    wrong = sorted(f"{name} is {weight.dtype}" for name, weight in head.named_parameters() if str(weight.dtype) != "torch.bfloat16")
    if wrong:
        return [*faults, f"the head's weights must be torch.bfloat16: {', '.join(wrong)}"]
    there, here = settings.fingerprint.head, draft_head(head).shape
    for name in ("kind", "vocab_size", "target_vocab_size", "rank", "hidden_size"):
        if getattr(there, name) != getattr(here, name):
            faults.append(f"{name} is {getattr(there, name)!r} in the settings and {getattr(here, name)!r} in the draft model")
    if model.gamma > settings.steps:
        faults.append(f"the draft model drafts {model.gamma} tokens a block, the settings are for {settings.steps}")
    return faults


def head_kind(head: Any) -> str | None:
    """Kind of a head module of SGLang; None for no head, another class, and a subclass, which may compute something else."""
    from sglang.srt.models import dspark

    return next((kind for name, kind in HEADS.items() if type(head) is getattr(dspark, name)), None)


def draft_head(head: Any) -> DraftHead:
    """The head of these very tensors, as a walk takes it."""
    from wts_lab.heads import HEAD_CLASSES

    kind = HEAD_CLASSES[head_kind(head)]
    weights = {name: weight.detach() for name, weight in head.named_parameters()}
    return kind(*(weights[name] for name in kind.TENSORS), vocab_size=head.vocab_size)


# --- what is built


class PassThrough:
    """Covers no step: the model keeps its own forward."""

    widths: tuple[int, ...] = ()
    draft_sampler: Callable[..., Any] | None = None

    def summary(self) -> str:
        """For the engine's startup line."""
        return "the model's own forward"

    def plan(self, input_ids: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """No step is covered."""

    def forward(self, step: Any, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward; never asked for, because no step is planned."""
        return original(*args, **kwargs)


def build_draft(model: Any, hf_config: Any, context: Any) -> DraftWalk:
    """Prepare the walk of a draft model that `draft_faults` passed. Needs the head alone; the target's projection comes later."""
    _, settings = deployed_settings()
    device = model.markov_head.markov_w1.weight.device
    return DraftWalk(model, deploy.prepare_walk(settings, draft_head(model.markov_head), steps=int(model.gamma), device=device), settings)


class DraftWalk(PassThrough):
    """A draft model's walk, and the factory of its draft sampler.

    :param model: SGLang's draft model.
    :param walk: prepared from its head.
    """

    def __init__(self, model: Any, walk: Walk, settings: Settings) -> None:
        self.model, self.walk, self.settings = model, walk, settings
        self.draft_sampler = self._draft_sampler

    def summary(self) -> str:
        """For the engine's startup line."""
        return f"{self.settings.mode} {self.settings.precision} walk of {self.settings.fingerprint.head_kind} heads, up to {self.settings.batch} requests"

    def check(self) -> None:
        """Wait for the GPU and raise what only it saw of the walks so far (`wts_lab.walk.WalkStalled`, `AnchorOutOfRange`)."""
        self.walk.check()

    def _draft_sampler(
        self, *, gamma: int, max_bs: int, greedy_draft: bool, noise: Any, draft_tokens: torch.Tensor, step_logits: torch.Tensor | None,
        step_temperatures: torch.Tensor,
    ) -> Callable[[int], Callable | None]:  # fmt: skip
        """As the contract says; batches above the settings' stay with SGLang's own block.

        :raises BadInput: the server samples and the settings are for greedy drafts; base logits that are sharded, or wider than the head.
        """
        head, width = self.model.markov_head, int(self.model.lm_head.org_vocab_size)
        if not greedy_draft and not self.settings.temperature:
            raise BadInput("this server samples its drafts and the settings are for temperature 0; make settings for the temperature "
                           "served, or set SGLANG_DSPARK_USE_GREEDY_DRAFT=1")  # fmt: skip
        if head.vocab_shard is not None:
            raise BadInput("the walk reads base logits of the whole vocabulary; set SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=0")
        if width != head.vocab_size:
            raise BadInput(f"base logits have {width} columns, the head {head.vocab_size}; the plugin serves targets whose vocabulary is the head's")
        if gamma > self.walk.steps:
            raise BadInput(f"blocks of {gamma} tokens were asked for; the walk was prepared for {self.walk.steps}")
        group = _token_group()

        def step(hidden_states: torch.Tensor, anchor: torch.Tensor, *, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
            base_logits, confidence_features = self.model.compute_base_logits(hidden_states)
            tokens = draft_tokens[: batch * gamma].view(batch, gamma)
            options = {} if self.walk.head.kind == "markov" else {"hidden": hidden_states.view(batch, gamma, -1)}
            if not greedy_draft:
                options |= {"temperatures": step_temperatures[:batch], "noise": (noise.key, noise.offset), "logits_out": step_logits[:batch]}
            self.walk(base_logits.view(batch, gamma, -1), anchor.long().contiguous(), tokens_out=tokens, **options)
            if group is not None:
                group.broadcast(tokens, src=0)
            return tokens, confidence_features

        return lambda batch: partial(step, batch=batch) if batch <= min(max_bs, self.settings.batch) else None


def _token_group() -> Any:
    """The ranks that must draft alike, or None for one. All take rank 0's tokens, once a block.

    Base logits are gathered, so every rank has the same bits. But hidden vectors are each rank's own, and a walk that stalled on one
    rank alone yields zeros there.
    """
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    return group if group.world_size > 1 else None
