"""The shipped calibration against the shipped records: walks that it counts as checked are predicted within 15 %, and the intervals of all hold."""

from functools import lru_cache

import pandas
import pytest

from cost_model.calibrate import calibrate
from cost_model.engine_fit import TABLED_ENGINE, tabulate_engine
from cost_model.engines import load_engine
from cost_model.fit import fit_frame
from cost_model.gpu import load_gpu
from cost_model.measurement import NO_PROBE, read_walk_folder, require_gpu
from cost_model.parameters import RESIDUALS
from cost_model.paths import data_root
from cost_model.predict import CHECKED_KINDS, CHECKED_WAYS, MOST_ROWS
from cost_model.recorded import class_of_series, predict_series, streams_of_series, unchecked_of_series
from cost_model.walk_class import FEW_ROWS
from cost_model.workload import DEFAULT_EXCHANGE, OURS

STEP_TOLERANCE = 0.15
ENTRY_TOLERANCE = 0.30
"""The goal for an entry is 20 %; single short entries miss it (docs/cost-model.md)."""

LEAST_SHARE_INSIDE = 0.9
"""Of 95 % intervals over few series."""


@lru_cache(maxsize=1)
def recorded():
    """Return (series, fit, prediction) of every recorded walk, of GPUs whose calibration ships, that the model describes."""
    triples = []
    for gpu_id, _, fits in measured():
        gpu = load_gpu(gpu_id)
        triples += [(key, fit, predict_series(gpu, key)) for key, fit in fits if fit.usable and (key.implementation != OURS or key.exchange == DEFAULT_EXCHANGE)]
    return triples


def is_checked(key):
    """Whether the calibration answers for a series: stepwise ones, and fused ones of kinds, batches and ways that it was fitted on."""
    return key.mode == "stepwise" or not unchecked_of_series(key)


def checked():
    """Return those of `triples`."""
    return [one for one in triples() if is_checked(one[0])]


@lru_cache(maxsize=1)
def measured():
    """Return (GPU id, frame of all its records, fits of its walks) for each GPU with records and a shipped calibration."""
    folder, found = data_root() / "measurements", []
    for records in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (data_root() / "gpus" / "calibrated" / f"{records.name}.toml").is_file() and any(records.glob("*.parquet")):
            frame = read_walk_folder(records)
            found.append((records.name, frame, fit_frame(frame[frame["probe"].isna() | (frame["probe"] == NO_PROBE)])))
    return found


def triples():
    """Return what `recorded` finds. Records and their calibration ship, so that finding none is a failure."""
    found = recorded()
    assert {prediction.gpu_id for _, _, prediction in found} >= {"h200-sxm"}, "the shipped records or their calibration are not found"
    assert {key.mode for key, _, _ in found} >= {"stepwise", "streaming", "resident"}
    return found


def told(key, measured_us, predicted_us):
    """Say which series missed, and by how much."""
    return (f"{key.record}: {key.implementation} {key.mode} {key.precision} V {key.vocab_size} {key.l2_state}: measured {measured_us:.2f} us, "
            f"predicted {predicted_us:.2f} ({predicted_us / measured_us - 1:+.1%})")


def test_every_recorded_step_is_predicted_within_fifteen_percent():
    missed = [told(key, fit.step_us, prediction.step_us) for key, fit, prediction in checked()
              if abs(prediction.step_us / fit.step_us - 1) > STEP_TOLERANCE]
    assert not missed, "\n".join(missed)


def test_the_intervals_hold_the_recorded_steps_and_are_narrow():
    inside = [prediction.step_us_low <= fit.step_us <= prediction.step_us_high for _, fit, prediction in checked()]
    assert sum(inside) >= LEAST_SHARE_INSIDE * len(inside) > 0
    assert all((prediction.step_us_high / prediction.step_us - 1) < STEP_TOLERANCE for _, _, prediction in checked())


def test_recorded_entries_are_predicted_within_thirty_percent():
    missed = [told(key, fit.entry_us, prediction.entry_us) for key, fit, prediction in checked()
              if key.implementation == "wts" and class_of_series(key) == FEW_ROWS and abs(prediction.entry_us / fit.entry_us - 1) > ENTRY_TOLERANCE]
    assert not missed, "\n".join(missed)


def test_no_recorded_step_beats_its_floor():
    beaten = [told(key, fit.step_us, prediction.floor_step_us) for key, fit, prediction in triples() if fit.step_us < prediction.floor_step_us]
    assert not beaten, "the floor is wrong: " + "\n".join(beaten)


def test_predictions_rest_on_measured_parameters_and_three_residuals_at_most():
    for key, _, prediction in triples():
        assert prediction.calibrated
        if key.implementation == "wts":
            assert {name for name, kind in prediction.kinds.items() if kind == "measured"} >= {"exchange_us", "read_curve_scale", *RESIDUALS}
            assert set(prediction.kinds.values()) <= {"measured", "derived"}, prediction.kinds


def test_the_records_name_the_gpu_of_their_folder():
    triples()
    for gpu_id, frame, _ in measured():
        require_gpu(frame, load_gpu(gpu_id, calibrated=False))
        assert frame["gpu_name"].notna().all() and frame["gpu_sm_count"].notna().all()


def test_what_counts_as_checked_is_recorded():
    """The lists in `predict.py` decide which predictions carry a note and a wide interval, and which walks fix the residual coefficients."""
    ours = [key for key, _, _ in checked() if key.implementation == "wts"]
    assert {(key.mode, key.precision) for key in ours} == set(CHECKED_WAYS) and {key.head_kind for key in ours} == set(CHECKED_KINDS)
    assert {kind: max(key.batch for key in ours if key.head_kind == kind) for kind in CHECKED_KINDS} == MOST_ROWS
    for sampled in (False, True):
        for streams in (False, True):
            assert max(key.batch for key in ours if ((key.temperature or 0) > 0, streams_of_series(key)) == (sampled, streams)) == 32


REBUILD = "the records changed; run the command of data/README.md that makes the calibration and the engine table from them"


def test_what_ships_is_what_the_records_give():
    triples()
    for gpu_id, frame, fits in measured():
        made, shipped = calibrate(load_gpu(gpu_id, calibrated=False), frame), load_gpu(gpu_id)
        assert made.calibration == shipped.calibration, REBUILD
        for name, figure in made.figures.items():
            assert figure.value == pytest.approx(shipped.value(name), rel=1e-3), f"{name}: {REBUILD}"
        engine = load_engine(TABLED_ENGINE)
        if engine.fitted_on == gpu_id:
            ours = [(point.vocab_size, point.rank, point.beyond_floor_us.value) for point in tabulate_engine(made, fits, "").paths[0].points]
            theirs = [(point.vocab_size, point.rank, point.beyond_floor_us.value) for point in engine.paths[0].points]
            assert [one[:2] for one in ours] == [one[:2] for one in theirs], REBUILD
            assert [one[2] for one in ours] == pytest.approx([one[2] for one in theirs], rel=1e-3), REBUILD


def test_the_probes_of_a_calibration_take_less_than_two_minutes():
    for gpu_id, frame, _ in measured():
        times = pandas.to_datetime(frame.loc[frame["record"].str.endswith("-probes"), "recorded_at_utc"])
        assert len(times) and (times.max() - times.min()).total_seconds() < 120, f"{gpu_id}: `wts-lab calibrate` promises two minutes for all of its processes"
