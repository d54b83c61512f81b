"""A round's arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.round import (
    SCHEDULES, Round, break_even_rest_us, break_even_steps, break_even_verify_us, expected_accepted_length, round_gain,
)

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
                                             ((1, 1, 2, (2, 3)), "verify_interval_us"),
                                             ((1e308, 1, 2), r"verify_us is 1e\+308; it must be a finite number from 0 to 1e\+12"),
                                             ((1, 1, 2, (1, 1e13)), r"none below 0 or above 1e\+12"),
                                             ((1, 1, 2, None, None, None, 0, None, "overlapped", 2.0), "hidden_share is 2.0; a share is at most 1")])
def test_impossible_rounds_are_refused(arguments, word):
    with pytest.raises(BadInput, match=word):
        Round(*arguments)


def test_impossible_heads_are_refused():
    with pytest.raises(BadInput, match="after_us"):
        round_gain(Round(1, 1, 1), 1, 0)
    with pytest.raises(BadInput, match="least_gain"):
        break_even_rest_us(2, 1, 0)


# --- schedules ----------------------------------------------------------------------------------------------------------


def test_an_overlapped_round_by_hand():
    whole = Round(800, 100, 4.0, base_logits_us=50, schedule="overlapped")
    assert whole.draft_us == 150 and whole.rest_us == 800
    assert Round(800, 100, 4.0, base_logits_us=50, schedule="overlapped", hidden_share=0.4).rest_us == pytest.approx(800 + 0.6 * 150)
    assert Round(100, 700, 4.0, base_logits_us=50, schedule="overlapped", hidden_share=0.4).rest_us == pytest.approx(750 + 0.6 * 100)


@given(verify=TIMES, backbone=TIMES, base=TIMES, hidden=st.floats(0, 1))
def test_an_overlapped_round_lies_between_the_longer_part_and_the_serial_round(verify, backbone, base, hidden):
    serial = Round(verify, backbone, 2.0, base_logits_us=base).rest_us
    overlapped = Round(verify, backbone, 2.0, base_logits_us=base, schedule="overlapped", hidden_share=hidden).rest_us
    assert serial == pytest.approx(verify + backbone + base)
    assert max(verify, backbone + base) <= overlapped * (1 + 1e-12) and overlapped <= serial * (1 + 1e-12)
    assert Round(verify, backbone, 2.0, base_logits_us=base, schedule="overlapped", hidden_share=0.0).rest_us == pytest.approx(serial)


def test_the_ends_of_an_overlapped_round_take_the_share_at_its_worse_end():
    doubt = Round(800, 100, 4.0, (700, 900), (90, 120), schedule="overlapped", hidden_share=1.0, hidden_share_interval=(0.0, 1.0))
    assert doubt.rest_interval_us == (700, 900 + 120)


def test_a_head_weighs_more_where_the_backbone_is_hidden():
    serial, overlapped = (round_gain(Round(800, 200, 4.0, schedule=schedule), 100, 50) for schedule in ("serial", "overlapped"))
    assert serial.head_share_before == pytest.approx(100 / 1100) and overlapped.head_share_before == pytest.approx(100 / 900)
    assert overlapped.gain > serial.gain


def test_tokens_per_second_count_all_sequences_and_carry_every_interval():
    gain = round_gain(Round(800, 100, 4.0, (700, 1000), (90, 120), (3.0, 5.0), concurrency=8), 100, 50, (90, 110), (45, 55))
    assert gain.tokens_per_s_before == pytest.approx(8 * 4 / 1000e-6)
    assert gain.tokens_per_s_before_low == pytest.approx(8 * 3 / 1230e-6) and gain.tokens_per_s_before_high == pytest.approx(8 * 5 / 880e-6)
    assert gain.tokens_per_s_after_low == pytest.approx(8 * 3 / 1175e-6) and gain.tokens_per_s_after_high == pytest.approx(8 * 5 / 835e-6)
    assert gain.gain == pytest.approx(1000 / 950 - 1)  # the accepted length and its doubt cancel


# --- accepted length and break-even ---------------------------------------------------------------------------------------


def test_the_accepted_length_of_a_rate_is_the_geometric_sum():
    assert expected_accepted_length(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_accepted_length(0.8, 7) == pytest.approx((1 - 0.8**8) / (1 - 0.8))
    assert expected_accepted_length(0.0, 7) == 1 and expected_accepted_length(1.0, 7) == 8
    with pytest.raises(BadInput, match="probability"):
        expected_accepted_length(1.1, 7)


@given(verify=TIMES, backbone=TIMES, before=st.floats(2, 1e4), share=st.floats(0.01, 0.9))
def test_at_the_break_even_length_both_heads_give_the_same_rate(verify, backbone, before, share):
    gain = round_gain(Round(verify, backbone, 30.0), before, before * (1 - share))
    worse = round_gain(Round(verify, backbone, gain.break_even_length), before, before * (1 - share))
    assert worse.tokens_per_s_after == pytest.approx(gain.tokens_per_s_before)


@given(backbone=TIMES, before=st.floats(2, 1e4), share=st.floats(0.1, 0.9), hidden=st.floats(0, 1), schedule=st.sampled_from(SCHEDULES))
def test_at_the_break_even_verify_the_gain_is_the_least(backbone, before, share, hidden, schedule):
    least, after = 0.01, before * (1 - share)
    verify = break_even_verify_us(Round(1.0, backbone, 2.0, schedule=schedule, hidden_share=hidden), before, after, least)

    def gain_at(time_us):
        return round_gain(Round(time_us, backbone, 2.0, schedule=schedule, hidden_share=hidden), before, after).gain

    if verify is None:
        assert gain_at(0.0) < least * (1 + 1e-9)
    elif verify < 1e12:
        assert gain_at(verify) == pytest.approx(least, rel=1e-6) or gain_at(0.0) == pytest.approx(least, rel=1e-6)


def test_break_even_steps_by_hand():
    assert break_even_steps((5.0, 30.0), (20.0, 3.0)) == 1  # 15 / 27 of a step
    assert break_even_steps((5.0, 4.0), (20.0, 3.0)) == 16  # at 15 steps both take 65 us
    assert break_even_steps((20.0, 4.0), (5.0, 3.0)) == 1
    assert break_even_steps((5.0, 3.0), (1.0, 3.0)) is None


@pytest.mark.parametrize("change, word", [
    ({"schedule": "parallel"}, "choose one of serial, overlapped"), ({"hidden_share": 1.5}, "at most 1"), ({"hidden_share_interval": (0.2, 1.2)}, "at most 1"),
    ({"hidden_share": 0.5, "hidden_share_interval": (0.6, 0.9)}, "hidden_share_interval"), ({"concurrency": 0}, "concurrency is 0"),
    ({"accepted_length_interval": (0.5, 5.0)}, "none below 1"), ({"base_logits_us": -1.0}, "base_logits_us"),
])
def test_impossible_schedules_are_refused(change, word):
    with pytest.raises(BadInput, match=word):
        Round(800, 100, 4.0, **change)
