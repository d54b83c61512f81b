"""What the exchange stands on is read from the kernel's source, and follows it."""

from __future__ import annotations

import pytest

from cost_model.errors import BadInput
from cost_model.paths import resource_root
from wts_lab import memory_order
from wts_lab.memory_order import HARDWARE, PTX, ExchangeAccess, exchange_accesses, exchange_needs, read_whole
from wts_lab.words import NARROW, WIDE


def test_words_are_written_and_read_relaxed_at_the_scope_of_the_device() -> None:
    accesses = exchange_accesses()
    assert all(".relaxed.gpu.global." in each.instruction for each in accesses)
    stores = sorted(each.element_bits for each in accesses if not each.is_load)
    assert stores == [32, 64] and all(each.elements == 1 for each in accesses if not each.is_load)
    assert all(each.elements * each.element_bits == 128 for each in accesses if each.is_load), "a unit is read at once"


def test_instructions_are_taken_apart() -> None:
    pair = ExchangeAccess("load_word_pair", "ld.relaxed.gpu.global.v2.u64")
    assert (pair.elements, pair.element_bits, pair.is_load) == (2, 64, True)
    word = ExchangeAccess("store_word", "st.relaxed.gpu.global.u32")
    assert (word.elements, word.element_bits, word.is_load) == (1, 32, False)


def source(tmp_path, monkeypatch, load: str, exchange: str):
    """A kernel source with another load in it."""
    (tmp_path / "walk").mkdir(exist_ok=True)
    text = (resource_root("csrc") / "walk" / "ptx.cuh").read_text("utf-8")
    old = next(each.instruction for each in exchange_accesses() if each.function == "load_unit")
    (tmp_path / "walk" / "ptx.cuh").write_text(text.replace(f'"{old} ', f'"{load} '))
    (tmp_path / "walk" / "exchange.cuh").write_text(exchange)
    monkeypatch.setattr(memory_order, "resource_root", lambda name: tmp_path)


@pytest.mark.parametrize(("load", "exchange", "narrow", "wide"), [
    ("ld.relaxed.gpu.global.v4.u32", "seen = load_unit(slots)", PTX, HARDWARE),
    ("ld.relaxed.gpu.global.v2.u64", "seen = load_unit(slots)", HARDWARE, PTX),
    ("ld.relaxed.gpu.global.v4.u32", "seen = load_unit(slots); load_word_pair(slots, a, b)", PTX, PTX),
])  # fmt: skip
def test_who_gives_a_whole_word_follows_the_width_of_the_load(tmp_path, monkeypatch, load, exchange, narrow, wide) -> None:
    source(tmp_path, monkeypatch, load, exchange)
    given = {need.what: need.given_by for need in exchange_needs()}
    assert given["a narrow word is seen whole"] == narrow and given["a wide word is seen whole"] == wide
    assert (read_whole(NARROW), read_whole(WIDE)) == (narrow == PTX, wide == PTX)


def test_narrow_words_need_nothing_of_the_hardware_but_that_they_arrive() -> None:
    assert read_whole(NARROW)
    needs = exchange_needs()
    assert [need.what for need in needs if need.given_by == HARDWARE and "wide" not in need.what] == ["a word arrives in the end"]
    assert len({need.what for need in needs}) == len(needs) and all(need.why for need in needs)


def test_a_source_without_them_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "walk").mkdir()
    (tmp_path / "walk" / "ptx.cuh").write_text("// nothing\n")
    monkeypatch.setattr(memory_order, "resource_root", lambda name: tmp_path)
    with pytest.raises(BadInput, match="csrc/walk/ptx.cuh has no store_word"):
        exchange_accesses()
