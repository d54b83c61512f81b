"""Names of recorded series for tables: how each walks, and no more than tells it from the others; what is as usual is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cost_model.head import HEAD_KINDS
from cost_model.units import UNKNOWN
from cost_model.workload import DEFAULT_EXCHANGE, L2_STATES, OURS

if TYPE_CHECKING:
    from cost_model.fit import SeriesKey

PLACEMENT_COLUMNS = ("warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles")
TOLD_APART = ("gpu_name", "logits_kept", "exchange", "grid_blocks", "record", "variant", *PLACEMENT_COLUMNS)
"""Columns that have words of their own; of others the column's name is the word."""


def series_names(keys: Sequence[SeriesKey]) -> list[str]:
    """A name for each series. No two that a table shows with equal vocabulary, rank and L2 state have the same one."""
    alike: dict[tuple, list[SeriesKey]] = {}
    for key in keys:
        alike.setdefault(_shown_of(key), []).append(key)
    return [", ".join((_usual_name(key), *_differences(key, alike[_shown_of(key)]))) for key in keys]


def series_order(key: SeriesKey) -> tuple:
    """What a table of series is sorted by: shape and L2 state, then the way of walking, kind of head, sampling, and batch as a number."""
    kinds = {kind: place for place, kind in enumerate(HEAD_KINDS)}
    return (
        key.vocab_size or 0, key.rank or 0, L2_STATES.index(key.l2_state) if key.l2_state in L2_STATES else -1, _way(key),
        kinds.get(key.head_kind, -1), key.temperature or 0.0, key.batch or 1,
    )  # fmt: skip


def _shown_of(key: SeriesKey) -> tuple:
    """What a table shows of a series before its differences."""
    return _usual_name(key), key.vocab_size, key.rank, key.l2_state


def _usual_name(key: SeriesKey) -> str:
    """Way, and kind of head, batch and temperature where they are not the usual ones."""
    unusual = (
        (str(key.head_kind), key.head_kind not in (None, "markov")), (f"batch {key.batch}", key.batch not in (None, 1)),
        (f"temperature {key.temperature or 0:g}", bool(key.temperature)),
    )  # fmt: skip
    return ", ".join((_way(key), *(words for words, holds in unusual if holds)))


def _way(key: SeriesKey) -> str:
    """Mode and precision of our walks, implementation and path of others."""
    words = [key.mode, key.precision] if key.implementation == OURS else [key.implementation, key.variant]
    if key.mode == "resident" and key.streamed_tiles:
        words.append(f"({key.streamed_tiles} tiles streamed)")
    return " ".join(word for word in words if word)


def _differences(key: SeriesKey, alike: Sequence[SeriesKey]) -> list[str]:
    """Words that tell a series from those alike, column by column until it stands alone; a usual value, and an absent one, need none."""
    words = []
    for value_of, words_of in _columns(key):
        if len(alike) == 1:
            break
        if len({value_of(each) for each in alike}) > 1:
            words.append(words_of(value_of(key)))
            alike = [each for each in alike if value_of(each) == value_of(key)]
    return [word for word in words if word]


def _columns(key: SeriesKey) -> list[tuple[Callable[[SeriesKey], Any], Callable[[Any], str]]]:
    """(value of a column, its words) in the order in which series are told apart: what was asked for, what was built, where it comes from."""
    asked = ((name, name.removesuffix("_size").replace("_", " ")) for name in key.as_dict() if name not in TOLD_APART)
    origin = (("grid_blocks", "grid"), ("gpu_name", "GPU"), ("record", "record"), ("variant", "variant"))
    asked, origin = ([(attrgetter(name), partial(_named, word)) for name, word in pairs] for pairs in (asked, origin))
    return [*asked, (attrgetter("logits_kept"), _logits), (attrgetter("exchange"), _exchange), (_placement, "placement {}".format), *origin]


def _named(word: str, value: object) -> str:
    """A value after its word; nothing for an absent one."""
    return "" if value is None else f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"


def _logits(kept: bool | None) -> str:
    """Whether step logits are kept; usually they are not."""
    return {True: "logits kept", False: "", None: f"logits {UNKNOWN}"}[kept]


def _exchange(name: str | None) -> str:
    """Where the words lie that the blocks exchange; nothing for the usual place."""
    return "" if name == DEFAULT_EXCHANGE else f"exchange {name or UNKNOWN}"


def _placement(key: SeriesKey) -> str:
    """A placement as `--placement` takes it, where all of it is known."""
    counts = (getattr(key, name) for name in PLACEMENT_COLUMNS)
    return ",".join(UNKNOWN if count is None else str(count) for count in counts)
