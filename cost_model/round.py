"""One speculative round: what the head's share is, and what a faster head gives end to end.

A round is verify, draft backbone, base logits and head, and yields `accepted_length` tokens a sequence. Two schedules join them:

- `serial` (DFlash, DSpark, Domino): verify + backbone + base logits + head.
- `overlapped` (DPara): the backbone runs while the target verifies, for every acceptance boundary, so that only the head stays serial:
  max(verify, draft) + (1 − hidden) × min(verify, draft) + head, with draft = backbone + base logits. `hidden` is 1 where the two do not
  hinder each other. On one GPU both want the same memory bandwidth, and at 0 the round is as long as the serial one.

Times and the accepted length are inputs or estimates (`cost_model.phases`); none has a default.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cost_model.errors import BadInput
from cost_model.forms import is_number, require_number
from cost_model.units import US_PER_S
from cost_model.workload import require_whole, require_word

Interval = tuple[float, float]

SCHEDULES = ("serial", "overlapped")
LARGEST = 1e12
"""Largest number that a round is described with. In µs it is some twelve days; far above it sums of times leave the range of a double."""


@dataclass(frozen=True)
class Round:
    """Everything of a round but its head.

    Attributes:
        verify_us: the target's pass over the drafted block.
        backbone_us: the parallel drafter's pass; with its base logits where `base_logits_us` is 0.
        accepted_length: tokens that a round yields a sequence on average, the bonus token included; at least 1.
        verify_interval_us, backbone_interval_us, base_logits_interval_us, accepted_length_interval: 95 % intervals, or None where unknown.
        base_logits_us: the output projection of the draft, where it was timed apart.
        schedule: one of SCHEDULES.
        hidden_share: of the shorter of verify and draft, the part that runs beside the longer; 1 for DPara's claim. Serial rounds pass it over.
        hidden_share_interval: its interval.
        concurrency: sequences that go through a round together.
    """

    verify_us: float
    backbone_us: float
    accepted_length: float
    verify_interval_us: Interval | None = None
    backbone_interval_us: Interval | None = None
    accepted_length_interval: Interval | None = None
    base_logits_us: float = 0.0
    base_logits_interval_us: Interval | None = None
    schedule: str = "serial"
    hidden_share: float = 1.0
    hidden_share_interval: Interval | None = None
    concurrency: int = 1

    def __post_init__(self) -> None:
        for name, least in (("verify_us", 0.0), ("backbone_us", 0.0), ("base_logits_us", 0.0), ("accepted_length", 1.0), ("hidden_share", 0.0)):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not least <= value <= LARGEST:
                raise BadInput(f"{name} is {value!r}; it must be a finite number from {least:g} to {LARGEST:g}")
        for name, interval, value, least in (
            ("verify_interval_us", self.verify_interval_us, self.verify_us, 0.0),
            ("backbone_interval_us", self.backbone_interval_us, self.backbone_us, 0.0),
            ("base_logits_interval_us", self.base_logits_interval_us, self.base_logits_us, 0.0),
            ("accepted_length_interval", self.accepted_length_interval, self.accepted_length, 1.0),
            ("hidden_share_interval", self.hidden_share_interval, self.hidden_share, 0.0),
        ):
            if interval is not None and not least <= interval[0] <= value <= interval[1] <= LARGEST:
                raise BadInput(f"{name} is {interval!r}; it must hold {value:g} between its two ends, none below {least:g} or above {LARGEST:g}")
        if max(self.hidden_share, *(self.hidden_share_interval or (0.0,))) > 1:
            told = "" if self.hidden_share_interval is None else f", its interval {self.hidden_share_interval!r}"
            raise BadInput(f"hidden_share is {self.hidden_share!r}{told}; a share is at most 1")
        require_word("schedule", self.schedule, SCHEDULES)
        require_whole("concurrency", self.concurrency, 1, None)

    @property
    def draft_us(self) -> float:
        """Backbone and base logits together."""
        return self.backbone_us + self.base_logits_us

    @property
    def rest_us(self) -> float:
        """The round without its head, as the schedule joins verify and draft."""
        return self._joined(self.verify_us, self.draft_us, self.hidden_share)

    @property
    def rest_interval_us(self) -> Interval:
        """Ends of the round without its head; the value itself where no interval is known."""
        verify = self.verify_interval_us or (self.verify_us, self.verify_us)
        backbone = self.backbone_interval_us or (self.backbone_us, self.backbone_us)
        base = self.base_logits_interval_us or (self.base_logits_us, self.base_logits_us)
        hidden = self.hidden_share_interval or (self.hidden_share, self.hidden_share)
        low, high = (self._joined(verify[end], backbone[end] + base[end], hidden[1 - end]) for end in (0, 1))
        return low, high

    @property
    def tokens_interval(self) -> Interval:
        """Ends of the accepted length."""
        return self.accepted_length_interval or (self.accepted_length, self.accepted_length)

    def _joined(self, verify_us: float, draft_us: float, hidden: float) -> float:
        """Verify and draft as the schedule joins them."""
        if self.schedule == "serial":
            return verify_us + draft_us
        return max(verify_us, draft_us) + (1.0 - hidden) * min(verify_us, draft_us)


@dataclass(frozen=True)
class RoundGain:
    """A round before and after the head changed.

    Attributes:
        round_us_before, round_us_after: whole round.
        head_share_before, head_share_after: head / round.
        head_share_of_draft: head / (head + backbone + base logits) before.
        tokens_per_s_before, tokens_per_s_after: concurrency × accepted length / round, of all sequences together, each with the ends of its
            interval, every input at its worse or better end.
        gain, gain_low, gain_high: tokens per second after over before, less 1; what both rounds share is at the same end in both.
        break_even_length: accepted length at which the round after gives as many tokens per second as the one before.
    """

    round_us_before: float
    round_us_after: float
    head_share_before: float
    head_share_after: float
    head_share_of_draft: float
    tokens_per_s_before: float
    tokens_per_s_before_low: float
    tokens_per_s_before_high: float
    tokens_per_s_after: float
    tokens_per_s_after_low: float
    tokens_per_s_after_high: float
    gain: float
    gain_low: float
    gain_high: float
    break_even_length: float

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

    gain = (rest + before) / (rest + after) − 1: the accepted length cancels, as the same tokens are drafted. A head that drafts other
    tokens breaks even where the accepted length has fallen to accepted_length × (rest + after) / (rest + before).

    Raises:
        BadInput: a time is not finite and above 0, or an interval has no two finite ends in order.
    """
    for name, value in (("before_us", before_us), ("after_us", after_us)):
        if not 0 < value < math.inf:
            raise BadInput(f"{name} is {value!r}; it must be a finite time above 0")
    for name, interval in (("before_interval_us", before_interval_us), ("after_interval_us", after_interval_us)):
        if interval is not None and not (len(interval) == 2 and -math.inf < interval[0] <= interval[1] < math.inf):
            raise BadInput(f"{name} is {interval!r}; it must be two finite ends, the lower one first")
    before_ends, after_ends = before_interval_us or (before_us, before_us), after_interval_us or (after_us, after_us)
    round_before, round_after = rest.rest_us + before_us, rest.rest_us + after_us
    worst = [_gain(one, before_ends[0], after_ends[1]) for one in rest.rest_interval_us]
    best = [_gain(one, before_ends[1], after_ends[0]) for one in rest.rest_interval_us]
    return RoundGain(
        round_before, round_after, before_us / round_before, after_us / round_after, before_us / (before_us + rest.draft_us),
        *_rates(rest, before_us, before_ends), *_rates(rest, after_us, after_ends), round_before / round_after - 1, min(worst), max(best),
        rest.accepted_length * round_after / round_before,
    )


