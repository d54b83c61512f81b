"""Words of the exchange: fields of the kernel's constants, the order that selection needs, and the twin's own packing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from wts_lab import reference
from wts_lab.words import LAYOUTS, NARROW, WIDE


def test_fields_fill_the_word() -> None:
    assert [(one.bits, one.value_bits, one.row_bits, one.epoch_bits, one.in_unit) for one in LAYOUTS] == [(32, 16, 11, 5, 4), (64, 32, 20, 12, 2)]
    assert (WIDE.row_bits, WIDE.epoch_bits) == (reference.INDEX_BITS, reference.EPOCH_BITS)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(data=st.data())
def test_the_larger_word_is_the_better_offer(layout, data) -> None:
    values, rows = st.integers(0, (1 << layout.value_bits) - 1), st.integers(0, (1 << layout.row_bits) - 1)
    (value, row), (other, place), epoch = data.draw(st.tuples(values, rows)), data.draw(st.tuples(values, rows)), data.draw(st.integers(0, 10_000))
    word = layout.pack(value, row, epoch)
    assert word < 1 << layout.bits and layout.unpack(word) == (value, row, epoch % layout.epochs)
    assert (word > layout.pack(other, place, epoch)) == ((value, -row) > (other, -place))


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 12) - 1))
def test_a_wide_word_is_the_twins(value: int, row: int, epoch: int) -> None:
    assert WIDE.pack(value, row, epoch) == reference.pack_word(value, row, epoch)


@pytest.mark.parametrize(("numbers", "message"), [((1 << 16, 0, 0), "ordered value of a narrow word has 16 bits"), ((0, 2048, 0), "row of a narrow word has 11 bits, 0 to 2,047; got 2048"), ((0, 0, -1), "epochs count from 0")])
def test_what_does_not_fit_is_refused(numbers: tuple, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        NARROW.pack(*numbers)
