"""A round's arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.round import Round, break_even_rest_us, round_gain

TIMES = st.floats(1, 1e6)


def test_by_hand():
    gain = round_gain(Round(800, 100, 4.0), before_us=100, after_us=50)
    assert (gain.round_us_before, gain.round_us_after) == (1000, 950)
    assert gain.gain == pytest.approx(1000 / 950 - 1) and gain.gain_low == gain.gain == gain.gain_high
    assert gain.head_share_before == pytest.approx(0.1) and gain.head_share_of_draft == pytest.approx(0.5)
    assert gain.tokens_per_s_before == pytest.approx(4000) and gain.material


@given(verify=TIMES, backbone=TIMES, before=TIMES, after=TIMES, accepted=st.floats(1, 32))
def test_gain_is_the_ratio_of_tokens_per_second(verify, backbone, before, after, accepted):
    gain = round_gain(Round(verify, backbone, accepted), before, after)
    assert 1 + gain.gain == pytest.approx(gain.tokens_per_s_after / gain.tokens_per_s_before)
    assert (gain.gain > 0) == (before > after) or before == pytest.approx(after)


def test_a_gain_that_may_be_a_loss_is_not_material():
    gain = round_gain(Round(800, 100, 4.0), 100, 95, (90, 110), (85, 105))
    assert gain.gain > 0 > gain.gain_low and not gain.material


def test_a_longer_verify_dilutes_the_gain():
    wide = round_gain(Round(800, 100, 4.0, verify_interval_us=(400, 1600)), 100, 50)
    assert wide.gain_low == pytest.approx(1800 / 1750 - 1) and wide.gain_high == pytest.approx(600 / 550 - 1)


@given(before=st.floats(2, 1e4), share=st.floats(0.01, 0.9), least=st.floats(0.001, 0.5))
def test_at_break_even_the_gain_is_the_least(before, share, least):
    after = before * (1 - share)
    rest = break_even_rest_us(before, after, least)
    if rest > 0:
        assert round_gain(Round(rest, 0, 1), before, after).gain == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("arguments, word", [((-1, 0, 2), "verify_us"), ((1, float("nan"), 2), "backbone_us"), ((1, 1, 0.5), "accepted_length"),
                                             ((1, 1, 2, (2, 3)), "verify_interval_us")])
def test_impossible_rounds_are_refused(arguments, word):
    with pytest.raises(BadInput, match=word):
        Round(*arguments)


def test_impossible_heads_are_refused():
    with pytest.raises(BadInput, match="after_us"):
        round_gain(Round(1, 1, 1), 1, 0)
    with pytest.raises(BadInput, match="least_gain"):
        break_even_rest_us(2, 1, 0)
