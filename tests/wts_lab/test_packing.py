"""Packing: the order of every byte by its equation, and round trips for any vocabulary and rank."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
from hypothesis import given, strategies as st  # noqa: E402

from cost_model.errors import BadInput  # noqa: E402
from wts_lab import packing  # noqa: E402

vocabularies = st.integers(1, 70)
ranks = st.integers(1, 16).map(lambda k: 32 * k)
seeds = st.integers(0, 2**31)


def random_codes(rows: int, rank: int, seed: int) -> torch.Tensor:
    return torch.randint(-127, 128, (rows, rank), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def random_bf16(rows: int, rank: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@given(vocabularies, ranks, seeds)
def test_int8_matrix_round_trip(vocab_size, rank, seed):
    codes = random_codes(vocab_size, rank, seed)
    packed = packing.pack_matrix_int8(codes)
    assert packed.shape == (packing.count_tiles(vocab_size), rank // 32, 32, 16) and packed.dtype == torch.uint8
    assert torch.equal(packing.unpack_matrix_int8(packed, vocab_size), codes)
    assert packing.unpack_matrix_int8(packed, packed.shape[0] * 16)[vocab_size:].abs().sum() == 0, "rows past the end are zero"


@given(vocabularies, ranks, seeds)
def test_bf16_matrix_round_trip(vocab_size, rank, seed):
    weight = random_bf16(vocab_size, rank, seed)
    packed = packing.pack_matrix_bf16(weight)
    assert packed.shape == (packing.count_tiles(vocab_size), rank // 16, 32, 16)
    assert torch.equal(packing.unpack_matrix_bf16(packed, vocab_size), weight)


@given(vocabularies, ranks, seeds)
def test_latents_round_trip(rows, rank, seed):
    q1, q2 = random_codes(rows, rank, seed), random_codes(rows, rank, seed + 1)
    s1, s2 = (torch.rand(rows, generator=torch.Generator().manual_seed(seed + k)) for k in range(2))
    packed = packing.pack_latents_int8(q1, q2, s1, s2)
    assert packed.shape == (rows, 2 * rank + 16)
    assert packed[:, -8:].abs().sum() == 0
    for back, original in zip(packing.unpack_latents_int8(packed), (q1, q2, s1, s2), strict=True):
        assert torch.equal(back, original)
    latents = random_bf16(rows, rank, seed)
    assert torch.equal(packing.unpack_latents_bf16(packing.pack_latents_bf16(latents)), latents)


def test_every_int8_matrix_byte_is_where_the_equation_says():
    codes = random_codes(37, 64, 0).numpy()
    packed = packing.pack_matrix_int8(torch.from_numpy(codes)).numpy().view(np.int8)
    tile, k, lane, i, j = np.meshgrid(*map(np.arange, (3, 2, 32, 4, 4)), indexing="ij")
    row = 16 * tile + 2 * (lane >> 2) + (i & 1)
    column = 32 * k + 16 * (i >> 1) + 4 * (lane & 3) + j
    expected = np.where(row < 37, codes[np.minimum(row, 36), column], 0)
    assert np.array_equal(packed[tile, k, lane, 4 * i + j], expected)


def test_every_byte_of_a_matrix_by_rows_is_where_the_equation_says():
    codes = random_codes(37, 64, 0).numpy()
    packed = packing.pack_matrix_int8(torch.from_numpy(codes), by_rows=True).numpy().view(np.int8)
    tile, k, piece, byte = np.meshgrid(*map(np.arange, (3, 2, 32, 16)), indexing="ij")
    row = 16 * tile + 2 * (piece % 8) + piece // 8 % 2
    expected = np.where(row < 37, codes[np.minimum(row, 36), 32 * k + 16 * (piece // 16) + byte], 0)
    assert np.array_equal(packed[tile, k, piece, byte], expected)


def test_every_bf16_matrix_element_is_where_the_equation_says():
    weight = random_bf16(21, 64, 0)
    packed = packing.pack_matrix_bf16(weight).numpy().view(np.uint16)
    bits = weight.view(torch.uint16).numpy()
    tile, k, lane, i, j = np.meshgrid(*map(np.arange, (2, 4, 32, 4, 2)), indexing="ij")
    row = 16 * tile + 2 * (lane >> 2) + (i & 1)
    column = 16 * k + 8 * (i >> 1) + 2 * (lane & 3) + j
    assert np.array_equal(packed[tile, k, lane, 2 * i + j], np.where(row < 21, bits[np.minimum(row, 20), column], 0))


def test_every_latent_byte_is_where_the_equation_says():
    q = [random_codes(3, 64, seed).numpy() for seed in (1, 2)]
    scales = torch.tensor([1.5, -2.0, 3.0]), torch.tensor([0.25, 0.5, 0.0])
    packed = packing.pack_latents_int8(torch.from_numpy(q[0]), torch.from_numpy(q[1]), *scales).numpy()
    n, k, p, t, h, j = np.meshgrid(*map(np.arange, (3, 2, 2, 4, 2, 4)), indexing="ij")
    expected = np.stack(q)[p, n, 32 * k + 16 * h + 4 * t + j]
    assert np.array_equal(packed.view(np.int8)[n, k * 64 + (p * 4 + t) * 8 + h * 4 + j], expected)
    assert np.array_equal(packed[:, 128:136].copy().view(np.float32), np.stack([scale.numpy() for scale in scales], 1))

    latents = random_bf16(3, 64, 5)
    packed = packing.pack_latents_bf16(latents).numpy().view(np.uint16)
    n, k, t, h, j = np.meshgrid(*map(np.arange, (3, 4, 4, 2, 2)), indexing="ij")
    expected = latents.view(torch.uint16).numpy()[n, 16 * k + 8 * h + 2 * t + j]
    assert np.array_equal(packed[n, (k * 32 + t * 8 + h * 4 + 2 * j) // 2], expected)


def test_fragments_multiply_to_the_integer_products():
    """The A and B fragments, put through the instruction's own layout, give W2 · q for both vectors."""
    codes, q1, q2 = random_codes(32, 64, 7), random_codes(1, 64, 8), random_codes(1, 64, 9)
    a = packing.pack_matrix_int8(codes).numpy().view(np.int8).astype(np.int64)
    b = packing.pack_latents_int8(q1, q2, torch.ones(1), torch.ones(1)).numpy()[0, :128].view(np.int8).astype(np.int64)
    b = b.reshape(2, 2, 4, 2, 4)  # [k, column p, lane t, register h, byte j]
    products = np.zeros((32, 2), dtype=np.int64)
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for i in range(4):  # registers 0 and 2 hold row g of the instruction, 1 and 3 row g + 8; 2 and 3 the upper half of k
            part = np.einsum("Tkj,kpj->Tp", a[:, :, lane, 4 * i : 4 * i + 4], b[:, :, t, i >> 1])
            products[[2 * g + (i & 1), 16 + 2 * g + (i & 1)]] += part
    expected = codes.numpy().astype(np.int64) @ np.stack([q1[0].numpy(), q2[0].numpy()], 1).astype(np.int64)
    assert np.array_equal(products, expected)


