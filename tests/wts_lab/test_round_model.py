"""Target and draft backbone of a measured round, against plain attention and against transformers' own Qwen3."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from cost_model.targets import Drafter, Target
from wts_lab.round_model import BackboneModel, Cache, Places, TargetModel, tapped_layers
from wts_lab.round_ops import attend, partial_attention, rotary_table

CPU = torch.device("cpu")
TINY = Target("tiny", "tiny", 3, 64, 96, 4, 2, 16, 320, False, "made up")
DRAFTER = Drafter("tiny-drafter", "tiny", 2, 2, 3, 3, "separate-kv", "made up")


def places(first: int, count: int) -> Places:
    return Places.made(first, count, TINY.head_dim, CPU, torch.float32)


def drawn_target(target: Target = TINY, seed: int = 0) -> TargetModel:
    model = TargetModel(target, CPU, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    model.randomise(generator)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.uniform_(0.5, 1.5, generator=generator)  # norms of 1 would hide one that is left out
    return model


def naive_attention(queries, keys, values, visible):
    """Softmax attention over one visibility table ``[T, S]``; heads as torch's own grouped-query attention takes them."""
    return functional.scaled_dot_product_attention(queries, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=visible, enable_gqa=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("context", [1, 7])
def test_attention_in_two_parts_is_attention_over_all(causal, context):
    generator = torch.Generator().manual_seed(context)
    block, positions = 5, context + 5
    queries = torch.randn(2, 4, block, 16, generator=generator)
    keys, values = (torch.randn(2, positions, 2, 16, generator=generator) for _ in range(2))
    visible = torch.ones(block, positions, dtype=torch.bool)
    if causal:
        visible = visible.tril(context)
    wanted = naive_attention(queries, keys, values, visible).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(queries, keys, values, causal_tail=causal), wanted, atol=2e-6, rtol=1e-5)


def test_partial_attention_tells_the_logarithm_of_its_sum():
    queries = torch.zeros(1, 2, 3, 16)
    keys, values = torch.randn(1, 3, 1, 16), torch.randn(1, 3, 1, 16)
    out, lse = partial_attention(queries, keys, values, causal=True)
    torch.testing.assert_close(lse, torch.tensor([1.0, 2.0, 3.0]).log().expand(1, 2, 3))  # equal scores of 0: the count of keys seen
    torch.testing.assert_close(out[0, 1, 2], values[0, :, 0].mean(dim=0))


def test_rotations_keep_lengths_and_depend_on_distances_alone():
    cosines, sines = rotary_table(3, 4, 16, CPU, torch.float32)
    from wts_lab.round_ops import rotate

    x = torch.randn(1, 1, 1, 16).expand(1, 4, 1, 16)
    turned = rotate(x, cosines, sines)[0, :, 0]
    torch.testing.assert_close(turned.norm(dim=-1), x[0, :, 0].norm(dim=-1))
    products = turned @ turned.T
    torch.testing.assert_close(products[0, 1], products[2, 3])
    assert not torch.allclose(products[0, 1], products[0, 2])


