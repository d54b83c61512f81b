"""Tables of walks, goals and heads: measured beside predicted, one a row, formatted text with units in the titles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cost_model.tables import signed_percent
from cost_model.units import UNKNOWN, format_interval_us, format_ratio, format_us
from wts_lab.head_steps import PARTS
from wts_lab.recorded_probes import PART_PROBES

if TYPE_CHECKING:
    import pandas

    from cost_model.fit import StepFit
    from wts_lab.goals import Reached
    from wts_lab.head_steps import HeadStep
    from wts_lab.walked import Walked


def walked_table(series: Mapping[str, Sequence[Walked]], call_steps: int = 16) -> pandas.DataFrame:
    """Every walk of some series: step and complete call, measured and predicted, with intervals and the error of the step."""
    import pandas

    rows = []
    for name, walks in series.items():
        for walk in walks:
            load = walk.workload
            what = f"{walk.head.kind}, V {walk.head.vocab_size:,}, rank {walk.head.rank}, batch {load.batch}, {'sampled' if load.temperature else 'greedy'}, {load.l2_state}"
            rows.append(
                (
                    name,
                    what,
                    walk.label,
                    *_pair(walk.measured_us(None)),
                    *_pair(walk.predicted_us(None)),
                    signed_percent(walk.error),
                    held_words(walk.holds),
                    _time(walk.measured_us(call_steps)),
                    _time(walk.predicted_us(call_steps)),
                )
            )
    titles = [
        "series",
        "walk",
        "way",
        "step, measured",
        "its interval",
        "step, predicted",
        "95 % interval",
        "error",
        "held",
        f"call of {call_steps}, measured",
        f"call of {call_steps}, predicted",
    ]
    return pandas.DataFrame(rows, columns=titles).set_index(titles[:3])


def goals_table(reached: Iterable[Reached]) -> pandas.DataFrame:
    """Every goal: the bound, what was measured and predicted with their intervals, and whether it is reached."""
    import pandas

    rows = []
    for each in reached:
        goal, measured = each.goal, each.measured_us
        over = UNKNOWN if measured is None else signed_percent(measured[0] / goal.at_most_us - 1)
        rows.append(
            (
                goal.what,
                f"V {goal.head.vocab_size:,}",
                "step" if goal.steps is None else f"call of {goal.steps}",
                f"≤ {format_us(goal.at_most_us)}",
                *_pair(measured),
                *_pair(each.walk.predicted_us(goal.steps)),
                over,
                each.verdict,
            )
        )
    titles = ["walk", "vocabulary", "time", "goal", "measured", "its interval", "predicted", "95 % interval", "over the goal", "verdict"]
    return pandas.DataFrame(rows, columns=titles).set_index(titles[:3])


def head_steps_table(steps: Iterable[HeadStep]) -> pandas.DataFrame:
    """Each head's step: measured and predicted with their intervals, the engine's step beside it, and the factor between."""
    import pandas

    rows = [
        (
            each.name,
            *_pair(each.walk.measured_us(None)),
            *_pair(each.walk.predicted_us(None)),
            signed_percent(each.walk.error),
            held_words(each.walk.holds),
            _time(each.walk.measured_us(each.walk.workload.steps)),
            *_engine(each.engine),
            format_ratio(each.speedup),
        )
        for each in steps
    ]
    titles = [
        "head",
        "step, measured",
        "its interval",
        "step, predicted",
        "95 % interval",
        "error",
        "held",
        "call, measured",
        "the engine's step",
        "basis",
        "factor",
    ]
    return pandas.DataFrame(rows, columns=titles).set_index("head")


def parts_table(steps: Iterable[HeadStep]) -> pandas.DataFrame:
    """The parts of each head's step, measured by clocks / predicted by terms, and what is left of a step without some of them."""
    import pandas

    rows = []
    for each in steps:
        measured, predicted = each.measured_parts_us, each.predicted_parts_us
        both = [f"{format_us(measured.get(part))} / {format_us(predicted.get(part))}" for part in PARTS]
        rows.append((each.name, *both, *(_slope(each.dissection.parts.get(name)) for name in PART_PROBES.values())))
    return pandas.DataFrame(rows, columns=["head", *PARTS, *(f"step {name}" for name in PART_PROBES.values())]).set_index("head")


def _slope(fit: StepFit | None) -> str:
    return format_us(fit.step_us if fit is not None and fit.usable else None)


def _engine(walk: Walked) -> tuple[str, str]:
    """The engine's step on the best basis there is, and the basis."""
    if walk.is_measured:
        return format_us(walk.fit.step_us), "measured"
    if walk.published_step_us is not None:
        return format_us(walk.published_step_us), "published"
    return (format_us(walk.prediction.step_us), "predicted") if walk.prediction is not None else (UNKNOWN, UNKNOWN)


def held_words(holds: bool | None) -> str:
    """Whether an interval holds the measurement, in a word."""
    return UNKNOWN if holds is None else "yes" if holds else "no"


def _pair(time_us: tuple[float, float, float] | None) -> tuple[str, str]:
    """A time and its interval as text."""
    return (UNKNOWN, UNKNOWN) if time_us is None else (format_us(time_us[0]), format_interval_us(*time_us[1:]))


def _time(time_us: tuple[float, float, float] | None) -> str:
    return UNKNOWN if time_us is None else format_us(time_us[0])
