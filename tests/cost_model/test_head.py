"""Head: validation with errors that say what to do, and the catalogue against its sources."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model import head as head_module
from cost_model.catalogue import CatalogueError
from cost_model.errors import BadInput
from cost_model.head import Head, IncompleteHead, UnknownHead, list_heads, load_head, walked_shape


def test_markov_helper():
    head = Head.markov(151_936, 256)
    assert (head.kind, head.vocab_size, head.target_vocab_size, head.padded_vocab_size, head.rank) == (
        "markov", 151_936, 151_936, 151_936, 256)
    assert Head.markov(32_000, 256, target_vocab_size=163_840).target_vocab_size == 163_840
    assert Head.markov(32_000, 256).name == "markov-32000-r256"


@given(st.integers(1, 1_048_576), st.integers(1, 16))
def test_every_allowed_shape_is_accepted(vocab_size, multiple):
    assert Head.markov(vocab_size, 32 * multiple).rank == 32 * multiple


@given(st.integers(-64, 1_024).filter(lambda rank: rank % 32 or not 32 <= rank <= 512))
def test_every_other_rank_is_refused(rank):
    with pytest.raises(BadInput, match="rank is"):
        Head.markov(1_000, rank)


@pytest.mark.parametrize(("vocab_size", "rank", "message"), [
    (0, 256, "vocab_size is 0; it must be from 1 to 1,048,576"),
    (-5, 256, "vocab_size is -5"),
    (1_048_577, 256, "vocab_size is 1,048,577; it must be from 1 to 1,048,576"),
    (100.0, 256, "vocab_size is 100.0; it must be a whole number"),
    (1_000, 250, "rank is 250; it must be a multiple of 32 up to 512. Pad W1 and W2 with zero columns to rank 256"),
    (1_000, 544, "rank is 544; it must be from 1 to 512"),
])
def test_bad_sizes_say_what_is_allowed(vocab_size, rank, message):
    with pytest.raises(BadInput) as error:
        Head.markov(vocab_size, rank)
    assert message in str(error.value)


def test_padding_only_adds_rows():
    with pytest.raises(BadInput, match="padded_vocab_size is 99, below vocab_size 100"):
        Head("x", "markov", 100, 100, 99, 32)


@pytest.mark.parametrize(("kind", "fields", "missing"), [
    ("gated", {}, "hidden_size"), ("rnn", {}, "hidden_size"), ("domino", {}, "hidden_size and gru_size"),
    ("domino", {"hidden_size": 64}, "gru_size"),
])
def test_kinds_need_their_sizes(kind, fields, missing):
    with pytest.raises(BadInput, match=f"a {kind} head needs {missing}"):
        Head("x", kind, 100, 100, 100, 32, **fields)


def test_an_unknown_kind_lists_the_kinds():
    with pytest.raises(BadInput, match="choose one of markov, gated, rnn, domino"):
        Head("x", "medusa", 100, 100, 100, 32)


@pytest.mark.parametrize(("name", "kind", "target", "draft", "rank", "hidden", "block"), [
    ("dspark-qwen3-4b", "markov", 151_936, 151_936, 256, 2560, 7),
    ("dspark-deepseek-v4-flash", "markov", 129_280, 129_280, 256, 4096, 5),
    ("dspark-kimi-k2.6-32k", "markov", 163_840, 32_000, 256, 7168, 8),
    ("dspark-qwen3.5-r512", "markov", 248_320, 248_320, 512, 4096, 5),
    ("dspark-glm-5.2", "markov", 154_880, 154_880, 256, None, 8),
    ("domino-qwen3-8b", "domino", 151_936, 151_936, 256, 4096, 16),
])
def test_released_shapes(name, kind, target, draft, rank, hidden, block):
    head = load_head(name)
    assert (head.kind, head.target_vocab_size, head.vocab_size, head.rank, head.hidden_size, head.block) == (
        kind, target, draft, rank, hidden, block)


@given(st.integers(1, 1_000_000), st.integers(1, 5_000))
def test_a_pool_is_walked_over_its_candidates_and_the_first_token(vocab_size, pool):
    head = Head("x", "domino", vocab_size, vocab_size + 5, vocab_size + 3, 64, hidden_size=64, gru_size=16, candidate_pool=pool)
    rows = min(pool, vocab_size) + 1
    walked = walked_shape(head)
    assert walked == replace(head, vocab_size=rows, padded_vocab_size=rows, candidate_pool=None)
    assert walked_shape(walked) is walked


def test_every_listed_head_loads_with_its_source():
    names = list_heads()
    assert len(names) == 15
    for name in names:
        head = load_head(name)
        assert head.name == name and head.source and head.checkpoint


def test_an_unknown_head_lists_the_known():
    with pytest.raises(UnknownHead) as error:
        load_head("dspark-qwen9")
    assert all(name in str(error.value) for name in list_heads())


def test_a_head_without_a_published_rank_says_so():
    assert "dspark-inkling-small" not in list_heads()
    with pytest.raises(IncompleteHead, match="does not give rank"):
        load_head("dspark-inkling-small")


@pytest.mark.parametrize(("change", "reason"), [
    (("rank = 256", 'rank = 256\ncolour = "red"'), "unknown keys colour"),
    (("schema_version = 1", "schema_version = 2"), "schema_version is 2; this code reads version 1"),
    (('name = "mine"', 'name = "other"'), "is named 'other'"),
    (('kind = "markov"\n', ""), "lacks kind"),
    (("rank = 256", "rank = "), "cannot be read as a fact file"),
])
def test_a_broken_head_file_is_named(tmp_path, monkeypatch, change, reason):
    (tmp_path / "heads").mkdir()
    good = (
        'schema_version = 1\nname = "mine"\nkind = "markov"\nvocab_size = 100\ntarget_vocab_size = 100\n'
        'padded_vocab_size = 100\nrank = 256\nsource = "test"\n'
    )
    path = tmp_path / "heads" / "mine.toml"
    monkeypatch.setattr(head_module, "data_root", lambda: tmp_path)
    path.write_text(good)
    assert load_head("mine").rank == 256
    path.write_text(good.replace(*change))
    with pytest.raises(CatalogueError) as error:
        load_head("mine")
    assert str(path) in str(error.value) and reason in str(error.value)
