"""From recorded rows (measured just now or replayed) to a StudyResult: fit, predict the same configurations, compare, decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.workload import Workload
from wts_lab.compare import ALL_WAYS, ENGINE, REFERENCE, engine_comparisons, measured_comparison, predicted_comparison
from wts_lab.comparison import Comparison
from wts_lab.recordings import OURS, Recording, describe_origin

if TYPE_CHECKING:
    from cost_model.decide import Decision
    from wts_lab.study import StudyRequest, StudyResult

VERDICT_L2_STATES = ("serving", "warm", "cold")
"""The L2 state that a draft round sees comes first; where it was not studied, the next."""


@dataclass
class _Gathered:
    """What is collected while the heads and L2 states are gone through."""

    comparisons: list[Comparison] = field(default_factory=list)
    series: list[tuple[Any, Comparison]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def recorded_heads(recording: Recording, first: Head) -> tuple[Head, ...]:
    """Markov heads that a recording holds, by size, with `first` in front if it is among them."""
    shapes = {
        (int(row["vocab_size"]), int(row["rank"]), int(row["target_vocab_size"]))
        for row in recording.rows
        if row["head_kind"] == "markov"
    }
    heads = [Head.markov(vocab, rank, target) for vocab, rank, target in sorted(shapes)]
    return tuple(sorted(heads, key=lambda head: (head.vocab_size, head.rank) != (first.vocab_size, first.rank)))


def answer(
    request: StudyRequest,
    kind: str,
    source: str,
    gpu: Gpu,
    heads: Sequence[Head],
    recording: Recording | None,
    record: Path | None = None,
) -> StudyResult:
    """The result for some heads from a recording, or from predictions alone where there is none."""
    from wts_lab.study import StudyResult

    rows = recording.rows if recording is not None else []
    gathered = _Gathered()
    for head in heads:
        of_head = [row for row in rows if (row["vocab_size"], row["rank"]) == (head.vocab_size, head.rank)]
        if recording is not None and not of_head:
            gathered.notes.append(f"V {head.vocab_size:,}, rank {head.rank} was not recorded: predicted only")
        for l2_state in request.l2_states:
            workload = Workload(steps=request.longest, l2_state=l2_state)
            _compare(gpu, head, workload, [row for row in of_head if row["l2_state"] == l2_state], gathered)
    origin = describe_origin(rows)
    environment = _environment(origin, kind)
    decisions = {head: _decide(gpu, head, request, gathered, environment) for head in heads}
    return StudyResult(
        request,
        kind,
        source,
        gpu,
        tuple(heads),
        tuple(gathered.comparisons),
        tuple((key, each.fit) for key, each in gathered.series),
        tuple(each.prediction for each in gathered.comparisons if each.prediction is not None),
        decisions,
        _table_rows(gathered),
        origin,
        record,
        tuple(dict.fromkeys(gathered.notes)),
    )


def _compare(gpu: Gpu, head: Head, workload: Workload, rows: list[Mapping[str, Any]], gathered: _Gathered) -> None:
    """Add one head's ways in one L2 state, slowest kinds first: engine, stepwise reference, streaming, resident."""
    measured = _measured(gpu, head, workload, rows, gathered)
    for mode, precision in ALL_WAYS:
        implementation = REFERENCE if mode == "stepwise" else OURS
        if mode == "stepwise":
            gathered.comparisons += _engine(gpu, head, workload, measured, gathered)
        own = [each for each in measured if (each.implementation, each.mode, each.precision) == (implementation, mode, precision)]
        if own:
            gathered.comparisons.append(min(own, key=_step_or_last))
            continue
        try:
            gathered.comparisons.append(predicted_comparison(gpu, head, workload, mode, precision, implementation))
        except BadInput as error:
            gathered.notes.append(f"no prediction for {mode} {precision} at V {head.vocab_size:,}: {error}")


def _measured(gpu: Gpu, head: Head, workload: Workload, rows: list[Mapping[str, Any]], gathered: _Gathered) -> list[Comparison]:
    """Fit every series among the rows and set its prediction beside it."""
    if not rows:
        return []
    import pandas

    from cost_model.fit import FitError, fit_frame

    try:
        fits = fit_frame(pandas.DataFrame(rows))
    except FitError as error:
        gathered.notes.append(f"nothing fitted at V {head.vocab_size:,}, L2 {workload.l2_state}: {error}")
        return []
    found = [(key, measured_comparison(gpu, head, workload, key, fit, rows, gathered.notes)) for key, fit in fits]
    gathered.series += found
    return [comparison for _, comparison in found]


def _engine(gpu: Gpu, head: Head, workload: Workload, measured: list[Comparison], gathered: _Gathered) -> list[Comparison]:
    """The engine's paths: measured here where they were, else predicted with published points."""
    own = [each for each in measured if each.implementation not in (OURS, REFERENCE)]
    if own:
        return own
    try:
        return engine_comparisons(gpu, head, workload)
    except BadInput as error:
        gathered.notes.append(f"no prediction for {ENGINE} at V {head.vocab_size:,}: {error}")
        return []


def _step_or_last(comparison: Comparison) -> float:
    """Fitted step in microseconds; series without one come last."""
    return comparison.fit.step_us if comparison.fit.usable else float("inf")


def _decide(gpu: Gpu, head: Head, request: StudyRequest, gathered: _Gathered, environment: Mapping[str, Any]) -> Decision:
    """The decision about one head, in the L2 state that a draft round sees where it was studied."""
    from cost_model.decide import decide

    l2_state = next(state for state in VERDICT_L2_STATES if state in request.l2_states)
    workload = Workload(steps=request.longest, l2_state=l2_state)
    mine = [
        each
        for each in gathered.comparisons
        if (each.vocab_size, each.rank, each.l2_state) == (head.vocab_size, head.rank, l2_state)
    ]
    fits = [
        (key, each.fit)
        for key, each in gathered.series
        if (key.vocab_size, key.rank, key.l2_state) == (head.vocab_size, head.rank, l2_state)
    ]
    return decide(
        gpu, head, workload, [each.prediction for each in mine if each.prediction is not None], fits, environment=environment
    )


def _environment(origin: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What the settings' fingerprint says of the measured machine; the kernel's hash only where it was measured just now."""
    known = {name: origin.get(name) for name in ("gpu_name", "gpu_sm_count", "driver_version", "cuda_version")}
    environment = {name: value for name, value in known.items() if value is not None and not isinstance(value, list)}
    if kind == "measured":
        from wts_lab.abi import csrc_root
        from wts_lab.build import source_hash

        environment["kernel_hash"] = source_hash((csrc_root() / "walk",))
    return environment


def _table_rows(gathered: _Gathered) -> tuple[dict[str, Any], ...]:
    """Rows of the step-cost table: every measured series beside its own prediction, then what is predicted only."""
    from cost_model.tables import step_cost_rows

    fits = [(key, each.fit) for key, each in gathered.series]
    compared = [*(each for _, each in gathered.series), *gathered.comparisons]
    return tuple(step_cost_rows(fits, [each.prediction for each in compared if each.prediction is not None]))
