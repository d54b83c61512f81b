"""Recorded runs, found and filtered: what a replay shows instead of measuring.

A recording keeps its origin: the GPU it was made on and the date, which every screen and report prints beside it.
Records live in one folder a GPU, `<folder>/<gpu id>/<date>-<case>.parquet` (`cost_model.measurement.record_path`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.gpu import UnknownGpu, load_gpu
from cost_model.measurement import NO_PROBE, frame_rows, read_walk_folder, require_gpu
from cost_model.paths import data_root
from cost_model.tables import PLACEMENT_COLUMNS as TILE_COLUMNS
from cost_model.workload import OURS, REFERENCE, is_experiment

if TYPE_CHECKING:
    import pandas

    from cost_model.gpu import Gpu
    from cost_model.head import Head

PLACEMENT_COLUMNS = ("grid_blocks", *TILE_COLUMNS)
WAY_COLUMNS = ("implementation", "variant", "mode", "precision", "rounding")
SHAPE_COLUMNS = (
    "head_kind", "vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "hidden_size", "gru_size", "candidate_pool", "batch", "temperature",
)
CONFIGURATION_COLUMNS = (*WAY_COLUMNS, *SHAPE_COLUMNS, "l2_state", *PLACEMENT_COLUMNS, "exchange")


class NothingRecorded(BadInput):
    """No record fits what was asked for; the message lists what there is."""


@dataclass(frozen=True)
class Recording:
    """Rows of recorded walks in the order they were timed, with their origin.

    Attributes:
        gpu_id: catalogue id of the GPU that was measured.
        gpu_name: device name from the driver.
        dates: first and last day of recording (ISO, UTC).
        frame: the rows as `read_walk_folder` gives them (walks only, no probes).
    """

    gpu_id: str
    gpu_name: str
    dates: tuple[str, str]
    frame: pandas.DataFrame

    @property
    def label(self) -> str:
        """GPU and date, for instance 'NVIDIA H200, recorded 2026-11-29'."""
        first, last = self.dates
        return f"{self.gpu_name}, recorded {first if first == last else f'{first} to {last}'}"

    def at_steps(self, steps: Collection[int]) -> Recording:
        """The rows of these walk lengths only."""
        return replace(self, frame=self.frame[self.frame["steps"].isin(list(steps))])

    def about(self, batch: int, temperature: float, rounding: str) -> Recording:
        """The walks of this many batch rows at this temperature only, ours with this rounding; others have their own."""
        frame = select_walks(self, batch=batch, temperature=temperature)
        return replace(self, frame=frame[(frame["implementation"] != OURS) | (frame["rounding"] == rounding)])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return frame_rows(self.frame)


def measurements_root() -> Path:
    """Folder of the records that ship with the lab."""
    return data_root() / "measurements"


def recorded_gpus(records: Path | None = None) -> tuple[str, ...]:
    """Ids of the GPUs that have records, sorted.  Raises BadInput where `records` is given and is no folder."""
    folder = Path(records) if records is not None else measurements_root()
    if not folder.is_dir():
        if records is None:
            return ()
        what = "is a file" if folder.exists() else "does not exist"
        raise BadInput(f"the records folder {folder} {what}; give the folder that holds a folder for each GPU, such as h200-sxm/")
    return tuple(sorted(each.name for each in folder.iterdir() if each.is_dir() and any(each.rglob("*.parquet"))))


def read_recording(gpu_id: str | None = None, records: Path | None = None) -> Recording:
    """All recorded walks of a GPU, or of the GPU recorded last when none is named; the fullest run of each configuration only.

    Raises:
        NothingRecorded: there is no record of that GPU; lists those that have one.
        RecordError: a record is damaged or foreign; names the file.
        AnotherGpu: the rows in a GPU's folder were made on another one; names both.
        BadInput: `records` is no folder.
    """
    folder = Path(records) if records is not None else measurements_root()
    known = recorded_gpus(records)
    if not known or (gpu_id is not None and gpu_id not in known):
        asked = f" of {gpu_id}" if gpu_id else ""
        there = f"recorded are {', '.join(known)}" if known else "there is no record at all"
        raise NothingRecorded(f"no run{asked} is recorded under {folder}; {there}. Measure on that GPU, or choose a recorded one")
    recordings = [_recording(each, folder / each) for each in ([gpu_id] if gpu_id else known)]
    return max(recordings, key=lambda recording: recording.dates[1])


Stamp = tuple[tuple[str, int], ...]


def records_stamp(gpu_id: str, records: Path | None = None) -> Stamp:
    """Path and time of change of each record of a GPU: equal as long as reading them again would give the same."""
    folder = (Path(records) if records is not None else measurements_root()) / gpu_id
    return tuple((str(path), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*.parquet")))


@lru_cache(maxsize=4)
def kept_recording(gpu_id: str, records: Path | None, stamp: Stamp) -> Recording | None:
    """The recording of a GPU, read once for each stamp of its files; None where nothing is recorded."""
    try:
        return read_recording(gpu_id, records)
    except NothingRecorded:
        return None


def _recording(gpu_id: str, folder: Path) -> Recording:
    frame = read_walk_folder(folder)
    return recording_of(frame, gpu_id)


def recording_of(frame: pandas.DataFrame, gpu_id: str) -> Recording:
    """A Recording of a frame of walk rows: probes out, the fullest run of each configuration kept, origin read from the rows.

    Raises:
        AnotherGpu: rows were made on another GPU than `gpu_id`, where the catalogue knows that one.
        NothingRecorded: there are probes only.
    """
    try:
        require_gpu(frame, load_gpu(gpu_id, calibrated=False))
    except UnknownGpu:
        pass  # measured on a GPU that the catalogue lacks: there is nothing to compare its name with
    walks = fullest_runs(frame[frame["probe"] == NO_PROBE])
    if walks.empty:
        raise NothingRecorded(f"the records of {gpu_id} hold no walk, only probes; run `wts-lab study` on that GPU")
    days = sorted(str(moment)[:10] for moment in walks["recorded_at_utc"])
    names = walks["gpu_name"].dropna().unique()
    return Recording(gpu_id, str(names[0]) if len(names) else gpu_id, (days[0], days[-1]), walks)


def fullest_runs(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Keep, for each configuration, the rows of the run with the most processes and walk lengths, the newest of equals.

    A quick look (one process, three lengths) so never hides a full series. Order is kept.
    """
    if frame.empty:
        return frame
    configuration = _configuration(frame)
    begun = frame.groupby("run_id")["recorded_at_utc"].transform("min")
    points = frame.groupby([*configuration, frame["run_id"]], dropna=False)["steps"].transform("size")
    fullest = points == points.groupby(configuration, dropna=False).transform("max")
    newest = begun.where(fullest).groupby(configuration, dropna=False).transform("max")
    return frame[fullest & (begun == newest)]


