"""calibrate: probe records -> a Gpu with measured parameters and standard errors; walk records -> at most three residuals.

Every parameter of the model comes from a probe, except the global residual coefficients that `parameters.RESIDUALS` names,
which walks fix (`residual_fit.py`). `write_calibration` writes the file that `load_gpu` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.errors import CalibrationError
from cost_model.files import write_text_whole
from cost_model.fit import fit_frame
from cost_model.gpu import READ_CURVE, BandwidthCurve, Figure, Gpu, calibration_toml
from cost_model.measurement import NO_PROBE, require_gpu
from cost_model.part_fit import part_figures
from cost_model.residual_fit import fit_residuals
from cost_model.units import bytes_per_s_from_transfer, operations_per_s_from_time

if TYPE_CHECKING:
    import pandas

PRIMARY_VARIANTS: Mapping[str, str] = {
    "exchange": "walk-r1", "l2_latency": "ring-1MiB", "hbm_latency": "ring-1GiB", "shared_read": "threads-512",
    "read_bandwidth": "loads-512", "graph_launch": "blocks-1", "cooperative_launch": "grid-256-shared",
    "graph_node": "blocks-1", "mma_s8": "warps-8", "mma_bf16": "warps-8",
}
"""Of each probe the variant that a calibration reads: what the walk does at its best. The walk prefetches, so it is compared with
probes that keep enough in flight: 512 threads of plain loads, not 256 threads that wait for each load."""

TIME_PARAMETERS = {
    "exchange": "exchange_us", "l2_latency": "l2_latency_us", "hbm_latency": "hbm_latency_us", "graph_launch": "graph_launch_us",
    "cooperative_launch": "cooperative_launch_us", "graph_node": "graph_node_us",
}
"""Probes whose unit's time is the parameter."""

RATE_PARAMETERS = {
    "shared_read": ("shared_read_bytes_per_s_per_sm", "B/s", "work_bytes"), "mma_s8": ("mma_s8_ops_per_s_per_sm", "op/s", "work_operations"),
    "mma_bf16": ("mma_bf16_flops_per_s_per_sm", "FLOP/s", "work_operations"),
}
"""Probes whose unit's work over its time is the parameter: name, unit, column of the work."""

RING_VARIANT, RING_BYTES_PER_SM = "cp_async-256", 7 * 2 * 256 * 16
"""Reads by asynchronous copies, as a streaming walk does them, and what of their ring is on its way (`csrc/probes/bandwidth.cu`): 7 of 8 stages of
2 × 256 threads × 16 bytes."""

BEYOND_L2 = 8
"""A footprint this many times L2 measures HBM."""

MEDIAN_OVER_MEAN_ERROR = 1.2533
"""Standard error of a median of normal samples over that of their mean: sqrt(pi / 2)."""


def calibrate(gpu: Gpu, frame: pandas.DataFrame, variants: Mapping[str, str] | None = None) -> Gpu:
    """Return the GPU with parameters from probe rows and, where the frame holds walks, residual coefficients from those.

    Args:
        gpu: datasheet facts of the GPU that the rows were measured on.
        frame: rows of walk records; `record` (file stem), where present, is cited.
        variants: probe -> variant to read, over PRIMARY_VARIANTS.

    Raises:
        AnotherGpu: a row was measured on another GPU; names both.
        CalibrationError: a probe is missing, or a row lacks the work that its rate needs.
        BandwidthMismatch: a bandwidth cannot belong to this GPU.
    """
    require_gpu(frame, gpu)
    probes = frame[frame["probe"].notna() & (frame["probe"] != NO_PROBE)]
    wanted = {**PRIMARY_VARIANTS, **(variants or {})}
    missing = sorted(set(wanted) - set(probes["probe"]))
    if missing:
        raise CalibrationError(f"the records lack the probes {', '.join(missing)}; run `wts-lab calibrate` to measure them all")
    figures = {parameter: _time_figure(_rows(probes, probe, wanted[probe])) for probe, parameter in TIME_PARAMETERS.items()}
    for probe, (parameter, unit, column) in RATE_PARAMETERS.items():
        figures[parameter] = _rate_figure(_rows(probes, probe, wanted[probe]), unit, column)
    figures |= _wide_figures(probes, wanted["exchange"], figures["exchange_us"].value)
    curve = _curve(_rows(probes, "read_bandwidth", wanted["read_bandwidth"]))
    largest, figure = curve.footprints_bytes[-1], curve.figures[-1]
    if gpu.has("l2_bytes") and largest < BEYOND_L2 * gpu.value("l2_bytes"):
        raise CalibrationError(f"the largest footprint of read_bandwidth is {largest:.3g} bytes; HBM needs {BEYOND_L2} times L2")
    figures["hbm_read_bytes_per_s"] = figure
    figures |= _ring_figures(probes, wanted["read_bandwidth"], gpu)
    calibrated = gpu.with_figures(figures, {READ_CURVE: curve}, _origin(probes))
    calibrated = calibrated.with_figures(part_figures(calibrated, probes))
    walks = frame[frame["probe"].isna() | (frame["probe"] == NO_PROBE)]
    return fit_residuals(calibrated, fit_frame(walks), _origin(walks)) if len(walks) else calibrated


def write_calibration(gpu: Gpu, path: Path | str) -> Path:
    """Write the parameters of a calibrated GPU as TOML, whole or not at all; `gpu.read_calibration` reads it."""
    return write_text_whole(path, calibration_toml(gpu))


# --- probes ---------------------------------------------------------------------------------------------------------------


