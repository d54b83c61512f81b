"""Quantisation: error bounds, exact small cases, equality with the NumPy twin's own form."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
from hypothesis import given, strategies as st  # noqa: E402
from hypothesis.extra import numpy as arrays  # noqa: E402

from cost_model.errors import BadInput  # noqa: E402
from wts_lab import quantize, reference  # noqa: E402

ROUNDING_SLACK = 1 + 1e-5  # the bounds hold in exact arithmetic; every operation here is rounded to fp32

finite_matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 40)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(finite_matrices)
def test_row_error_is_at_most_half_a_step(matrix):
    codes, scale = quantize.quantize_rows(torch.from_numpy(matrix))
    error = np.abs(matrix.astype(np.float64) - codes.numpy() * scale.numpy().astype(np.float64)[:, None])
    kept = scale.numpy() > 0
    assert (error[kept] <= scale.numpy()[kept, None] / 2 * ROUNDING_SLACK).all()
    assert codes.abs().max() <= 127
    assert (codes[scale > 0].abs().amax(dim=1) == 127).all(), "the largest element of a row uses the whole range"


@given(finite_matrices)
def test_latent_error_is_at_most_half_a_step_of_the_second_vector(matrix):
    q1, q2, s1, s2 = (tensor.numpy() for tensor in quantize.quantize_latents(torch.from_numpy(matrix)))
    approximation = s1.astype(np.float64)[:, None] * q1 + s2.astype(np.float64)[:, None] * q2
    kept = s1 > 0
    error = np.abs(matrix.astype(np.float64) - approximation)[kept]
    # the residual is computed in fp32: half an ulp of the product s1*q1 comes on top
    assert (error <= s2[kept, None] / 2 * ROUNDING_SLACK + np.abs(matrix[kept]) * 2.0**-23).all()
    assert np.abs(q1).max(initial=0) <= 127 and np.abs(q2).max(initial=0) <= 127


@given(finite_matrices)
def test_equals_the_numpy_form(matrix):
    for ours, twins in zip(
        (*quantize.quantize_rows(torch.from_numpy(matrix)), *quantize.quantize_latents(torch.from_numpy(matrix))),
        (*reference.twin_quantize_rows(matrix), *reference.twin_quantize_latents(matrix)),
        strict=True,
    ):
        assert ours.numpy().dtype == twins.dtype
        assert np.array_equal(ours.numpy(), twins)


def test_known_row():
    # scale 2: 254/127; 5/2 and -3/2 are halves and go to the even code
    codes, scale = quantize.quantize_rows(torch.tensor([[254.0, 5.0, -3.0, 1.0, -254.0]]))
    assert scale.tolist() == [2.0]
    assert codes.tolist() == [[127, 2, -2, 0, -127]]


def test_known_latent():
    # s1 = 254/127 = 2, s2 = 2/254; the residual of 3 is -1 = -127 s2, of 0.5 it is 63.5 s2, which goes to 64
    q1, q2, s1, s2 = quantize.quantize_latents(torch.tensor([[254.0, 3.0, 0.5]]))
    assert s1.tolist() == [2.0] and s2.tolist() == [np.float32(2) / np.float32(254)]
    assert q1.tolist() == [[127, 2, 0]]
    assert q2.tolist()[0][0] == 0 and abs(q2.tolist()[0][1]) == 127 and q2.tolist()[0][2] in (63, 64)


def test_zero_rows_and_rows_below_normal_scales_become_zero():
    tiny = torch.full((1, 4), 126.0 * 2.0**-126)
    matrix = torch.cat([torch.zeros(1, 4), tiny, torch.ones(1, 4)])
    codes, scale = quantize.quantize_rows(matrix)
    assert scale[:2].tolist() == [0.0, 0.0] and scale[2] > 0
    assert codes[:2].abs().max() == 0 and (codes[2] == 127).all()
    q1, q2, s1, s2 = quantize.quantize_latents(matrix)
    assert s1[:2].tolist() == s2[:2].tolist() == [0.0, 0.0]
    assert q1[:2].abs().max() == q2[:2].abs().max() == 0


def test_bfloat16_rows_and_many_chunks(monkeypatch):
    matrix = torch.randn(37, 32, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    whole = (*quantize.quantize_rows(matrix), *quantize.quantize_latents(matrix))
    monkeypatch.setattr(quantize, "CHUNK_ROWS", 5)
    for chunked, expected in zip((*quantize.quantize_rows(matrix), *quantize.quantize_latents(matrix)), whole, strict=True):
        assert torch.equal(chunked, expected)


def test_dequantize_is_code_times_scale():
    values = quantize.dequantize_rows(torch.tensor([[2, -3]], dtype=torch.int8), torch.tensor([0.5]))
    assert values.tolist() == [[1.0, -1.5]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("function", [quantize.quantize_rows, quantize.quantize_latents])
def test_values_that_are_not_finite_are_refused_by_row(function, bad):
    matrix = torch.ones(4, 3)
    matrix[2, 1] = bad
    with pytest.raises(BadInput, match="row 2 holds NaN or infinity"):
        function(matrix)


@pytest.mark.parametrize("matrix", [torch.ones(3), torch.ones(2, 2, dtype=torch.int32), torch.ones(0, 4), torch.ones(4, 0)])
def test_what_is_no_matrix_is_refused(matrix):
    with pytest.raises(BadInput, match="floating-point matrix"):
        quantize.quantize_rows(matrix)
