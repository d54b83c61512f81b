"""From recorded rows (measured just now or replayed) to a StudyResult: fit, predict the same configurations, compare, decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.settings import MEASURED_HERE, REPLAYED
from cost_model.workload import ENGINE, OURS, REFERENCE, Workload, is_experiment
from wts_lab.compare import ALL_WAYS, engine_comparisons, measured_comparison, predicted_comparison
from wts_lab.comparison import Comparison
from wts_lab.kernel_origin import known_environment
from wts_lab.recordings import Recording, describe_origin

if TYPE_CHECKING:
    from cost_model.decide import Decision
    from wts_lab.study import StudyRequest, StudyResult

VERDICT_L2_STATES = ("serving", "warm", "cold")
"""The L2 state that a draft round sees comes first; where it was not studied, the next."""


@dataclass
class _Gathered:
    """What is collected while the heads and L2 states are gone through.

    `series` holds every measured series, experiments among them; `comparisons` those that the answer is about.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    series: list[tuple[Any, Comparison]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def refuse(self, what: str, error: BadInput) -> None:
        """Keep why there is no prediction of something."""
        self.notes.append(f"no prediction for {what}: {error}")
        self.refusals.append(str(error))


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
    notes: Sequence[str] = (),
) -> StudyResult:
    """The result for some heads from a recording, or from predictions alone where there is none.

    Args:
        notes: what the reader should know first.

    Raises:
        BadInput: nothing was measured and nothing can be predicted; says why.
    """
    from wts_lab.study import StudyResult

    rows = recording.rows if recording is not None else []
    gathered = _Gathered(notes=list(notes))
    for head in heads:
        of_head = [row for row in rows if shape_of_row(row) == shape_of_head(head)]
        if recording is not None and not of_head:
            gathered.notes.append(f"V {head.vocab_size:,}, rank {head.rank} was not recorded: predicted only")
        for l2_state in request.l2_states:
            workload = request.workload(l2_state)
            _compare(gpu, head, workload, [row for row in of_head if row["l2_state"] == l2_state], gathered)
    if not gathered.comparisons:
        why = "; ".join(dict.fromkeys(gathered.refusals or gathered.notes))
        raise BadInput(f"nothing can be said about {', '.join(head.name for head in heads)} on {gpu.id}: {why}")
    gathered.notes += _what_is_measured(gathered.comparisons)
    origin = describe_origin(rows)
    environment = known_environment(origin, made_here=kind == "measured")
    decisions = {head: _decide(gpu, head, request, gathered, environment, kind) for head in heads}
    answer_rows, experiment_rows = _table_rows(gathered)
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
        (*answer_rows, *experiment_rows),
        origin,
        record,
        tuple(dict.fromkeys(gathered.notes)),
        len(answer_rows),
    )


SIZES = ("vocab_size", "rank", "hidden_size", "gru_size", "candidate_pool")


def shape_of_row(row: Mapping[str, Any]) -> tuple:
    """What makes a recorded walk one of a head: kind and sizes, None where the kind has none, or where its walk does not depend on it."""
    return _shape(row["head_kind"], row)


def shape_of_head(head: Head) -> tuple:
    """The same of a head."""
    return _shape(head.kind, {name: getattr(head, name) for name in SIZES})


def _shape(kind: str, sizes: Mapping[str, Any]) -> tuple:
    """A plain Markov head reads no hidden vector, so heads of all hidden sizes walk alike."""
    return (kind, *(None if (kind, name) == ("markov", "hidden_size") else sizes[name] for name in SIZES))


