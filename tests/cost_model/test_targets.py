"""The catalogues of targets and drafters, against the sizes that their makers state."""

from dataclasses import replace

import pytest

from cost_model import paths
from cost_model.catalogue import CatalogueError
from cost_model.errors import BadInput
from cost_model.head import load_head
from cost_model.targets import UnknownShape, list_drafters, list_targets, load_drafter, load_target


@pytest.mark.parametrize("name, billions, outside_embeddings", [("qwen3-4b", 4.0, 3.6), ("qwen3-8b", 8.2, 6.95), ("qwen3-14b", 14.8, 13.2)])
def test_weights_are_those_of_the_model_card(name, billions, outside_embeddings):
    target = load_target(name)
    layers = target.layers * target.layer_parameters
    embeddings = target.output_parameters * (1 if target.tied_embeddings else 2)
    assert layers / 1e9 == pytest.approx(outside_embeddings, abs=0.06)
    assert (layers + embeddings) / 1e9 == pytest.approx(billions, abs=0.06)


def test_every_drafter_fits_its_target_and_its_head():
    assert list_drafters() and set(list_targets()) == {"qwen3-4b", "qwen3-8b", "qwen3-14b"}
    for name in list_drafters():
        drafter = load_drafter(name)
        target = load_target(drafter.target)
        assert drafter.layers < target.layers and drafter.steps <= drafter.block
        if drafter.head is not None:
            head = load_head(drafter.head)
            assert head.target_vocab_size == target.vocab_size and head.hidden_size == target.hidden_size and head.block == drafter.block


def test_drafts_start_at_the_first_position_or_after_the_last_token():
    assert load_drafter("dspark-qwen3-8b").positions(7) == 7
    assert load_drafter("domino-qwen3-8b").positions(15) == 16


def test_backbone_weights_by_hand():
    target, drafter = load_target("qwen3-8b"), load_drafter("dspark-qwen3-8b")
    layer = 2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 12288
    assert target.layer_parameters == layer and drafter.parameters(target) == 5 * layer + 5 * 4096 * 4096


def test_unknown_names_list_the_known():
    with pytest.raises(UnknownShape, match="qwen3-8b"):
        load_target("qwen9")
    with pytest.raises(UnknownShape, match="unknown drafter 'x'.*dspark-qwen3-8b"):
        load_drafter("x")


@pytest.mark.parametrize("change, word", [({"layers": 0}, "layers is 0"), ({"kv_heads": 5}, "whole number of heads")])
def test_impossible_targets_are_refused(change, word):
    with pytest.raises(BadInput, match=word):
        replace(load_target("qwen3-8b"), **change)


@pytest.mark.parametrize("change, word", [({"memory": "none"}, "memory"), ({"steps": 8}, "at most one token a position"), ({"block": 0}, "block is 0")])
def test_impossible_drafters_are_refused(change, word):
    with pytest.raises(BadInput, match=word):
        replace(load_drafter("dspark-qwen3-8b"), **change)


@pytest.mark.parametrize("text, word", [("schema_version = 2\n", "version"), ('schema_version = 1\nname = "mine"\n', "lacks"), ("[", "cannot be read")])
def test_files_of_another_form_are_refused(tmp_path, monkeypatch, text, word):
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.toml").write_text(text)
    monkeypatch.setattr("cost_model.targets.data_root", lambda: tmp_path)
    assert paths.data_root() != tmp_path
    with pytest.raises(CatalogueError, match=word):
        load_target("mine")