def test_scales_are_padded_with_zero():
    assert packing.pack_scales(torch.arange(1.0, 18.0)).tolist() == [*range(1, 18)] + [0.0] * 15


def test_sliced_and_transposed_inputs_are_packed_by_value():
    codes = random_codes(64, 48, 3).t()[5:, :32]  # strides swapped, an offset
    assert torch.equal(packing.unpack_matrix_int8(packing.pack_matrix_int8(codes), 43), codes)


@pytest.mark.parametrize("rank", [16, 48, 544])
def test_ranks_outside_the_rule_are_refused(rank):
    with pytest.raises(BadInput, match="multiple of 32|at most 512|512"):
        packing.pack_matrix_int8(torch.zeros((4, rank), dtype=torch.int8))


def test_wrong_types_and_shapes_are_refused():
    with pytest.raises(BadInput, match="int8"):
        packing.pack_matrix_int8(torch.zeros(4, 32))
    with pytest.raises(BadInput, match="bfloat16"):
        packing.pack_latents_bf16(torch.zeros(4, 32))
    with pytest.raises(BadInput, match="share one shape"):
        packing.pack_latents_int8(*(torch.zeros((rows, 32), dtype=torch.int8) for rows in (2, 3)), torch.ones(2), torch.ones(2))
    with pytest.raises(BadInput, match="float32"):
        packing.pack_scales(torch.ones(3, dtype=torch.float64))
    with pytest.raises(BadInput, match="1,048,576|1048576"):
        packing.check_vocab((1 << 20) + 1)


@pytest.mark.parametrize(("width", "start", "vocab", "copied"), [(8, 0, 8, False), (8, 0, 6, False), (9, 0, 8, True), (8, 0, 7, True), (10, 1, 8, True)])
def test_base_logits_are_copied_where_pairs_do_not_start_at_four_bytes(width, start, vocab, copied):
    whole = torch.arange(2 * 3 * width, dtype=torch.bfloat16).reshape(2, 3, width)
    base = whole[:, :, start:]
    paired = packing.in_pairs(base, vocab)
    assert (paired.data_ptr() != base.data_ptr()) == copied
    assert torch.equal(paired[:, :, :vocab], base[:, :, :vocab])
    assert not copied or (paired.stride(0) % 2 == paired.stride(1) % 2 == 0 and bool((paired[:, :, vocab:] == -torch.inf).all()))


@pytest.mark.parametrize("base", [
    torch.zeros(1, 2, 7, dtype=torch.bfloat16), torch.zeros(1, 2, 9), torch.zeros(2, 9, dtype=torch.bfloat16),
    torch.zeros(1, 2, 17, dtype=torch.bfloat16)[:, :, ::2],
], ids=["too narrow", "fp32", "two axes", "columns apart"])
def test_what_the_launch_refuses_is_not_copied_first(base):
    assert packing.in_pairs(base, 8) is base
