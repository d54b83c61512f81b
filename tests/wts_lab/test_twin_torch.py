"""The torch twin gives the NumPy twin's results, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
from hypothesis import given, strategies as st  # noqa: E402

from cost_model.errors import BadInput  # noqa: E402
from wts_lab import reference, twin_torch  # noqa: E402
from wts_lab.noise import Sampling  # noqa: E402
from wts_lab.planting import Layout, plant  # noqa: E402
from wts_lab.reference import round_to_bf16, twin_walks, twin_walks_bf16  # noqa: E402

AWKWARD = np.array([0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x8000, 0x0000, 0x4280], dtype=np.uint16)


def random_inputs(seed: int, vocab: int, rank: int, walks: int, steps: int, awkward_share: float = 0.02):
    rng = np.random.default_rng(seed)
    head = (*reference.twin_quantize_rows(rng.normal(size=(vocab, rank))), *reference.twin_quantize_latents(rng.normal(size=(vocab, rank))))
    bits = round_to_bf16(rng.normal(size=(walks, steps, vocab + 2)).astype(np.float32))
    awkward = rng.random(bits.shape) < awkward_share
    bits[awkward] = rng.choice(AWKWARD, awkward.sum())
    return head, bits, rng.integers(vocab, size=walks)


@given(st.integers(0, 2**31), st.integers(1, 90), st.integers(1, 16), st.sampled_from(["once", "twice", "none"]))
def test_equals_the_numpy_twin(seed, vocab, rank_steps, rounding):
    head, bits, anchors = random_inputs(seed, vocab, 32 * rank_steps, walks=5, steps=3)
    expected = twin_walks(*head, bits, anchors, rounding=rounding)
    base = torch.from_numpy(bits).view(torch.bfloat16)
    found = twin_torch.twin_walks_torch(*map(torch.from_numpy, head), base, torch.from_numpy(anchors), rounding=rounding)
    assert np.array_equal(found.tokens.numpy(), expected.tokens) and np.array_equal(found.draft_ids.numpy(), expected.draft_ids)
    assert np.array_equal(found.values.numpy(), expected.values, equal_nan=True)


def test_chunks_padding_and_id_map(monkeypatch):
    head, bits, anchors = random_inputs(1, 3000, 32, walks=4, steps=3)
    bits[:, 1, 900:1100] = 0x4480  # 1024: a tie across the border of two chunks
    mapping = np.random.default_rng(2).permutation(3000)
    monkeypatch.setattr(twin_torch, "CHUNK_ELEMENTS", 1)  # the smallest chunk: 1,024 rows
    options = {"vocab_size": 2900, "draft_to_target": mapping}
    expected = twin_walks(*head, bits, anchors, **options)
    base = torch.from_numpy(bits).view(torch.bfloat16)
    found = twin_torch.twin_walks_torch(*map(torch.from_numpy, head), base, torch.from_numpy(anchors), **options)
    assert np.array_equal(found.tokens.numpy(), expected.tokens) and (expected.draft_ids < 2900).all()


def test_exact_bf16_equals_the_numpy_twin():
    rng = np.random.default_rng(4)
    w2, w1 = (rng.integers(-8, 9, size=(60, 64)) / 8 for _ in range(2))
    bits = round_to_bf16(rng.normal(size=(6, 4, 60)).astype(np.float32))
    anchors = np.arange(6)
    expected = twin_walks_bf16(w2, w1, bits, anchors)
    weights = [torch.from_numpy(w).to(torch.bfloat16) for w in (w2, w1)]
    found = reference.twin_walks_bf16_torch(*weights, torch.from_numpy(bits).view(torch.bfloat16), torch.from_numpy(anchors))
    assert np.array_equal(found.tokens.numpy(), expected.tokens) and np.array_equal(found.values.numpy(), expected.values)
    with pytest.raises(BadInput, match="not an fp32 number"):
        inexact = [torch.randn(60, 64, dtype=torch.float64) for _ in range(2)]
        reference.twin_walks_bf16_torch(*inexact, torch.from_numpy(bits).view(torch.bfloat16), torch.from_numpy(anchors))


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_mixed_sampled_walks_equal_the_numpy_twin(seed, rounding, monkeypatch):
    """Fixed seeds, where no two keys tie within the few units in the last place that the logarithms may differ by."""
    head, bits, anchors = random_inputs(seed, 3000, 64, walks=5, steps=4, awkward_share=1e-4)
    rng = np.random.default_rng(seed)
    options = {
        "rounding": rounding, "vocab_size": 2990, "keep_logits": True, "draft_to_target": rng.permutation(3000),
        "temperatures": np.float32([0, 0.7, 1, 1.3, 0]), "noise": (-5 - seed, rng.integers(1 << 40, size=5)), "rows": np.arange(5),
    }  # fmt: skip
    expected = twin_walks(*head, bits, anchors, **options)
    monkeypatch.setattr(twin_torch, "CHUNK_ELEMENTS", 1)
    base = torch.from_numpy(bits).view(torch.bfloat16)
    found = twin_torch.twin_walks_torch(*map(torch.from_numpy, head), base, torch.from_numpy(anchors), **options)
    assert np.array_equal(found.tokens.numpy(), expected.tokens) and np.array_equal(found.draft_ids.numpy(), expected.draft_ids)
    assert np.array_equal(found.logits.view(torch.uint16).numpy(), expected.logits)
    np.testing.assert_allclose(found.values.numpy(), expected.values, rtol=1e-6)


def test_a_step_of_given_latents_is_the_step_of_their_table():
    head, bits, anchors = random_inputs(3, 500, 32, walks=4, steps=1, awkward_share=0)
    w_q, w_scale, *table = map(torch.from_numpy, head)
    base, tokens = torch.from_numpy(bits).view(torch.bfloat16)[:, 0], torch.from_numpy(anchors)
    matrix, latents = twin_torch.Int8x2Matrix(w_q, w_scale), tuple(part[tokens] for part in table)
    sampling = Sampling.of(4, torch.tensor([0.0, 1.0, 0.5, 2.0]), (7, 8), rows=torch.arange(4))
    noise = sampling.noise(0, 450, "cpu")
    ids, keys, y = twin_torch.select_step(
        matrix, latents, base, vocab_size=450, rounding="twice", temperatures=torch.from_numpy(sampling.temperatures), noise_rows=noise
    )
    walks = twin_torch.twin_walks_torch(
        *map(torch.from_numpy, head), base[:, None], tokens, vocab_size=450, rounding="twice",
        temperatures=sampling.temperatures, noise=(7, 8), rows=torch.arange(4), keep_logits=True,
    )  # fmt: skip
    assert torch.equal(ids, walks.draft_ids[:, 0]) and torch.equal(keys, walks.values[:, 0])
    assert torch.equal(y.view(torch.int16), walks.logits[:, 0].view(torch.int16))
    rows = torch.arange(4)
    by_hand = y.float()[rows, ids] / torch.tensor([1.0, 1.0, 0.5, 2.0]) + noise[rows, ids] * torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert torch.equal(keys, by_hand)


def test_latents_with_a_state_are_asked_once_a_step_in_order():
    """A provider whose latents depend on the position alone: walks equal one-step walks over each position's latent."""
    head, bits, anchors = random_inputs(6, 300, 32, walks=2, steps=3, awkward_share=0)
    w_q, w_scale, *table = map(torch.from_numpy, head)
    base, asked = torch.from_numpy(bits).view(torch.bfloat16), []

    def latents_of(tokens):
        asked.append(tokens)
        return tuple(part[[len(asked), len(asked)]] for part in table)

    walks = twin_torch.run_walks_torch(twin_torch.Int8x2Matrix(w_q, w_scale), latents_of, 300, base, torch.from_numpy(anchors))
    assert torch.equal(torch.stack(asked, 1), torch.cat([torch.from_numpy(anchors)[:, None], walks.tokens[:, :-1]], dim=1))
    for step in range(3):
        place = torch.full((2,), step + 1)
        single = twin_torch.twin_walks_torch(*map(torch.from_numpy, head), base[:, step : step + 1], place)
        assert torch.equal(walks.tokens[:, step], single.tokens[:, 0]) and torch.equal(walks.values[:, step], single.values[:, 0])


