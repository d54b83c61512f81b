"""The Python/CUDA contract: what the header says, and that specifications name what they build."""

from __future__ import annotations

import ctypes
import re

import pytest

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
    assert c["kNarrowRows"] == 1 << (16 - c["kNarrowEpochBits"])
    assert c["kControlMissing"] + c["kMissingWords"] <= c["kControlWords"]
    assert c["kMissingWords"] * 32 >= c["kMaxBlocks"] // 2  # units of two wide words
    assert len(abi.PHASES) == c["kPhases"]


def test_parameters_hold_addresses_of_64_bits():
    params = abi.WalkParams(matrix=(1 << 63) + 7, steps=16)
    assert params.matrix == (1 << 63) + 7 and params.steps == 16
    assert ctypes.sizeof(params) % 8 == 0


def test_a_specification_names_what_it_builds():
    spec = abi.WalkSpec(8, 5, 4, 2, 3, 1, 256, "int8x2")
    assert spec.slots == 11
    assert "wts::WalkConfig<8, 5, 4, 2, 3, 1, 256, wts::Precision::int8x2, wts::Rounding::once, false, false" in spec.translation_unit()
    assert "wts::HeadKind::markov, 0, 0, 0, wts::Probe::none>" in spec.translation_unit()
    assert spec.name() == "walk-markov-int8x2-r256-b1-w8-5-4-2-3-once"


def test_specifications_that_differ_have_names_that_differ():
    usual = dict(warps=8, register_slots=5, shared_slots=4, streamed_slots=2, staging_entries=3, rows=1, rank=256, precision="int8x2")
    changes = (
        {}, {"warps": 4}, {"register_slots": 4}, {"shared_slots": 3}, {"streamed_slots": 1}, {"staging_entries": 2}, {"rows": 2}, {"rank": 512},
        {"precision": "bf16"}, {"rounding": "twice"}, {"rounding": "none", "wide": True}, {"wide": True}, {"sampling": True, "wide": True},
        {"head": "gated"}, {"head": "rnn"}, {"head": "rnn", "state_rows": 6}, {"head": "domino", "gru": 64}, {"head": "domino", "gru": 128},
        {"head": "domino", "gru": 64, "projector_rows": 2}, {"probe": "phases"},
    )  # fmt: skip
    names = [abi.WalkSpec(**usual | change).name() for change in changes]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("rank", "precision", "steps", "entry"), [(256, "int8x2", 8, 4), (256, "bf16", 16, 4), (96, "int8x2", 3, 3), (32, "int8x2", 1, 1)])
def test_a_ring_entry_is_a_whole_part_of_a_tile(rank, precision, steps, entry):
    assert (abi.k_steps(rank, precision), abi.staging_steps(rank, precision)) == (steps, entry)


@pytest.mark.parametrize("slots", range(1, 33))
def test_slots_spread_over_at_most_four_columns(slots):
    columns = [abi.slot_column(slot, slots) for slot in range(slots)]
    groups = max((slots + 3) // 4, min(slots, 3))
    assert max(columns) <= 3 and columns == sorted(columns)
    assert all(columns.count(column) <= groups for column in set(columns))
