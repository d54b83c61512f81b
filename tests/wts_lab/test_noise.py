"""Noise: the published vectors, a derivation in Python integers, exact uniforms, logarithms within 2 ulp, and the distribution."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from cost_model.errors import BadInput
from wts_lab import noise

KNOWN_ANSWERS = [
    # counter, key, words: the philox4x32-10 entries of Random123's file of known answers
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
words_32 = st.integers(0, 2**32 - 1)


def parsed(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def scalar_philox(counter: list[int], low: int, high: int) -> list[int]:
    """One block in Python integers, written from the paper: products are split as the S-box does, keys bumped by Weyl steps."""
    c = list(counter)
    for _ in range(10):
        left_high, left_low = divmod(c[0] * 0xD2511F53, 2**32)
        right_high, right_low = divmod(c[2] * 0xCD9E8D57, 2**32)
        c = [right_high ^ c[1] ^ low, right_low, left_high ^ c[3] ^ high, left_low]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return c


def ulps(found: np.ndarray, exact: np.ndarray) -> float:
    """Largest distance from a float64 value, rounded to fp32, in units of its last place."""
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite])
    gap = np.abs(found[finite].astype(np.float64) - rounded[finite]) / np.spacing(np.abs(rounded[finite]))
    return float(gap.max())


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, words):
    low, high = parsed(key)
    assert noise.philox(low | high << 32, np.array(parsed(counter), np.uint32)).tolist() == parsed(words)
    assert scalar_philox(parsed(counter), low, high) == parsed(words)


@given(st.lists(words_32, min_size=4, max_size=4), st.integers(-(2**63), 2**64 - 1))
def test_philox_equals_the_derivation_in_integers(counter, key):
    low, high = key % 2**32, key // 2**32 % 2**32
    assert noise.philox(key, np.array(counter, np.uint32)).tolist() == scalar_philox(counter, low, high)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**63 - 1), st.integers(0, 31), st.integers(0, 40), st.integers(0, 2**20 - 1))
def test_a_token_draws_its_word_of_its_quad(key, offset, row, step, token):
    counter = [token // 4, row, step, offset % 2**32]
    word = scalar_philox(counter, key % 2**32, key // 2**32 % 2**32)[token % 4]
    lone = noise.philox(key, np.array(counter, np.uint32))[token % 4]
    assert lone == word
    if token < 4096:
        uniform = noise.uniforms_numpy(key, offset, rows=[row], step=step, vocab=token + 1)[0, token]
        assert uniform == np.float32(np.float32(np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32))


def test_uniforms_keep_small_words_apart_and_reach_one():
    words = np.array([0, 1, 2, 2**32 - 1], np.uint32)
    uniforms = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    assert uniforms.tolist() == [0.5 * 2.0**-32, 1.5 * 2.0**-32, 2.5 * 2.0**-32, 1.0]


def test_numpy_noise_is_the_rounded_value_of_each_function():
    """-log(-log1p(-u)) = -log(log(1 / (1 - u))), here through Python's own mathematics."""
    import math

    uniform = noise.uniforms_numpy(5, 7, rows=2, step=3, vocab=50)
    found = noise.gumbel_numpy(5, 7, rows=2, step=3, vocab=50)
    for u, g in zip(uniform.reshape(-1), found.reshape(-1), strict=True):
        exponential = np.float32(-math.log1p(-float(u)))
        assert g == np.float32(-math.log(float(exponential)))


@pytest.mark.parametrize("vocab", [1, 3, 4, 129, 4099])
@pytest.mark.parametrize("chunk_words", [1 << 22, 64])
def test_torch_uniforms_equal_numpys_in_any_chunks(vocab, chunk_words, monkeypatch):
    torch = pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setattr(noise, "CHUNK_WORDS", chunk_words)
    key, rows, offsets = 0xFEDCBA9876543210, [0, 31, 7], [2**40 + 5, 0, 2**32 - 1]
    expected = noise.uniforms_numpy(key, offsets, rows=rows, step=6, vocab=vocab)
    found = noise.uniforms(key, torch.tensor(offsets), rows=rows, step=6, vocab=vocab, device="cpu")
    assert np.array_equal(found.numpy(), expected)
    first_rows = noise.uniforms(key, 9, rows=3, step=6, vocab=vocab, device="cpu")
    assert np.array_equal(first_rows.numpy(), noise.uniforms_numpy(key, [9], rows=[0, 1, 2], step=6, vocab=vocab))


