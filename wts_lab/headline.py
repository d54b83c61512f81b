"""The answer in one sentence, from the comparisons of one head in one L2 state."""

from __future__ import annotations

from collections.abc import Sequence

from cost_model.units import format_ratio, format_us
from wts_lab.comparison import Comparison


def headline(shown: Sequence[Comparison], steps: int) -> str:
    """The answer in one sentence: the fastest of our walks against the fastest engine path, measured where it was measured."""
    rivals = best_and_rival(shown, steps)
    if rivals is None:
        return "Too little is known to compare our walk with an engine's"
    best, rival = rivals
    ratio = rival.call_us(steps) / best.call_us(steps)
    verdict = f"{format_ratio(ratio)} faster" if ratio >= 1 else f"{format_ratio(1 / ratio)} slower"
    return f"{verdict} with {best.l2_state} L2: a {steps}-step walk takes {call_words(best, steps)}, {call_words(rival, steps)}"


def best_and_rival(shown: Sequence[Comparison], steps: int) -> tuple[Comparison, Comparison] | None:
    """The fastest of our walks and the fastest engine path (or our stepwise reference); None where one is missing."""
    timed = [each for each in shown if each.call_us(steps) is not None]
    ours = [each for each in timed if each.is_ours]
    others = [each for each in timed if each.is_engine] or [each for each in timed if each.mode == "stepwise"]
    if not ours or not others:
        return None
    best, rival = (min(group, key=lambda each: each.call_us(steps)) for group in (ours, others))
    return best, rival


def call_words(each: Comparison, steps: int) -> str:
    """A call with whose it is and what it rests on, for instance '476 µs with sglang-0.5.23 sample (published)'."""
    return f"{format_us(each.call_us(steps))} {'' if each.is_ours else 'with '}{each.label} ({each.basis(steps)})"