def _configuration(frame: pandas.DataFrame) -> list[pandas.Series]:
    """The columns that tell configurations apart. The variant of our own walks is a benchmark's label and tells nothing."""
    label = frame["variant"].where(frame["implementation"] != OURS)
    return [label if name == "variant" else frame[name] for name in CONFIGURATION_COLUMNS]


def select_walks(recording: Recording, **wanted: object) -> pandas.DataFrame:
    """Rows whose columns equal the wanted values."""
    frame = recording.frame
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    return frame


def recorded_rows(
    gpu: Gpu,
    head: Head,
    ways: tuple[tuple[str, str], ...],
    l2_state: str,
    *,
    max_steps: int,
    batch: int = 1,
    temperature: float = 0.0,
    records: Path | None = None,
) -> Recording:
    """The recording of some (mode, precision) ways of walking one head on one GPU, up to a walk length.

    Where a way was recorded in several configurations (placements, say), the fastest is returned: a series is of one only. The reference and
    each path of an engine, which all walk stepwise, are series of their own.
    Experimental exchanges are passed over: nobody can choose them.

    Raises NothingRecorded when the first way was not recorded; the others may be missing.
    """
    recording = read_recording(gpu.id, records)
    frame = select_walks(
        recording, head_kind=head.kind, vocab_size=head.vocab_size, rank=head.rank, l2_state=l2_state, batch=batch, temperature=temperature
    )
    frame = frame[(frame["steps"] <= max_steps) & ~frame["exchange"].map(is_experiment).astype(bool)]
    matches = [_fastest_of_each(frame[(frame["mode"] == mode) & (frame["precision"] == precision)]) for mode, precision in ways]
    if matches[0].empty:
        asked = f"L2 {l2_state}, batch {batch}, temperature {temperature:g}, up to {max_steps} steps"
        raise NothingRecorded(_what_there_is(recording, head, ways[0], asked))
    chosen = frame.loc[sorted(index for match in matches for index in match.index)]
    return Recording(recording.gpu_id, recording.gpu_name, recording.dates, chosen)


def _fastest_of_each(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The fastest configuration of each implementation, and of each path of an engine."""
    import pandas

    path = frame["variant"].where(~frame["implementation"].isin((OURS, REFERENCE)))
    return pandas.concat([_fastest(own) for _, own in frame.groupby([frame["implementation"], path], dropna=False, sort=False)]) if len(frame) else frame


def _fastest(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of the configuration whose longest calls have the lowest median; all rows where there is one configuration."""
    import numpy

    if frame.empty:
        return frame
    groups = frame.groupby(_configuration(frame), dropna=False, sort=False)

    def longest_call_us(group: pandas.DataFrame) -> float:
        samples = [row for row in group.loc[group["steps"] == group["steps"].max(), "samples_us"] if len(row)]
        return float(numpy.median(numpy.concatenate(samples))) if samples else float("inf")

    return min((group for _, group in groups), key=longest_call_us)


def _what_there_is(recording: Recording, head: Head, way: tuple[str, str], asked: str) -> str:
    """The message of NothingRecorded for a head: what was asked and which shapes, ways, L2 states, batches and temperatures there are."""
    frame = recording.frame
    shapes = sorted({(int(vocab), int(rank)) for vocab, rank in zip(frame["vocab_size"], frame["rank"])})
    ways = sorted({f"{mode} {precision}" for mode, precision in zip(frame["mode"], frame["precision"])})
    states = sorted(set(frame["l2_state"]))
    loads = sorted({(int(batch), float(temperature)) for batch, temperature in zip(frame["batch"], frame["temperature"])})
    return (
        f"{way[0]} {way[1]} at V {head.vocab_size:,}, rank {head.rank}, {asked} "
        f"is not recorded on {recording.gpu_name}. "
        f"Recorded are V, rank {'; '.join(f'{vocab:,}, {rank}' for vocab, rank in shapes)}; {', '.join(ways)}; L2 {', '.join(states)}; "
        f"batch, temperature {'; '.join(f'{batch}, {temperature:g}' for batch, temperature in loads)}"
    )


def describe_origin(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Provenance that the rows share: each column's only value, or the sorted list of its values."""
    names = (
        "gpu_name",
        "gpu_sm_count",
        "driver_version",
        "cuda_version",
        "torch_version",
        "git_commit",
        "git_dirty",
        "wts_lab_version",
        "command",
        "run_id",
    )
    origin: dict[str, Any] = {}
    for name in names:
        values = sorted({row[name] for row in rows if row.get(name) is not None}, key=str)
        origin[name] = values[0] if len(values) == 1 else values or None
    return origin