def _what_is_measured(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence that says which ways have measured times and which are predictions; nothing where none was measured."""
    labels = dict.fromkeys(each.label for each in comparisons)
    measured = [label for label in labels if any(each.label == label and each.is_fitted for each in comparisons)]
    predicted = [label for label in labels if label not in measured]
    published = [label for label in predicted if any(each.label == label and each.points for each in comparisons)]
    if not measured or not predicted:
        return []
    text = f"measured are {', '.join(measured)}; {', '.join(predicted)} {'is' if len(predicted) == 1 else 'are'} predicted"
    beside = "published times" if published == predicted else f"published times of {', '.join(published)}"
    return [f"{text}, with {beside} beside the predictions" if published else text]


def _compare(gpu: Gpu, head: Head, workload: Workload, rows: list[Mapping[str, Any]], gathered: _Gathered) -> None:
    """Add one head's ways in one L2 state, slowest kinds first: engine, stepwise reference, streaming, resident."""
    measured = _measured(gpu, head, workload, rows, gathered)
    for mode, precision in ALL_WAYS:
        implementation = REFERENCE if mode == "stepwise" else OURS
        if mode == "stepwise":
            gathered.comparisons += _engine(gpu, head, workload, measured, gathered)
        own = [each for each in measured if (each.implementation, each.mode, each.precision) == (implementation, mode, precision)]
        if own:
            gathered.comparisons.append(min(own, key=lambda each: each.fit.call_us(workload.steps) if each.is_fitted else math.inf))
            continue
        try:
            gathered.comparisons.append(predicted_comparison(gpu, head, workload, mode, precision, implementation))
        except BadInput as error:
            gathered.refuse(f"{mode} {precision} at V {head.vocab_size:,}", error)


def _measured(gpu: Gpu, head: Head, workload: Workload, rows: list[Mapping[str, Any]], gathered: _Gathered) -> list[Comparison]:
    """Fit every series among the rows and set its prediction beside it; returns those that somebody can choose to run."""
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
    return [comparison for key, comparison in found if not is_experiment(key.exchange)]


def _engine(gpu: Gpu, head: Head, workload: Workload, measured: list[Comparison], gathered: _Gathered) -> list[Comparison]:
    """The engine's paths: measured here where they were, else predicted with published points."""
    own = [each for each in measured if each.is_engine]
    if own:
        return own
    try:
        return engine_comparisons(gpu, head, workload)
    except BadInput as error:
        gathered.refuse(f"{ENGINE} at V {head.vocab_size:,}", error)
        return []


def _decide(
    gpu: Gpu, head: Head, request: StudyRequest, gathered: _Gathered, environment: Mapping[str, Any], kind: str
) -> Decision:
    """The decision about one head, in the L2 state that a draft round sees where it was studied.

    It is made from the series that the tables and figures show.
    """
    from cost_model.decide import decide

    l2_state = next(state for state in VERDICT_L2_STATES if state in request.l2_states)
    workload = request.workload(l2_state)
    mine = [
        each
        for each in gathered.comparisons
        if (each.vocab_size, each.rank, each.l2_state) == (head.vocab_size, head.rank, l2_state)
    ]
    fits = [
        (key, each.fit)
        for key, each in gathered.series
        if any(each is one for one in mine)
    ]
    predictions = [each.prediction for each in mine if each.prediction is not None]
    return decide(gpu, head, workload, predictions, fits, environment=environment, source=REPLAYED if kind == REPLAYED else MEASURED_HERE)


def _table_rows(gathered: _Gathered) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the step-cost table: those of the answer, in its order, and those of all other measured series."""
    keys = {id(each): key for key, each in gathered.series}
    answer_rows = [row for each in gathered.comparisons for row in _rows_of(keys.pop(id(each), None), each)]
    others = [(key, each) for key, each in gathered.series if id(each) in keys]
    return answer_rows, [row for key, each in others for row in _rows_of(key, each)]


def _rows_of(key: Any, each: Comparison) -> list[dict[str, Any]]:
    """The row of one series beside its own prediction, or of a prediction alone."""
    from cost_model.tables import step_cost_rows

    predictions = [each.prediction] if each.prediction is not None else []
    return step_cost_rows([(key, each.fit)] if key is not None else [], predictions)[:1]
