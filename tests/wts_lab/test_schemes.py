"""Both schemes of exchange: right where their rules hold, wrong where they do not, and a fault can be shown event by event."""

from __future__ import annotations

import pytest

from cost_model.errors import BadInput
from wts_lab.schemes import ROWS_A_BLOCK, SCHEMES, check_scheme, drawn_offers, first_fault, right_winner, scheme_named, winners_of

SOUND = ("words", "maximum, release and acquire", "maximum and count in one load")
UNSOUND = ("words in halves", "maximum, relaxed")


def test_every_scheme_is_sound_or_not() -> None:
    assert {scheme.name for scheme in SCHEMES} == {*SOUND, *UNSOUND}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize(("blocks", "epochs", "seeds"), [(1, 3, 3), (2, 70, 20), (5, 40, 10)])
def test_a_sound_scheme_agrees_in_every_order_past_the_epoch_field(name: str, blocks: int, epochs: int, seeds: int) -> None:
    checked = check_scheme(scheme_named(name), blocks=blocks, epochs=epochs, seeds=seeds)
    assert (checked.exchanges, checked.wrong) == (epochs * seeds, 0)


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_scheme_is_caught(name: str) -> None:
    assert check_scheme(scheme_named(name), blocks=3, epochs=10, seeds=10).wrong > 0


@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_one_block_alone_is_always_right(name: str) -> None:
    offers = drawn_offers(5)
    assert winners_of(scheme_named(name), 1, 4, 5) == [[right_winner(offers, epoch, 1) for epoch in range(1, 5)]]


def test_the_right_winner_has_the_largest_value_and_the_lowest_row() -> None:
    offers, ties = drawn_offers(1), 0
    for epoch in range(60):
        value, row = right_winner(offers, epoch, 4)
        found = [(offers(epoch, block).value, block * ROWS_A_BLOCK + offers(epoch, block).row) for block in range(4)]
        best = [place for other, place in found if other == max(other for other, _ in found)]
        assert (value, row) == (max(other for other, _ in found), min(best))
        ties += len(best) > 1
    assert ties > 5, "offers must tie across blocks, or the lowest row is not tested"


def test_a_fault_ends_with_a_stale_read_of_the_maximum() -> None:
    right, events = first_fault(scheme_named("maximum, relaxed"))
    last = [event for event in events if event.access.place == ("maximum", 1) and event.access.write is None]
    wrong = [event for event in last if (event.value[1], -event.value[2]) != right]
    assert wrong and all(event.newer > 0 for event in wrong)
    before = events[: events.index(wrong[0])]
    assert any(event.thread == wrong[0].thread and event.access.place == "count" and event.value == 2 for event in before), "it had seen that all had come"


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadInput, match="no scheme is called 'votes'; there are words, "):
        scheme_named("votes")
    with pytest.raises(BadInput, match="seeds"):
        check_scheme(scheme_named("words"), seeds=0)
    with pytest.raises(BadInput, match="none of 20 orders of events goes wrong"):
        first_fault(scheme_named("words"), seeds=20)
