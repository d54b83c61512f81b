"""Building comparisons: predictions for the ways of walking a head, measured points and fits laid beside them.

A *way* is a pair (mode, precision).  The stepwise way brings the engine's paths with it: the one the engine takes and, where it
is another, its fastest, because a gain over a path that nobody has to take is no gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cost_model.engines import load_engine, short_variant
from cost_model.errors import BadInput
from cost_model.predict import predict
from cost_model.published import list_published_times, load_published_times
from cost_model.tables import PLACEMENT_COLUMNS as TILE_COLUMNS
from cost_model.workload import ENGINE, OURS, REFERENCE
from wts_lab.comparison import MEASURED, PUBLISHED, Comparison, MeasuredPoint, measured_points
from wts_lab.recordings import PLACEMENT_COLUMNS, WAY_COLUMNS
from wts_lab.tiers import Tier, memory_tiers

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gain import GainSplit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.placement import Placement
    from cost_model.workload import Workload

Way = tuple[str, str]
ALL_WAYS: tuple[Way, ...] = (("stepwise", "bf16"), ("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2"))
PUBLISHED_SAMPLES = 100
"""Samples behind a published median, as its sidecar says."""


def predicted_comparison(
    gpu: Gpu,
    head: Head,
    workload: Workload,
    mode: str,
    precision: str,
    implementation: str,
    variant: str | None = None,
    placement: Placement | None = None,
) -> Comparison:
    """One way of walking with its prediction.  Raises BadInput where the model or the planner cannot answer."""
    prediction = predict(gpu, head, replace(workload, precision=precision), mode, implementation, placement, variant=variant)
    points = published_points(gpu, head, workload, prediction.variant) if implementation == ENGINE else ()
    return Comparison(
        implementation,
        mode,
        precision,
        workload.l2_state,
        head.vocab_size,
        head.rank,
        variant=prediction.variant if implementation == ENGINE else variant,
        prediction=prediction,
        placement=prediction.placement,
        points=points,
        points_kind=PUBLISHED if points else MEASURED,
    )


def published_points(gpu: Gpu, head: Head, workload: Workload, variant: str) -> tuple[MeasuredPoint, ...]:
    """Call times of the engine's path that were published for this GPU, shape, batch, temperature and L2 state; often none.

    A published time is one median, so its low and high are the median itself.
    """
    kernel = load_engine(ENGINE).path(workload, variant).kernel
    points = []
    for name in list_published_times():
        table = load_published_times(name)
        about = {key: table.provenance.get(key) for key in ("implementation", "gpu", "rank", "l2_state", "head_kind")}
        if about != dict(implementation=ENGINE, gpu=gpu.id, rank=head.rank, l2_state=workload.l2_state, head_kind=head.kind):
            continue
        wanted = dict(vocab_size=head.vocab_size, batch=workload.batch, temperature=workload.temperature, path=kernel)
        points += [
            MeasuredPoint(row["steps"], row["median_us"], row["median_us"], row["median_us"], PUBLISHED_SAMPLES)
            for row in table.rows
            if all(row[key] == value for key, value in wanted.items())
        ]
    return tuple(sorted(points, key=lambda point: point.steps))


def predicted_comparisons(gpu: Gpu, head: Head, workload: Workload, ways: Sequence[Way]) -> tuple[Comparison, ...]:
    """Predictions of some ways, in order; stepwise expands to our reference and the engine's paths.

    Raises BadInput when a way cannot be predicted (the message says why).
    """
    comparisons: list[Comparison] = []
    for mode, precision in dict.fromkeys(ways):
        if mode == "stepwise":
            comparisons += [
                predicted_comparison(gpu, head, workload, mode, precision, REFERENCE),
                *engine_comparisons(gpu, head, workload),
            ]
        else:
            comparisons.append(predicted_comparison(gpu, head, workload, mode, precision, OURS))
    return tuple(comparisons)


def engine_comparisons(gpu: Gpu, head: Head, workload: Workload) -> list[Comparison]:
    """The engine's path at this shape and, where it differs, its fastest."""
    taken = predicted_comparison(gpu, head, workload, "stepwise", "bf16", ENGINE)
    fastest = taken.prediction.fastest_variant
    if fastest in (None, taken.prediction.variant):
        return [taken]
    return [taken, predicted_comparison(gpu, head, workload, "stepwise", "bf16", ENGINE, variant=fastest)]


