"""Where a step goes for each kind of head: measured by clocks and predicted by terms, both in the same five parts, beside the engine's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wts_lab.recorded_probes import Dissection, dissect
from wts_lab.walked import Walked, walked

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.workload import Workload

PRODUCTS, SELECTION, AGREEMENT, STATE, REST = "products", "selection", "agreement", "latent and state", "not told apart"
PARTS = (PRODUCTS, SELECTION, AGREEMENT, STATE, REST)

PHASE_PARTS = {"products": PRODUCTS, "epilogue": SELECTION, "publish": AGREEMENT, "exchange": AGREEMENT, "latent": STATE}
"""Part of a step that each phase of the kernel's clocks belongs to. Everything between the winners and the next latent is phase `latent`."""

TERM_PARTS = {
    **dict.fromkeys(("products", "shared_read", "stream", "pool_read"), PRODUCTS), "epilogue": SELECTION,
    **dict.fromkeys(("block_reduction", "exchange", "led_rows", "noise", "state_products"), AGREEMENT),
    **dict.fromkeys(("latent", "gate", "state_read", "state_update", "projector", "latent_exchange", "latent_update"), STATE),
}
"""Part that each term of the model belongs to; others, the residual overhead among them, are not told apart."""


@dataclass(frozen=True)
class HeadStep:
    """A resident step of one head.

    Attributes:
        name: of the head in words.
        walk: the resident walk; engine: the path that the engine takes for it, a stepwise walk.
        dissection: what was recorded of its parts.
    """

    name: str
    walk: Walked
    engine: Walked
    dissection: Dissection

    @property
    def measured_parts_us(self) -> dict[str, float]:
        """Part -> microseconds by the kernel's clocks, which sum to the step they saw; empty where they were not recorded."""
        return _summed(self.dissection.phases_us, PHASE_PARTS)

    @property
    def predicted_parts_us(self) -> dict[str, float]:
        """Part -> exposed microseconds of the model's terms, which sum to the predicted step; empty without a prediction."""
        made = self.walk.prediction
        return {} if made is None else _summed({name: term.exposed_us for name, term in made.terms["step"].items()}, TERM_PARTS)

    @property
    def speedup(self) -> float | None:
        """The engine's step over this one, each on the best basis there is; None where one is not known."""
        ours, theirs = (_best_us(walk) for walk in (self.walk, self.engine))
        return None if ours is None or theirs is None else theirs / ours


def head_step(gpu: Gpu, name: str, head: Head, workload: Workload, *, records: Path | None = None) -> HeadStep:
    """A resident int8x2 step of one head, measured as far as it was recorded; `records` as in `walked`."""
    engine = walked(gpu, head, replace(workload, precision="bf16", logits_kept=False), "stepwise", records=records)
    return HeadStep(name, walked(gpu, head, workload, "resident", records=records), engine, dissect(gpu, head, workload, records=records))


def _summed(times_us: Mapping[str, float], parts: Mapping[str, str]) -> dict[str, float]:
    """Times by part, in the order of PARTS; parts without a time are left out."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, time_us in times_us.items():
        found[parts.get(name, REST)] += float(time_us)
    return {part: time_us for part, time_us in found.items() if time_us > 0}


def _best_us(walk: Walked) -> float | None:
    """A step: measured, else published, else predicted."""
    if walk.is_measured:
        return walk.fit.step_us
    if walk.published_step_us is not None:
        return walk.published_step_us
    return walk.prediction.step_us if walk.prediction is not None else None
