"""Stress of the exchange: millions of exchanges with late blocks and words that are hard to tell apart, each checked by every block.

No tool sees races through global memory, so a kernel provokes them (`csrc/stress/exchange.cu`): it drives the walk's own `Exchange`,
delays blocks at random, and compares every winner with what a counter-based generator says that all blocks published. Launches are
long and short in turn, of changing batch, so that epochs wrap and rows fall out and come back at every distance.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from cost_model.errors import BadInput
from cost_model.units import us_from_ns
from cost_model.workload import DEFAULT_EXCHANGE

ROWS = (1, 2, 4, 8, 16, 32)
"""Batch rows that a walk is built for."""

LONG_ROUNDS = 4096
SHORT_ROUNDS = 64
SHORT_LAUNCHES = 16
VOLLEY = 1 + SHORT_LAUNCHES
"""Launches between two looks at the counts: a long one and the short ones after it."""

VOCAB_TILES = 9496
"""Tiles of 16 rows that the blocks share, unevenly: those of 151,936 rows."""

MAX_POLLS = 1 << 20
"""Bound of a wait: half a second, far beyond any delay."""


@dataclass(frozen=True)
class StressResult:
    """What came of it.

    Attributes:
        exchanges: winners that all blocks had to agree on: batch rows times rounds.
        mismatches: winners that differ from the expected ones, of one block each.
        stalls: waits that ran out, of one leader each.
        grid_blocks: blocks that took part.
        samples_us: time of a round, delays included, one sample a volley of launches.
    """

    exchanges: int
    mismatches: int
    stalls: int
    grid_blocks: int
    samples_us: tuple[float, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return self.exchanges > 0 and self.mismatches == self.stalls == 0

    @property
    def matching_share(self) -> float:
        """Share of the winners, as every block saw them, that were the expected ones."""
        return 1 - self.mismatches / max(1, self.exchanges * self.grid_blocks)


def launch_plan(rows: int, rng: Random) -> Iterator[tuple[int, int]]:
    """Yield (rounds, batch) of one launch after another, for ever."""
    while True:
        yield LONG_ROUNDS + rng.randrange(SHORT_ROUNDS), rng.randint(1, rows)
        for _ in range(SHORT_LAUNCHES):
            yield rng.randint(1, SHORT_ROUNDS), rng.randint(1, rows)


def build_stress(arch: str, *, log: Any = None) -> Any:
    """Build the library of stress kernels for an architecture; errors as :func:`wts_lab.build.compile_library`."""
    from wts_lab import abi
    from wts_lab.build import compile_library

    root = abi.csrc_root()
    folders = tuple(root / name for name in ("walk", "probes", "stress"))
    return compile_library("wts-stress", sorted((root / "stress").glob("*.cu")), arch, folders, log=log)


def stress_exchange(
    *, seconds: float | None = None, rounds: int | None = None, rows: int = 1, wide: bool = False, exchange: str = DEFAULT_EXCHANGE,
    seed: int = 0, checked_seed: int | None = None, missing_blocks: int = 0, max_polls: int = MAX_POLLS, log: Any = None,
) -> StressResult:
    """Exchange words on the current CUDA device for that many seconds or at least that many rounds; ends early after a stall.

    Args:
        rows: largest batch, one of ROWS; launches walk 1 to that many rows.
        wide: 64-bit words in place of 32-bit ones.
        exchange: where the words lie, see :mod:`wts_lab.workspace`.
        seed: of words, delays, launches; any 64-bit number.
        checked_seed: another seed shows that the check can fail.
        missing_blocks: blocks to wait for that are not there; one or more shows that waits end.
        max_polls: looks at the words before a wait gives up.

    Raises:
        BadInput: not exactly one of seconds and rounds, rows or exchange that no walk has.
        BuildError: the kernel cannot be built.
        RuntimeError: a launch failed.
    """
    if rows not in ROWS:
        raise BadInput(f"rows is {rows}; a walk is built for {', '.join(map(str, ROWS))}")
    if (seconds is None) == (rounds is None):
        raise BadInput("give seconds or rounds: how long to go on")
    words = _StressedWords(rows, wide, exchange, seed, seed if checked_seed is None else checked_seed, missing_blocks, max_polls, log)
    plan, done, exchanges, samples_us = launch_plan(rows, Random(seed)), 0, 0, []
    end = time.perf_counter() + (seconds or 0.0)
    while words.stalls == 0 and (done < rounds if rounds is not None else time.perf_counter() < end):
        volley = list(islice(plan, VOLLEY))
        samples_us.append(words.run(volley))
        done += sum(count for count, _ in volley)
        exchanges += sum(count * batch for count, batch in volley)
    return StressResult(exchanges, words.mismatches, words.stalls, words.grid_blocks, tuple(samples_us))


class _StressedWords:
    """A workspace and the kernel that stresses it."""

    def __init__(
        self, rows: int, wide: bool, exchange: str, seed: int, checked_seed: int, missing_blocks: int, max_polls: int, log: Any
    ) -> None:
        import torch

        from wts_lab.probe_library import exchange_spec
        from wts_lab.walk import device_arch
        from wts_lab.workspace import Workspace

        device = torch.device("cuda", torch.cuda.current_device())
        arch = device_arch(device)
        self._torch, self._rows, self._wide, self._max_polls = torch, rows, wide, max_polls
        self._seeds = [ctypes.c_uint64(value % (1 << 64)) for value in (seed, checked_seed)]
        self.grid_blocks = torch.cuda.get_device_properties(device).multi_processor_count
        self._expected_blocks = self.grid_blocks + missing_blocks
        self._library = ctypes.CDLL(str(build_stress(arch, log=log).library))
        self._library.wts_stress_error.restype = ctypes.c_char_p
        self._workspace = Workspace.make(exchange_spec(rows, wide), self.grid_blocks, exchange, device)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._epoch, self.mismatches, self.stalls = 1, 0, 0

    def run(self, volley: list[tuple[int, int]]) -> float:
        """Launch all of a volley and wait for it; returns the time of one round in microseconds and updates the counts."""
        start = time.perf_counter_ns()
        for rounds, batch in volley:
            self._launch(rounds, batch)
        self.mismatches, self.stalls = self._counts.tolist()
        return us_from_ns(time.perf_counter_ns() - start) / sum(rounds for rounds, _ in volley)

    def _launch(self, rounds: int, batch: int) -> None:
        stream = self._torch.cuda.current_stream().cuda_stream
        slots, counts = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (self._workspace.slots, self._counts))
        numbers = (self.grid_blocks, self._expected_blocks, VOCAB_TILES, self._rows, int(self._wide), batch, rounds)
        error = self._library.wts_stress_exchange(
            slots, self._workspace.unit_stride, counts, *map(ctypes.c_int, numbers), ctypes.c_uint32(self._epoch), *self._seeds,
            ctypes.c_uint32(self._max_polls), ctypes.c_void_p(stream),
        )
        if error:
            raise RuntimeError(f"the exchange could not be stressed: {self._library.wts_stress_error(error).decode()}")
        self._epoch = (self._epoch + rounds) % (1 << 32)
