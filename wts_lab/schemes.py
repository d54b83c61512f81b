"""How blocks agree on a token: the two schemes of exchange as small programs, run in a memory that is as weak as relaxed accesses allow.

*Words*: each block has a word of its own and writes it; everybody reads all words and takes their maximum. That is the kernel's scheme
(`csrc/walk/exchange.cuh`). A word carries its epoch, so nothing has to be in order with anything else.

*Maximum*: all blocks update one maximum and one count of arrivals, wait for the count, and take the maximum. That is the published scheme
(Weights That Stay, figure 8). Key and count are two things, so it takes more than relaxed accesses, or the assumption that one load sees both.

`check_scheme` runs a scheme in many orders of events and compares every block's winners with what all blocks offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from cost_model.errors import BadInput
from cost_model.workload import require_whole
from wts_lab.weak_memory import ORDERED, RELAXED, Access, Event, Memory, Thread, run_threads
from wts_lab.words import NARROW, WIDE

ROWS_A_BLOCK = 8
VALUES = 6
"""So few values that ties are common, across blocks too."""

NOBODY = ((0, 0, 0), 0)
"""Key and count before anybody came; every key is larger."""


@dataclass(frozen=True)
class Offer:
    """A block's best of an epoch: an ordered ``value`` and a ``row`` of its own, from 0."""

    value: int
    row: int


Offers = Callable[[int, int], Offer]
"""(epoch, block) -> offer."""


@dataclass(frozen=True)
class Scheme:
    """One way to agree.

    Attributes:
        name, about: what it is, and what it needs of the memory.
        thread: (block, blocks, epochs, offers) -> the block's program, which returns its winners as (value, row of the vocabulary).
    """

    name: str
    about: str
    thread: Callable[[int, int, int, Offers], Thread]


@dataclass(frozen=True)
class Checked:
    """What came of many orders of events.

    Attributes:
        scheme: which.
        exchanges: that all blocks took part in.
        wrong: of them, those after which at least one block had another winner than the right one.
    """

    scheme: Scheme
    exchanges: int
    wrong: int


def drawn_offers(seed: int) -> Offers:
    """Offers that a seed draws, the same for everybody who asks."""

    def offer(epoch: int, block: int) -> Offer:
        random = Random(f"{seed}/{epoch}/{block}")
        return Offer(random.randrange(1, VALUES + 1), random.randrange(ROWS_A_BLOCK))

    return offer


def right_winner(offers: Offers, epoch: int, blocks: int) -> tuple[int, int]:
    """The largest value of an epoch and, among equals, the lowest row of the vocabulary."""
    found = [(offers(epoch, block), block) for block in range(blocks)]
    return max(((offer.value, block * ROWS_A_BLOCK + offer.row) for offer, block in found), key=lambda pair: (pair[0], -pair[1]))


# --- the schemes ----------------------------------------------------------------------------------------------------------


def _words(block: int, blocks: int, epochs: int, offers: Offers) -> Thread:
    """A word each, with its epoch inside; two buffers by the parity of the epoch."""
    winners = []
    for epoch in range(1, epochs + 1):
        offer = offers(epoch, block)
        yield Access(("word", epoch & 1, block), NARROW.pack(offer.value, offer.row, epoch))
        seen = []
        for other in range(blocks):
            word = yield Access(("word", epoch & 1, other))
            while NARROW.tag(word) != NARROW.tag(epoch):
                word = yield Access(("word", epoch & 1, other))
            value, row, _ = NARROW.unpack(word)
            seen.append((value, -(other * ROWS_A_BLOCK + row)))
        value, row = max(seen)
        winners.append((value, -row))
    return winners


def _torn_words(block: int, blocks: int, epochs: int, offers: Offers) -> Thread:
    """Wide words whose halves are two accesses: the epoch lies in the lower one, the value in the upper one."""
    winners, half = [], WIDE.bits // 2
    for epoch in range(1, epochs + 1):
        offer = offers(epoch, block)
        word = WIDE.pack(offer.value, block * ROWS_A_BLOCK + offer.row, epoch)
        yield Access(("upper", epoch & 1, block), word >> half)
        yield Access(("lower", epoch & 1, block), word & (1 << half) - 1)
        seen = []
        for other in range(blocks):
            lower = 0
            while WIDE.tag(lower) != WIDE.tag(epoch):
                lower = yield Access(("lower", epoch & 1, other))
            upper = yield Access(("upper", epoch & 1, other))
            seen.append(upper << half | lower)
        winners.append(WIDE.unpack(max(seen))[:2])
    return winners


