"""Columns of the measurement records, version 1: names in order, types, meanings, and what each value may be.

`cost_model.measurement` reads and writes records by this list; `data/README.md` prints it for people, and a test holds the
two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from cost_model.head import HEAD_KINDS
from cost_model.workload import L2_STATES, MODES, PRECISIONS, ROUNDINGS

RECORD_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a record.

    Attributes:
        name: column name, ending in its unit where it has one.
        kind: text, whole (int64), number (float64), flag (bool) or numbers (list of float64).
        meaning: one line for the dictionary.
        words: allowed values of a text column; empty where any text may stand.
        low: least allowed number; None where any number may stand.
        required: whether null is refused.
    """

    name: str
    kind: str
    meaning: str
    words: tuple[str, ...] = ()
    low: float | None = None
    required: bool = False


_PROVENANCE = (
    Column("schema_version", "whole", "version of this format", low=1, required=True),
    Column("run_id", "text", "one id for all rows of one command", required=True),
    Column("process_index", "whole", "which of the run's processes, from 0; each has fresh allocations", low=0, required=True),
    Column("recorded_at_utc", "text", "time of the row, ISO 8601 in UTC", required=True),
    Column("command", "text", "command line that made the run"),
    Column("git_commit", "text", "commit of the code"),
    Column("git_dirty", "flag", "whether tracked files differed from the commit"),
    Column("wts_lab_version", "text", "version of the package"),
    Column("gpu_name", "text", "device name from the driver"),
    Column("gpu_sm_count", "whole", "multiprocessors that the process saw", low=1),
    Column("driver_version", "text", "NVIDIA driver"),
    Column("cuda_version", "text", "CUDA that the kernels were built with"),
    Column("torch_version", "text", "torch"),
    Column("sm_clock_mhz_before", "number", "clock of the multiprocessors before the samples", low=0),
    Column("sm_clock_mhz_after", "number", "the same after them", low=0),
    Column("throttle_reasons", "text", "reasons the driver gave for a lower clock, joined by commas; `none` where it gave none"),
)

WALK_FACTS = (
    *_PROVENANCE,
    Column("l2_state", "text", "warm, cold or serving", words=L2_STATES),
    Column("implementation", "text", "wts, torch-stepwise, or an engine with version", required=True),
    Column("variant", "text", "path within the implementation"),
    Column("mode", "text", "stepwise, streaming or resident", words=MODES),
    Column("precision", "text", "bf16 or int8x2", words=PRECISIONS),
    Column("rounding", "text", "once, twice or none", words=ROUNDINGS),
    Column("head_kind", "text", "markov, gated, rnn or domino", words=HEAD_KINDS),
    Column("vocab_size", "whole", "rows of W2 that may be chosen", low=1),
    Column("target_vocab_size", "whole", "rows of W1", low=1),
    Column("padded_vocab_size", "whole", "rows of W2 as stored", low=1),
    Column("rank", "whole", "elements of the latent", low=1),
    Column("hidden_size", "whole", "elements of the backbone's hidden vector", low=1),
    Column("gru_size", "whole", "elements of the GRU state", low=1),
    Column("candidate_pool", "whole", "candidates rescored; null for the whole vocabulary", low=0),
    Column("batch", "whole", "rows walked together", low=1),
    Column("steps", "whole", "walk length of each timed call; for a probe, its repetitions in a call", low=0),
    Column("temperature", "number", "sampling temperature, 0 is greedy", low=0),
    Column("logits_kept", "flag", "whether the step logits were stored"),
    Column("grid_blocks", "whole", "thread blocks launched", low=1),
    Column("warps", "whole", "warps a block", low=1),
    Column("register_tiles", "whole", "tiles a block keeps in registers", low=0),
    Column("shared_tiles", "whole", "tiles a block keeps in shared memory", low=0),
    Column("tensor_tiles", "whole", "tiles a block keeps in tensor memory", low=0),
    Column("streamed_tiles", "whole", "tiles a block reads again each step", low=0),
    Column("staging_tiles", "whole", "tiles of on-chip landing space for streamed ones", low=0),
    Column("exchange", "text", "how the blocks agree on the winning token"),
    Column("probe", "text", "what the row isolates; `none` for a whole walk", required=True),
    Column("work_bytes", "whole", "bytes that one call moves, for a probe", low=0),
    Column("work_operations", "whole", "operations that one call does, for a probe", low=0),
    Column("repeats", "whole", "samples asked for", low=1),
    Column("registers_per_thread", "whole", "as ptxas reports", low=0),
    Column("spill_bytes", "whole", "as ptxas reports", low=0),
    Column("samples_us", "numbers", "time of every kept call in microseconds, in order", low=0, required=True),
    Column("samples_dropped", "whole", "samples dropped because the GPU throttled", low=0),
    Column("tokens_match", "number", "share of tokens equal to the twin's; under 1 is a wrong kernel", low=0),
    Column("tokens_agree_reference", "number", "share equal to the bf16 reference, teacher-forced", low=0),
)

ROUND_FACTS = (
    *_PROVENANCE,
    Column("phase", "text", "part of the round that was timed", required=True),
    Column("target", "text", "target model"),
    Column("concurrency", "whole", "requests served together", low=1),
    Column("context_tokens", "whole", "tokens of context a request", low=0),
    Column("draft_tokens", "whole", "tokens drafted a round", low=1),
    Column("head_implementation", "text", "implementation of the head in that round"),
    Column("head_mode", "text", "stepwise, streaming or resident", words=MODES),
    Column("samples_us", "numbers", "time of every kept sample in microseconds, in order", low=0, required=True),
    Column("samples_dropped", "whole", "samples dropped because the GPU throttled", low=0),
)

_SHARES = ("tokens_match", "tokens_agree_reference")


def column_fault(column: Column, value: object) -> str | None:
    """Return why a value cannot stand in a column, or None if it can."""
    if value is None:
        return "is null, but must be known" if column.required else None
    if column.name == "schema_version" and value != RECORD_SCHEMA_VERSION:
        return f"is {value}; this code reads version {RECORD_SCHEMA_VERSION}"
    if column.name == "recorded_at_utc":
        return None if _is_utc(value) else f"is {value!r}; write ISO 8601 in UTC, such as 2026-01-31T12:00:00Z"
    if column.words and value not in column.words:
        return f"is {value!r}; it must be one of {', '.join(column.words)}"
    numbers = value if column.kind == "numbers" else [value] if column.kind in ("whole", "number") else []
    for one in numbers:
        if one is None or not math.isfinite(one) or (column.low is not None and one < column.low):
            return f"holds {one!r}; it must be finite and at least {column.low:g}"
    if column.name in _SHARES and value > 1:
        return f"is {value!r}; a share is at most 1"
    return None


def _is_utc(text: str) -> bool:
    """Tell whether a text is an ISO 8601 time with the zone UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment.utcoffset() == timedelta(0)
