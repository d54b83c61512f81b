"""Sizes of a walk's workspace; the buffers themselves need a GPU (tests/gpu/test_walk.py)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.errors import BadInput  # noqa: E402
from wts_lab.abi import WalkSpec  # noqa: E402
from wts_lab.workspace import Workspace, blocks_of_unit, state_words  # noqa: E402


def spec(**more):
    return WalkSpec(8, 5, 4, 0, 0, **{"rows": 1, "rank": 256, "precision": "int8x2", **more})


def test_a_unit_holds_four_narrow_words_or_two_wide_ones():
    assert (blocks_of_unit(wide=False), blocks_of_unit(wide=True)) == (4, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [({}, 0), ({"head": "gated"}, 0), ({"head": "rnn"}, 2 * 3 * 256), ({"head": "rnn", "rows": 8}, 8 * 2 * 3 * 256),
     ({"head": "domino", "gru": 1024, "rows": 2}, 2 * 2 * (3 * 1024 + 256))],
)  # fmt: skip
def test_states_have_words_for_two_steps_of_every_row(change, words):
    assert state_words(spec(**change)) == words


@pytest.mark.parametrize(("rows", "wide", "units"), [(1, False, 2 * 33), (4, False, 2 * 4 * 33), (32, True, 2 * 32 * 66)])
@pytest.mark.parametrize(("exchange", "stride"), [("spread-lines", 128), ("dense-lines", 16)])
def test_every_unit_has_a_place_of_its_own(rows, wide, units, exchange, stride):
    made = Workspace.make(spec(rows=rows, wide=wide), 132, exchange, torch.device("cpu"))
    assert made.unit_stride == stride and made.slots.numel() == units * stride and not made.slots.any()


def test_another_exchange_is_refused():
    with pytest.raises(BadInput, match="spread-lines, dense-lines"):
        Workspace.make(spec(), 132, "slots-x8", torch.device("cpu"))
