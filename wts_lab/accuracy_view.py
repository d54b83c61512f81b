"""The accuracy that a screen shows: measured on this machine's GPU where there is one, else the record that ships with the lab.

Importing this module imports no torch; a replay needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.paths import data_root
from wts_lab.accuracy import FORMAT_NAMES, read_accuracy

LIVE_HEAD = Head.markov(151_936, 256)
LIVE_WALKS, LIVE_STEPS = 64, 16
NORMAL_95 = 1.959963984540054
"""Standard deviations that hold 95 % of a normal distribution."""


class NoAccuracy(BadInput):
    """Nothing was recorded and nothing can be measured; the message says what to run."""


@dataclass(frozen=True)
class AccuracyStudy:
    """Rows of an accuracy record (`wts_lab.accuracy.COLUMNS`), and in `source` where they come from."""

    rows: tuple[dict, ...]
    source: str

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads, in the record's order."""
        return tuple(dict.fromkeys(row["head_name"] for row in self.rows))

    def row(self, head: str, format_name: str) -> dict:
        """The row of a head and a format.

        Raises:
            BadInput: there is none; lists what there is.
        """
        found = [row for row in self.rows if (row["head_name"], row["format"]) == (head, format_name)]
        if not found:
            raise BadInput(f"no accuracy of {head!r} in {format_name!r}; there are {', '.join(self.heads)} in {', '.join(FORMAT_NAMES)}")
        return found[0]


def accuracy_study(live: bool | None = None, records: Path | None = None) -> AccuracyStudy:
    """Measure on the GPU (`live` True), replay the newest record (False), or measure where a GPU is and else replay (None).

    Args:
        records: folder of accuracy records; those that ship with the lab if left out.

    Raises:
        NoAccuracy: `live` without a GPU, or a replay without a record.
        AccuracyRecordError: the record is damaged.
    """
    from wts_lab.study import capable_device

    device = capable_device() if live is None or live else None
    if live and device is None:
        raise NoAccuracy("measuring here needs torch and a CUDA GPU of compute capability 8.0 or more; `wts-lab accuracy --device cpu` measures without one")
    return _measured(device.name) if device is not None else _recorded(records)


def _recorded(records: Path | None) -> AccuracyStudy:
    folder = Path(records) if records is not None else data_root() / "accuracy"
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise NoAccuracy(f"there is no accuracy record in {folder}; `python -m benchmarks.accuracy` or `wts-lab accuracy` makes one")
    studies = [AccuracyStudy(tuple(read_accuracy(path)), "") for path in found]
    rows = max(studies, key=lambda study: study.rows[0]["recorded_at_utc"]).rows
    where = rows[0]["gpu_name"] if rows[0]["device"] == "cuda" else "a CPU"
    weights = ", ".join(dict.fromkeys(row["head_source"] for row in rows))
    return AccuracyStudy(rows, f"recorded on {where}, {rows[0]['recorded_at_utc'][:10]}: {rows[0]['walks']} walks of {rows[0]['steps']} steps a head; weights: {weights}")


def _measured(device_name: str, place: str = "cuda") -> AccuracyStudy:
    from wts_lab.accuracy_run import measure_head, with_provenance
    from wts_lab.heads import random_head

    head = random_head(LIVE_HEAD, seed=0, device=place)
    rows = with_provenance(measure_head(head, "random", walks=LIVE_WALKS, steps=LIVE_STEPS))
    return AccuracyStudy(tuple(rows), f"measured now on {device_name}: {LIVE_WALKS} walks of {LIVE_STEPS} steps; weights: random")


def equal_share_interval(row: dict) -> tuple[float, float]:
    """95 % interval of the share of equal steps, by Wilson (J. Am. Stat. Assoc. 22, 1927); steps count as independent.

    With all of n steps equal it reaches down to n / (n + 3.84): few steps prove little.
    """
    steps, square = row["walks"] * row["steps"], NORMAL_95**2
    share, scale = row["equal_step_share"], 1 + square / steps
    middle = (share + square / (2 * steps)) / scale
    half = NORMAL_95 / scale * math.sqrt(share * (1 - share) / steps + square / (4 * steps**2))
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))
