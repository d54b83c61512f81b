"""The weak memory allows what relaxed accesses allow and forbids what coherence, atomicity, release and acquire forbid: litmus tests."""

from __future__ import annotations

import pytest

from cost_model.errors import BadInput
from wts_lab.weak_memory import ORDERED, RELAXED, Access, Memory, run_threads

SEEDS = range(400)


def outcomes(*programs, order=RELAXED) -> set:
    """What the threads return, over many orders of events."""
    return {tuple(run_threads([program(order) for program in programs], Memory(), seed)) for seed in SEEDS}


def writes_data_then_flag(order):
    yield Access("data", 1)
    yield Access("flag", 1, order)


def reads_flag_then_data(order):
    flag = yield Access("flag", order=order)
    data = yield Access("data")
    return flag, data


def test_message_passing_needs_release_and_acquire() -> None:
    """Relaxed, a flag may be seen before the data in front of it; with release and acquire never."""
    relaxed = {outcome[1] for outcome in outcomes(writes_data_then_flag, reads_flag_then_data)}
    ordered = {outcome[1] for outcome in outcomes(writes_data_then_flag, reads_flag_then_data, order=ORDERED)}
    assert relaxed == {(0, 0), (0, 1), (1, 0), (1, 1)} and ordered == relaxed - {(1, 0)}


def test_reads_of_one_place_never_go_back() -> None:
    def writes(order):
        for value in (1, 2, 3):
            yield Access("x", value)

    def reads(order):
        return [(yield Access("x")), (yield Access("x")), (yield Access("x"))]

    found = [outcome[1] for outcome in (run_threads([writes(RELAXED), reads(RELAXED)], Memory(), seed) for seed in SEEDS)]
    assert all(seen == sorted(seen) for seen in found) and [0, 0, 0] in found and [3, 3, 3] in found


def test_updates_lose_nothing_and_a_thread_sees_its_own_writes() -> None:
    def adds(order):
        for _ in range(5):
            yield Access("n", lambda old: old + 1)
        return (yield Access("n"))

    for seed in range(50):
        counts = run_threads([adds(RELAXED) for _ in range(4)], Memory(), seed)
        assert max(counts) <= 20 and min(counts) >= 5
    memory = Memory()
    run_threads([adds(RELAXED) for _ in range(4)], memory, 0)

    def last(order):
        return (yield Access("n", lambda old: old))

    assert run_threads([last(RELAXED)], memory, 0) == [20]


def test_an_update_hands_on_what_the_one_before_carried() -> None:
    """A release sequence: who acquires the second update knows what stood in front of the first."""

    def first(order):
        yield Access("data", 7)
        yield Access("count", lambda old: old + 1, ORDERED)

    def second(order):
        yield Access("count", lambda old: old + 1, RELAXED)

    def reader(order):
        count = yield Access("count", order=ORDERED)
        data = yield Access("data")
        return count, data

    seen = {outcome[2] for outcome in outcomes(first, second, reader)}
    assert (2, 0) not in seen and (2, 7) in seen and {(1, 0), (1, 7)} <= seen


def test_what_never_comes_is_reported() -> None:
    def waits(order):
        while not (yield Access("never")):
            pass

    with pytest.raises(BadInput, match="1 of 1 threads had not ended after 100 accesses"):
        run_threads([waits(RELAXED)], Memory(), 0, max_events=100)


def test_events_are_kept_with_how_stale_a_read_was() -> None:
    memory = Memory(keep=True)
    run_threads([writes_data_then_flag(RELAXED), reads_flag_then_data(RELAXED)], memory, 3)
    assert len(memory.events) == 4 and {event.thread for event in memory.events} == {0, 1}
    for event in memory.events:
        assert event.newer == (0 if event.access.write is not None else sum(1 for other in memory.events[: memory.events.index(event)] if other.access.place == event.access.place and other.access.write is not None) - event.value)
