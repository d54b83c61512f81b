"""What was recorded of the exchange on a GPU: its time alone, the step of a walk by exchange, and the stress; or the stress of this machine's GPU.

A record that is not there gives an empty result and a source that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from cost_model.fit import StepFit, fit_frame
from cost_model.measurement import NO_PROBE, read_walk_folder
from wts_lab.recordings import fullest_runs, measurements_root, recorded_gpus
from wts_lab.stress import VOLLEY, StressResult, launch_plan

if TYPE_CHECKING:
    import pandas

EXCHANGE_PROBE, STRESS_PROBE = "exchange", "stress"
WIDE_SUFFIX = "-wide"
STEPS_RECORD = "-exchanges"
"""End of the name of a record that varies nothing but the exchange."""

LIVE_KINDS = ((1, False), (1, True), (32, False), (32, True))
LIVE_SECONDS = 1.0


@dataclass(frozen=True)
class ExchangeTime:
    """Time of one exchange alone.

    Attributes:
        rows: batch rows, a word each.
        exchange: where the words lie; `wide` tells 64-bit words from 32-bit ones.
        grid_blocks: blocks that agree.
        exchange_us, exchange_us_low, exchange_us_high: median over all processes, and the lowest and highest of their medians.
    """

    rows: int
    exchange: str
    wide: bool
    grid_blocks: int
    exchange_us: float
    exchange_us_low: float
    exchange_us_high: float


@dataclass(frozen=True)
class StressRow:
    """One kind of stressed exchange.

    Attributes:
        rows, exchange, wide, grid_blocks: as of `ExchangeTime`.
        exchanges: winners that all blocks had to agree on; None where the record does not tell.
        matching_share: share of the winners, as every block saw them, that were right.
        round_us: median time of a round, delays included.
    """

    rows: int
    exchange: str
    wide: bool
    grid_blocks: int
    exchanges: int | None
    matching_share: float
    round_us: float


@dataclass(frozen=True)
class ExchangeTimes:
    """Recorded times and where they come from; both may be empty."""

    times: tuple[ExchangeTime, ...]
    source: str


@dataclass(frozen=True)
class StressStudy:
    """Rows of a stress and where they come from: a record, this machine's GPU, or nowhere."""

    rows: tuple[StressRow, ...]
    source: str


def exchange_times(gpu_id: str = "h200-sxm", records: Path | None = None) -> ExchangeTimes:
    """The newest record of each kind of exchange, timed alone."""
    frame = _probe_rows(gpu_id, records, EXCHANGE_PROBE)
    if frame is None:
        return ExchangeTimes((), f"no exchange of {gpu_id} is recorded; `python -m benchmarks.run probes` on that GPU records it")
    return ExchangeTimes(tuple(_time(group) for _, group in frame.groupby("variant", sort=False)), _origin(frame))


def _time(group: pandas.DataFrame) -> ExchangeTime:
    import numpy

    first, own = group.iloc[0], [float(numpy.median(samples)) for samples in group["samples_us"]]
    return ExchangeTime(int(first["batch"]), str(first["exchange"]), WIDE_SUFFIX in first["variant"], int(first["grid_blocks"]),
                        float(numpy.median(numpy.concatenate(list(group["samples_us"])))), min(own), max(own))  # fmt: skip


def exchange_steps(gpu_id: str = "h200-sxm", records: Path | None = None) -> list[tuple[str, int, StepFit]]:
    """Step of complete walks that differ in the exchange alone: (exchange, batch, fit), as the records of that name have them."""
    frame = _frame(gpu_id, records)
    if frame is None:
        return []
    walks = fullest_runs(frame[(frame["probe"] == NO_PROBE) & frame["record"].str.endswith(STEPS_RECORD)])
    return [(str(key.exchange), int(key.batch), fit) for key, fit in fit_frame(walks) if fit.usable]


def stress_study(live: bool | None = None, gpu_id: str = "h200-sxm", records: Path | None = None) -> StressStudy:
    """Stress the exchange on the GPU (`live` True), replay the newest record (False), or stress where a GPU is and else replay (None).

    Raises:
        BadInput: `live` without a GPU.
        BuildError, RuntimeError: as `wts_lab.stress.stress_exchange`.
    """
    from wts_lab.study import capable_device, no_device

    device = capable_device() if live is None or live else None
    if live and device is None:
        raise no_device()
    return _stressed_now(device.name) if device is not None else _stress_recorded(gpu_id, records)


def _stressed_now(device_name: str) -> StressStudy:
    from wts_lab.stress import stress_exchange

    rows = [_live_row(number, wide, stress_exchange(seconds=LIVE_SECONDS, rows=number, wide=wide)) for number, wide in LIVE_KINDS]
    return StressStudy(tuple(rows), f"stressed now on {device_name}, {LIVE_SECONDS:g} s of each kind")


def _live_row(rows: int, wide: bool, result: StressResult) -> StressRow:
    from statistics import median

    from cost_model.workload import DEFAULT_EXCHANGE

    return StressRow(rows, DEFAULT_EXCHANGE, wide, result.grid_blocks, result.exchanges, result.matching_share, median(result.samples_us))


def _stress_recorded(gpu_id: str, records: Path | None) -> StressStudy:
    import numpy

    frame = _probe_rows(gpu_id, records, STRESS_PROBE)
    if frame is None:
        return StressStudy((), f"no stress of {gpu_id} is recorded; `python -m benchmarks.stress` on that GPU records it")
    rows = [
        StressRow(int(row["batch"]), str(row["exchange"]), WIDE_SUFFIX in row["variant"], int(row["grid_blocks"]),
                  None if "--seed" in str(row["command"]) else exchanges_of(int(row["batch"]), len(row["samples_us"])),
                  float(row["tokens_match"]), float(numpy.median(row["samples_us"])))
        for _, row in frame.iterrows()
    ]  # fmt: skip
    return StressStudy(tuple(rows), _origin(frame))


def exchanges_of(rows: int, volleys: int, seed: int = 0) -> int:
    """Winners that blocks had to agree on in so many volleys of a stress: its launches follow from rows and seed."""
    return sum(rounds * batch for rounds, batch in islice(launch_plan(rows, Random(seed)), volleys * VOLLEY))


def _frame(gpu_id: str, records: Path | None) -> pandas.DataFrame | None:
    """All walk records of a GPU, or None where there is none."""
    folder = Path(records) if records is not None else measurements_root()
    return read_walk_folder(folder / gpu_id) if gpu_id in recorded_gpus(records) else None


def _probe_rows(gpu_id: str, records: Path | None, probe: str) -> pandas.DataFrame | None:
    """Rows of a probe, of each variant, place and batch those of the newest run; None where there is none."""
    frame = _frame(gpu_id, records)
    rows = None if frame is None else frame[(frame["probe"] == probe) & frame["samples_us"].map(len).astype(bool)]
    if rows is None or rows.empty:
        return None
    begun = rows.groupby("run_id")["recorded_at_utc"].transform("min")
    return rows[begun == begun.groupby([rows["variant"], rows["exchange"]]).transform("max")]


def _origin(frame: pandas.DataFrame) -> str:
    """GPU and date of some rows."""
    days = sorted({str(moment)[:10] for moment in frame["recorded_at_utc"]})
    return f"{frame['gpu_name'].iloc[0]}, recorded {days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}'}"
