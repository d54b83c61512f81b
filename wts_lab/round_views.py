"""How the answer about a round looks: one set of tables and sentences for the terminal and for Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.units import format_bytes, format_count, format_interval_us, format_percent, format_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_model.decide import Decision
    from cost_model.serving import RoundAnswer
    from cost_model.substitutes import Alternatives, ShardChoice, Substitute

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, columns and rows of text."""

OWN_WEIGHTS = {"gated": "gate", "rnn": "joint projection", "domino": "GRU and projector"}
"""What a head of a kind has beside W2 and W1."""


def tables(answer: RoundAnswer) -> list[Table]:
    """Phases, heads, substitutes, the shard choices where there are any, and memory."""
    return [phases_table(answer), _outcomes(answer), substitutes_table(answer.substitutes), *shard_tables(answer.shards, answer.request.alternatives), memory_table(answer)]


def sentences(answer: RoundAnswer) -> list[str]:
    """Break-even, notes, and the verdict with its reasons."""
    lines = []
    if answer.break_even and answer.break_even.plain_length is not None:
        least = answer.break_even.plain_length
        lines.append(f"Speculation itself pays from an accepted length of {least:.3g} on (here {answer.round.accepted_length:.3g}), against plain decoding "
                     "at this concurrency and context.")
    lines += [f"Note: {note}." for note in answer.notes]
    return [*lines, f"Verdict: {answer.decision.verdict}", *(f"  - {reason}" for reason in answer.decision.reasons)]


def markdown(answer: RoundAnswer) -> str:
    """The same as a Markdown page."""
    before = [line for line in sentences(answer) if not line.startswith(("Verdict: ", "  - "))]
    return page(_title(answer), tables(answer), before, answer.decision)


def page(title: str, shown: Sequence[Table], before: Sequence[str], decision: Decision) -> str:
    """A Markdown page: tables, sentences, and the verdict with its reasons."""
    parts = [f"# {title}"]
    for heading, columns, rows in shown:
        lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] + ["---:"] * (len(columns) - 1), *rows)]
        parts.append(f"## {heading}\n\n" + "\n".join(lines))
    reasons = "\n".join(f"- {reason}" for reason in decision.reasons)
    return "\n\n".join([*parts, *before, f"**Verdict: {decision.verdict}**", reasons]) + "\n"


def options_table(decision: Decision) -> Table:
    """Every way to run the head that was compared, fastest call first."""
    rows = [(each.name, each.told, format_interval_us(*each.interval_us), format_us(each.step_us), format_us(each.entry_us)) for each in decision.options]
    return "Ways to run the head", ("way", "call", "interval", "step", "entry"), rows


def _title(answer: RoundAnswer) -> str:
    """What was asked, in a line."""
    asked = answer.request
    return (f"{asked.drafter.name} with {asked.head.name} on {answer.gpu_id}: {asked.workload.batch} x {asked.context_tokens:,} tokens, "
            f"{asked.workload.steps} drafted, {asked.schedule}")


def phases_table(answer: RoundAnswer) -> Table:
    """The round without its head, and the whole of it."""
    rows = [(name.replace("_", " "), format_us(phase.time_us), format_interval_us(*phase.interval_us), phase.basis) for name, phase in answer.phases.items()]
    rows.append(("all, as the schedule joins them", format_us(answer.round.rest_us), format_interval_us(*answer.round.rest_interval_us), answer.round.schedule))
    return f"Phases without the head: {_title(answer)}", ("phase", "time", "interval", "basis"), rows


def _outcomes(answer: RoundAnswer) -> Table:
    """What each head makes of the round."""
    rows = []
    for each in answer.outcomes:
        gain, option = each.gain, each.option
        rows.append((f"{each.way}: {option.name}", option.told, format_us(gain.round_us_after), format_percent(gain.head_share_after),
                     format_count(gain.tokens_per_s_after), f"{format_count(gain.tokens_per_s_after_low)} to {format_count(gain.tokens_per_s_after_high)}",
                     *_gain(gain.gain, gain.gain_low, gain.gain_high)))
    return ("The round with each head; gains are over the engine's path",
            ("head", "call", "round", "head's share", "tokens/s", "interval", "gain", "interval"), rows)


def _gain(gain: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """A gain and its interval."""
    return format_percent(gain), f"{format_percent(low)} to {format_percent(high)}"


def substitutes_table(substitutes: Sequence[Substitute]) -> Table:
    """Every way of making the head cheaper."""
    rows = []
    for each in substitutes:
        loss = None if each.least_length_ratio is None else 1 - each.least_length_ratio
        length = "" if loss is None else format_percent(loss) if loss > 0 else "no gain to lose"
        rows.append((each.name, "approximate" if each.approximate else "all", f"{format_us(each.call_us)} ({each.basis})",
                     format_bytes(each.read_bytes_per_step), format_bytes(each.extra_memory_bytes), *_gain(each.gain, each.gain_low, each.gain_high), length))
    return ("Substitutes; gains are over the engine's path, of approximate ones at an unchanged accepted length",
            ("way", "rows scored", "call", "W2 read a step", "more memory", "gain", "interval", "loss of accepted length that undoes it"), rows)


def shard_tables(shards: Sequence[ShardChoice], asked: Alternatives) -> list[Table]:
    """Replicate or shard; nothing where there is one rank."""
    if not shards:
        return []
    rows = [(each.way, format_us(each.replicated_us), format_us(each.sharded_us), format_us(each.flip_us) if each.flip_us > 0 else "never",
             "shard" if each.shard else "replicate") for each in shards]
    return [(f"Tensor parallelism over {asked.ranks} GPUs, {format_us(asked.collective_us)} a collective, one a step",
             ("way", "replicated", "sharded", "flips at a collective of", "choice"), rows)]


def memory_table(answer: RoundAnswer) -> Table:
    """What is held, and the draft's traffic of context."""
    held = answer.memory
    parts = (("W1", held.table_bytes), (OWN_WEIGHTS.get(answer.request.head.kind, ""), held.own_bytes))
    head = [(f"head: {name}", size) for name, size in parts if size]
    rows = [("target weights", held.target_bytes), ("target K and V", held.target_kv_bytes), ("drafter weights", held.drafter_bytes),
            ("drafter context", held.drafter_context_bytes), ("drafts of every boundary", held.boundary_bytes), ("head: W2", held.matrix_bytes),
            *head, ("recommended walk, beside that", held.fused_bytes),
            ("all of it", held.total_bytes), ("what the GPU has", held.device_bytes), ("context read by a draft", held.draft_read_bytes),
            ("context written by a round", held.draft_written_bytes)]
    return "Device memory and the draft's traffic", ("what", "bytes"), [(name, format_bytes(size)) for name, size in rows]
