"""Errors by mode of made-up series whose errors are known."""

from cost_model.recorded import predict_series
from dataclasses import replace

import pytest

from cost_model.residuals import errors_by_mode
from tests.cost_model.walk_examples import exact_fit, series_key, study_h200

GPU = study_h200()


def fit_off_by(key, step_factor, entry_factor=1.0):
    """Return an exact fit that the prediction misses by known factors."""
    made = predict_series(GPU, key)
    return exact_fit(made.step_us / step_factor, made.entry_us / entry_factor)


def test_errors_are_counted_by_mode_and_precision():
    resident, streaming = series_key("resident"), series_key("streaming", "bf16")
    fits = [(resident, fit_off_by(resident, 1.01)), (resident, fit_off_by(resident, 0.6, 1.2)), (resident, fit_off_by(resident, 1.03)),
            (streaming, fit_off_by(streaming, 1.0)), (resident, exact_fit(0, 0, status="inconclusive")),
            (replace(resident, exchange="slots-x8"), fit_off_by(resident, 3.0))]
    rows = errors_by_mode(GPU, fits)
    assert [(row.mode, row.precision, row.series) for row in rows] == [("resident", "int8x2", 3), ("streaming", "bf16", 1)]
    first = rows[0]
    assert (first.step_median_share, first.step_worst_share) == pytest.approx((0.03, 0.4)) and first.inside_share == pytest.approx(2 / 3)
    assert (first.entry_median_share, first.entry_worst_share) == pytest.approx((0.0, 0.2))


def test_an_entry_shorter_than_a_step_counts_of_the_step():
    key = series_key("resident")
    fit = fit_off_by(key, 1.0)
    row = errors_by_mode(GPU, [(key, replace(fit, entry_us=-0.1))])[0]
    assert row.entry_worst_share == pytest.approx((fit.entry_us + 0.1) / fit.step_us) and row.step_worst_share == pytest.approx(0.0)
