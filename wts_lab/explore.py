"""Everything that the explorer shows of one configuration, as data: predictions of all ways, tiers, timeline, roofline, gain.

Predictions are kept: a question that differs from an earlier one in what a way does not depend on computes nothing anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from cost_model.errors import BadInput
from cost_model.parameters import ByIdentity
from cost_model.roofline import Phase, Roof, phases, roofs
from cost_model.terms import matrix_bytes
from cost_model.timeline import Span, walk_timeline
from cost_model.workload import OURS
from wts_lab.compare import ALL_WAYS, Way, gain_split, predicted_comparisons, tiers_of

if TYPE_CHECKING:
    from cost_model.gain import GainSplit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.workload import Workload
    from wts_lab.comparison import Comparison
    from wts_lab.tiers import Tier

KEPT_ANSWERS = 4096


@dataclass(frozen=True)
class Exploration:
    """One configuration.

    Attributes:
        gpu, head, workload: what was asked about.
        comparisons: every way of walking that can be predicted, slowest mode first.
        chosen: the one asked for.
        notes: a line for each way that cannot be predicted.
    """

    gpu: Gpu
    head: Head
    workload: Workload
    comparisons: tuple[Comparison, ...]
    chosen: Comparison
    notes: tuple[str, ...] = ()

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """Memory tiers with the matrix placed as chosen."""
        return tiers_of(self.gpu, self.head, self.chosen)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The chosen walk on the time axis."""
        return walk_timeline(self.chosen.prediction)

    @cached_property
    def phases(self) -> tuple[tuple[Comparison, tuple[Phase, ...]], ...]:
        """Phases of a step of each way."""
        return tuple((each, phases(self.gpu, each.prediction)) for each in self.comparisons)

    @cached_property
    def roofs(self) -> tuple[Roof, ...]:
        """Roofs of the GPU: memories, and tensor cores in both precisions."""
        footprint = float(matrix_bytes(self.head.padded_vocab_size, self.head.rank, self.chosen.precision))
        found = [*roofs(self.gpu, "bf16", footprint), *roofs(self.gpu, "int8x2", footprint)]
        return tuple(dict.fromkeys(found))

    @cached_property
    def gain(self) -> GainSplit | None:
        """What fusion, precision and residency give a step; None where one of the ways cannot be predicted."""
        return gain_split(self.comparisons)


def explore(gpu: Gpu, head: Head, workload: Workload, way: Way) -> Exploration:
    """Predict all ways of walking a head, and look closely at one.

    Raises BadInput where that one cannot be predicted; the others are left out with a note.
    """
    found: list[Comparison] = []
    notes: list[str] = []
    for each in dict.fromkeys((*ALL_WAYS, way)):
        try:
            found += _predicted(ByIdentity(gpu), head, replace(workload, precision=each[1]), each)
        except BadInput as error:
            if each == way:
                raise
            notes.append(f"{' '.join(each)}: {error}")
    mine = [each for each in found if (each.mode, each.precision) == way]
    chosen = next((each for each in mine if each.implementation == OURS or each.is_engine), mine[0])
    return Exploration(gpu, head, workload, tuple(found), chosen, tuple(notes))


@lru_cache(maxsize=KEPT_ANSWERS)
def _predicted(key: ByIdentity, head: Head, workload: Workload, way: Way) -> tuple[Comparison, ...]:
    """Comparisons of one way, kept for the Gpu object that was asked about."""
    return predicted_comparisons(key.gpu, head, workload, (way,))
