"""The measured round on a GPU: compiled pointwise work, flash attention and graphs, against the same on the host and against transformers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.head import Head  # noqa: E402
from cost_model.targets import Drafter, Target  # noqa: E402
from wts_lab.bench_gpu import capture_graph  # noqa: E402
from wts_lab.bench_inputs import draw_head  # noqa: E402
from wts_lab.round_bench import MOST_LAYER_ERROR, layer_errors  # noqa: E402
from wts_lab.round_model import Cache, Places, TargetModel  # noqa: E402
from wts_lab.round_ops import attend  # noqa: E402
from wts_lab.round_parts import RoundModels, RoundParts, RoundShape  # noqa: E402
from wts_lab.stepwise import StepwiseWalk  # noqa: E402

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
TARGET = Target("small", "small", 3, 512, 1024, 8, 2, 128, 4096, False, "made up")
DRAFTER = Drafter("small-drafter", "small", 2, 2, 7, 7, "separate-kv", "made up")


def relative_error(got, wanted) -> float:
    return float((got.float().cpu() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_the_host(batch, causal):
    generator = torch.Generator().manual_seed(batch)
    queries = torch.randn(batch, 32, 17, 128, generator=generator).bfloat16()
    keys, values = (torch.randn(batch, 1041, 8, 128, generator=generator).bfloat16() for _ in range(2))
    got = attend(queries.to(CUDA), keys.to(CUDA), values.to(CUDA), causal_tail=causal)
    assert relative_error(got, attend(queries, keys, values, causal_tail=causal)) < 0.01


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_captured_round_repeats_itself_and_its_layers_are_right(concurrency):
    parts = RoundParts(RoundShape(DRAFTER, TARGET, 16, concurrency, 700), RoundModels(DRAFTER, TARGET, CUDA, 0))
    assert all(error < MOST_LAYER_ERROR for error in layer_errors(parts).values())
    walk = StepwiseWalk(draw_head(Head.markov(4096, 64), parts.models.generator))
    drafts = torch.full((concurrency, 16), -1, device=CUDA)
    replay = capture_graph(parts.whole(walk, drafts))
    replay()
    seen = [tensor.clone() for tensor in (drafts, parts.base_logits, parts.anchor, parts.cache.keys)]
    for tensor in (drafts, parts.greedy, parts.anchor):
        tensor.fill_(-1)
    parts.features.fill_(float("nan"))
    parts.base_logits.fill_(float("nan"))
    replay()
    for now, before in zip((drafts, parts.base_logits, parts.anchor, parts.cache.keys), seen):
        assert torch.equal(now, before)
    assert torch.equal(drafts, walk(parts.base_logits, parts.anchor))


def test_the_target_is_transformers_qwen3():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; the extra `test` brings it")
    config = transformers.Qwen3Config(
        vocab_size=4096, hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=128,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attn_implementation="sdpa",
    )  # fmt: skip
    ours = TargetModel(TARGET, CUDA, torch.bfloat16)
    ours.randomise(torch.Generator(device=CUDA).manual_seed(1))
    theirs = transformers.Qwen3ForCausalLM(config).eval().to(CUDA, torch.bfloat16)
    theirs.load_state_dict(ours.transformers_state())
    tokens = torch.randint(0, 4096, (2, 300), generator=torch.Generator().manual_seed(2)).to(CUDA)
    with torch.no_grad():
        wanted = theirs(tokens).logits[:, 283:]
        cache = Cache.empty(3, 2, 300, TARGET, CUDA, torch.bfloat16)
        ours.run(ours.embed(tokens[:, :1]), Places.made(0, 1, 128, CUDA, torch.bfloat16), cache, causal=False)
        ours.run(ours.embed(tokens[:, 1:283]), Places.made(1, 282, 128, CUDA, torch.bfloat16), cache, causal=True)
        got = ours.logits(ours.run(ours.embed(tokens[:, 283:]), Places.made(283, 17, 128, CUDA, torch.bfloat16), cache, causal=True))
    assert relative_error(got, wanted.cpu()) < 0.05
