"""The goals of this project's fused walks on an H200, and how near the recorded walks come.

A goal is a bound on one step, or on a complete call, with warm L2; the complete call of 16 greedy steps at batch 1 decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.head import Head
from cost_model.workload import OURS, Workload
from wts_lab.walked import SAMPLED, Walked, walked

if TYPE_CHECKING:
    from cost_model.gpu import Gpu

GOAL_GPU = "h200-sxm"
"""The GPU that the goals are about."""

SMALL, LARGE = Head.markov(151_936, 256), Head.markov(248_320, 256)
RNN = Head("rnn-qwen3-4b", "rnn", 151_936, 151_936, 151_936, 256, 2560)
DOMINO = Head("domino-qwen3-4b, whole vocabulary", "domino", 151_936, 151_936, 151_936, 256, 2560, 1024)


@dataclass(frozen=True)
class Goal:
    """A bound on one walk.

    Attributes:
        what: in words.
        head, workload, mode: the walk.
        at_most_us: the bound, in microseconds.
        steps: walk length of the complete call that is bounded; None where one step is.
    """

    what: str
    head: Head
    workload: Workload
    mode: str
    at_most_us: float
    steps: int | None = None

    def is_of(self, walk: Walked) -> bool:
        """Whether a walk is the one that is bounded, whatever its length."""
        same_load = replace(walk.workload, steps=self.workload.steps) == self.workload
        return same_load and (walk.head, walk.mode, walk.implementation) == (self.head, self.mode, OURS)


GOALS = (
    Goal("greedy, batch 1, call of 16 steps", SMALL, Workload(), "resident", 41.0, 16),
    *(Goal(f"greedy, batch {batch}", SMALL, Workload(batch=batch), "resident", us) for batch, us in ((4, 2.5), (8, 3.2), (16, 5.2), (32, 9.0))),
    Goal("sampled, batch 1, logits kept", SMALL, Workload(**SAMPLED), "resident", 2.5),
    Goal("greedy, batch 1, partly resident", LARGE, Workload(), "resident", 3.2),
    Goal("greedy, batch 1, streaming", SMALL, Workload(), "streaming", 5.8),
    Goal("RNN, hidden 2,560, batch 1", RNN, Workload(), "resident", 3.5),
    Goal("Domino, GRU 1,024, hidden 2,560, batch 1", DOMINO, Workload(), "resident", 5.5),
)


@dataclass(frozen=True)
class Reached:
    """A goal beside the walk that it is about."""

    goal: Goal
    walk: Walked

    @property
    def measured_us(self) -> tuple[float, float, float] | None:
        """What was measured of the bounded time, with the ends of its interval."""
        return self.walk.measured_us(self.goal.steps)

    @property
    def verdict(self) -> str:
        """'reached' or 'missed' where the interval tells, 'at the goal' where it holds the bound, 'not recorded' where nothing was measured."""
        if self.measured_us is None:
            return "not recorded"
        _, low, high = self.measured_us
        return "reached" if high <= self.goal.at_most_us else "missed" if low > self.goal.at_most_us else "at the goal"


def reached(gpu: Gpu, goals: Iterable[Goal] = GOALS, *, records: Path | None = None) -> tuple[Reached, ...]:
    """The goals beside what was recorded; `records` as in `walked`."""
    return tuple(Reached(goal, walked(gpu, goal.head, goal.workload, goal.mode, records=records)) for goal in goals)
