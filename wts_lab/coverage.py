"""Where each vocabulary row lives in the kernel, and which of those places have won a step.

The tiles of 16 rows are dealt out in order: block ``b`` of ``grid`` owns tiles ``floor(b·T/grid)`` up to ``floor((b+1)·T/grid)``;
tile ``i`` of a block belongs to warp ``i mod warps``, slot ``i div warps``. In the epilogue one lane of the warp finishes a slot's
row pair ``2 g, 2 g + 1``: lane ``4 g + column``, the column given by :func:`wts_lab.abi.slot_column`.

Random weights let the same few blocks win, so a test of selection must know what has won: :func:`cover` counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_model.errors import BadInput
from cost_model.terms import TILE_ROWS
from wts_lab.abi import slot_column

LANES_A_ROW_PAIR = 4

PLACES = ("block", "warp", "block_warp", "slot", "row", "slot_row", "lane")
"""What every planted set must cover: blocks; warps; warps of each block; slots of each warp; rows in a tile; rows in each
slot; lanes of each warp. ``tile`` (each tile of the vocabulary) is reported too, and covered where it was asked for."""


@dataclass(frozen=True)
class Layout:
    """How ``vocab_size`` rows are spread over ``grid_blocks`` blocks of ``warps`` warps."""

    vocab_size: int
    grid_blocks: int
    warps: int

    def __post_init__(self) -> None:
        for name in ("vocab_size", "grid_blocks", "warps"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} of a layout must be at least 1; got {getattr(self, name)}")

    @property
    def tiles(self) -> int:
        """Tiles of the whole vocabulary."""
        return -(-self.vocab_size // TILE_ROWS)

    @cached_property
    def first_tiles(self) -> np.ndarray:
        """int64 ``[grid_blocks + 1]``: first tile of each block, and the end."""
        return np.arange(self.grid_blocks + 1) * self.tiles // self.grid_blocks

    @property
    def slots(self) -> int:
        """Tiles of the fullest warp."""
        return -(-int(np.diff(self.first_tiles).max()) // self.warps)

    def locate(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Arrays ``block, warp, slot, row, tile`` (int64, ``row`` within its tile) of vocabulary rows."""
        tile = np.asarray(rows, dtype=np.int64) // TILE_ROWS
        block = np.searchsorted(self.first_tiles, tile, side="right") - 1
        local = tile - self.first_tiles[block]
        return {
            "block": block,
            "warp": local % self.warps,
            "slot": local // self.warps,
            "row": np.asarray(rows) % TILE_ROWS,
            "tile": tile,
        }

    def row_of(self, block: int, warp: int, slot: int, row: int) -> int:
        """Vocabulary row of a place, or −1 where the block has no such tile or the vocabulary ends before it."""
        tile = self.first_tiles[block] + slot * self.warps + warp
        vocab_row = int(tile) * TILE_ROWS + row
        return vocab_row if tile < self.first_tiles[block + 1] and vocab_row < self.vocab_size else -1


@dataclass(frozen=True)
class Coverage:
    """Places that won and places that never did, by kind of place; a place is a tuple, such as ``(warp, slot)``."""

    won: dict[str, int]
    missing: dict[str, tuple[tuple[int, ...], ...]]

    @property
    def complete(self) -> bool:
        """Whether every kind in ``PLACES`` is covered."""
        return not any(self.missing[kind] for kind in PLACES)

    def describe(self) -> str:
        """One line for an assertion: what is missing, with a few examples."""
        parts = [
            f"{kind}: {len(places)} of {len(places) + self.won[kind]} never won, such as {', '.join(map(str, places[:3]))}"
            for kind, places in self.missing.items()
            if places and kind in PLACES
        ]
        return "; ".join(parts) or "every place has won"


def cover(draft_ids: np.ndarray, layout: Layout) -> Coverage:
    """What has won among ``draft_ids`` (any shape, rows of ``W2``), against all that the layout has.

    :raises BadInput: an id outside the vocabulary.
    """
    ids = np.asarray(draft_ids, dtype=np.int64).reshape(-1)
    if len(ids) and (ids.min() < 0 or ids.max() >= layout.vocab_size):
        raise BadInput(f"draft ids must be 0 to {layout.vocab_size - 1}; got {ids.min()} to {ids.max()}")
    everywhere, winners = _marks(np.arange(layout.vocab_size), layout), _marks(ids, layout)
    won = {kind: int(marks.sum()) for kind, marks in winners.items()}
    missing = {kind: tuple(map(tuple, np.argwhere(everywhere[kind] & ~winners[kind]).tolist())) for kind in everywhere}
    return Coverage(won, missing)


def _marks(rows: np.ndarray, layout: Layout) -> dict[str, np.ndarray]:
    """For each kind of place a boolean array over its coordinates: true where one of ``rows`` lives."""
    at = layout.locate(rows)
    columns = np.array([slot_column(slot, layout.slots) for slot in range(layout.slots)])
    at["lane"] = LANES_A_ROW_PAIR * (at["row"] // 2) + columns[at["slot"]]
    sizes = {"block": layout.grid_blocks, "warp": layout.warps, "slot": layout.slots, "row": TILE_ROWS, "lane": 32, "tile": layout.tiles}
    coordinates = {
        "block": ("block",),
        "warp": ("warp",),
        "block_warp": ("block", "warp"),
        "slot": ("warp", "slot"),
        "row": ("row",),
        "slot_row": ("warp", "slot", "row"),
        "lane": ("warp", "lane"),
        "tile": ("tile",),
    }
    marks = {}
    for kind, names in coordinates.items():
        marks[kind] = np.zeros([sizes[name] for name in names], dtype=bool)
        marks[kind][tuple(at[name] for name in names)] = True
    return marks