def test_a_step_without_latents_chooses_from_the_base():
    base = torch.tensor([[0.5, 2.0, 2.0, 9.0], [-1.0, -2.0, -0.5, 9.0]], dtype=torch.bfloat16)
    ids, keys, y = twin_torch.select_step(twin_torch.ExactBf16Matrix(torch.zeros(4, 32)), None, base, vocab_size=3)
    assert ids.tolist() == [1, 2] and keys.tolist() == [2.0, -0.5] and torch.equal(y, base[:, :3])


@pytest.mark.parametrize("precision", ["int8x2", "bf16"])
def test_expected_walks_are_the_planned_ones(precision):
    layout = Layout(400, 3, 2)
    planted = plant(layout, 32, steps=8, walks=16, padded_vocab_size=410, target_vocab_size=500, exact_bf16=precision == "bf16")
    inputs = {"precision": precision, "draft_to_target": planted.draft_to_target}
    walks = reference.expected_walks(planted.head, planted.base_logits, planted.anchors, **inputs)
    known = planted.planned >= 0
    assert np.array_equal(walks.draft_ids.numpy()[known], planted.planned[known])
    assert torch.equal(walks.tokens, planted.draft_to_target[walks.draft_ids])
    with pytest.raises(BadInput, match="int4"):
        reference.expected_walks(planted.head, planted.base_logits, planted.anchors, precision="int4")


def test_rounding_and_order_equal_numpys_for_every_bf16_neighbourhood():
    high = np.arange(0, 1 << 16, dtype=np.uint32)[:, None] << 16
    values = (high | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)).reshape(-1).view(np.float32)
    tensor = torch.from_numpy(values.copy())
    assert np.array_equal(twin_torch.round_to_bf16(tensor).view(torch.int32).numpy() >> 16 & 0xFFFF, round_to_bf16(values))
    keys = reference.ordered_value(values).astype(np.int64) - (1 << 31)
    assert np.array_equal(twin_torch.signed_order(tensor).numpy(), keys)


def test_inputs_that_do_not_fit_are_refused():
    head, bits, anchors = random_inputs(1, 40, 32, walks=2, steps=1)
    tensors = [torch.from_numpy(part) for part in head]
    base, anchors = torch.from_numpy(bits).view(torch.bfloat16), torch.from_numpy(anchors)
    with pytest.raises(BadInput, match="bfloat16"):
        twin_torch.twin_walks_torch(*tensors, base.float(), anchors)
    with pytest.raises(BadInput, match="rounding"):
        twin_torch.twin_walks_torch(*tensors, base, anchors, rounding="thrice")
    with pytest.raises(BadInput, match="anchors"):
        twin_torch.twin_walks_torch(*tensors, base, anchors + 40)
