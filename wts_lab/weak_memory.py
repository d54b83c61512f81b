"""A memory that is as weak as relaxed accesses allow, to run small exchanges in: any order of events, and stale reads.

This is a model of rules, not of a GPU. Every location has a list of the values written to it, in one order that all agree on (*coherence*).
A reader may get any value that is no older than the last one it knows of at that location; what it knows of other locations does not matter
(*relaxed*). A *release* write carries all that its writer knows, and an *acquire* read takes it over. An atomic update reads the newest value,
and hands on what the write before it carried. These are view machines for C11 (Kang et al., "A promising semantics for relaxed-memory
concurrency", POPL 2017) without promises: no write is seen before the loads that stand in front of it. PTX allows that as well, but only where
the write does not depend on those loads, and what a block publishes depends on the winner that it has just found.

How often something goes wrong here says nothing about a GPU. Whether it can go wrong does.

A thread is a generator: it yields an `Access` and is sent what a read or an update found. A seed decides who runs and what a read gets.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cost_model.errors import BadInput

Place = Hashable
View = dict[Place, int]
RELAXED, ORDERED = "relaxed", "ordered"


@dataclass(frozen=True)
class Access:
    """One access of a thread.

    Attributes:
        place: the location.
        write: the value to write, or a function of the value there that gives the new one (an atomic update); None for a read.
        order: `relaxed`, or `ordered`: a write or update releases, a read or update acquires.
    """

    place: Place
    write: Any = None
    order: str = RELAXED


@dataclass(frozen=True)
class Event:
    """What an access did: ``thread``, the access, the ``value`` it read or wrote, and how many writes of its place were ``newer`` than that."""

    thread: int
    access: Access
    value: Any
    newer: int


Thread = Generator[Access, Any, Any]


@dataclass
class Memory:
    """Locations with all their writes, each with what it carries; every location begins with one value.

    Attributes:
        initial: value of a location before the first write.
        events: of the run so far, in order, where `keep` is true.
    """

    initial: Any = 0
    keep: bool = False
    events: list[Event] = field(default_factory=list)
    _writes: dict[Place, list[tuple[Any, View]]] = field(default_factory=dict)

    def perform(self, thread: int, view: View, access: Access, random: Random) -> Any:
        """Do an access of a thread that knows ``view``, which is brought up to date; returns the value read (by an update, the old one)."""
        writes = self._writes.setdefault(access.place, [(self.initial, {})])
        newest = len(writes) - 1
        if access.write is None:
            number = random.randint(view.get(access.place, 0), newest)
            value, carried = writes[number]
            view[access.place] = number
            if access.order == ORDERED:
                _join(view, carried)
            self._note(thread, access, value, newest - number)
            return value
        updates = callable(access.write)
        old, carried = writes[newest]
        value = access.write(old) if updates else access.write
        if updates and access.order == ORDERED:
            _join(view, carried)
        view[access.place] = newest + 1
        writes.append((value, _carried(view, access, carried if updates else {})))
        self._note(thread, access, value, 0)
        return old

    def _note(self, thread: int, access: Access, value: Any, newer: int) -> None:
        if self.keep:
            self.events.append(Event(thread, access, value, newer))


def _carried(view: View, access: Access, before: View) -> View:
    """What a write carries: what its writer knows if it releases, and what the write carried that an update replaces."""
    carried = dict(view) if access.order == ORDERED else {}
    _join(carried, before)
    return carried


def _join(view: View, other: View) -> None:
    """Know what the other knows, too."""
    for place, number in other.items():
        view[place] = max(view.get(place, 0), number)


def run_threads(threads: Iterable[Thread], memory: Memory, seed: int, *, max_events: int = 1_000_000) -> list[Any]:
    """Run threads to their ends in an order that the seed draws; returns what each one returns.

    Raises:
        BadInput: they had not ended after `max_events` accesses: they wait for something that does not come.
    """
    running = dict(enumerate(threads))
    views: dict[int, View] = {number: {} for number in running}
    results, random, sent = [None] * len(running), Random(seed), dict.fromkeys(running)
    for _ in range(max_events):
        if not running:
            return results
        number = random.choice(list(running))
        try:
            access = running[number].send(sent[number])
        except StopIteration as end:
            results[number] = end.value
            del running[number]
            continue
        sent[number] = memory.perform(number, views[number], access, random)
    raise BadInput(f"{len(running)} of {len(results)} threads had not ended after {max_events:,} accesses: they wait for something that does not come")
