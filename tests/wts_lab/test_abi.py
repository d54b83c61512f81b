"""The Python/CUDA contract: what the header says, and that specifications name what they build."""

from __future__ import annotations

import ctypes
import re

import pytest

from cost_model.placement import Placement
from wts_lab import abi


def test_every_constant_and_field_is_in_the_header_once_and_in_order():
    header = abi.render_header()
    for name, value in abi.CONSTANTS.items():
        assert re.findall(rf"constexpr \w+ {name} = (\d+)u?;", header) == [str(value)]
    struct = header[header.index("struct WalkParams") : header.index("struct WalkDescription")]
    assert re.findall(r"(\w+);", struct) == [name for name, _ in abi.PARAMETER_FIELDS]


def test_the_word_and_the_control_block_are_consistent():
    c = abi.CONSTANTS
    assert c["kMaxVocabulary"] == c["kIndexMask"] + 1 and c["kEpochMask"] == (1 << c["kEpochBits"]) - 1
    assert c["kIndexMask"].bit_length() + c["kEpochBits"] == 32
    assert c["kControlMissing"] + c["kSlotCapacity"] // 64 <= c["kControlWords"]
    assert c["kSlotCapacity"] % 64 == 0 and len(abi.PHASES) == c["kPhases"]


def test_parameters_hold_addresses_of_64_bits():
    params = abi.WalkParams(matrix=(1 << 63) + 7, steps=16)
    assert params.matrix == (1 << 63) + 7 and params.steps == 16
    assert ctypes.sizeof(params) % 8 == 0


def test_a_placement_becomes_slots_a_warp():
    spec = abi.WalkSpec.of(Placement(8, 40, 32, 16, 8), rank=256, precision="int8x2", replicas=1)
    assert (spec.register_slots, spec.shared_slots, spec.streamed_slots, spec.staging_slots, spec.slots) == (5, 4, 2, 1, 11)
    assert "wts::WalkConfig<8, 5, 4, 2, 1, 256, wts::Precision::int8x2, 1, wts::Probe::none>" in spec.translation_unit()
    assert spec.name() == "walk-int8x2-r256-w8-5-4-2-1-x1"


@pytest.mark.parametrize("slots", range(1, 33))
def test_slots_spread_over_at_most_four_columns(slots):
    columns = [abi.slot_column(slot, slots) for slot in range(slots)]
    groups = max((slots + 3) // 4, min(slots, 3))
    assert max(columns) <= 3 and columns == sorted(columns)
    assert all(columns.count(column) <= groups for column in set(columns))
