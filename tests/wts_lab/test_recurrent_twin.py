"""The twin of the gated, RNN and Domino walks: accuracy of its activations, a second implementation, and the heads' own modules."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
from hypothesis import given, strategies as st  # noqa: E402

from cost_model.errors import BadInput  # noqa: E402
from wts_lab import recurrent_twin  # noqa: E402
from wts_lab.abi import csrc_root  # noqa: E402
from wts_lab.head_terms import position_terms, state_matrices, token_table  # noqa: E402
from wts_lab.heads import DominoHead, GatedHead, MarkovHead, RnnHead  # noqa: E402
from wts_lab.recurrent_twin import HeadLatents, sigmoid, silu, state_products, tanh, twin_head_walks  # noqa: E402
from wts_lab.reference import bf16_to_float, round_to_bf16, twin_quantize_latents, twin_quantize_rows, twin_walks  # noqa: E402

F32 = np.float32
K = {name: F32(value) for name, value in recurrent_twin.ACTIVATION_CONSTANTS.items()}


# --- activations ---------------------------------------------------------------------------------------------------------


def every_size() -> np.ndarray:
    """fp32 numbers of both signs: dense where the functions bend, and all exponents."""
    rng = np.random.default_rng(1)
    dense = np.linspace(-20, 20, 400_001, dtype=F32)
    spread = (rng.uniform(1, 2, 200_000) * 2.0 ** rng.integers(-126, 7, 200_000)).astype(F32)
    tails = np.linspace(20, 87, 100_001, dtype=F32)
    return np.concatenate([dense, spread, -spread, tails, -tails])


def ulps(found: torch.Tensor, exact: np.ndarray) -> float:
    """Largest error in units of the last place of the exact value."""
    return float(np.max(np.abs(found.numpy().astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(F32)).astype(np.float64)))


def test_activations_are_accurate():
    x = every_size()
    x = x[np.abs(x) <= 87]
    wide = x.astype(np.float64)
    assert ulps(sigmoid(torch.from_numpy(x)), 1 / (1 + np.exp(-wide))) < 3
    assert ulps(tanh(torch.from_numpy(x)), np.tanh(wide)) < 3
    assert ulps(silu(torch.from_numpy(x)), wide / (1 + np.exp(-wide))) < 4


def test_activations_saturate_and_pass_what_is_not_a_number():
    x = torch.tensor([-torch.inf, -3e38, -88.0, -0.0, 0.0, 88.0, 3e38, torch.inf])
    assert sigmoid(x).tolist() == [0, 0, 0, 0.5, 0.5, 1, 1, 1]
    assert tanh(x).tolist() == [-1, -1, -1, 0, 0, 1, 1, 1]
    assert torch.signbit(tanh(x)).tolist() == [True] * 4 + [False] * 4
    assert silu(x)[3:].tolist() == [0, 0, 88, F32(3e38), torch.inf]
    assert all(torch.isnan(function(torch.tensor([torch.nan]))).all() for function in (sigmoid, tanh, silu))


def test_tanh_is_odd_and_sigmoids_of_opposite_numbers_add_up():
    x = torch.from_numpy(every_size())
    assert torch.equal(tanh(-x), -tanh(x))
    assert float((sigmoid(x).double() + sigmoid(-x).double() - 1).abs().max()) < 2**-23


def test_both_sides_have_the_same_constants():
    text = (csrc_root() / "walk" / "activation.cuh").read_text("utf-8")
    found = {name: F32(value) for name, value in re.findall(r"\b(k\w+) = (-?[\d.e-]+)f\b", text)}
    assert found.pop("kRoundingShift") == 1.5 * 2**23  # torch.round's work on the other side
    assert found == K


# --- a second implementation, one number at a time ------------------------------------------------------------------------


def numpy_exponential(y: F32) -> tuple[F32, F32]:
    assert y >= -80, "short of saturation, which has a test of its own"
    n = np.rint(y * K["kPerLn2"])
    r = (y - n * K["kLn2High"]) - n * K["kLn2Low"]
    square = r * r
    low, high = F32(0.5) + K["kExp3"] * r, (K["kExp4"] + K["kExp5"] * r) + K["kExp6"] * square
    return F32(2.0 ** float(n)), r + square * (low + square * high)


def numpy_sigmoid(x: F32) -> F32:
    power, fraction = numpy_exponential(-abs(x))
    small = power * fraction + power
    return (small if x < 0 else F32(1)) / (F32(1) + small)


def numpy_tanh(x: F32) -> F32:
    power, fraction = numpy_exponential(F32(-2) * abs(x))
    less_one = power * fraction + (power - F32(1))
    return np.copysign(-less_one / (F32(2) + less_one), x)


def numpy_dot(w: np.ndarray, s: np.ndarray) -> F32:
    lanes = np.zeros(32, dtype=F32)
    for index, (a, b) in enumerate(zip(w, s, strict=True)):
        lanes[index // 8 % 32] += a * b  # ascending index is the lane's own order
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[np.arange(32) ^ distance]
    assert (lanes == lanes[0]).all()
    return lanes[0]


def bf16(value: F32) -> F32:
    return F32(bf16_to_float(round_to_bf16(np.array([value], dtype=F32)))[0])


def floats(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


@pytest.mark.parametrize("rank", [32, 288])
def test_one_rnn_step_equals_plain_numpy(rank):
    head = RnnHead.random(40, rank, hidden_size=48, seed=3)
    entry, place = floats(token_table(head))[7], floats(position_terms(head, random_hidden(1, 2, 48)))[0, 1]
    state = bf16_to_float(round_to_bf16(np.random.default_rng(4).uniform(-1, 1, rank).astype(F32)))
    matrix = floats(state_matrices(head)[0])
    z = [(place[i] + entry[i]) + numpy_dot(matrix[i], state) for i in range(3 * rank)]
    keep = [numpy_sigmoid(x) for x in z[:rank]]
    new = [bf16(keep[i] * state[i] + (F32(1) - keep[i]) * numpy_tanh(z[rank + i])) for i in range(rank)]
    tensors = [torch.from_numpy(array)[None] for array in (entry, place, state)]
    products = state_products(state_matrices(head)[0], tensors[2])
    u, after = recurrent_twin.rnn_step(tensors[0], tensors[1], products, tensors[2])
    assert np.array_equal(u[0].numpy(), [numpy_tanh(x) for x in z[2 * rank :]])
    assert np.array_equal(after[0].numpy(), new)


def test_two_domino_steps_equal_plain_numpy():
    rank, gru = 32, 264
    head = DominoHead.random(40, rank, hidden_size=48, gru_size=gru, seed=5)
    table, place = floats(token_table(head)), floats(position_terms(head, random_hidden(1, 2, 48)))[0, 1]
    w_hh, f1 = map(floats, state_matrices(head))
    state = np.zeros(gru, dtype=F32)
    for token in (9, 31):
        i_r, i_z, i_n = table[token].reshape(3, gru)
        h_r, h_z, h_n = np.array([numpy_dot(row, state) for row in w_hh]).reshape(3, gru)
        reset, keep = ([numpy_sigmoid(x) for x in i + h] for i, h in ((i_r, h_r), (i_z, h_z)))
        candidate = [numpy_tanh(i_n[j] + reset[j] * h_n[j]) for j in range(gru)]
        state = np.array([bf16((F32(1) - keep[j]) * candidate[j] + keep[j] * state[j]) for j in range(gru)])
    f = [numpy_dot(row, state) + place[j] for j, row in enumerate(f1)]
    latents = HeadLatents(head, torch.from_numpy(np.stack([place, place]))[None])
    assert latents(torch.tensor([9])) is None
    u = latents(torch.tensor([31]))
    assert np.array_equal(latents.state[0].numpy(), state)
    assert np.array_equal(u[0].numpy(), [x * numpy_sigmoid(x) for x in f])


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([8, 64, 256, 264, 1024]), st.integers(0, 2**31))
def test_products_do_not_depend_on_how_they_are_batched(walks, rows, size, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, size, generator=generator).bfloat16()
    state = torch.randn(walks, size, generator=generator).bfloat16().float()
    whole = state_products(matrix, state)
    assert torch.equal(whole[-1:, rows // 2 :], state_products(matrix[rows // 2 :], state[-1:]))
    exact = state.double() @ matrix.double().T
    assert float((whole - exact).abs().max()) <= 1e-5 * float((state.double().abs() @ matrix.double().abs().T).max())


# --- whole walks ---------------------------------------------------------------------------------------------------------

HEADS = {
    "gated": lambda **sizes: GatedHead.random(300, 64, hidden_size=96, **sizes),
    "rnn": lambda **sizes: RnnHead.random(300, 64, hidden_size=96, **sizes),
    "domino": lambda **sizes: DominoHead.random(300, 64, hidden_size=96, gru_size=72, **sizes),
}
KINDS = pytest.mark.parametrize("kind", HEADS)


def random_hidden(walks: int, positions: int, size: int) -> torch.Tensor:
    return torch.randn(walks, positions, size, generator=torch.Generator().manual_seed(8)).bfloat16()


def inputs(head, walks: int, positions: int):
    generator = torch.Generator().manual_seed(9)
    base = torch.randn(walks, positions, head.padded_vocab_size, generator=generator).bfloat16()
    anchors = torch.randint(head.target_vocab_size, (walks,), generator=generator)
    return base, anchors, random_hidden(walks, positions, 96)


@KINDS
def test_latents_follow_the_heads_own_modules(kind):
    head, walks, positions = HEADS[kind](), 6, 5
    _, anchors, hidden = inputs(head, walks, positions)
    wide = HEADS[kind](dtype=torch.float32)  # the same weights: bf16 is their rounding
    for name, weight in head.named_parameters():
        dict(wide.named_parameters())[name].data = weight.float()
    latents, state, tokens = HeadLatents(head, position_terms(head, hidden)), wide.initial_state(anchors), anchors
    for position in range(positions):
        found = latents(tokens)
        if position >= head.first_step:
            expected, state = wide.latent(tokens, hidden[:, position].float(), state)
            assert torch.allclose(found, expected, rtol=0.02, atol=0.02)
            assert kind == "gated" or torch.allclose(latents.state, state, rtol=0.02, atol=0.02)
        tokens = (tokens * 7 + position) % head.target_vocab_size


@KINDS
@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
def test_a_walk_is_its_latents_put_through_the_numpy_twin(kind, rounding):
    head = HEADS[kind](padded_vocab_size=310, target_vocab_size=400)
    mapping = torch.randperm(400, generator=torch.Generator().manual_seed(2))[:300]
    base, anchors, hidden = inputs(head, 4, 5)
    terms = position_terms(head, hidden)
    walk = twin_head_walks(head, base, anchors, terms, rounding=rounding, draft_to_target=mapping)
    latents, previous = HeadLatents(head, terms), anchors
    codes = twin_quantize_rows(floats(head.projection))
    for position in range(5):
        u = latents(previous)
        u = np.resize(np.zeros((4, head.rank), F32) if u is None else u.numpy(), (300, head.rank))  # a row for each id: the first 4 count
        bits = base[:, position : position + 1].view(torch.int16).numpy().view(np.uint16)
        step = twin_walks(*codes, *twin_quantize_latents(u), bits, np.arange(4), vocab_size=300, rounding=rounding)
        assert np.array_equal(walk.draft_ids[:, position].numpy(), step.draft_ids[:, 0])
        assert np.array_equal(walk.values[:, position].numpy(), step.values[:, 0])
        previous = mapping[walk.draft_ids[:, position]]
        assert torch.equal(walk.tokens[:, position], previous)
    if kind == "domino":
        assert torch.equal(walk.draft_ids[:, 0], base[:, 0, :300].float().argmax(dim=1))


@KINDS
def test_a_walk_does_not_depend_on_its_batch(kind):
    head = HEADS[kind]()
    base, anchors, hidden = inputs(head, 5, 4)
    terms = position_terms(head, hidden)
    together = twin_head_walks(head, base, anchors, terms)
    for walk in range(5):
        one = slice(walk, walk + 1)
        assert torch.equal(twin_head_walks(head, base[one], anchors[one], terms[one]).tokens, together.tokens[one])
    assert len(together.tokens.unique()) > 5, "the walks differ"


def test_bf16_is_exact_for_one_hot_rows_and_refused_otherwise():
    head = RnnHead.random(300, 64, hidden_size=96)
    base, anchors, hidden = inputs(head, 4, 5)
    terms = position_terms(head, hidden)
    with pytest.raises(BadInput, match="not an fp32 number"):
        twin_head_walks(head, base, anchors, terms, precision="bf16")
    head.projection.data = torch.eye(64, dtype=torch.bfloat16).repeat(5, 1)[:300]
    walk, latents = twin_head_walks(head, base, anchors, terms, precision="bf16"), HeadLatents(head, terms)
    y = base[:, 0].float() + latents(anchors).bfloat16().float().repeat(1, 5)[:, :300]
    assert torch.equal(walk.values[:, 0], y.bfloat16().float().amax(dim=1))


def test_what_does_not_fit_is_refused():
    head = RnnHead.random(300, 64, hidden_size=96)
    base, anchors, hidden = inputs(head, 4, 5)
    terms = position_terms(head, hidden)
    with pytest.raises(BadInput, match=r"float32 \[walks, positions, 192\]"):
        twin_head_walks(head, base, anchors, terms[..., :64])
    with pytest.raises(BadInput, match="share walks and positions"):
        twin_head_walks(head, base[:, :4], anchors, terms)
    with pytest.raises(BadInput, match="expected_walks"):
        HeadLatents(MarkovHead.random(300, 64), terms)
    with pytest.raises(BadInput, match="finite"):
        twin_head_walks(head, base, anchors, terms.fill_(torch.nan))