def test_torch_logarithms_are_within_2_ulp_of_float64():
    """Function by function: near e = 1 the second logarithm magnifies the first one's rounding without bound."""
    torch = pytest.importorskip("torch", reason="needs torch")
    arguments = {"rows": 4, "step": 1, "vocab": 100_003}
    uniform = noise.uniforms(11, 3, **arguments, device="cpu")
    exponential = -torch.log1p(-uniform)
    found = noise.gumbel(11, 3, **arguments, device="cpu")
    assert ulps(exponential.numpy(), -np.log1p(-uniform.numpy().astype(np.float64))) <= 2
    assert ulps(found.numpy(), -np.log(exponential.numpy().astype(np.float64))) <= 2


def test_noise_of_a_large_batch_is_gumbel_distributed():
    """Mean is Euler's constant and variance pi^2 / 6, within five standard errors (fourth central moment 27/5 of variance squared)."""
    torch = pytest.importorskip("torch", reason="needs torch")
    drawn = noise.gumbel(1, 2, rows=8, step=0, vocab=151_936, device="cpu").double()
    count, variance = drawn.numel(), np.pi**2 / 6
    assert abs(float(drawn.mean()) - np.euler_gamma) < 5 * np.sqrt(variance / count)
    assert abs(float(drawn.var()) - variance) < 5 * variance * np.sqrt((27 / 5 - 1) / count)
    assert float(torch.corrcoef(drawn[:2])[0, 1]) == pytest.approx(0, abs=5 / np.sqrt(151_936))


def test_rows_steps_offsets_and_keys_draw_apart():
    base = {"key": 1, "offset": 2, "rows": [3], "step": 4}
    seen = {noise.uniforms_numpy(**(base | change), vocab=4).tobytes() for change in ({}, {"key": 2}, {"offset": 3}, {"rows": [4]}, {"step": 5})}
    assert len(seen) == 5
    assert noise.uniforms_numpy(**(base | {"offset": 2 + 2**32}), vocab=4).tobytes() in seen


def test_a_key_of_more_than_64_bits_is_refused():
    with pytest.raises(BadInput, match="64 bits"):
        noise.split_key(2**64)
    assert noise.split_key(-1) == (2**32 - 1, 2**32 - 1)


# --- the rows of a call


def test_sampling_spreads_one_offset_and_defaults_to_row_0():
    sampling = noise.Sampling.of(3, [0.0, 1.0, 0.5], (9, 4))
    assert sampling.offsets.tolist() == [4, 4, 4] and sampling.rows.tolist() == [0, 0, 0]
    own = noise.Sampling.of(3, [0.0, 1.0, 0.5], (9, [4, 5, 6]), rows=[2, 1, 0])
    expected = [noise.gumbel_numpy(9, 4 + walk, rows=[2 - walk], step=1, vocab=10)[0] for walk in range(3)]
    assert np.array_equal(own.noise_numpy(1, 10), expected)


def test_sampling_takes_tensors_and_gives_the_torch_form():
    torch = pytest.importorskip("torch", reason="needs torch")
    sampling = noise.Sampling.of(2, torch.tensor([0.7, 0.0]), (9, torch.tensor([4])), rows=torch.arange(2))
    assert sampling.temperatures.dtype == np.float32
    assert torch.equal(sampling.noise(1, 10, "cpu"), noise.gumbel(9, 4, rows=2, step=1, vocab=10, device="cpu"))


def test_no_sampled_row_is_no_sampling():
    assert noise.Sampling.of(2, None, None) is None and noise.Sampling.of(2, [0.0, 0.0], None) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, [1.0], (1, 2)), r"temperatures must be \[2\]"),
        ((2, [1.0, -1.0], (1, 2)), "at least 1.18e-38, or 0"),
        ((2, [1.0, np.nan], (1, 2)), "finite"),
        ((2, [1.0, 0.0], None), "needs noise"),
        ((2, [1.0, 0.0], (1, [1, 2, 3])), "an offset must be"),
        ((2, [1.0, 0.0], (1, 2), [0, 1, 2]), "rows must be"),
        ((2, [1.0, 0.0], (2**64, 2)), "64 bits"),
    ],
)
def test_sampling_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        noise.Sampling.of(*arguments)


@pytest.mark.parametrize("wrong", [np.nan, -0.5, np.inf, 1e-40])
def test_temperatures_that_the_host_sees_are_refused_by_value(wrong):
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    for given in (wrong, [1.0, wrong], np.array([wrong]), torch.tensor([0.0, wrong])):
        with pytest.raises(BadInput, match=r"; each must be a finite number of at least 1\.18e-38, or 0 \(greedy\)"):
            noise.require_temperatures(given)
    noise.require_temperatures(torch.tensor([0.0, 0.7, 1.2e-38]))
    noise.require_temperatures(torch.tensor([wrong], device="meta"))  # stands for a GPU's: a tensor that cannot be read here


def test_the_numpy_form_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None\nfrom wts_lab.noise import gumbel_numpy\nprint(gumbel_numpy(1, 2, rows=1, step=0, vocab=3).shape)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "(1, 3)"
