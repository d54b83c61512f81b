"""Rounds that were recorded on a GPU, with their gains; or words that there are none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.measured_round import LostSamples, RoundComparison, compare_rounds, kept_rows
from cost_model.measurement import RECORD_SUFFIX, read_round
from wts_lab.recordings import measurements_root

if TYPE_CHECKING:
    from cost_model.gpu import Gpu

ROUNDS_RECORD = "-round"
"""End of the name of a record of rounds, as `python -m benchmarks.round` names it."""


def recorded_rounds(gpu: Gpu, records: Path | None = None) -> RoundComparison:
    """The newest record of rounds of a GPU, and what was measured again of these rounds, beside the model; a comparison of nothing, whose basis says so, where
    there is none. Records of the same day whose names go on where that one's ends are such measurements.

    Args:
        records: folder of recorded runs; those that ship with the lab where None.

    Raises:
        RecordError, NoRounds: the record cannot be read or compared.
    """
    folder = (Path(records) if records is not None else measurements_root()) / gpu.id
    found = sorted(folder.glob(f"*{ROUNDS_RECORD}{RECORD_SUFFIX}"))
    if not found:
        return RoundComparison(gpu.id, (), (), f"no round of {gpu.id} is recorded; `python -m benchmarks.round` on that GPU records them", LostSamples(0, 0, "", (), ()))
    import pandas

    newest = read_round(found[-1])
    again = (read_round(path) for path in sorted(folder.glob(f"{found[-1].stem}-*{RECORD_SUFFIX}")))
    frames = [newest, *(frame[frame["draft_tokens"].isin(newest["draft_tokens"])] for frame in again)]
    return compare_rounds(gpu, kept_rows(pandas.concat(frames, ignore_index=True)))
