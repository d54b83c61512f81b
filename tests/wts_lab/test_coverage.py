"""Where rows live in the kernel: the placement rule written out row by row, and what coverage counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from cost_model.errors import BadInput
from wts_lab.abi import slot_column
from wts_lab.coverage import PLACES, Layout, cover

layouts = st.builds(Layout, st.integers(1, 3000), st.integers(1, 12), st.integers(1, 9))


def places_by_loops(layout: Layout) -> dict[int, tuple[int, int, int, int]]:
    """(block, warp, slot, row in tile) of every vocabulary row, straight from the rule."""
    tiles = -(-layout.vocab_size // 16)
    places = {}
    for block in range(layout.grid_blocks):
        first, end = block * tiles // layout.grid_blocks, (block + 1) * tiles // layout.grid_blocks
        for i, tile in enumerate(range(first, end)):
            for row in range(16):
                if 16 * tile + row < layout.vocab_size:
                    places[16 * tile + row] = (block, i % layout.warps, i // layout.warps, row)
    return places


@given(layouts)
def test_locate_and_row_of_follow_the_rule(layout):
    expected = places_by_loops(layout)
    assert sorted(expected) == list(range(layout.vocab_size)), "every row has exactly one place"
    at = layout.locate(np.arange(layout.vocab_size))
    found = list(zip(*(at[name].tolist() for name in ("block", "warp", "slot", "row")), strict=True))
    assert found == [expected[row] for row in range(layout.vocab_size)]
    assert [layout.row_of(*place) for place in found] == list(range(layout.vocab_size))
    assert layout.slots == max(slot for _, _, slot, _ in found) + 1


def test_places_that_do_not_exist_have_no_row():
    layout = Layout(40, 2, 2)  # three tiles: one in block 0, two in block 1, the last with 8 rows
    assert layout.row_of(0, 1, 0, 0) == -1
    assert layout.row_of(1, 1, 0, 7) == 39 and layout.row_of(1, 1, 0, 8) == -1


def test_everything_covers_and_one_warp_less_is_named():
    layout = Layout(1000, 4, 3)
    rows = np.arange(1000)
    assert cover(rows, layout).complete and cover(rows, layout).describe() == "every place has won"
    at = layout.locate(rows)
    coverage = cover(rows[~((at["warp"] == 2) & (at["block"] == 1))], layout)
    assert not coverage.complete and coverage.missing["block_warp"] == ((1, 2),)
    assert coverage.missing["warp"] == coverage.missing["block"] == ()
    assert "block_warp: 1 of 12 never won, such as (1, 2)" in coverage.describe()


def test_lanes_are_those_that_finish_a_row_pair():
    layout = Layout(16 * 20, 1, 2)
    row = layout.row_of(0, 1, 7, 11)
    coverage = cover(np.array([row]), layout)
    lanes = {(warp, 4 * g + slot_column(slot, layout.slots)) for warp in range(2) for slot in range(10) for g in range(8)}
    assert set(coverage.missing["lane"]) == lanes - {(1, 4 * 5 + slot_column(7, layout.slots))}
    assert coverage.won == {kind: 1 for kind in (*PLACES, "tile")}


@given(layouts, st.integers(0, 2**31))
def test_won_and_missing_add_up_to_what_there_is(layout, seed):
    won = np.random.default_rng(seed).integers(layout.vocab_size, size=20)
    everything, some = cover(np.arange(layout.vocab_size), layout), cover(won, layout)
    for kind in (*PLACES, "tile"):
        assert some.won[kind] + len(some.missing[kind]) == everything.won[kind]


def test_bad_layouts_and_ids_are_refused():
    with pytest.raises(BadInput, match="warps of a layout must be at least 1; got 0"):
        Layout(10, 1, 0)
    with pytest.raises(BadInput, match="0 to 9; got -1 to 3"):
        cover(np.array([3, -1]), Layout(10, 1, 1))
