"""What one walk writes on the device: exchange words, words of a recurrent state, and the control block.

A workspace belongs to one grid, one kernel and one stream. The layout of the words is `csrc/walk/exchange.cuh`'s: units of 16
bytes, one distance apart. ``EXCHANGES`` names the distances:

- ``spread-lines``: a cache line for each unit;
- ``dense-lines``: units one behind the other, eight a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cost_model.workload import EXCHANGES, require_word
from wts_lab import abi

UNIT_STRIDES = {"spread-lines": 128, "dense-lines": abi.CONSTANTS["kUnitBytes"]}
"""Bytes from one unit to the next."""


@dataclass(frozen=True)
class Workspace:
    """Buffers of one walk, zeroed: ``slots`` uint8 ``[2 rows units, unit_stride]`` flat, ``states`` int64, ``control`` int32."""

    slots: torch.Tensor
    unit_stride: int
    states: torch.Tensor
    control: torch.Tensor

    @classmethod
    def make(cls, spec: abi.WalkSpec, grid_blocks: int, exchange: str, device: torch.device) -> Workspace:
        """A workspace of a kernel's grid on a device.

        Raises ``BadInput`` for an exchange that is not in ``EXCHANGES``.
        """
        require_word("exchange", exchange, EXCHANGES)
        units, stride = 2 * spec.rows * -(-grid_blocks // blocks_of_unit(spec.wide)), UNIT_STRIDES[exchange]
        return cls(
            torch.zeros(units * stride, dtype=torch.uint8, device=device), stride,
            torch.zeros(state_words(spec), dtype=torch.int64, device=device),
            torch.zeros(abi.CONSTANTS["kControlWords"], dtype=torch.int32, device=device),
        )  # fmt: skip

    def clear(self) -> None:
        """Zeroes every word and the control block: epochs start again."""
        for buffer in (self.slots, self.states, self.control):
            buffer.zero_()


def blocks_of_unit(wide: bool) -> int:
    """Blocks whose words share a unit: four 32-bit words, or two of 64 bits."""
    return abi.CONSTANTS["kUnitBytes"] // (8 if wide else 4)


def state_words(spec: abi.WalkSpec) -> int:
    """64-bit words of the state exchange (`csrc/walk/recurrent.cuh`): two buffers of 3 rank (RNN) or 3 gru + rank (Domino) a batch row."""
    words = {"rnn": 3 * spec.rank, "domino": 3 * spec.gru + spec.rank}.get(spec.head, 0)
    return 2 * spec.rows * words
