"""Classes of fused walks: what the model describes alike well, so that each class has an error of its own.

The terms describe up to four greedy rows of a Markov head best. Each other class adds one thing that they describe less well: states, selection of several
quads that runs beside products, noise. A class has to be wide enough to be recorded at several vocabularies and batches, or its error cannot be told.
"""

from __future__ import annotations

from cost_model import terms
from cost_model.head import Head
from cost_model.workload import Workload

FEW_ROWS, RECURRENT, MANY_ROWS, SAMPLED = "few_rows", "recurrent", "many_rows", "sampled"

WALK_CLASSES = {
    FEW_ROWS: "up to four greedy rows of a Markov head",
    RECURRENT: "up to four greedy rows of a gated, RNN or Domino head",
    MANY_ROWS: "more than four greedy rows",
    SAMPLED: "sampled rows",
}
"""Name -> what belongs to it. A candidate pool is walked a row at a time."""


def walk_class(head: Head, workload: Workload) -> str:
    """Return the class of a fused walk."""
    if workload.temperature > 0:
        return SAMPLED
    if workload.batch > terms.QUAD_ROWS and head.candidate_pool is None:
        return MANY_ROWS
    return FEW_ROWS if head.kind == "markov" else RECURRENT
