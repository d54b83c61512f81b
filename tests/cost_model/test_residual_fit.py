"""Errors of classes: what is held out did not fix the coefficients, and a class's error follows from how many of its walks leave how much."""

from dataclasses import replace

import pytest
from scipy.stats import t

from cost_model.head import Head
from cost_model.parameters import resolve
from cost_model.recorded import asked_of_series, case_of_series
from cost_model.residual_fit import LEAST_MODEL_ERROR, RecordedWalk, class_errors, fit_residuals, held_out
from cost_model.walk_class import FEW_ROWS, MANY_ROWS, RECURRENT, SAMPLED, STREAMS, WALK_CLASSES, walk_class
from cost_model.workload import Workload
from tests.cost_model.walk_examples import exact_fit, series_key, study_h200

GPU = study_h200()


def recorded(vocab=151_936, batch=1, step_us=None, **changes):
    """Return a resident walk that the model predicts exactly, or one of another step."""
    key = replace(series_key("resident", head=Head.markov(vocab, 256), placement=(40, 32, 48 if vocab > 160_000 else 0, 16 if vocab > 160_000 else 0)),
                  batch=batch, **changes)
    walk = RecordedWalk(key, exact_fit(1.0, 1.0), case_of_series(GPU, key))
    fit = exact_fit(*(2.718281828459045 ** walk.log_ratio(resolve(GPU).values, part) for part in ("step", "entry")))
    return replace(walk, fit=fit if step_us is None else replace(fit, step_us=step_us))


def test_every_walk_belongs_to_one_class():
    markov, rnn = Head.markov(151_936, 256), Head("rnn", "rnn", 151_936, 151_936, 151_936, 256, 2560)
    assert [walk_class(markov, Workload(batch)) for batch in (1, 4, 5, 32)] == [FEW_ROWS, FEW_ROWS, MANY_ROWS, MANY_ROWS]
    assert walk_class(markov, Workload(1, temperature=0.5)) == walk_class(markov, Workload(16, temperature=1.0)) == SAMPLED
    pool = Head("pool", "domino", 151_936, 151_936, 151_936, 256, 2560, 1024, 2048)
    assert [walk_class(rnn, Workload(4)), walk_class(rnn, Workload(8)), walk_class(rnn, Workload(temperature=1.0))] == [RECURRENT, MANY_ROWS, SAMPLED]
    assert walk_class(pool, Workload(8)) == RECURRENT, "walked a row at a time"
    assert walk_class(pool, Workload(1), streams=True) == RECURRENT, "states hide streams"
    streaming = {walk_class(markov, Workload(batch, temperature=warm), streams=True) for batch, warm in ((1, 0.0), (8, 0.0), (8, 1.0))}
    assert streaming == {name + STREAMS for name in (FEW_ROWS, MANY_ROWS, SAMPLED)} and set(WALK_CLASSES) == {FEW_ROWS, MANY_ROWS, SAMPLED, RECURRENT} | streaming
    assert recorded(248_320).of_class == FEW_ROWS + STREAMS and recorded().of_class == FEW_ROWS


def test_a_walk_is_predicted_by_coefficients_that_it_did_not_fix():
    """Of two vocabularies one takes 0.4 us more in each step; left out, it is predicted by what the other alone says, and the other way round."""
    first, second = recorded(129_280), recorded(151_936)
    second = replace(second, fit=replace(second.fit, step_us=second.fit.step_us + 0.4))
    left = {walk.key.vocab_size: ratio for walk, ratio in held_out(resolve(GPU).values, [first, second], "step")}
    step_us = second.fit.step_us
    assert 2.718281828459045 ** left[151_936] == pytest.approx((step_us - 0.4) / step_us, rel=1e-4), "the first says that nothing is missing"
    assert 2.718281828459045 ** left[129_280] == pytest.approx((first.fit.step_us + 0.4) / first.fit.step_us, rel=1e-4), "the second that 0.4 us are"


def test_vocabularies_and_batches_are_both_held_out():
    walks = [recorded(129_280), recorded(151_936), recorded(151_936, batch=4)]
    left = held_out(resolve(GPU).values, walks, "step")
    assert len(left) == 6 and all(abs(ratio) < 1e-4 for _, ratio in left)


def test_one_vocabulary_and_batch_leave_what_the_fit_leaves():
    walks = [recorded(), replace(recorded(), fit=exact_fit(1.3 * recorded().fit.step_us, 10.0))]
    left = held_out(resolve(GPU).values, walks, "step")
    assert len(left) == 2 and abs(sum(ratio for _, ratio in left)) < 0.05 < abs(left[0][1])


def test_a_class_of_many_walks_has_its_own_error_and_one_without_any_a_wide_one():
    few = [(recorded(129_280 + 16 * number), 0.03 * (-1) ** number) for number in range(40)]
    many = [(recorded(129_280 + 16 * number, batch=8), 0.06) for number in range(3)]
    found = class_errors([*few, *many])
    usual = (0.03**2 + 0.06**2) / 2
    assert found[FEW_ROWS] == (pytest.approx(t.ppf(0.975, 42) / 1.96 * ((40 * 0.03**2 + 2 * usual) / 42) ** 0.5), 40)
    assert found[MANY_ROWS] == (pytest.approx(t.ppf(0.975, 5) / 1.96 * ((3 * 0.06**2 + 2 * usual) / 5) ** 0.5), 3)
    assert found[SAMPLED] == found[RECURRENT] == (pytest.approx(t.ppf(0.975, 2) / 1.96 * usual**0.5), 0)
    assert found[FEW_ROWS][0] < found[MANY_ROWS][0] < found[SAMPLED][0]


def test_records_and_states_of_one_walk_count_once():
    one = recorded()
    again = [replace(one, key=replace(one.key, record=record, l2_state=state)) for record in ("a", "b") for state in ("warm", "serving")]
    assert class_errors([(walk, 0.05) for walk in again])[FEW_ROWS] == (pytest.approx(t.ppf(0.975, 3) / 1.96 * 0.05), 1)
    assert class_errors([(one, 0.0)])[FEW_ROWS][0] == LEAST_MODEL_ERROR


def test_the_errors_of_all_classes_stand_in_the_calibration():
    walks = [recorded(vocab, batch) for vocab in (129_280, 151_936) for batch in (1, 2, 8)]
    gpu = fit_residuals(GPU, [(walk.key, walk.fit) for walk in walks], "made up")
    parameters = resolve(gpu)
    assert set(parameters.step_relative_error) == set(parameters.entry_relative_error) == set(WALK_CLASSES)
    assert parameters.step_relative_error[FEW_ROWS] == LEAST_MODEL_ERROR
    assert "4 walks of the class" in gpu.figure("few_rows_model_relative_error").source
    assert "no walk of the class" in gpu.figure("sampled_model_relative_error").source and "made up" in gpu.figure("sampled_model_relative_error").source
    assert walk_class(*asked_of_series(walks[2].key)) == MANY_ROWS
