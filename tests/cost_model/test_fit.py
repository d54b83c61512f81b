"""Step-cost fits: closed forms first, then intervals, curvature, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.fit import FitError, SeriesKey, fit_frame, fit_steps


def series(call_us, steps=(1, 2, 4, 7, 11, 15, 16), processes=3, noise_us=0.0, samples=20, seed=0, **columns):
    """Return rows of one series whose call time is `call_us(steps, process)`."""
    rng = np.random.default_rng(seed)
    rows = [
        {"run_id": "run", "process_index": p, "steps": s, "samples_us": list(call_us(s, p) + noise_us * rng.standard_normal(samples)),
         "samples_dropped": 0, **columns}
        for p in range(processes) for s in steps
    ]
    return pd.DataFrame(rows)


@settings(max_examples=30, deadline=None)
@given(entry=st.floats(0.5, 100), step=st.floats(0.1, 100))
def test_exact_line_is_recovered_with_an_interval_of_no_width(entry, step):
    fit = fit_steps(series(lambda s, p: entry + step * s))
    assert fit.step_us == pytest.approx(step, rel=1e-9)
    assert fit.entry_us == pytest.approx(entry, rel=1e-6, abs=1e-7)
    assert fit.step_us_high - fit.step_us_low == pytest.approx(0, abs=1e-8 * step)
    assert (fit.status, fit.curved, fit.processes, fit.samples) == ("ok", False, 3, 3 * 7 * 20)
    assert fit.repeatability_us == pytest.approx(0, abs=1e-9 * step + 1e-9)
    assert fit.call_us(10) == pytest.approx(entry + 10 * step)


def test_a_slow_sample_does_not_move_the_median():
    frame = series(lambda s, p: 10 + 3.0 * s)
    for samples in frame["samples_us"]:
        samples[0] = 1e4
    assert fit_steps(frame).step_us == pytest.approx(3.0)


def test_slope_equals_polyfit_of_the_medians():
    frame = series(lambda s, p: 12 + 2.5 * s + 0.1 * p, noise_us=0.3)
    medians = [np.median(one) for one in frame["samples_us"]]
    slope, intercept = np.polyfit(frame["steps"], medians, 1)
    fit = fit_steps(frame)
    assert (fit.step_us, fit.entry_us) == (pytest.approx(slope), pytest.approx(intercept))


def test_repeatability_is_the_spread_of_process_slopes():
    slopes = (2.0, 2.1, 2.25)
    fit = fit_steps(series(lambda s, p: 10 + slopes[p] * s))
    assert fit.repeatability_us == pytest.approx(0.25)
    assert fit.step_us == pytest.approx(np.mean(slopes))
    assert fit.step_us_low < 2.0 and fit.step_us_high > 2.25


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """200 series whose processes differ: 95 % intervals of three processes must hold the true slope in 90 to 100 %."""
    rng, held = np.random.default_rng(3), 0
    for _ in range(200):
        offsets = rng.normal(0, 0.05, 3)
        fit = fit_steps(series(lambda s, p: 10 + (2.0 + offsets[p]) * s, steps=(1, 7, 16), samples=1))
        held += fit.step_us_low <= 2.0 <= fit.step_us_high
    assert 0.90 <= held / 200 <= 1.0


def test_fits_are_repeatable():
    frame = series(lambda s, p: 10 + 2 * s + 0.1 * p * s, noise_us=0.2)
    assert fit_steps(frame) == fit_steps(frame)


def test_curved_series_is_reported_as_curved():
    fit = fit_steps(series(lambda s, p: 10 + 2 * s + 0.1 * s * s, noise_us=0.1))
    assert (fit.status, fit.curved) == ("curved", True)
    assert fit.lack_of_fit_p < 0.01 and "line" in fit.reason


def test_noise_about_a_line_is_not_curvature():
    assert fit_steps(series(lambda s, p: 10 + 2 * s, noise_us=0.5)).status == "ok"


def test_significant_but_tiny_curvature_is_not_worth_a_name():
    fit = fit_steps(series(lambda s, p: 10 + 2 * s + 0.001 * s * s, noise_us=1e-6))
    assert fit.lack_of_fit_p < 0.01 and fit.status == "ok"


def test_one_process_still_fits_and_says_that_nothing_is_known_of_repeatability():
    fit = fit_steps(series(lambda s, p: 10 + 2 * s, processes=1, noise_us=0.2))
    assert fit.repeatability_us is None and fit.lack_of_fit_p is None
    assert fit.step_us_low < fit.step_us < fit.step_us_high
    assert fit.step_us == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("steps", [(), (4,), (1, 16)])
def test_fewer_than_three_walk_lengths_are_refused(steps):
    with pytest.raises(FitError, match="at least 3"):
        fit_steps(series(lambda s, p: 10.0 + s, steps=steps) if steps else pd.DataFrame({"steps": [], "samples_us": []}))


def test_missing_column_is_named():
    with pytest.raises(FitError, match="samples_us"):
        fit_steps(pd.DataFrame({"steps": [1, 2, 3]}))


def test_throttled_to_nothing_is_inconclusive_not_a_number():
    frame = series(lambda s, p: 10.0 + s)
    frame["samples_us"] = [[] for _ in range(len(frame))]
    frame["samples_dropped"] = 20
    fit = fit_steps(frame)
    assert (fit.status, fit.step_us, fit.samples, fit.samples_dropped) == ("inconclusive", None, 0, 20 * len(frame))
    with pytest.raises(FitError, match="dropped as throttled"):
        fit.call_us(1)


def test_nan_samples_are_refused():
    frame = series(lambda s, p: 10.0 + s)
    frame["samples_us"].iloc[0][0] = float("nan")
    with pytest.raises(FitError, match="finite"):
        fit_steps(frame)


def test_frame_is_split_by_configuration_and_probes_are_passed_over():
    parts = [
        series(lambda s, p: 10 + 3.0 * s, mode="resident", vocab_size=1000, probe="none", record="a"),
        series(lambda s, p: 10 + 6.0 * s, mode="streaming", vocab_size=1000, probe="none", record="a"),
        series(lambda s, p: 10 + 4.0 * s, mode="resident", vocab_size=2000, probe="none", record="a"),
        series(lambda s, p: 1.0, steps=(1,), mode=None, vocab_size=None, probe="exchange", record="b"),
    ]
    fits = fit_frame(pd.concat(parts, ignore_index=True))
    assert [(key.mode, key.vocab_size, round(fit.step_us, 6)) for key, fit in fits] == [
        ("resident", 1000, 3.0), ("streaming", 1000, 6.0), ("resident", 2000, 4.0)]
    assert isinstance(fits[0][0], SeriesKey) and fits[0][0].rank is None


def test_series_in_trouble_is_named():
    frame = series(lambda s, p: 10.0 + s, steps=(1, 2), mode="resident", vocab_size=77)
    with pytest.raises(FitError, match="resident.*V 77.*at least 3"):
        fit_frame(frame)


def test_differences_within_repeatability_are_not_distinguishable():
    first = fit_steps(series(lambda s, p: 10 + (2.0 + 0.1 * p) * s))
    second = fit_steps(series(lambda s, p: 10 + (2.05 + 0.1 * p) * s))
    third = fit_steps(series(lambda s, p: 10 + (4.0 + 0.1 * p) * s))
    assert not first.distinguishable_from(second) and first.distinguishable_from(third)


def test_a_call_is_what_was_measured_where_it_was_and_the_line_elsewhere():
    fit = fit_steps(pd.DataFrame(series(lambda steps, _: 10 + 2 * steps + (3 if steps == 16 else 0))))
    assert fit.call_us(16) == pytest.approx(45) and fit.line_us(16) < 44.5
    assert fit.call_us(10) == fit.line_us(10) == pytest.approx(fit.entry_us + 10 * fit.step_us)


def test_samples_dropped_that_a_row_does_not_tell_are_not_counted():
    frame = series(lambda s, p: 10 + 3.0 * s)
    frame["samples_dropped"] = pd.array([None, 2] + [0] * (len(frame) - 2), dtype="Int64")
    assert fit_steps(frame).samples_dropped == 2
