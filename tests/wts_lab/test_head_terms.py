"""Token tables, position terms and state matrices: together they are the head's own products, in float64 and by hand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS  # noqa: E402
from wts_lab import head_terms  # noqa: E402
from wts_lab.head_terms import position_terms, state_matrices, token_table  # noqa: E402
from wts_lab.heads import HEAD_CLASSES  # noqa: E402

HIDDEN, GRU, RANK = 40, 16, 32


def head_of(kind: str):
    sizes = {} if kind == "markov" else {"hidden_size": HIDDEN}
    return HEAD_CLASSES[kind].random(50, RANK, seed=4, target_vocab_size=70, **sizes, **({"gru_size": GRU} if kind == "domino" else {}))


def weights(head) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}


def within_half_a_bf16_step(found, exact):
    """Equality to a sum that was rounded once (an eighth of a step for fp32 summation)."""
    return np.all(np.abs(found.double().numpy() - exact) <= np.abs(exact) * 2.0**-8 * 1.02 + 1e-6)


@pytest.fixture
def hidden():
    return torch.randn(2, 3, HIDDEN, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


def test_markov_needs_nothing_but_w1():
    head = head_of("markov")
    assert torch.equal(token_table(head), head.markov_w1.weight)
    assert position_terms(head, None) is None and state_matrices(head) == ()


def test_gated(hidden):
    head = head_of("gated")
    own, table = weights(head), token_table(head)
    assert table.shape == (70, 2 * RANK) and table.dtype == torch.bfloat16 and table.is_contiguous()
    assert torch.equal(table[:, :RANK], head.markov_w1.weight)
    assert within_half_a_bf16_step(table[:, RANK:], own["markov_w1.weight"] @ own["gate_proj.weight"][:, HIDDEN:].T)
    expected = hidden.double().numpy() @ own["gate_proj.weight"][:, :HIDDEN].T + own["gate_proj.bias"]
    np.testing.assert_allclose(position_terms(head, hidden).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert state_matrices(head) == ()


def test_rnn(hidden):
    head = head_of("rnn")
    own, table = weights(head), token_table(head)
    joint = own["joint_proj.weight"]
    assert table.shape == (70, 3 * RANK) and within_half_a_bf16_step(table, own["markov_w1.weight"] @ joint[:, RANK : 2 * RANK].T)
    expected = hidden.double().numpy() @ joint[:, 2 * RANK :].T + own["joint_proj.bias"]
    np.testing.assert_allclose(position_terms(head, hidden).numpy(), expected, rtol=1e-5, atol=1e-5)
    (matrix,) = state_matrices(head)
    assert matrix.dtype == torch.bfloat16 and matrix.is_contiguous() and np.array_equal(matrix.double().numpy(), joint[:, :RANK])


def test_domino(hidden):
    head = head_of("domino")
    own, table = weights(head), token_table(head)
    assert table.shape == (70, 3 * GRU)
    assert within_half_a_bf16_step(table, own["embed_tokens.weight"] @ own["prefix_gru.weight_ih_l0"].T)
    f1 = own["embed_proj.0.weight"]
    np.testing.assert_allclose(position_terms(head, hidden).numpy(), hidden.double().numpy() @ f1[:, :HIDDEN].T, rtol=1e-5, atol=1e-5)
    recurrent, projector = state_matrices(head)
    assert np.array_equal(recurrent.double().numpy(), own["prefix_gru.weight_hh_l0"])
    assert projector.shape == (RANK, GRU) and projector.is_contiguous() and np.array_equal(projector.double().numpy(), f1[:, HIDDEN:])


def test_the_parts_of_an_rnn_step_sum_to_the_heads_own_product(hidden):
    head = head_of("rnn")
    state = torch.rand(2, RANK, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    tokens = torch.tensor([69, 3])
    whole = head.joint_proj.double()(torch.cat([state, head.markov_w1(tokens), hidden[:, 1]], dim=1).double())
    head = head_of("rnn")
    parts = position_terms(head, hidden)[:, 1] + token_table(head)[tokens].float() + state.float() @ state_matrices(head)[0].float().T
    torch.testing.assert_close(parts.double(), whole, rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_chunks_change_nothing_and_results_are_contiguous(kind, hidden, monkeypatch):
    head = head_of(kind)
    whole = token_table(head)
    monkeypatch.setattr(head_terms, "CHUNK_ELEMENTS", 7 * HIDDEN)  # a few rows at a time, the last chunk a shorter one
    torch.testing.assert_close(token_table(head), whole, rtol=2.0**-7, atol=1e-6)
    if kind != "markov":
        terms = position_terms(head, hidden)
        strided = hidden.repeat(1, 2, 1)[:, ::2]
        assert terms.dtype == torch.float32 and terms.is_contiguous() and terms.shape[:2] == (2, 3)
        torch.testing.assert_close(position_terms(head, strided), position_terms(head, strided.contiguous()))


def test_hidden_that_does_not_fit_is_refused(hidden):
    head = head_of("gated")
    for wrong in (None, hidden.float(), hidden[:, :, :8], hidden[0]):
        with pytest.raises(BadInput, match=r"a gated head needs hidden, bfloat16 \[batch, positions, 40\]; got"):
            position_terms(head, wrong)
