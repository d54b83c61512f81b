"""Levels of stored weights: those of torch's types, their shares and distances, and where int8 and E4M3 change places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.published import load_claims
from wts_lab.levels import LEVELS, crossing, e4m3_levels, int8_levels, share_below, spacing


def test_three_quarters_of_e4m3_lie_below_a_fourteenth() -> None:
    levels = e4m3_levels()
    assert len(levels) == 126 and levels[0] == 2.0**-9 and levels[-1] == 448 and (np.diff(levels) > 0).all()
    assert crossing() == 32 / 448 == 1 / 14 and round(crossing(), 4) == 0.0714
    assert share_below(levels, crossing()) == 95 / 126 and share_below(int8_levels(), crossing()) == 9 / 127
    claimed = next(claim.value for claim in load_claims() if claim.id == "e4m3_levels_in_tail")
    assert round(100 * share_below(levels, crossing())) == claimed


def test_levels_are_those_of_torch() -> None:
    pytest.importorskip("torch")
    from wts_lab import projection_formats

    assert np.array_equal(e4m3_levels(), projection_formats.e4m3_levels().numpy())
    assert np.array_equal(int8_levels(), projection_formats.int8_levels().numpy())


@given(st.floats(0, 0.999999))
def test_e4m3_is_the_finer_one_exactly_below_the_crossing(ratio: float) -> None:
    fine, even = spacing(LEVELS["fp8-e4m3"], [ratio])[0], spacing(LEVELS["int8"], [ratio])[0]
    assert even == pytest.approx(1 / 127) and (fine < even) == (ratio < crossing())


def test_distances_are_those_of_the_type() -> None:
    assert (spacing(LEVELS["fp8-e4m3"], [0, 2.0**-9 / 448, 31 / 448, 33 / 448, 300 / 448]) * 448).tolist() == pytest.approx([2.0**-9, 2.0**-9, 2, 4, 32])
    assert spacing(LEVELS["fp8-e4m3"], [0.9])[0] / spacing(LEVELS["int8"], [0.9])[0] == pytest.approx(32 / 448 * 127)


@pytest.mark.parametrize("ratios", [[1.0], [-0.1], [], [float("nan")]])
def test_ratios_outside_are_refused(ratios: list) -> None:
    with pytest.raises(BadInput, match="from 0 up to, but not including, 1"):
        spacing(int8_levels(), ratios)
