"""Tables of what heads weigh, of an engine's step, and of a head's share of a round: formatted text with units in the titles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cost_model.head_memory import residency_share
from cost_model.units import UNKNOWN, format_bytes, format_interval_us, format_percent, format_us

if TYPE_CHECKING:
    import pandas

    from cost_model.gpu import Gpu
    from cost_model.head_memory import HeadMemory
    from wts_lab.engine_step import EngineStep
    from wts_lab.head_shares import HeadShare, Share


def head_memory_table(memories: Iterable[HeadMemory], gpu: Gpu | None = None) -> pandas.DataFrame:
    """What each head weighs, what steps read, and what a fused walk adds; with a GPU also the share of the matrix that stays on its chip."""
    import pandas

    rows = []
    for each in memories:
        head = each.head
        pool = "" if head.candidate_pool is None else f", {head.candidate_pool:,} candidates"
        kept = () if gpu is None else (format_percent(residency_share(gpu, head)),)
        rows.append(
            (
                head.name,
                f"{head.kind}{pool}",
                f"{head.vocab_size:,} × {head.rank}",
                format_bytes(each.head_bytes),
                format_bytes(each.step_read_bytes),
                format_bytes(each.resident_bytes),
                *kept,
                format_bytes(each.fused_bytes),
            )
        )
    titles = [
        "head",
        "kind",
        "W2",
        "weights, bf16",
        "read by a stepwise step",
        "multiplied by a fused step",
        *([] if gpu is None else ["of the tiles on chip"]),
        "fused walk adds",
    ]
    return pandas.DataFrame(rows, columns=titles).set_index("head")


def engine_steps_table(steps: Iterable[EngineStep]) -> pandas.DataFrame:
    """Each path of the engine, a row a part, with its share, and the whole step as complete calls give it in a row of its own."""
    import pandas

    rows = []
    for step in steps:
        rows += [
            (
                step.label,
                part.name,
                format_us(part.time_us),
                format_interval_us(part.time_us_low, part.time_us_high),
                format_percent(part.time_us / step.parts_us),
                step.basis,
            )
            for part in step.parts
        ]
        rows.append((step.label, "all parts", format_us(step.parts_us), "", format_percent(1.0), step.basis))
        rows.append((step.label, "a step of complete calls", format_us(step.step_us), "", "", step.step_basis or UNKNOWN))
    return pandas.DataFrame(rows, columns=["path", "part", "time", "5th to 95th percentile", "share", "basis"]).set_index(["path", "part"])


def head_shares_table(shares: Iterable[HeadShare]) -> pandas.DataFrame:
    """Each drafter with each head: the head's call, its share of the draft and of the round, with intervals."""
    import pandas

    rows = [
        (
            each.drafter,
            each.way,
            f"{each.steps} steps, {each.concurrency} sequence{'s' if each.concurrency > 1 else ''}",
            format_us(each.head_us[0]),
            each.basis,
            *_share(each.of_draft),
            *_share(each.of_round),
            format_us(each.round_us),
        )
        for each in shares
    ]
    titles = ["drafter", "head", "draft", "the head's call", "basis", "of the draft", "between", "of the round", "between them", "round"]
    return pandas.DataFrame(rows, columns=titles).set_index(titles[:2])


def _share(share: Share) -> tuple[str, str]:
    return format_percent(share[0]), f"{format_percent(share[1])} to {format_percent(share[2])}"
