"""Words of the exchange: what each block publishes for a batch row, in 32 or in 64 bits, and the epoch that tells old words from new.

A word is one number: an ordered value above, an inverted row below it, and the epoch in the last bits, which all words of an exchange share. So the
largest word has the largest value and, among equals, the lowest row (`csrc/walk/word.cuh`, `wts_lab.reference.ordered_value`).

    narrow, 32 bits: bf16 value 16 | inverted row in the block 11 | epoch 5; the block is known from where the word lies
    wide, 64 bits:   fp32 value 32 | inverted row of the vocabulary 20 | epoch 12
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_model.errors import BadInput
from cost_model.head import MAX_VOCAB_SIZE
from wts_lab.abi import CONSTANTS


@dataclass(frozen=True)
class WordLayout:
    """Fields of a word: ``name``, and how many bits value, row and epoch have."""

    name: str
    value_bits: int
    row_bits: int
    epoch_bits: int

    @property
    def bits(self) -> int:
        """Of a whole word."""
        return self.value_bits + self.row_bits + self.epoch_bits

    @property
    def epochs(self) -> int:
        """Epochs after which the field comes round."""
        return 1 << self.epoch_bits

    @property
    def in_unit(self) -> int:
        """Words that are read together, 16 bytes."""
        return 8 * CONSTANTS["kUnitBytes"] // self.bits

    def pack(self, value: int, row: int, epoch: int) -> int:
        """The word of an ordered value and a row; of the epoch its last bits.

        Raises:
            BadInput: value or row has more bits than its field, or the epoch is below 0.
        """
        for what, number, bits in (("ordered value", value, self.value_bits), ("row", row, self.row_bits)):
            if not 0 <= number < 1 << bits:
                raise BadInput(f"the {what} of a {self.name} word has {bits} bits, 0 to {(1 << bits) - 1:,}; got {number}")
        if epoch < 0:
            raise BadInput(f"epochs count from 0; got {epoch}")
        inverted = (1 << self.row_bits) - 1 - row
        return (value << self.row_bits | inverted) << self.epoch_bits | self.tag(epoch)

    def unpack(self, word: int) -> tuple[int, int, int]:
        """Ordered value, row, and the last bits of the epoch."""
        above = word >> self.epoch_bits
        return above >> self.row_bits, (1 << self.row_bits) - 1 - (above & (1 << self.row_bits) - 1), self.tag(word)

    def tag(self, epoch: int) -> int:
        """What a word carries of an epoch."""
        return epoch & self.epochs - 1


NARROW = WordLayout("narrow", 16, CONSTANTS["kNarrowRows"].bit_length() - 1, CONSTANTS["kNarrowEpochBits"])
WIDE = WordLayout("wide", 32, MAX_VOCAB_SIZE.bit_length() - 1, CONSTANTS["kEpochBits"])
LAYOUTS = (NARROW, WIDE)
"""Both kinds, with the widths that the kernel is built with."""
