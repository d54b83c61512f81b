"""Sampled selection rests on bounds that no exact value exceeds, and that nearly meet it: of resident rows one, of streamed rows two. Checked on the
host, with a logarithm as far above and below the exact one as the hardware's may be."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.wts_lab.emulation import EMULATOR, FLAGS, compiler  # noqa: E402
from wts_lab import abi  # noqa: E402


@pytest.fixture(scope="module", params=[1, -1], ids=["log2-high", "log2-low"])
def evaluate(request, tmp_path_factory):
    """Noise words, logits and temperatures -> the bound of resident rows, the low and high ones of streamed rows, and exact values, fp32."""
    folder = tmp_path_factory.mktemp("bounds")
    (folder / "wts_abi.h").write_text(abi.render_header())
    includes = [f"-I{path}" for path in (EMULATOR, abi.csrc_root(), abi.csrc_root() / "walk", folder)]
    done = subprocess.run([compiler(), *FLAGS, f"-DLOG2_ERROR={request.param}", *includes, str(EMULATOR / "bounds.cpp"), "-o", str(folder / "bounds.so")],
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    library = ctypes.CDLL(str(folder / "bounds.so"))

    def all_four(words, y, temperatures):
        given = [np.ascontiguousarray(values, kind) for values, kind in ((words, np.uint32), (y, np.float32), (temperatures, np.float32))]
        found = [np.empty(len(given[0]), np.float32) for _ in range(4)]
        library.bounds_and_values(*(ctypes.c_void_p(a.ctypes.data) for a in given), len(given[0]), *(ctypes.c_void_p(a.ctypes.data) for a in found))
        return found

    return all_four


EXTREMES = [0, 1, 2, 3, 127, 255, 1 << 8, 1 << 16, 1 << 23, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 257, (1 << 32) - 129, (1 << 32) - 128, (1 << 32) - 1]


@pytest.mark.parametrize("temperature", [1e-6, 0.05, 0.7, 1.0, 1.3, 40.0])
def test_no_value_exceeds_its_bounds(evaluate, temperature):
    words = np.concatenate([EXTREMES, np.random.default_rng(1).integers(0, 1 << 32, 200_000), (1 << np.arange(32)) - 1])
    y = np.random.default_rng(2).standard_normal(len(words)) * 10.0 ** np.random.default_rng(3).integers(-3, 4, len(words))
    bounds, lows, highs, values = evaluate(words, y, np.full(len(words), temperature))
    assert np.all(bounds >= values) and np.all(highs >= values) and np.all(lows <= values)


@settings(max_examples=300, deadline=None)
@given(word=st.integers(0, (1 << 32) - 1), y=st.floats(-1e6, 1e6, width=32), temperature=st.floats(2.0**-20, 2.0**20, width=32))
def test_no_value_exceeds_its_bounds_whatever_the_logit(evaluate, word, y, temperature):
    (bound,), (low,), (high,), (value,) = evaluate([word], [y], [temperature])
    assert bound >= value and high >= value >= low


def test_bounds_nearly_meet_values_where_noise_is_large(evaluate):
    words = np.random.default_rng(4).integers(0, 1 << 28, 100_000)  # u below 1 / 16
    bounds, _, _, values = evaluate(words, np.zeros(len(words)), np.ones(len(words)))
    assert (bounds - values).max() < 1.2e-4, "a second candidate would be evaluated too often"


def test_two_bounds_nearly_meet_whatever_the_noise(evaluate):
    words = np.random.default_rng(5).integers(0, 1 << 32, 100_000)
    y = 20 * np.random.default_rng(6).standard_normal(len(words)).astype(np.float32)
    _, lows, highs, _ = evaluate(words, y, np.full(len(words), 0.5))
    known = np.isfinite(lows)  # where u rounds to 1 both are -inf
    apart = 4.2e-5 + 2e-6 * np.abs(2 * y)
    assert known.mean() > 0.999 and np.all((highs - lows)[known] <= apart[known]), "rows would be evaluated too often"


def test_a_greedy_row_is_its_logit_and_infinities_stay(evaluate):
    for found in evaluate([5, 9, 11], [1.25, -2.5, 0.0], np.zeros(3)):
        assert found.tolist() == [1.25, -2.5, 0.0]
    for found in evaluate([7, 7], [-np.inf, np.inf], np.ones(2)):
        assert found.tolist() == [-np.inf, np.inf]


def test_noise_of_minus_infinity_stays_minus_infinity(evaluate):
    """A word that fp32 rounds up to u = 1 has that noise: no low bound may lie above it. Without noise such a row has no order, and is evaluated."""
    _, lows, highs, values = evaluate([(1 << 32) - 1] * 2, [2.0, 2.0], [1.0, 0.0])
    assert (lows[0], highs[0], values[0]) == (-np.inf, -np.inf, -np.inf)
    assert np.isnan(lows[1]) and np.isnan(highs[1]) and values[1] == 2.0
