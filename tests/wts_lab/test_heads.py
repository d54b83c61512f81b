"""Markov heads: sizes, random weights, checkpoints."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import Head  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402


def small_head(**sizes) -> MarkovHead:
    return MarkovHead.random(50, 32, seed=1, **sizes)


def test_sizes_of_a_padded_head_with_another_target_vocabulary():
    head = small_head(target_vocab_size=70, padded_vocab_size=64)
    assert head.markov_w1.weight.shape == (70, 32) and head.markov_w2.weight.shape == (64, 32)
    assert head.shape == Head("markov-50-r32", "markov", 50, 70, 64, 32)
    assert (head.vocab_size, head.target_vocab_size, head.padded_vocab_size, head.rank) == (50, 70, 64, 32)


def test_random_weights_repeat_and_give_corrections_of_unit_spread():
    first, again = MarkovHead.random(2000, 64, seed=5), MarkovHead.random(2000, 64, seed=5)
    assert torch.equal(first.markov_w1.weight, again.markov_w1.weight) and torch.equal(first.markov_w2.weight, again.markov_w2.weight)
    assert not torch.equal(first.markov_w2.weight, MarkovHead.random(2000, 64, seed=6).markov_w2.weight)
    assert first.markov_w2.weight.dtype == torch.bfloat16
    corrections = first(torch.arange(64)).float()
    assert corrections.shape == (64, 2000)
    assert corrections.std() == pytest.approx(1.0, abs=0.05)


def test_forward_is_the_row_of_w1_through_w2():
    head = MarkovHead(torch.eye(32)[:3], torch.arange(64.0).reshape(2, 32))
    assert head(torch.tensor([0, 2])).tolist() == [[0.0, 32.0], [2.0, 34.0]]


@pytest.mark.parametrize("prefix", ["", "markov_head."])
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path, prefix):
    save_file = pytest.importorskip("safetensors.torch").save_file
    head = small_head(padded_vocab_size=64)
    tensors = {prefix + name: tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file({**tensors, "lm_head.weight": torch.zeros(2, 2)}, tmp_path / "dspark.safetensors")
    for path in (tmp_path / "dspark.safetensors", tmp_path):
        loaded = MarkovHead.from_safetensors(path, vocab_size=50)
        assert torch.equal(loaded.markov_w1.weight, head.markov_w1.weight)
        assert torch.equal(loaded.markov_w2.weight, head.markov_w2.weight)
        assert loaded.shape.vocab_size == 50 and loaded.shape.padded_vocab_size == 64
    assert MarkovHead.from_safetensors(tmp_path / "dspark.safetensors").shape.name == "dspark"


def test_a_checkpoint_without_a_tensor_names_it_and_lists_what_is_there(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"markov_w1.weight": torch.zeros(4, 32), "other": torch.zeros(1)}, tmp_path / "part.safetensors")
    with pytest.raises(BadInput, match=r"lacks markov_w2.weight .*it holds: markov_w1.weight, other"):
        MarkovHead.from_safetensors(tmp_path / "part.safetensors")


def test_misshapen_tensors_are_named_with_their_file(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"markov_w1.weight": torch.zeros(4, 32), "markov_w2.weight": torch.zeros(4, 64)}, tmp_path / "odd.safetensors")
    with pytest.raises(BadInput, match=r"odd.safetensors: W1 and W2 must be matrices .*\(4, 32\) and \(4, 64\)"):
        MarkovHead.from_safetensors(tmp_path / "odd.safetensors")


def test_files_that_are_not_checkpoints_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    (tmp_path / "text.safetensors").write_text("not a checkpoint")
    with pytest.raises(BadInput, match="not a readable safetensors file"):
        MarkovHead.from_safetensors(tmp_path / "text.safetensors")
    with pytest.raises(BadInput, match="no safetensors file at"):
        MarkovHead.from_safetensors(tmp_path / "absent.safetensors")


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(BadInput, match="multiple of 32"):
        MarkovHead.random(10, 40)
    with pytest.raises(BadInput, match="vocab_size must be 1 to 4"):
        MarkovHead(torch.zeros(4, 32), torch.zeros(4, 32), vocab_size=5)
    with pytest.raises(BadInput, match="at least 1"):
        MarkovHead.random(-3, 32)
