"""Number formats of the projection: levels from first principles, weights against levels, arithmetic against the twin."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")

from wts_lab import accuracy, accuracy_run, projection_formats  # noqa: E402
from wts_lab.accuracy import MAGNITUDE_BINS  # noqa: E402
from wts_lab.projection_formats import FORMATS, corrections, e4m3_levels, int8_levels, level_shares, magnitude_shares  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.reference import Int8x2Projection  # noqa: E402

BY_NAME = {form.name: form for form in FORMATS}


def random_weights(rows: int = 200, rank: int = 64, seed: int = 0) -> torch.Tensor:
    """Normal bf16 weights, one row of zeros among them."""
    weights = torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed))
    weights[7] = 0
    return weights.to(torch.bfloat16)


def levels_from_first_principles() -> list[float]:
    """Positive E4M3 values from sign, exponent and mantissa: bias 7, subnormals at exponent 0, mantissa 7 at exponent 15 is NaN."""
    subnormal = [mantissa / 8 * 2.0**-6 for mantissa in range(1, 8)]
    normal = [(1 + mantissa / 8) * 2.0 ** (exponent - 7) for exponent in range(1, 16) for mantissa in range(8) if (exponent, mantissa) != (15, 7)]
    return sorted(subnormal + normal)


def test_three_quarters_of_e4m3s_levels_lie_below_a_fourteenth_of_its_maximum():
    levels = levels_from_first_principles()
    assert len(levels) == 7 + 8 * 15 - 1 == 126 and levels[-1] == 448
    below = [level for level in levels if level / 448 < 0.0714]
    assert len(below) == 7 + 8 * 11 == 95 and below == [level for level in levels if level < 32]
    assert round(95 / 126, 2) == 0.75 and 32 / 448 == pytest.approx(1 / 14)
    assert e4m3_levels().tolist() == levels
    assert accuracy.below_fourteenth(level_shares(e4m3_levels())) == pytest.approx(95 / 126, abs=1e-12)


def test_a_fourteenth_is_where_int8_becomes_finer_than_e4m3():
    """On the scale where a row's maximum is 448."""
    steps = {low: high - low for low, high in zip(levels_from_first_principles(), levels_from_first_principles()[1:])}
    int8_step = 448 / 127
    assert all((step < int8_step) == (low < 32) for low, step in steps.items())
    assert max(steps.values()) == 32 and 9 < 32 / int8_step < 9.1


def test_int8s_levels_are_even():
    shares = level_shares(int8_levels())
    assert len(shares) == MAGNITUDE_BINS and sum(shares) == pytest.approx(1)
    counts = [round(share * 127) for share in shares]
    assert counts == [sum(math.floor(min(28 * q / 127, 27)) == k for q in range(1, 128)) for k in range(28)]
    assert accuracy.below_fourteenth(shares) == pytest.approx(9 / 127)


def test_magnitudes_are_counted_by_row():
    """Row 0: 1/14, 1/2 and 1 of its maximum, each on an edge; row 1 the same, scaled and negative; a row of zeros counts nothing."""
    weight = torch.tensor([[32.0, 224.0, 448.0, 0.0], [-1.0, -7.0, -14.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [0.0] * 28
    expected[0], expected[2], expected[14], expected[27] = 0.25, 0.25, 0.25, 0.25
    assert magnitude_shares(weight) == expected


def test_magnitudes_do_not_depend_on_chunks(monkeypatch):
    weights = random_weights()
    whole = magnitude_shares(weights)
    monkeypatch.setattr(projection_formats, "CHUNK_ROWS", 33)
    assert magnitude_shares(weights) == whole and sum(whole) == pytest.approx(1)


def test_int8x2_is_the_arithmetic_of_the_twin_bit_for_bit():
    weights, latents = random_weights(), random_weights(30, seed=1)
    form = BY_NAME["int8x2"]
    got = corrections(form.store(weights), form.split(latents))
    twin = Int8x2Projection(*(part.numpy() for part in (*quantize_rows(weights), *quantize_latents(latents))))
    assert np.array_equal(got.numpy(), twin.corrections(np.arange(30), slice(0, 200)))


def test_one_int8_vector_is_the_first_of_the_two():
    weights, latents = random_weights(), random_weights(30, seed=1)
    form = BY_NAME["int8"]
    q1, _, s1, _ = quantize_latents(latents)
    codes, scale = quantize_rows(weights)
    expected = (q1.double() @ codes.double().T).float() * s1[:, None] * scale
    assert torch.equal(corrections(form.store(weights), form.split(latents)), expected)


def test_e4m3_takes_the_nearest_level():
    weights = random_weights()
    stored = BY_NAME["fp8-e4m3"].store(weights)
    levels = torch.tensor(sorted({0.0, *levels_from_first_principles(), *(-level for level in levels_from_first_principles())}))
    kept = stored.scale > 0
    assert kept.sum() == 199 and torch.equal(stored.codes[7], torch.zeros(64)) and stored.scale[7] == 0
    quotients = weights.float()[kept] / stored.scale[kept, None]
    nearest = (quotients[..., None] - levels).abs().amin(dim=-1)
    assert torch.equal((quotients - stored.codes[kept]).abs(), nearest)
    assert torch.allclose(stored.codes.abs().amax(dim=1)[kept], torch.tensor(448.0))


def test_bf16_stores_what_it_is_given():
    weights = random_weights()
    assert torch.equal(BY_NAME["bf16"].store(weights).values(), weights.float())


def test_the_error_of_int8_weights_is_that_of_even_rounding():
    """A step of max/127 errs by step/sqrt(12) in the mean square."""
    weights = random_weights(4000, 256)
    scale = weights.float().abs().amax(dim=1) / 127
    expected = float((scale.square() / 12).mean().sqrt() / weights.float().std())
    found = accuracy_run._weight_columns(BY_NAME["int8"], BY_NAME["int8"].store(weights), weights)["weight_error_rms"]
    assert found == pytest.approx(expected, rel=0.01)