def with_points(comparisons: Iterable[Comparison], rows: Iterable[Mapping[str, Any]]) -> tuple[Comparison, ...]:
    """The same comparisons with the measured points of the rows that belong to each (L2 state, head and way must agree)."""
    rows = list(rows)
    return tuple(_with_own(each, [row for row in rows if belongs(row, each)]) for each in comparisons)


def _with_own(comparison: Comparison, own: Sequence[Mapping[str, Any]]) -> Comparison:
    """A comparison with the points of its own rows; unchanged without rows, so that published points stay."""
    return replace(comparison, points=measured_points(own), points_kind=MEASURED) if own else comparison


def with_fits(comparisons: Iterable[Comparison], rows: Iterable[Mapping[str, Any]]) -> tuple[Comparison, ...]:
    """The same comparisons with points, and a fit where a series has enough walk lengths for one."""
    import pandas

    from cost_model.fit import MIN_STEPS, fit_steps

    rows = list(rows)
    fitted = []
    for each in comparisons:
        own = [row for row in rows if belongs(row, each)]
        fit = fit_steps(pandas.DataFrame(own)) if len({row["steps"] for row in own}) >= MIN_STEPS else None
        fitted.append(replace(_with_own(each, own), fit=fit))
    return tuple(fitted)


def belongs(row: Mapping[str, Any], comparison: Comparison) -> bool:
    """Whether a walk row was timed in the way, state and shape of a comparison; an engine's rows also by their variant."""
    names = ("implementation", "mode", "precision", "l2_state", "vocab_size", "rank")
    if any(row[name] != getattr(comparison, name) for name in names):
        return False
    return comparison.implementation in (OURS, REFERENCE) or short_variant(row["implementation"], row["variant"]) == comparison.variant


def placement_of(row: Mapping[str, Any]) -> Placement | None:
    """The placement that a row records; None for a stepwise walk."""
    from cost_model.placement import Placement

    if row.get("warps") is None or row["warps"] != row["warps"]:
        return None
    return Placement(**{name: int(row[name] or 0) for name in TILE_COLUMNS})


def measured_comparison(
    gpu: Gpu, head: Head, workload: Workload, key: SeriesKey, fit: StepFit, rows: Sequence[Mapping[str, Any]], notes: list[str]
) -> Comparison:
    """A measured series beside the prediction of exactly its configuration; a reason why there is none goes to `notes`."""
    variant = short_variant(key.implementation, key.variant) if key.implementation not in (OURS, REFERENCE) else None
    placement, prediction = placement_of(key.as_dict()), None
    try:
        prediction = predict(
            gpu,
            head,
            replace(workload, precision=key.precision),
            key.mode,
            key.implementation,
            placement,
            variant=variant,
            grid_blocks=key.grid_blocks if placement is not None else None,
        )
    except BadInput as error:
        notes.append(f"no prediction for {key.describe()}: {error}")
    own = [row for row in rows if all(row[name] == getattr(key, name) for name in (*WAY_COLUMNS, *PLACEMENT_COLUMNS, "exchange"))]
    matches = [row["tokens_match"] for row in own if row["tokens_match"] is not None]
    return Comparison(
        key.implementation,
        key.mode,
        key.precision,
        workload.l2_state,
        head.vocab_size,
        head.rank,
        variant=variant,
        prediction=prediction,
        fit=fit,
        points=measured_points(own),
        placement=placement,
        tokens_match=min(matches, default=None),
    )


def tiers_of(gpu: Gpu, head: Head, comparison: Comparison) -> tuple[Tier, ...]:
    """The memory tiers with the matrix placed as a comparison walks it."""
    return memory_tiers(gpu, head, comparison.precision, comparison.placement)


def step_us_of(comparison: Comparison) -> float | None:
    """Cost of a step: measured where it was, else predicted, else None (microseconds)."""
    if comparison.is_fitted:
        return comparison.fit.step_us
    return comparison.prediction.step_us if comparison.prediction is not None else None


def gain_split(shown: Sequence[Comparison]) -> GainSplit | None:
    """What fusion, precision and residency give a step, from the engine's fastest path on; None where a way is missing."""
    from cost_model.gain import GainSplit

    engine = [each for each in shown if each.is_engine]
    stepwise = engine or [each for each in shown if each.mode == "stepwise"]
    fastest_us = min((us for us in map(step_us_of, stepwise) if us is not None), default=None)
    fused = {(each.mode, each.precision): step_us_of(each) for each in shown if each.is_ours}
    steps_us = [fastest_us, *(fused.get(way) for way in (("streaming", "bf16"), ("streaming", "int8x2"), ("resident", "int8x2")))]
    return None if None in steps_us else GainSplit(*steps_us)
