"""The toy walk: every number follows from the rules, equals the twins, and is what the kernel computes with zeros behind the columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from wts_lab.reference import bf16_to_float, round_to_bf16
from wts_lab.toy import (
    TOY_ANCHOR, TOY_RANK, TOY_STEPS, TOY_TOKENS, ToyHead, ToyOnGpu, padded, reference, toy_codes, toy_head, toy_walk, twin, walk_on_gpu,
)


@pytest.fixture(scope="module")
def head() -> ToyHead:
    """The head of the notebook."""
    return toy_head()


def test_the_head_is_twelve_tokens_of_rank_four_in_bf16_numbers(head: ToyHead) -> None:
    assert head.w1.shape == head.w2.shape == (TOY_TOKENS, TOY_RANK) == (12, 4) and head.base.shape == (TOY_STEPS, TOY_TOKENS) == (3, 12)
    for numbers in (head.w1, head.w2, head.base):
        assert np.array_equal(bf16_to_float(round_to_bf16(numbers)), numbers)
    assert np.array_equal(head.w2 * 8, np.rint(head.w2 * 8)) and np.abs(head.w2).max() <= 1


def test_codes_give_back_the_weights_within_half_a_step(head: ToyHead) -> None:
    codes = toy_codes(head)
    assert np.allclose(codes.w_scale, np.abs(head.w2).max(axis=1) / 127, rtol=1e-7) and np.allclose(codes.s2 * 254, codes.s1, rtol=1e-6)
    assert (np.abs(head.w2 - codes.w_q * codes.w_scale[:, None]) <= codes.w_scale[:, None] / 2 * 1.0001).all()
    one, two = codes.s1[:, None] * codes.q1, codes.s1[:, None] * codes.q1 + codes.s2[:, None] * codes.q2
    assert (np.abs(head.w1 - two) <= codes.s2[:, None] / 2 * 1.001).all() and np.abs(head.w1 - one).max() > codes.s2.max()


def test_every_number_of_a_step_follows_from_the_one_before(head: ToyHead) -> None:
    codes, previous = toy_codes(head), TOY_ANCHOR
    for number, step in enumerate(toy_walk(head)):
        assert (step.number, step.previous) == (number, previous) and np.array_equal(step.latent, head.w1[previous])
        for token in range(TOY_TOKENS):
            products = [sum(int(w) * int(q) for w, q in zip(codes.w_q[token], vector, strict=True)) for vector in (step.q1, step.q2)]
            assert [step.c1[token], step.c2[token]] == products
            scaled = float(codes.w_scale[token]) * (float(step.s1) * products[0] + float(step.s2) * products[1])
            assert step.correction[token] == pytest.approx(scaled, rel=1e-6)
            assert abs(step.correction[token] - step.exact[token]) <= codes.w_scale[token] / 2 * np.abs(step.latent).sum() + step.s2 * TOY_RANK
            assert abs(step.y[token] - (step.base[token] + step.correction[token])) <= 2.0**-8 * abs(step.y[token])
        assert step.y[step.token] == step.y.max() and step.token == min(np.flatnonzero(step.y == step.y.max()))
        previous = step.token


def test_the_walk_equals_the_twin_bit_for_bit_and_the_engines_tokens(head: ToyHead) -> None:
    steps, checked, engines = toy_walk(head), twin(head), reference(head)
    assert [step.token for step in steps] == checked.tokens.tolist() == engines.tokens.tolist()
    assert np.array_equal(round_to_bf16(np.stack([step.y for step in steps])), checked.logits)
    assert (checked.logits != engines.logits).any(), "int8x2 and bf16 must not be the same walk, or the notebook shows nothing"


@pytest.mark.parametrize("seed", range(40))
def test_any_toy_head_equals_the_twin(seed: int) -> None:
    other = toy_head(seed)
    assert [step.token for step in toy_walk(other)] == twin(other).tokens.tolist()
    assert np.array_equal(round_to_bf16(np.stack([step.y for step in toy_walk(other)])), twin(other).logits)


def test_the_walk_is_one_worth_showing(head: ToyHead) -> None:
    """Four tokens, each step decided by its correction and without a tie, every latent in need of its second vector."""
    steps = toy_walk(head)
    assert len({TOY_ANCHOR, *(step.token for step in steps)}) == 4
    for step in steps:
        assert step.token not in np.flatnonzero(step.base == step.base.max())
        assert np.count_nonzero(step.y == step.y.max()) == 1 and step.q2.any()


def test_the_bf16_walk_is_the_torch_reference(head: ToyHead) -> None:
    torch = pytest.importorskip("torch")
    from wts_lab.heads import MarkovHead
    from wts_lab.stepwise import StepwiseWalk

    wide = padded(head)
    w1, w2, base = (torch.from_numpy(each).to(torch.bfloat16) for each in (wide.w1, wide.w2, wide.base))
    found = StepwiseWalk(MarkovHead(w1, w2))(base[None], torch.tensor([head.anchor]))
    assert found[0].tolist() == reference(head).tokens.tolist()


def test_zeros_behind_the_columns_change_no_number(head: ToyHead) -> None:
    wide = padded(head)
    assert wide.w1.shape == wide.w2.shape == (12, 32) and not wide.w1[:, 4:].any() and not wide.w2[:, 4:].any()
    narrow, broad = toy_codes(head), toy_codes(wide)
    assert np.array_equal(broad.w_q[:, :4], narrow.w_q) and np.array_equal(broad.w_scale, narrow.w_scale) and np.array_equal(broad.s1, narrow.s1)
    for step, other in zip(toy_walk(head), toy_walk(wide), strict=True):
        assert np.array_equal(step.c1, other.c1) and np.array_equal(step.c2, other.c2) and np.array_equal(step.y, other.y)


def test_the_kernel_on_the_host_walks_the_toy_to_the_last_bit(head: ToyHead, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernel's own source, threads as fibers, on the one block that a tile gives it."""
    torch = pytest.importorskip("torch")
    from tests.wts_lab.emulation import EmulatedWalk
    from wts_lab.abi import WalkSpec
    from wts_lab.heads import MarkovHead

    wide = padded(head)
    w1, w2, base = (torch.from_numpy(each).to(torch.bfloat16) for each in (wide.w1, wide.w2, wide.base))
    spec = WalkSpec(2, 1, 0, 0, 0, 1, 32, "int8x2")
    walk = EmulatedWalk(MarkovHead(w1, w2), spec, 1, tmp_path_factory.mktemp("kernels"))
    logits = torch.zeros((1, 3, 12), dtype=torch.bfloat16)
    tokens = walk(base[None].contiguous(), torch.tensor([head.anchor]), logits_out=logits)
    kernel = ToyOnGpu("on the host", tokens[0].numpy(), logits[0].float().numpy())
    assert not kernel.differs_from(twin(head))


def test_a_wrong_token_or_bit_is_a_difference(head: ToyHead) -> None:
    checked = twin(head)
    logits = bf16_to_float(checked.logits)
    right = ToyOnGpu("", checked.tokens, logits)
    assert not right.differs_from(checked)
    assert dataclasses.replace(right, tokens=checked.tokens + 1).differs_from(checked)
    assert dataclasses.replace(right, logits=logits * np.float32(1 + 2**-7)).differs_from(checked)


def test_without_a_gpu_it_says_so(head: ToyHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: None)
    live = walk_on_gpu(head)
    assert live.says.startswith("not run") and live.tokens is None and not live.differs_from(twin(head))
