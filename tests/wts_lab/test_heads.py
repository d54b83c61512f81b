"""Draft heads: sizes, equations against NumPy in float64, random weights, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS, Head  # noqa: E402
from wts_lab.heads import HEAD_CLASSES, DominoHead, GatedHead, MarkovHead, RnnHead, head_from_safetensors, random_head  # noqa: E402

SIZES = {"markov": {}, "gated": {"hidden_size": 24}, "rnn": {"hidden_size": 24}, "domino": {"hidden_size": 24, "gru_size": 16}}
EVERY_KIND = pytest.mark.parametrize("kind", HEAD_KINDS)


def small(kind: str, vocab: int = 50, rank: int = 32, seed: int = 1, **options):
    return HEAD_CLASSES[kind].random(vocab, rank, seed=seed, **(SIZES[kind] | options))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- sizes ---------------------------------------------------------------------------------------------------------------


def test_sizes_of_a_padded_head_with_another_target_vocabulary():
    head = small("markov", target_vocab_size=70, padded_vocab_size=64)
    assert head.markov_w1.weight.shape == (70, 32) and head.markov_w2.weight.shape == (64, 32)
    assert head.shape == Head("markov-50-r32", "markov", 50, 70, 64, 32)
    assert (head.vocab_size, head.target_vocab_size, head.padded_vocab_size, head.rank) == (50, 70, 64, 32)
    assert head.projection is head.markov_w2.weight and head.first_step == 0


@EVERY_KIND
def test_a_shape_gives_a_head_of_that_shape(kind):
    pool = {"candidate_pool": 9} if kind == "domino" else {}
    shape = Head("mine", kind, 50, 70, 64, 32, **SIZES[kind], **pool)
    head = random_head(shape)
    assert head.shape == shape and head.kind == kind
    assert head.projection.shape == (64, 32) and head.embedding.shape == (70, 24 if kind == "domino" else 32)
    assert {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}.keys() == head.TENSORS.keys()
    assert not any(weight.requires_grad for weight in head.parameters())


def test_tensors_have_the_released_names_and_shapes():
    gated, rnn, domino = (small(kind).state_dict() for kind in ("gated", "rnn", "domino"))
    assert gated["gate_proj.weight"].shape == (32, 24 + 32) and gated["gate_proj.bias"].shape == (32,)
    assert rnn["joint_proj.weight"].shape == (96, 32 + 32 + 24) and rnn["joint_proj.bias"].shape == (96,)
    assert domino["prefix_gru.weight_ih_l0"].shape == (48, 24) and domino["prefix_gru.weight_hh_l0"].shape == (48, 16)
    assert domino["embed_proj.0.weight"].shape == (32, 24 + 16) and domino["embed_proj.2.weight"].shape == (50, 32)


# --- equations -----------------------------------------------------------------------------------------------------------


def test_forward_is_the_row_of_w1_through_w2():
    head = MarkovHead(torch.eye(32)[:3], torch.arange(64.0).reshape(2, 32))
    assert head(torch.tensor([0, 2])).tolist() == [[0.0, 32.0], [2.0, 34.0]]


def test_a_gated_latent_is_its_equation():
    head, tokens, hidden = small("gated", dtype=torch.float64), torch.tensor([3, 49, 3]), drawn(3, 24)
    latent, state = head.latent(tokens, hidden)
    weight, bias = head.gate_proj.weight.numpy(), head.gate_proj.bias.numpy()
    for row in range(3):
        e = head.markov_w1.weight.numpy()[tokens[row]]
        gate = sigmoid(weight[:, :24] @ hidden[row].numpy() + weight[:, 24:] @ e + bias)
        np.testing.assert_allclose(latent[row].numpy(), gate * e, rtol=1e-12)
    assert state is None
    np.testing.assert_allclose(head(tokens, hidden).numpy(), latent.numpy() @ head.markov_w2.weight.numpy().T, rtol=1e-12, atol=1e-14)


def test_rnn_latents_are_their_equations_along_a_history():
    head, tokens, hidden = small("rnn", dtype=torch.float64), [7, 0, 49, 7], drawn(4, 24)
    weight, bias = head.joint_proj.weight.numpy(), head.joint_proj.bias.numpy()
    expected, state = np.zeros(32), head.initial_state(torch.tensor([7]))
    for step, token in enumerate(tokens):
        e = head.markov_w1.weight.numpy()[token]
        z = weight[:, :32] @ expected + weight[:, 32:64] @ e + weight[:, 64:] @ hidden[step].numpy() + bias
        a, c, o = z[:32], z[32:64], z[64:]
        expected = sigmoid(a) * expected + (1 - sigmoid(a)) * np.tanh(c)
        latent, state = head.latent(torch.tensor([token]), hidden[step : step + 1], state)
        np.testing.assert_allclose(latent[0].numpy(), np.tanh(o), rtol=1e-11)
        np.testing.assert_allclose(state[0].numpy(), expected, rtol=1e-11)


def test_domino_states_are_those_of_a_gru_over_the_tokens():
    head, tokens, hidden = small("domino", dtype=torch.float64), torch.tensor([[7, 0, 49, 7, 12], [1, 1, 2, 3, 5]]), drawn(2, 4, 24)
    gru = torch.nn.GRU(24, 16, bias=False, batch_first=True, dtype=torch.float64)
    gru.load_state_dict({name: getattr(head.prefix_gru, name) for name in ("weight_ih_l0", "weight_hh_l0")})
    states, _ = gru(head.embed_tokens.weight[tokens])
    f1 = head.embed_proj[0].weight
    state = head.initial_state(tokens[:, 0])
    torch.testing.assert_close(state, states[:, 0], rtol=1e-12, atol=1e-14)
    for step in range(4):
        latent, state = head.latent(tokens[:, step + 1], hidden[:, step], state)
        torch.testing.assert_close(state, states[:, step + 1], rtol=1e-12, atol=1e-14)
        inner = hidden[:, step] @ f1[:, :24].T + states[:, step + 1] @ f1[:, 24:].T
        torch.testing.assert_close(latent, inner / (1 + torch.exp(-inner)), rtol=1e-11, atol=1e-14)
    module, _ = head.prefix_gru(head.embed_tokens(tokens))
    torch.testing.assert_close(module, states)


# --- random weights ------------------------------------------------------------------------------------------------------


def test_random_weights_repeat_and_give_corrections_of_unit_spread():
    first, again = MarkovHead.random(2000, 64, seed=5), MarkovHead.random(2000, 64, seed=5)
    assert torch.equal(first.markov_w1.weight, again.markov_w1.weight) and torch.equal(first.markov_w2.weight, again.markov_w2.weight)
    assert not torch.equal(first.markov_w2.weight, MarkovHead.random(2000, 64, seed=6).markov_w2.weight)
    assert first.markov_w2.weight.dtype == torch.bfloat16
    corrections = first(torch.arange(64)).float()
    assert corrections.shape == (64, 2000)
    assert corrections.std() == pytest.approx(1.0, abs=0.05)


@EVERY_KIND
def test_random_heads_neither_saturate_nor_fade_along_a_walk(kind):
    sizes = {name: size * 8 for name, size in SIZES[kind].items()}
    head = small(kind, 1000, 128, **sizes)
    hidden = drawn(16, 32, 192).to(torch.bfloat16)
    tokens = torch.randint(1000, (16, 32), generator=torch.Generator().manual_seed(3))
    state, spreads = head.initial_state(tokens[0]), []
    for step in range(16):
        latent, state = head.latent(tokens[step], hidden[step], state)
        spreads.append(float((latent @ head.projection.T).float().std()))
        if state is not None:
            assert 0.3 < state.float().std() < 0.7 and (state.abs() > 0.95).float().mean() < 0.15
    assert min(spreads) > 0.85 and max(spreads) < 1.15, spreads
    if kind == "gated":
        gates = (latent / head.markov_w1(tokens[-1])).float()
        assert 0.2 < gates.std() < 0.4 and gates.mean() == pytest.approx(0.5, abs=0.05)


def test_large_matrices_are_drawn_as_one():
    weight = MarkovHead.random(9000, 32, seed=2).markov_w1.weight
    whole = torch.randn(9000, 32, generator=torch.Generator().manual_seed(2)) * 32**-0.25
    assert torch.equal(weight, whole.to(torch.bfloat16))


# --- checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def save_file():
    return pytest.importorskip("safetensors.torch", reason="needs safetensors").save_file


@EVERY_KIND
@pytest.mark.parametrize("prefix", ["", "markov_head."])
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path, save_file, kind, prefix):
    head = small(kind, padded_vocab_size=64)
    tensors = {(name if name == "embed_tokens.weight" else prefix + name): tensor for name, tensor in head.state_dict().items()}
    save_file(
        {**tensors, "lm_head.weight": torch.zeros(2, 2), "model.layers.0.mlp.gate_proj.weight": torch.zeros(3, 3)},
        tmp_path / "dspark.safetensors",
    )
    for path in (tmp_path / "dspark.safetensors", tmp_path):
        for loaded in (HEAD_CLASSES[kind].from_safetensors(path, vocab_size=50), head_from_safetensors(path, vocab_size=50)):
            assert type(loaded) is type(head) and loaded.shape.vocab_size == 50 and loaded.shape.padded_vocab_size == 64
            assert all(torch.equal(tensor, head.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert head_from_safetensors(tmp_path / "dspark.safetensors", kind).shape.name == "dspark"


def test_domino_takes_the_targets_embedding_from_where_it_is(tmp_path, save_file):
    head = small("domino")
    tensors = head.state_dict()
    embedding = tensors.pop("embed_tokens.weight")
    save_file(tensors, tmp_path / "domino.safetensors")
    save_file({"model.embed_tokens.weight": embedding, "lm_head.weight": torch.zeros(2, 2)}, tmp_path / "target.safetensors")
    for where in (embedding, tmp_path / "target.safetensors", str(tmp_path / "target.safetensors")):
        loaded = head_from_safetensors(tmp_path / "domino.safetensors", embedding=where, candidate_pool=20)
        assert torch.equal(loaded.embedding, embedding) and loaded.shape.candidate_pool == 20
    with pytest.raises(BadInput, match=r"domino.safetensors lacks the target's embedding, one of .*it holds: embed_proj.0.weight"):
        DominoHead.from_safetensors(tmp_path / "domino.safetensors")
    with pytest.raises(BadInput, match=r"domino.safetensors: prefix_gru.weight_ih_l0 must be \[3\*gru_size, 20\]; found \[48, 24\]"):
        DominoHead.from_safetensors(tmp_path / "domino.safetensors", embedding=embedding[:, :20])


def test_a_checkpoint_of_another_kind_names_what_it_lacks(tmp_path, save_file):
    save_file(small("gated").state_dict(), tmp_path / "gated.safetensors")
    with pytest.raises(BadInput, match=r"lacks joint_proj.weight and joint_proj.bias .*it holds: gate_proj.bias, gate_proj.weight"):
        head_from_safetensors(tmp_path / "gated.safetensors", "rnn")
    with pytest.raises(BadInput, match="head kind"):
        head_from_safetensors(tmp_path / "gated.safetensors", "lstm")


def test_misshapen_tensors_are_named_with_their_file(tmp_path, save_file):
    save_file({"markov_w1.weight": torch.zeros(4, 32), "markov_w2.weight": torch.zeros(4, 64)}, tmp_path / "odd.safetensors")
    with pytest.raises(BadInput, match=r"odd.safetensors: markov_w2.weight must be \[padded_vocab_size, 32\]; found \[4, 64\]"):
        MarkovHead.from_safetensors(tmp_path / "odd.safetensors")


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(BadInput, match="multiple of 32"):
        MarkovHead.random(10, 40)
    with pytest.raises(BadInput, match="vocab_size must be 1 to 4"):
        MarkovHead(torch.zeros(4, 32), torch.zeros(4, 32), vocab_size=5)
    for kind, name in (("gated", "markov_w2.weight"), ("domino", "embed_proj.2.weight")):
        with pytest.raises(BadInput, match=f"vocab_size must be 1 to 50, the rows of {name}; got 51"):
            HEAD_CLASSES[kind](*small(kind).state_dict().values(), vocab_size=51)
    with pytest.raises(BadInput, match="must be from 1"):
        MarkovHead.random(-3, 32)
    with pytest.raises(BadInput, match="needs hidden_size"):
        GatedHead.random(10, 32)
    with pytest.raises(BadInput, match=r"joint_proj.weight must be \[96, 64 \+ hidden_size\]; found \[96, 64\]"):
        RnnHead(torch.zeros(4, 32), torch.zeros(4, 32), torch.zeros(96, 64), torch.zeros(96))
    with pytest.raises(BadInput, match="gru_size is 12; it must be a multiple of 8 up to 1024"):
        small("domino", gru_size=12)
    with pytest.raises(BadInput, match="candidate_pool is 0"):
        small("domino").with_candidate_pool(0)
