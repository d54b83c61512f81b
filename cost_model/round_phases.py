"""Phases of a round that nobody measured: as passes of recorded rounds run, where their coefficients ship, else estimated from the roofline.

`passes` has the first, `phases` the second. An overlapped draft computes a block for each boundary, which nobody has recorded, so all
phases of such a round come from the roofline.
"""

from __future__ import annotations

from collections.abc import Collection

from cost_model import passes, phases
from cost_model.drafter_memory import DrafterMemory
from cost_model.estimate import Z_95
from cost_model.gpu import Gpu
from cost_model.phases import Phase
from cost_model.targets import Drafter, Target

PHASES = ("verify", "backbone", "base_logits")
"""The phases before the head, in order."""

MODELLED = "modelled as a pass under CUDA graphs"
"""Basis of a phase whose time follows from the coefficients that recorded rounds gave."""


def unmeasured_phases(
    gpu: Gpu, drafter: Drafter, target: Target, memory: DrafterMemory, concurrency: int, context_tokens: int, steps: int, *,
    boundaries: int = 1, vocab_size: int | None = None, without: Collection[str] = (),
) -> dict[str, Phase]:
    """Return PHASES by name, but those `without`.

    Args:
        memory: of the drafter; concurrency, context_tokens, steps: of the round, steps the drafted tokens.
        boundaries: acceptance boundaries that a draft is computed for; 1 in a serial round.
        vocab_size: rows of the draft's output projection; the target's where None.

    Raises:
        MissingFact: the GPU lacks what a roofline needs.
    """
    demands = {
        "verify": lambda: phases.target_demand(target, concurrency, context_tokens, steps + 1),
        "backbone": lambda: phases.backbone_demand(target, drafter, memory, concurrency, context_tokens, steps, boundaries),
        "base_logits": lambda: phases.base_logits_demand(target, concurrency, steps, boundaries, vocab_size),
    }
    works = {
        "verify": lambda: passes.target_work(target, concurrency, context_tokens, steps + 1),
        "backbone": lambda: passes.backbone_work(target, drafter, memory, concurrency, context_tokens, steps),
        "base_logits": lambda: passes.base_logits_work(target, concurrency, steps, vocab_size),
    }
    rates = passes.load_rates(gpu) if boundaries == 1 else None
    asked = [name for name in PHASES if name not in without]
    if rates is None:
        return {name: phases.estimated(demands[name](), gpu) for name in asked}
    return {name: _modelled(passes.pass_us(gpu, works[name](), rates), demands[name]().roofline_us(gpu), rates.relative_error) for name in asked}


def _modelled(time_us: float, roofline_us: float, relative_error: float) -> Phase:
    """A phase of that time and standard error; its low end is never below the roofline, unless the time itself is."""
    half = 1 + Z_95 * relative_error
    return Phase(time_us, max(time_us / half, min(roofline_us, time_us)), time_us * half, MODELLED)