def _maximum(order: str) -> Callable[[int, int, int, Offers], Thread]:
    """One maximum by the parity of the epoch and one count of arrivals, updated and read one after the other."""

    def thread(block: int, blocks: int, epochs: int, offers: Offers) -> Thread:
        winners = []
        for epoch in range(1, epochs + 1):
            yield Access(("maximum", epoch & 1), _largest(_key(offers, epoch, block)))
            yield Access("count", _one_more, order)
            arrived = 0
            while arrived < epoch * blocks:
                arrived = yield Access("count", order=order)
            winners.append(_winner((yield Access(("maximum", epoch & 1)))))
        return winners

    return thread


def _together(block: int, blocks: int, epochs: int, offers: Offers) -> Thread:
    """The same with key and count in one place, seen by one load: the assumption about the hardware."""
    winners = []
    for epoch in range(1, epochs + 1):
        place, rounds = ("both", epoch & 1), (epoch + 1) // 2
        yield Access(place, _with_key(_key(offers, epoch, block)))
        yield Access(place, _with_one_more)
        key, arrived = NOBODY
        while arrived < rounds * blocks:
            key, arrived = (yield Access(place)) or NOBODY
        winners.append(_winner(key))
    return winners


def _key(offers: Offers, epoch: int, block: int) -> tuple[int, int, int]:
    """What the maximum is taken of: later epochs above, then the value, then the lower row."""
    offer = offers(epoch, block)
    return epoch, offer.value, -(block * ROWS_A_BLOCK + offer.row)


def _winner(key: tuple[int, int, int] | int) -> tuple[int, int] | None:
    """Value and row of a key; None where nothing was seen yet."""
    return (key[1], -key[2]) if key else None


def _largest(key: tuple[int, int, int]) -> Callable:
    return lambda old: max(old or key, key)


def _one_more(count: int) -> int:
    return count + 1


def _with_key(key: tuple[int, int, int]) -> Callable:
    return lambda pair: (max((pair or NOBODY)[0], key), (pair or NOBODY)[1])


def _with_one_more(pair: tuple) -> tuple:
    return pair[0], pair[1] + 1


SCHEMES = (
    Scheme("words", "a word of its own for each block, epoch inside; relaxed accesses", _words),
    Scheme("words in halves", "64-bit words, if a load could see their halves at different times", _torn_words),
    Scheme("maximum, relaxed", "one maximum and one count; relaxed accesses", _maximum(RELAXED)),
    Scheme("maximum, release and acquire", "the count is updated and read with release and acquire", _maximum(ORDERED)),
    Scheme("maximum and count in one load", "relaxed accesses, and the assumption that one load sees both at once", _together),
)
"""Both schemes: the kernel's and the published one, each with what it would be without its rule."""


def scheme_named(name: str) -> Scheme:
    """The scheme of that name; raises BadInput, listing the names."""
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    raise BadInput(f"no scheme is called {name!r}; there are {', '.join(scheme.name for scheme in SCHEMES)}")


# --- running them ---------------------------------------------------------------------------------------------------------


def winners_of(scheme: Scheme, blocks: int, epochs: int, seed: int, memory: Memory | None = None) -> list[list]:
    """Winners of every block, epoch by epoch, in the order of events of a seed."""
    offers = drawn_offers(seed)
    return run_threads((scheme.thread(block, blocks, epochs, offers) for block in range(blocks)), memory or Memory(), seed)


def _wrong_epochs(scheme: Scheme, blocks: int, epochs: int, seed: int) -> Iterator[int]:
    offers, winners = drawn_offers(seed), winners_of(scheme, blocks, epochs, seed)
    for epoch in range(1, epochs + 1):
        if any(own[epoch - 1] != right_winner(offers, epoch, blocks) for own in winners):
            yield epoch


def check_scheme(scheme: Scheme, *, blocks: int = 4, epochs: int = 40, seeds: int = 25) -> Checked:
    """Run a scheme in so many orders of events; 40 epochs take the narrow words' epoch field round once.

    Raises:
        BadInput: a count below 1.
    """
    for name, count in (("blocks", blocks), ("epochs", epochs), ("seeds", seeds)):
        require_whole(name, count, 1, None)
    wrong = sum(1 for seed in range(seeds) for _ in _wrong_epochs(scheme, blocks, epochs, seed))
    return Checked(scheme, seeds * epochs, wrong)


def first_fault(scheme: Scheme, *, blocks: int = 2, seeds: int = 1000) -> tuple[tuple[int, int], list[Event]]:
    """The right winner, and the events of the first order of one epoch in which a scheme finds another.

    Raises:
        BadInput: no order of those that were tried goes wrong.
    """
    for seed in range(seeds):
        if next(_wrong_epochs(scheme, blocks, 1, seed), None) is not None:
            memory = Memory(keep=True)
            winners_of(scheme, blocks, 1, seed, memory)
            return right_winner(drawn_offers(seed), 1, blocks), memory.events
    raise BadInput(f"{scheme.name}: none of {seeds:,} orders of events goes wrong with {blocks} blocks; there is no fault to show")