def test_verify_over_a_cache_gives_the_logits_of_a_plain_pass_over_everything():
    model, generator = drawn_target(), torch.Generator().manual_seed(1)
    tokens = torch.randint(0, TINY.vocab_size, (2, 12), generator=generator)
    at_once, in_parts = (Cache.empty(TINY.layers, 2, 12, TINY, CPU, torch.float32) for _ in range(2))
    whole = model.logits(model.run(model.embed(tokens), places(0, 12), at_once, causal=True))
    model.run(model.embed(tokens[:, :7]), places(0, 7), in_parts, causal=True)
    verified = model.logits(model.run(model.embed(tokens[:, 7:]), places(7, 5), in_parts, causal=True))
    torch.testing.assert_close(verified, whole[:, 7:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(in_parts.keys, at_once.keys, atol=1e-5, rtol=1e-4)
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % TINY.vocab_size
    changed = model.logits(model.run(model.embed(later[:, 7:]), places(7, 5), in_parts, causal=True))
    torch.testing.assert_close(changed[:, :-1], verified[:, :-1])  # a token does not change what came before it
    assert not torch.allclose(changed[:, -1], verified[:, -1])


def test_taps_hold_the_outputs_of_their_layers():
    model, tokens = drawn_target(), torch.arange(6)[None]
    taps = {0: torch.empty(1, 6, TINY.hidden_size), 1: torch.empty(1, 6, TINY.hidden_size)}
    model.run(model.embed(tokens), places(0, 6), Cache.empty(3, 1, 6, TINY, CPU, torch.float32), causal=True, taps=taps)
    shorter = drawn_target()
    shorter.layers = shorter.layers[:1]
    shorter.norm.fill_(1.0)
    normed = shorter.run(shorter.embed(tokens), places(0, 6), Cache.empty(3, 1, 6, TINY, CPU, torch.float32), causal=True)
    torch.testing.assert_close(functional.rms_norm(taps[0], (TINY.hidden_size,), eps=1e-6), normed)
    assert not torch.allclose(taps[0], taps[1])


@pytest.mark.parametrize(("layers", "count", "wanted"), [(36, 5, (3, 10, 17, 24, 31)), (3, 2, (0, 1)), (6, 5, (0, 1, 2, 3, 4))])
def test_tapped_layers_are_distinct_and_end_before_the_last(layers, count, wanted):
    assert tapped_layers(layers, count) == wanted


def test_the_backbone_attends_to_features_and_to_the_whole_block():
    model = BackboneModel(DRAFTER, TINY, CPU, torch.float32)
    model.randomise(torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    features, block = torch.randn(2, 4, 2 * 64, generator=generator), torch.randn(2, 3, 64, generator=generator)
    cache = Cache.empty(2, 2, 5 + 4 + 3, TINY, CPU, torch.float32)
    cache.fill(5, generator)

    def draft(block, features):
        return model.draft(block, features, places(9, 3), places(5, 4), cache)

    first = draft(block, features)
    torch.testing.assert_close(draft(block, features), first)  # places are written anew every time
    later = block.clone()
    later[:, -1] += 1.0
    assert not torch.allclose(draft(later, features)[:, 0], first[:, 0])  # no mask: the first position sees the last
    assert not torch.allclose(draft(block, features * 2 + 1), first)
    cache.keys[:, 1, :5] += 1.0
    again = draft(block, features)
    torch.testing.assert_close(again[0], first[0])
    assert not torch.allclose(again[1], first[1])  # its own context, and its own alone


@pytest.mark.parametrize("tied", [True, False])
def test_the_target_is_transformers_qwen3(tied):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; the extra `test` brings it")
    target = Target("tiny", "tiny", 3, 64, 96, 4, 2, 16, 320, tied, "made up")
    config = transformers.Qwen3Config(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attn_implementation="eager",
    )  # fmt: skip
    theirs, ours = transformers.Qwen3ForCausalLM(config).eval(), drawn_target(target)
    theirs.load_state_dict(ours.transformers_state())
    tokens = torch.randint(0, 320, (2, 11), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted = theirs(tokens).logits
    got = ours.logits(ours.run(ours.embed(tokens), places(0, 11), Cache.empty(3, 2, 11, target, CPU, torch.float32), causal=True))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-8b"])
def test_the_models_bytes_are_those_that_the_cost_model_counts(name):
    from cost_model.targets import load_drafter, load_target

    target, drafter = load_target(name), load_drafter(f"dspark-{name}")
    whole = TargetModel(target, torch.device("meta"), torch.bfloat16)
    held = sum(parameter.numel() for parameter in whole.parameters())
    counted = target.layers * target.layer_parameters + (1 if target.tied_embeddings else 2) * target.output_parameters
    assert counted < held < 1.0002 * counted  # the norms, which the cost model leaves out
    backbone = sum(parameter.numel() for parameter in BackboneModel(drafter, target, torch.device("meta"), torch.bfloat16).parameters())
    assert drafter.parameters(target) < backbone < 1.0002 * drafter.parameters(target)
