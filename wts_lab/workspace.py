"""What one walk writes on the device: exchange words, words of a recurrent state, and the control block.

A workspace belongs to one grid, one kernel and one stream. The layout of the words is `csrc/walk/exchange.cuh`'s: units of 16
bytes, and a table of the line that each unit lies on. ``EXCHANGES`` names the tables:

- ``near-lines``: a line for each unit, those that a first read after another multiprocessor's write reaches soonest, measured here;
- ``spread-lines``: a line for each unit, a kilobyte apart, as they come;
- ``dense-lines``: units one behind the other, eight a line.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from cost_model.workload import EXCHANGES, require_word
from wts_lab import abi
from wts_lab.build import build_workspace

STEP_BYTES = 1024
"""Distance of candidate lines: nearer ones meet in the same slices of L2."""

CANDIDATES_A_LINE = 4
"""Lines measured for each one needed; on an H200 about half of them are near to all multiprocessors."""

READERS = 33
"""Multiprocessors that time every candidate, evenly spread over the grid."""


@dataclass(frozen=True)
class Workspace:
    """Buffers of one walk, zeroed: ``slots`` uint8, ``places`` int32 ``[2, rows, units]`` byte offsets in slots, ``states`` int64,
    ``control`` int32."""

    slots: torch.Tensor
    places: torch.Tensor
    states: torch.Tensor
    control: torch.Tensor

    @classmethod
    def make(cls, spec: abi.WalkSpec, grid_blocks: int, exchange: str, device: torch.device, arch: str, *, log=None) -> Workspace:
        """A workspace of a kernel's grid on a device of an architecture such as ``sm_90``.

        Raises ``BadInput`` for an exchange that is not in ``EXCHANGES``, :class:`wts_lab.build.BuildError`, and ``RuntimeError``
        where the lines cannot be measured.
        """
        require_word("exchange", exchange, EXCHANGES)
        shape = (2, spec.rows, -(-grid_blocks // blocks_of_unit(spec.wide)))
        count = shape[0] * shape[1] * shape[2]
        if exchange == "dense-lines":
            offsets = torch.arange(count) * abi.CONSTANTS["kUnitBytes"]
            slots = torch.zeros(count * abi.CONSTANTS["kUnitBytes"], dtype=torch.uint8, device=device)
        else:
            candidates = count * (CANDIDATES_A_LINE if exchange == "near-lines" else 1)
            slots = torch.zeros(candidates * STEP_BYTES, dtype=torch.uint8, device=device)
            order = torch.arange(count)
            if exchange == "near-lines":
                order = first_read_clocks(slots, candidates, grid_blocks, device, arch, log=log).topk(count, largest=False).indices.sort().values
            offsets = order * STEP_BYTES
            slots.zero_()
        return cls(
            slots, offsets.to(torch.int32).view(shape).to(device), torch.zeros(state_words(spec), dtype=torch.int64, device=device),
            torch.zeros(abi.CONSTANTS["kControlWords"], dtype=torch.int32, device=device),
        )

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


def first_read_clocks(slots: torch.Tensor, lines: int, grid_blocks: int, device: torch.device, arch: str, *, log=None) -> torch.Tensor:
    """float32 ``[lines]`` on the CPU: mean clocks of a first read after a write, over ``READERS`` multiprocessors.

    A reading that something else delayed counts as 1,024 clocks at most. Raises ``RuntimeError`` where the launch fails.
    """
    library = ctypes.CDLL(str(build_workspace(arch, log=log).library))
    library.wts_workspace_error.restype = ctypes.c_char_p
    readers = min(READERS, grid_blocks)
    clocks = torch.zeros((readers, lines), dtype=torch.int32, device=device)
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        pointers = [ctypes.c_void_p(value) for value in (slots.data_ptr(), clocks.data_ptr(), stream)]
        error = library.wts_first_reads(pointers[0], lines, STEP_BYTES, grid_blocks, readers, pointers[1], pointers[2])
    if error:
        raise RuntimeError(f"the lines of the exchange could not be measured: {library.wts_workspace_error(error).decode()}")
    return clocks.clamp(max=1024).float().mean(0).cpu()
