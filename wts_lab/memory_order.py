"""What the exchange needs of the memory, and who gives it: the PTX memory model, the launch, or the hardware.

The accesses are read from the kernel's source, so what is said here of widths follows it. The rules are those of the PTX ISA, "Memory consistency model", formalised by
Lustig, Sahasrabuddhe and Giroux ("A formal analysis of the NVIDIA PTX memory consistency model", ASPLOS 2019).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_model.errors import BadInput
from cost_model.paths import resource_root
from wts_lab.words import LAYOUTS, WIDE, WordLayout

PTX, LAUNCH, HARDWARE, NOBODY = "PTX memory model", "cooperative launch", "hardware", "nobody, not needed"
_ACCESS = re.compile(r'void store_word\((\w+)\* [^"]*"(st\.[\w.]+)|(load_word_pair|load_unit)\([^"]*"(ld\.[\w.]+)')


@dataclass(frozen=True)
class ExchangeAccess:
    """One instruction that words are written or read with: the ``function`` of `csrc/walk/ptx.cuh`, and the ``instruction``."""

    function: str
    instruction: str

    @property
    def element_bits(self) -> int:
        """Of one element: what the memory model treats as one operation."""
        return int(re.search(r"u(\d+)$", self.instruction)[1])

    @property
    def elements(self) -> int:
        """Elements of a vector access; 1 of a scalar one."""
        found = re.search(r"\.v(\d)\.", self.instruction)
        return int(found[1]) if found else 1

    @property
    def is_load(self) -> bool:
        """Whether it reads."""
        return self.instruction.startswith("ld.")


@dataclass(frozen=True)
class Need:
    """One thing that the exchange stands on: ``what``, ``given_by`` whom, and ``why`` that is enough."""

    what: str
    given_by: str
    why: str


def exchange_accesses() -> tuple[ExchangeAccess, ...]:
    """Every instruction for words, as the kernel's source has it.

    Raises:
        BadInput: the source no longer has them where this module looks.
        MissingFiles: `csrc` is not there.
    """
    text = (resource_root("csrc") / "walk" / "ptx.cuh").read_text("utf-8")
    found = [ExchangeAccess("store_word" if store else function, store or load) for _, store, function, load in _ACCESS.findall(text)]
    if {access.is_load for access in found} != {True, False}:
        raise BadInput("csrc/walk/ptx.cuh has no store_word, or no load of words, with an instruction of PTX in it; wts_lab/memory_order.py looks for them")
    return tuple(found)


def read_whole(layout: WordLayout) -> bool:
    """Whether the exchange reads these words with elements exactly as wide as they were written, which PTX wants for single-copy atomicity."""
    text = (resource_root("csrc") / "walk" / "exchange.cuh").read_text("utf-8")
    return any(access.element_bits == layout.bits for access in exchange_accesses() if access.is_load and f"{access.function}(" in text)


def exchange_needs() -> tuple[Need, ...]:
    """What the kernel's exchange needs, in the order in which a word travels."""
    whole = "relaxed accesses of one width that overlap completely are single-copy atomic, also as elements of a vector"
    halves = (f"written as {WIDE.bits} bits and read in elements of another width, for which PTX promises nothing; the hardware serves 16 aligned bytes at once, "
              "and the stress test would see halves that do not belong together")
    return (
        Need("all blocks run at once", LAUNCH, "blocks that wait for each other must be resident; the launch is refused where they cannot be"),
        *(Need(f"a {layout.name} word is seen whole", *((PTX, whole) if read_whole(layout) else (HARDWARE, halves))) for layout in LAYOUTS),
        Need("a reader never goes back to an older word", PTX, "coherence: all agree on the order of the writes to one location"),
        Need("words are in order with each other", NOBODY, "each carries its own epoch, so any of them may come first; a vector load's elements have no order either"),
        Need("something else is published through a word", NOBODY, "token and value are in the word itself, and the tables never change; so no release and no acquire"),
        Need("no word is overwritten before all have read it", PTX, "a block writes epoch e + 2 where e was only after it has read every word of e + 1, each of which depends on a "
             "complete reading of e; a reader that missed e would have had to cause the write that made it miss e, which is a value out of thin air"),
        Need("a word arrives in the end", HARDWARE, "PTX bounds no delay; every wait counts its looks, and reports a stall when they run out"),
    )  # fmt: skip