def _rows(probes: pandas.DataFrame, probe: str, variant: str) -> pandas.DataFrame:
    """Return the rows of one probe's variant that kept samples, or name the variants there are."""
    of_probe = probes[probes["probe"] == probe]
    rows = of_probe[(of_probe["variant"] == variant) & (of_probe["samples_us"].map(len) > 0)]
    if not len(rows):
        there = ", ".join(sorted(set(map(str, of_probe["variant"])))) or "none"
        raise CalibrationError(f"the probe {probe} has no samples of variant {variant!r}; there are {there}")
    return rows


def median_and_error(rows: pandas.DataFrame) -> tuple[float, float]:
    """Median over processes of the row medians, and its standard error in microseconds.

    Between processes: sd / sqrt(P). Within: 1.2533 × sd / sqrt(n) over all samples. The larger counts, so that one process
    still has an error and several do not hide their differences.
    """
    import numpy as np

    samples = [np.asarray(one, dtype=float) for one in rows["samples_us"]]
    medians = np.array([np.median(one) for one in samples])
    spread = np.concatenate([one - np.median(one) for one in samples])
    low, high = np.percentile(spread, [15.87, 84.13])
    within = MEDIAN_OVER_MEAN_ERROR * (high - low) / 2 / np.sqrt(len(spread))
    between = float(medians.std(ddof=1)) / np.sqrt(len(medians)) if len(medians) > 1 else 0.0
    return float(np.median(medians)), float(max(within, between))


def _time_figure(rows: pandas.DataFrame) -> Figure:
    """A time in microseconds."""
    time_us, error_us = median_and_error(rows)
    return Figure(time_us, "us", "measured", _source(rows), error_us)


def _rate_figure(rows: pandas.DataFrame, unit: str, column: str) -> Figure:
    """Work over time; the relative error is the time's."""
    work = rows[column].iloc[0]
    if not work == work or work is None or not work > 0:
        raise CalibrationError(f"the probe {rows['probe'].iloc[0]} gives no {column}; a rate needs the work of a unit")
    time_us, error_us = median_and_error(rows)
    rate = (bytes_per_s_from_transfer if column == "work_bytes" else operations_per_s_from_time)(float(work), time_us)
    return Figure(rate, unit, "measured", _source(rows), rate * error_us / time_us)


def _wide_figures(probes: pandas.DataFrame, one_word: str, one_word_us: float) -> dict[str, Figure]:
    """What 64-bit words cost of narrow ones; nothing where the records do not tell. What further words of a block cost, the parts of a walk tell: with nothing
    but looks between them, as this probe has them, they take far longer."""
    wide = f"{one_word}-wide"
    if wide not in set(probes.loc[probes["probe"] == "exchange", "variant"]):
        return {}
    rows = _rows(probes, "exchange", wide)
    time_us, error_us = median_and_error(rows)
    return {"exchange_wide_ratio": Figure(time_us / one_word_us, "ratio", "measured", _source(rows), error_us / one_word_us)}


def _ring_figures(probes: pandas.DataFrame, plain: str, gpu: Gpu) -> dict[str, Figure]:
    """What a turn of a ring of copies takes beyond its bytes: (time of a pass by copies - by plain loads) × ring / footprint, median over the
    footprints that L2 holds, and over those that it does not; the standard error is that of their mean. Nothing where the copies were not probed."""
    import numpy as np

    reads = probes[probes["probe"] == "read_bandwidth"]
    if not gpu.has("l2_bytes") or RING_VARIANT not in set(reads["variant"]):
        return {}
    copied, loaded = (_pass_times_us(_rows(probes, "read_bandwidth", variant)) for variant in (RING_VARIANT, plain))
    source, found = _source(_rows(probes, "read_bandwidth", RING_VARIANT)), {}
    for name, held in (("ring_latency_us", True), ("ring_latency_hbm_us", False)):
        turns = [(copied[size] - loaded[size]) * RING_BYTES_PER_SM * gpu.value("sm_count") / size
                 for size in sorted(copied.keys() & loaded.keys()) if (size <= gpu.value("l2_bytes")) == held]
        if turns:
            found[name] = Figure(max(float(np.median(turns)), 0.0), "us", "measured", source, float(np.std(turns)) / len(turns) ** 0.5)
    return found


def _pass_times_us(rows: pandas.DataFrame) -> dict[float, float]:
    """Footprint -> time of a pass."""
    return {float(size): median_and_error(group)[0] for size, group in rows.groupby("work_bytes")}


def _curve(rows: pandas.DataFrame) -> BandwidthCurve:
    """Read bandwidth over footprint; a unit is one pass, so its bytes are the footprint."""
    points = sorted((float(size), _rate_figure(group, "B/s", "work_bytes")) for size, group in rows.groupby("work_bytes"))
    return BandwidthCurve(tuple(size for size, _ in points), tuple(figure for _, figure in points))


def _source(rows: pandas.DataFrame) -> str:
    """Cite a probe: name, variant, record or runs."""
    return f"probe {rows['probe'].iloc[0]} {rows['variant'].iloc[0]}, {_records(rows)}"


def _records(rows: pandas.DataFrame) -> str:
    """Name the records, or the runs where the frame has no record names."""
    column = "record" if "record" in rows else "run_id"
    return f"{column}s {', '.join(sorted(set(map(str, rows[column]))))}" if column in rows else "records not named"


def _origin(rows: pandas.DataFrame) -> str:
    """Say which records, device and dates a calibration rests on."""
    devices = sorted(set(map(str, rows["gpu_name"].dropna()))) if "gpu_name" in rows else []
    dates = sorted({str(time)[:10] for time in rows["recorded_at_utc"]}) if "recorded_at_utc" in rows else []
    return "; ".join(part for part in (_records(rows), ", ".join(devices), " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "") if part)
