"""One speculative round: what the head's share is, and what a faster head gives end to end.

A serial round (DFlash, DSpark, Domino) takes verify + backbone + head and yields `accepted_length` tokens. Verify and
backbone times and the accepted length are inputs or measured; none has a default.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cost_model.errors import BadInput
from cost_model.units import US_PER_S

Interval = tuple[float, float]


@dataclass(frozen=True)
class Round:
    """Everything of a round but its head.

    Attributes:
        verify_us: the target's pass over the drafted block.
        backbone_us: the parallel drafter's pass with its base logits.
        accepted_length: tokens that a round yields on average, the bonus token included; at least 1.
        verify_interval_us, backbone_interval_us, accepted_length_interval: 95 % intervals, or None where unknown.
    """

    verify_us: float
    backbone_us: float
    accepted_length: float
    verify_interval_us: Interval | None = None
    backbone_interval_us: Interval | None = None
    accepted_length_interval: Interval | None = None

    def __post_init__(self) -> None:
        for name, least in (("verify_us", 0.0), ("backbone_us", 0.0), ("accepted_length", 1.0)):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not least <= value < math.inf:
                raise BadInput(f"{name} is {value!r}; it must be a finite number of at least {least:g}")
        for name, value in (("verify_interval_us", self.verify_us), ("backbone_interval_us", self.backbone_us),
                            ("accepted_length_interval", self.accepted_length)):
            interval = getattr(self, name)
            if interval is not None and not 0 <= interval[0] <= value <= interval[1] < math.inf:
                raise BadInput(f"{name} is {interval!r}; it must hold {value:g} between its two ends")

    @property
    def rest_us(self) -> float:
        """Verify and backbone together."""
        return self.verify_us + self.backbone_us

    @property
    def rest_interval_us(self) -> Interval:
        """Ends of verify and backbone together; the value itself where no interval is known."""
        verify = self.verify_interval_us or (self.verify_us, self.verify_us)
        backbone = self.backbone_interval_us or (self.backbone_us, self.backbone_us)
        return verify[0] + backbone[0], verify[1] + backbone[1]


@dataclass(frozen=True)
class RoundGain:
    """A round before and after the head changed.

    Attributes:
        round_us_before, round_us_after: whole round.
        head_share_before, head_share_after: head / round.
        tokens_per_s_before, tokens_per_s_after: accepted_length / round, one sequence.
        gain, gain_low, gain_high: tokens per second after over before, less 1; the ends take every input at its worse or better end.
        head_share_of_draft: head / (head + backbone) before.
    """

    round_us_before: float
    round_us_after: float
    head_share_before: float
    head_share_after: float
    head_share_of_draft: float
    tokens_per_s_before: float
    tokens_per_s_after: float
    gain: float
    gain_low: float
    gain_high: float

    @property
    def material(self) -> bool:
        """Whether the interval of the gain lies above 0."""
        return self.gain_low > 0

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self), "material": self.material}


def round_gain(rest: Round, before_us: float, after_us: float, before_interval_us: Interval | None = None,
               after_interval_us: Interval | None = None) -> RoundGain:
    """Return what replacing a head call of `before_us` by one of `after_us` does to a round.

    gain = (rest + before) / (rest + after) − 1. The accepted length cancels, as the same tokens are drafted.
    """
    for name, value in (("before_us", before_us), ("after_us", after_us)):
        if not 0 < value < math.inf:
            raise BadInput(f"{name} is {value!r}; it must be a finite time above 0")
    before_low, before_high = before_interval_us or (before_us, before_us)
    after_low, after_high = after_interval_us or (after_us, after_us)
    round_before, round_after = rest.rest_us + before_us, rest.rest_us + after_us
    worst = [_gain(one, before_low, after_high) for one in rest.rest_interval_us]
    best = [_gain(one, before_high, after_low) for one in rest.rest_interval_us]
    return RoundGain(
        round_before, round_after, before_us / round_before, after_us / round_after, before_us / (before_us + rest.backbone_us),
        rest.accepted_length / round_before * US_PER_S, rest.accepted_length / round_after * US_PER_S,
        round_before / round_after - 1, min(worst), max(best),
    )


def _gain(rest_us: float, before_us: float, after_us: float) -> float:
    """Relative gain of a round."""
    return (rest_us + before_us) / (rest_us + after_us) - 1


def break_even_rest_us(before_us: float, after_us: float, least_gain: float) -> float:
    """Verify and backbone time above which the gain falls below `least_gain`: (before − after) / least_gain − after."""
    if not least_gain > 0:
        raise BadInput(f"least_gain is {least_gain!r}; it must be above 0, for example 0.01")
    return max(0.0, (before_us - after_us) / least_gain - after_us)
