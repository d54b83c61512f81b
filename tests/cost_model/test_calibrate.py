"""Calibration: known primitives come back from made-up probe rows, residuals from made-up walks, and the file reads back."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cost_model.calibrate import PRIMARY_VARIANTS, calibrate, median_and_error, write_calibration
from cost_model.errors import CalibrationError
from cost_model.gpu import AnotherGpu, BandwidthMismatch, load_gpu, read_calibration
from cost_model.head import Head
from cost_model.measurement import walk_row
from cost_model.parameters import RESIDUALS, resolve
from cost_model.placement import Placement, PlanError, plan
from cost_model.predict import predict
from cost_model.recorded import predict_series
from cost_model.residual_fit import fit_residuals
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, exact_fit, series_key, study_h200

FACTS = load_gpu("h200-sxm", calibrated=False)
TIMES_US = {"exchange": 0.8, "l2_latency": 0.146, "hbm_latency": 0.35, "graph_launch": 2.5, "cooperative_launch": 3.2, "graph_node": 0.52}
WORK = {"shared_read": ("work_bytes", 229_376, 0.93), "mma_s8": ("work_operations", 576 * 8192, 0.49), "mma_bf16": ("work_operations", 576 * 4096, 0.49)}
READS = {20 << 20: 9e12, 64 << 20: 4.6e12, 1 << 30: 4.6e12}


def probe_frame(noise=0.0, processes=3, without=(), **overrides):
    """Return probe rows whose units take the times above."""
    rng, rows = np.random.default_rng(5), []

    def add(probe, unit_us, **work):
        for process in range(processes):
            samples = unit_us * (1 + noise * rng.standard_normal(50))
            rows.append(walk_row(run_id="r", process_index=process, recorded_at_utc="2026-01-31T00:00:00Z", implementation="wts", gpu_name="NVIDIA H200",
                                 probe=probe, variant=PRIMARY_VARIANTS[probe], steps=1, samples_us=list(samples), samples_dropped=0, **work))

    for probe, unit_us in {**TIMES_US, **overrides}.items():
        if probe not in without:
            add(probe, unit_us)
    for probe, (column, work, unit_us) in WORK.items():
        if probe not in without:
            add(probe, unit_us, **{column: work})
    for size, rate in READS.items():
        add("read_bandwidth", size / rate * 1e6, work_bytes=size)
    return pd.DataFrame(rows)


def test_primitives_come_back_from_their_probes():
    gpu = calibrate(FACTS, probe_frame())
    assert gpu.value("exchange_us") == pytest.approx(0.8) and gpu.value("graph_node_us") == pytest.approx(0.52)
    assert gpu.value("shared_read_bytes_per_s_per_sm") == pytest.approx(229_376 / 0.93e-6)
    assert gpu.value("mma_s8_ops_per_s_per_sm") == pytest.approx(576 * 8192 / 0.49e-6)
    assert gpu.value("hbm_read_bytes_per_s") == pytest.approx(4.6e12)
    assert gpu.curves["read"].at(20 << 20) == pytest.approx(9e12)
    assert gpu.figure("exchange_us").kind == "measured" and "exchange walk-r1" in gpu.figure("exchange_us").source
    assert "2026-01-31" in gpu.calibration and "NVIDIA H200" in gpu.calibration


def test_wide_words_are_told_from_the_probe_and_further_words_are_not():
    frame = probe_frame()
    others = []
    for variant, factor in (("walk-r1-wide", 1.05), ("walk-r4", 1.6), ("walk-r8", 1.8)):
        rows = frame[frame["probe"] == "exchange"].copy()
        rows["variant"], rows["samples_us"] = variant, [[factor * one for one in samples] for samples in rows["samples_us"]]
        others.append(rows)
    gpu = calibrate(FACTS, pd.concat([frame, *others]))
    assert gpu.value("exchange_wide_ratio") == pytest.approx(1.05) and not calibrate(FACTS, frame).has("exchange_wide_ratio")
    assert not gpu.has("exchange_growth"), "words alone grow otherwise than those of a walk"


def test_probes_of_another_gpu_are_refused_by_name():
    with pytest.raises(AnotherGpu, match="'NVIDIA H200'.*h200-sxm.*not on h200-nvl"):
        calibrate(load_gpu("h200-nvl", calibrated=False), probe_frame())


def test_standard_errors_follow_the_noise():
    quiet, loud = (calibrate(FACTS, probe_frame(noise=noise)).figure("exchange_us") for noise in (0.001, 0.05))
    assert 0 < quiet.standard_error < loud.standard_error < 0.05 * 0.8
    assert abs(loud.value - 0.8) < 4 * loud.standard_error


def test_spread_between_processes_counts_however_many_samples_there_are():
    rows = pd.DataFrame({"samples_us": [[1.0] * 1000, [1.2] * 1000, [1.4] * 1000]})
    value, error = median_and_error(rows)
    assert value == 1.2 and error == pytest.approx(0.2 / 3**0.5)


def test_missing_probes_and_variants_are_named():
    with pytest.raises(CalibrationError, match="exchange, mma_s8"):
        calibrate(FACTS, probe_frame(without=("exchange", "mma_s8")))
    with pytest.raises(CalibrationError, match="walk-r4.*walk-r1"):
        calibrate(FACTS, probe_frame(), {"exchange": "walk-r4"})
    frame = probe_frame()
    frame.loc[frame["probe"] == "mma_s8", "work_operations"] = None
    with pytest.raises(CalibrationError, match="work_operations"):
        calibrate(FACTS, frame)


def test_a_bandwidth_that_cannot_be_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setitem(READS, 1 << 30, 9.6e12)
    with pytest.raises(BandwidthMismatch, match="9.6e.12.*4.8e.12"):
        calibrate(FACTS, probe_frame())


def test_a_curve_that_never_leaves_l2_is_refused(monkeypatch):
    monkeypatch.delitem(READS, 1 << 30)
    with pytest.raises(CalibrationError, match="HBM needs 8 times L2"):
        calibrate(FACTS, probe_frame())


def test_calibration_file_reads_back(tmp_path):
    gpu = calibrate(FACTS, probe_frame(noise=0.01))
    path = write_calibration(gpu, tmp_path / "h200-sxm.toml")
    again = read_calibration(path, FACTS)
    assert again.figures == gpu.figures and again.curves == gpu.curves and again.calibration == gpu.calibration
    assert list(tmp_path.iterdir()) == [path]


# --- residual coefficients ------------------------------------------------------------------------------------------------------

TRUTH = {"fused_overhead_us": 0.93, "stream_efficiency": 0.77, "first_step_us": 1.4}


def walk_fits(truth, error=lambda n: 1.0):
    """Return exact fits of what the model predicts with the true residuals, times an error factor."""
    fits = []
    for vocab in (129_280, 151_936, 154_880, 248_320):
        head = Head.markov(vocab, 256)
        for mode, precision in (("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16")):
            made = predict(truth, head, Workload(precision=precision), mode)
            placement = made.placement
            counts = (placement.register_tiles, placement.shared_tiles, placement.streamed_tiles, placement.staging_tiles)
            key = series_key(mode, precision, head=head, placement=counts)
            fits.append((key, exact_fit(made.step_us * error(len(fits)), made.entry_us)))
    return fits


def test_residuals_are_recovered_exactly_from_walks_that_obey_the_model():
    gpu = fit_residuals(study_h200(fused_overhead_us=0.1, stream_efficiency=0.5, first_step_us=0.3), walk_fits(study_h200(**TRUTH)), "made up")
    for name, value in TRUTH.items():
        assert gpu.value(name) == pytest.approx(value, rel=1e-3)
        assert gpu.figure(name).kind == "measured" and "12 walk series" in gpu.figure(name).source and "made up" in gpu.figure(name).source
    assert gpu.value("few_rows_model_relative_error") == gpu.value("few_rows_entry_relative_error") == 0.02, "never below the least"
    assert resolve(gpu).calibrated


def test_calibrated_predictions_stay_near_walks_that_do_not_obey_the_model():
    fits = walk_fits(study_h200(**TRUTH), lambda n: 1 + 0.05 * (-1) ** n)
    gpu = fit_residuals(study_h200(), fits)
    errors = [abs(predict_series(gpu, key).step_us / fit.step_us - 1) for key, fit in fits]
    assert max(errors) < 0.15 and 0.04 < gpu.value("few_rows_model_relative_error") < 0.10
    assert all(gpu.figure(name).standard_error > 0 for name in RESIDUALS)


def test_only_what_the_series_can_tell_is_fitted():
    base = calibrate(FACTS, probe_frame())
    resident = [pair for pair in walk_fits(study_h200(**TRUTH)) if pair[0].mode == "resident" and not pair[0].streamed_tiles]
    gpu = fit_residuals(base, resident)
    assert gpu.has("fused_overhead_us") and gpu.has("first_step_us") and not gpu.has("stream_efficiency")


def test_published_engine_times_do_not_take_part():
    key = series_key("stepwise", "bf16", "sglang-0.5.23", "greedy")
    with pytest.raises(CalibrationError, match="no usable walk series"):
        fit_residuals(study_h200(), [(key, exact_fit(40.0, 8.0)), (series_key("resident"), exact_fit(0, 0, status="inconclusive"))])


def test_experiments_with_the_exchange_take_no_part():
    fits = walk_fits(study_h200(**TRUTH))
    with pytest.raises(CalibrationError, match="those that are there exchange words by near-lines, and the model describes"):
        fit_residuals(study_h200(), [(replace(key, exchange="near-lines"), fit) for key, fit in fits])
    odd = [(replace(key, exchange="slots-x8"), exact_fit(9 * fit.step_us, fit.entry_us)) for key, fit in fits]
    gpu = fit_residuals(study_h200(), [*fits, *odd])
    assert gpu.value("fused_overhead_us") == pytest.approx(TRUTH["fused_overhead_us"], rel=1e-3)


def test_a_placement_that_ran_is_predicted_although_the_planner_refuses_it():
    key = series_key("resident", placement=(48, 24, 0, 0))
    assert predict_series(study_h200(), key).step_us > 0
    with pytest.raises(PlanError, match="registers a thread"):
        predict(study_h200(), QWEN, Workload(), "resident", placement=Placement(8, 48, 24, 0, 0))


def test_walks_in_the_same_frame_fix_the_residuals():
    truth = study_h200(**TRUTH)
    head = Head.markov(151_936, 256)
    placement = plan(truth, head, "int8x2", "resident")
    rows = []
    for steps in (1, 7, 16):
        call = predict(truth, head, Workload(), "resident").call_us(steps)
        rows.append(walk_row(run_id="w", process_index=0, recorded_at_utc="2026-01-31T00:00:00Z", l2_state="warm", implementation="wts", mode="resident",
                             precision="int8x2", rounding="once", head_kind="markov", vocab_size=151_936, target_vocab_size=151_936, padded_vocab_size=151_936,
                             rank=256, batch=1, steps=steps, temperature=0.0, grid_blocks=132, warps=8, register_tiles=placement.register_tiles,
                             shared_tiles=placement.shared_tiles, tensor_tiles=0, streamed_tiles=0, staging_tiles=0, probe="none", samples_us=[call] * 5,
                             samples_dropped=0))
    gpu = calibrate(FACTS, pd.concat([probe_frame(), pd.DataFrame(rows)], ignore_index=True))
    assert predict(gpu, head, Workload(), "resident").step_us == pytest.approx(predict(truth, head, Workload(), "resident").step_us, rel=1e-3)


def test_a_ring_of_copies_pays_a_latency_a_turn():
    """56 KiB a block are on their way: of 20 MiB through 132 blocks, 2.77 turns."""
    rows = probe_frame()
    plain = rows[(rows["probe"] == "read_bandwidth") & (rows["work_bytes"] == 20 << 20)]
    copied = plain.assign(variant="cp_async-256", samples_us=[[time_us + 0.4 * (20 << 20) / (132 * 57_344) for time_us in samples] for samples in plain["samples_us"]])
    assert calibrate(FACTS, pd.concat([rows, copied], ignore_index=True)).value("ring_latency_us") == pytest.approx(0.4)
    assert not calibrate(FACTS, rows).has("ring_latency_us")
