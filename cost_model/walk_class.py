"""Classes of fused walks: what the model describes alike well, so that each class has an error of its own.

The terms describe up to four greedy rows of a Markov head best. Each other class adds one thing that they describe less well: states, selection of several
quads that runs beside products, noise, and streams beside all of these. A class has to be wide enough to be recorded at several vocabularies and batches, or
its error cannot be told.
"""

from __future__ import annotations

from cost_model import terms
from cost_model.head import Head
from cost_model.workload import Workload

FEW_ROWS, RECURRENT, MANY_ROWS, SAMPLED = "few_rows", "recurrent", "many_rows", "sampled"
STREAMS = "_streaming"
"""End of the names of classes whose tiles stream, some or all. States hide streams, so recurrent walks are one class either way."""

_RESIDENT = {
    FEW_ROWS: "up to four greedy rows of a Markov head",
    RECURRENT: "up to four greedy rows of a gated, RNN or Domino head",
    MANY_ROWS: "more than four greedy rows",
    SAMPLED: "sampled rows",
}
WALK_CLASSES = _RESIDENT | {name + STREAMS: f"{_RESIDENT[name]}, tiles streaming" for name in (FEW_ROWS, MANY_ROWS, SAMPLED)}
"""Name -> what belongs to it. A candidate pool is walked a row at a time."""


def walk_class(head: Head, workload: Workload, streams: bool = False) -> str:
    """Return the class of a fused walk; `streams`: whether any of its tiles do."""
    if workload.temperature > 0:
        found = SAMPLED
    elif workload.batch > terms.QUAD_ROWS and head.candidate_pool is None:
        found = MANY_ROWS
    else:
        found = FEW_ROWS if head.kind == "markov" else RECURRENT
    return found + STREAMS * (streams and found != RECURRENT)