def _gain(rest_us: float, before_us: float, after_us: float) -> float:
    """Relative gain of a round."""
    return (rest_us + before_us) / (rest_us + after_us) - 1


def _rates(rest: Round, head_us: float, head_ends: Interval) -> tuple[float, float, float]:
    """Tokens per second of all sequences with one head: the value, the low and the high end."""
    low, high = rest.tokens_interval
    shortest, longest = rest.rest_interval_us

    def rate(tokens: float, round_us: float) -> float:
        return rest.concurrency * tokens / round_us * US_PER_S if round_us > 0 else math.inf

    return rate(rest.accepted_length, rest.rest_us + head_us), rate(low, longest + head_ends[1]), rate(high, shortest + head_ends[0])


def expected_accepted_length(acceptance_rate: float, steps: int) -> float:
    """Tokens that a round yields on average where each drafted token is accepted with one probability, independently of the others:
    (1 − a^(steps + 1)) / (1 − a), the bonus token included (Leviathan et al. 2023, equation 1); steps + 1 at a = 1."""
    if not isinstance(acceptance_rate, (int, float)) or not 0 <= acceptance_rate <= 1:
        raise BadInput(f"acceptance_rate is {acceptance_rate!r}; it must be a probability, from 0 to 1")
    require_whole("steps", steps, 1, None)
    return float(sum(acceptance_rate**accepted for accepted in range(steps + 1)))


# --- break-even -----------------------------------------------------------------------------------------------------------


def break_even_rest_us(before_us: float, after_us: float, least_gain: float) -> float:
    """Time of a round without its head above which the gain falls below `least_gain`: (before − after) / least_gain − after."""
    require_number("before_us", before_us, 0)
    require_number("after_us", after_us, 0)
    if not least_gain > 0:
        raise BadInput(f"least_gain is {least_gain!r}; it must be above 0, for example 0.01")
    return max(0.0, (before_us - after_us) / least_gain - after_us)


def break_even_verify_us(rest: Round, before_us: float, after_us: float, least_gain: float) -> float | None:
    """Verify time above which the gain falls below `least_gain`; None where it is below for every verify time.

    Inverts the schedule at the rest that `break_even_rest_us` gives: verify = rest − draft where serial; where overlapped, verify is the
    longer of the two, rest − (1 − hidden) × draft, or else the shorter, (rest − draft) / (1 − hidden).
    """
    most, draft = break_even_rest_us(before_us, after_us, least_gain), rest.draft_us
    beside = 1.0 if rest.schedule == "serial" else 1.0 - rest.hidden_share
    if most < draft:
        return None
    longer = most - beside * draft
    if longer >= draft or not beside:
        return longer
    return (most - draft) / beside


def break_even_steps(before: tuple[float, float], after: tuple[float, float]) -> int | None:
    """Shortest walk from which on the call after is shorter than the call before; both are (entry, step) in microseconds.

    The first whole number above (entry after − entry before) / (step before − step after), at least 1; None where no longer walk ever
    makes it so.
    """
    (entry_before, step_before), (entry_after, step_after) = before, after
    for name, value in (("entry before", entry_before), ("step before", step_before), ("entry after", entry_after), ("step after", step_after)):
        if not is_number(value):
            raise BadInput(f"{name} is {value!r}; a break-even needs finite times in microseconds")
    if step_after >= step_before:
        return None
    return max(1, math.floor((entry_after - entry_before) / (step_before - step_after)) + 1)
