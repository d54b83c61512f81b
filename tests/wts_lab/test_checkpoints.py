"""Checkpoints: names under prefixes, files that cannot be read, and sizes solved from shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from wts_lab.checkpoints import Checkpoint, measure, solve_sizes  # noqa: E402
from wts_lab.heads import HEAD_CLASSES  # noqa: E402

LAYOUT = {"first": ("rows", "rank"), "joint": ("3*rank", "2*rank + hidden"), "bias": ("3*rank",)}


@pytest.fixture
def save_file():
    return pytest.importorskip("safetensors.torch", reason="needs safetensors").save_file


def test_names_are_found_under_prefixes_and_the_bare_name_counts_first(tmp_path, save_file):
    save_file({"a": torch.tensor([1.0]), "markov_head.a": torch.tensor([2.0]), "model.b": torch.tensor([3.0])}, tmp_path / "x.safetensors")
    checkpoint = Checkpoint(tmp_path / "x.safetensors")
    assert checkpoint.holds("a") and checkpoint.holds("b") and not checkpoint.holds("c")
    assert {name: tensor.tolist() for name, tensor in checkpoint.read(["a", "b"]).items()} == {"a": [1.0], "b": [3.0]}


def test_a_folder_is_read_as_one(tmp_path, save_file):
    save_file({"a": torch.tensor([1.0])}, tmp_path / "part-1.safetensors")
    save_file({"a": torch.tensor([5.0]), "b": torch.tensor([2.0])}, tmp_path / "part-2.safetensors")
    found = Checkpoint(tmp_path).read(["b", "a"])
    assert found["a"].tolist() == [1.0] and found["b"].tolist() == [2.0]


def test_what_is_missing_is_named_with_what_is_there(tmp_path, save_file):
    save_file({"markov_w1.weight": torch.zeros(4, 32), "other": torch.zeros(1)}, tmp_path / "part.safetensors")
    with pytest.raises(BadInput, match=r"part.safetensors lacks markov_w2.weight .*it holds: markov_w1.weight, other$"):
        Checkpoint(tmp_path / "part.safetensors").read(["markov_w1.weight", "markov_w2.weight"])
    save_file({f"t{number:02}": torch.zeros(1) for number in range(20)}, tmp_path / "many.safetensors")
    with pytest.raises(BadInput, match=r"t10, t11, \.\.\.$"):
        Checkpoint(tmp_path / "many.safetensors").read(["absent"])


@pytest.mark.parametrize(("dtype", "name"), [(torch.float8_e4m3fn, "float8_e4m3fn"), (torch.uint8, "uint8")])
def test_quantised_weights_are_not_taken_for_numbers(tmp_path, save_file, dtype, name):
    save_file({"markov_head.w": torch.ones(4, 4).to(dtype)}, tmp_path / "quantised.safetensors")
    with pytest.raises(BadInput, match=rf"markov_head.w in .*quantised.safetensors is stored as {name}; give weights as bfloat16"):
        Checkpoint(tmp_path / "quantised.safetensors").read(["w"])


@pytest.mark.parametrize("name", ["embed_tokens.weight", "model.embed_tokens.weight", "model.language_model.embed_tokens.weight"])
def test_the_embedding_is_found_by_its_usual_names(tmp_path, save_file, name):
    save_file({name: torch.tensor([[4.0]]), "model.other": torch.zeros(1)}, tmp_path / "target.safetensors")
    assert Checkpoint(tmp_path / "target.safetensors").read_embedding().tolist() == [[4.0]]


def test_files_that_are_not_checkpoints_are_refused(tmp_path):
    pytest.importorskip("safetensors", reason="needs safetensors")
    (tmp_path / "text.safetensors").write_text("not a checkpoint")
    with pytest.raises(BadInput, match="not a readable safetensors file"):
        Checkpoint(tmp_path / "text.safetensors")
    with pytest.raises(BadInput, match="no safetensors file at"):
        Checkpoint(tmp_path / "absent.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no safetensors file at"):
        Checkpoint(tmp_path / "empty")


@given(st.sampled_from(sorted(HEAD_CLASSES)), st.data())
def test_sizes_come_back_from_the_shapes_they_make(kind, data):
    layout = HEAD_CLASSES[kind].TENSORS
    names = {"target_vocab_size", "padded_vocab_size", "rank", "hidden_size", "gru_size"}
    sizes = {name: data.draw(st.integers(1, 300), name) for name in sorted(names)}
    tensors = {name: torch.empty(measure(dimensions, sizes), device="meta") for name, dimensions in layout.items()}
    solved = solve_sizes(layout, tensors)
    assert solved.items() <= sizes.items()
    assert {"rank", "target_vocab_size", "padded_vocab_size"} <= solved.keys()


@given(st.sampled_from(list(LAYOUT)), st.integers(0, 1), st.integers(1, 5))
def test_a_shape_that_contradicts_the_others_is_named(name, axis, extra):
    shapes = {key: list(measure(dimensions, {"rows": 7, "rank": 11, "hidden": 5})) for key, dimensions in LAYOUT.items()}
    axis = min(axis, len(shapes[name]) - 1)
    shapes[name][axis] += extra
    tensors = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    if (name, axis) in (("first", 0), ("joint", 1)):  # sizes of their own
        assert solve_sizes(LAYOUT, tensors)["rows" if name == "first" else "hidden"] == (7 if name == "first" else 5) + extra
    else:
        with pytest.raises(BadInput, match=r"(joint|bias) must be \[.*\]; found \["):
            solve_sizes(LAYOUT, tensors)


def test_a_size_is_at_least_1_and_whole():
    with pytest.raises(BadInput, match=r"joint must be \[33, 22 \+ hidden\]; found \[33, 22\]"):
        solve_sizes(LAYOUT, {"first": torch.empty(7, 11), "joint": torch.empty(33, 22), "bias": torch.empty(33)})
    with pytest.raises(BadInput, match=r"w must be \[3\*size\]; found \[4\]"):
        solve_sizes({"w": ("3*size",)}, {"w": torch.empty(4)})
    with pytest.raises(BadInput, match=r"w must be \[rows, rank\]; found \[4\]"):
        solve_sizes({"w": ("rows", "rank")}, {"w": torch.empty(4)})
