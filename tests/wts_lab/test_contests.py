"""Contests: rows that meet, and pairs that one contraction makes change places (computed here with exact fractions)."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from wts_lab.contests import CONTEST_LEVEL, CONTRACTIONS, FmaContests, close_contest  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.reference import bf16_to_float, round_to_bf16, twin_quantize_latents, twin_quantize_rows  # noqa: E402

VOCAB, RANK = 4000, 64


@pytest.fixture(scope="module")
def head() -> MarkovHead:
    return MarkovHead.random(VOCAB, RANK, seed=1)


def fp32(value: Fraction) -> Fraction:
    """The nearest fp32 number, ties to even, of an exact value in the normal range."""
    if value == 0:
        return value
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    ulp = Fraction(2) ** (exponent - 23)
    return round(value / ulp) * ulp  # Python rounds halves to even


def value_of(head, row, previous, base, contraction) -> float:
    """``y`` of one row from exact fractions, with one operation contracted or none."""
    q, scale = (part[row] for part in twin_quantize_rows(head.markov_w2.weight.float().numpy()))
    q1, q2, s1, s2 = (part[previous] for part in twin_quantize_latents(head.markov_w1.weight.float().numpy()))
    c1, c2 = (int(q.astype(np.int64) @ u.astype(np.int64)) for u in (q1, q2))
    first, second = Fraction(float(s1)) * c1, Fraction(float(s2)) * c2
    inner = {
        "first product": fp32(first + fp32(second)),
        "second product": fp32(fp32(first) + second),
    }.get(contraction, fp32(fp32(first) + fp32(second)))
    product = Fraction(float(scale)) * inner
    total = fp32(base + (product if contraction == "sum" else fp32(product)))
    return float(bf16_to_float(round_to_bf16(np.float32(float(total)))))


@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_an_fma_contest_is_decided_by_the_contraction(head, contraction):
    finder, rng = FmaContests(head.markov_w1.weight, head.markov_w2.weight), np.random.default_rng(5)
    searched = ((previous, finder.find(previous, contraction, rng)) for previous in range(200))
    found = dict(islice(((previous, contest) for previous, contest in searched if contest is not None), 2))
    assert found, "a vocabulary of this size holds such rows for some token"
    for previous, (rows, base) in found.items():
        assert rows[0] < rows[1]
        winners = []
        for fault in (None, contraction):
            values = [value_of(head, int(row), previous, Fraction(float(b)), fault) for row, b in zip(rows, base, strict=True)]
            winners.append(int(np.argmax(values)))
        assert sorted(winners) == [0, 1]


def test_a_vocabulary_without_such_rows_gives_none():
    head = MarkovHead.random(2, 32, seed=1)
    assert FmaContests(head.markov_w1.weight, head.markov_w2.weight).find(0, "sum", np.random.default_rng(0)) is None


def test_close_contestants_meet(head):
    latent = head.markov_w1.weight[3]
    rows, base = close_contest(head.markov_w2.weight, latent, np.random.default_rng(0))
    assert len(rows) == len(rows.unique()) == 64
    sums = base.double() + head.markov_w2.weight[rows].double() @ latent.double()
    assert (sums - CONTEST_LEVEL).abs().max() < 0.05
