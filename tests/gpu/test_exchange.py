"""The exchange under stress on a real GPU, and the walk's own use of it when batch rows fall out and come back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.stress import stress_exchange  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402

SECONDS = 0.5
STEPS = 16


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("rows", [1, 4, 8, 32])
def test_all_blocks_agree_on_the_right_words(rows, wide):
    result = stress_exchange(seconds=SECONDS, rows=rows, wide=wide)
    assert (result.mismatches, result.stalls) == (0, 0)
    assert result.exchanges > 20_000


@pytest.mark.parametrize("exchange", ["spread-lines", "dense-lines"])
@pytest.mark.parametrize("rows", [1, 8])
def test_they_agree_wherever_the_words_lie(rows, exchange):
    result = stress_exchange(seconds=SECONDS, rows=rows, exchange=exchange, seed=1)
    assert (result.mismatches, result.stalls) == (0, 0)
    assert result.exchanges > 20_000


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_the_check_sees_wrong_words(wide):
    result = stress_exchange(rounds=1, rows=4, wide=wide, checked_seed=1)
    assert result.stalls == 0 and result.matching_share < 0.5


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_words_that_never_come_end_as_stalls(wide):
    result = stress_exchange(rounds=1, rows=4, wide=wide, missing_blocks=4, max_polls=1000)
    assert result.stalls > 0 and result.mismatches == 0


@pytest.mark.parametrize("gap", [29, 30, 31, 62])
def test_rows_that_were_left_out_do_not_meet_their_old_words(gap):
    """After so many steps without them, the epoch field of a row's last words is again the one that is awaited."""
    head = MarkovHead.random(40_000, 64, seed=3, device="cuda")
    walk = Walk(head, steps=STEPS, mode="resident", max_batch=8)
    generator = torch.Generator("cuda").manual_seed(4)
    base = (2 * torch.randn(2, 8, STEPS, 40_000, generator=generator, device="cuda")).bfloat16()
    anchors = torch.randint(40_000, (2, 8), generator=generator, device="cuda")
    expected = [expected_walks(head, base[i], anchors[i], precision="int8x2").tokens for i in range(2)]
    for repeat in range(20):
        i = repeat % 2
        assert (walk(base[i], anchors[i]) != expected[i]).nonzero().tolist() == []
        for left in range(gap, 0, -STEPS):
            steps = min(left, STEPS)
            assert torch.equal(walk(base[i, :1, :steps], anchors[i, :1]), expected[i][:1, :steps])
    walk.check()
