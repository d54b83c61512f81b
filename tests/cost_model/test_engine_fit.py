"""The table of a stepwise engine: what goes in comes out, between points it is honest, and its file reads back."""

from dataclasses import replace

import pytest

from cost_model.errors import CalibrationError
from cost_model.engine_fit import tabulate_engine, write_engine
from cost_model.engines import COLD_ENTRY, EnginePath, EnginePoint, load_engine
from cost_model.figures import Figure
from cost_model.head import Head
from cost_model.predict import predict
from cost_model.stepwise import BETWEEN_ERROR, OUTSIDE_ERROR, beyond_floor
from cost_model.workload import Workload
from tests.cost_model.walk_examples import exact_fit, series_key, study_h200

STEPS_US = {129_280: 54.2, 151_936: 38.1, 248_320: 50.0}
GPU = study_h200()


def torch_fits(entry_us=3.0, cold_us=1.5):
    """Return exact fits of the reference: a step for each vocabulary, warm and cold."""
    return [(series_key("stepwise", "bf16", "torch-stepwise", "graph", state, Head.markov(vocab, 256)), exact_fit(step, entry_us + (cold_us if state == "cold" else 0)))
            for vocab, step in STEPS_US.items() for state in ("warm", "cold")]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Write the engine tabulated from the fits where predictions look for it."""
    engine = tabulate_engine(GPU, torch_fits(), "made up")
    write_engine(engine, tmp_path / "engines" / "torch-stepwise.toml")
    monkeypatch.setattr("cost_model.engines.data_root", lambda: tmp_path)
    return engine


def predicted(vocab, **workload):
    return predict(GPU, Head.markov(vocab, 256), Workload(precision="bf16", **workload), "stepwise", "torch-stepwise")


def test_the_file_reads_back(shipped):
    assert load_engine("torch-stepwise") == shipped
    assert [point.vocab_size for point in shipped.paths[0].points] == sorted(STEPS_US) and shipped.fitted_on == GPU.id


@pytest.mark.parametrize("vocab, step_us", STEPS_US.items())
def test_measured_shapes_are_predicted_as_measured(shipped, vocab, step_us):
    warm, cold = predicted(vocab), predicted(vocab, l2_state="cold")
    assert warm.step_us == pytest.approx(step_us) and cold.step_us == pytest.approx(step_us)
    assert warm.entry_us == pytest.approx(3.0) and cold.entry_us == pytest.approx(4.5)
    assert warm.kinds["torch-stepwise.eager-kernels.beyond_floor_us"] == "derived"
    assert "made up" in warm.sources["torch-stepwise.eager-kernels.beyond_floor_us"]


def test_away_from_measured_shapes_the_interval_widens(shipped):
    def width(vocab):
        prediction = predicted(vocab)
        return prediction.step_us_high / prediction.step_us - 1

    assert width(151_936) < width(200_000) < width(140_000), "widest between two shapes that differ most"
    assert 38.1 < predicted(140_000).step_us < 54.2
    assert width(400_000) > width(200_000)


def point(vocab, us, error=None):
    """Return a measured point at rank 256."""
    return EnginePoint(vocab, 256, Figure(us, "us", "derived", "made up", error))


PATH = EnginePath("v", "k", "w", 4, {"fixed_us": Figure(9.0, "us", "derived", "made up")}, (point(100_000, 30.0, 1.5), point(200_000, 20.0)))


@pytest.mark.parametrize("vocab, rank, us, error", [
    (100_000, 256, 30.0, 0.05), (200_000, 256, 20.0, 0.02), (150_000, 256, 25.0, 0.2), (300_000, 256, 30.0, OUTSIDE_ERROR),
    (10_000, 256, 9.0, OUTSIDE_ERROR), (50_000, 512, 30.0, 5 / 30),
])
def test_interpolation_by_hand(vocab, rank, us, error):
    found = beyond_floor(PATH, Head.markov(vocab, rank), Workload(precision="bf16"))
    assert found.time_us == pytest.approx(us) and found.relative_error == pytest.approx(error)
    assert found.whole == (rank == 256 and vocab in (100_000, 200_000))
    assert BETWEEN_ERROR < OUTSIDE_ERROR


def test_a_measured_path_pays_for_more_rows_by_its_selection_rate(shipped):
    one, four = predicted(151_936), predicted(151_936, batch=4)
    rate = shipped.paths[0].figures["select_us_per_million"].value
    assert four.step_us - one.step_us == pytest.approx(rate * 3 * 0.151936)


RNN = Head("rnn", "rnn", 151_936, 151_936, 151_936, 256, hidden_size=2560)


def test_other_heads_batches_and_temperatures_have_points_of_their_own(tmp_path, monkeypatch):
    """A recurrent head of the same vocabulary and rank must not be taken for the Markov head, nor a batch for one row."""
    markov = series_key("stepwise", "bf16", "torch-stepwise", "graph")
    others = {
        80.0: replace(markov, head_kind="rnn", hidden_size=2560), 61.0: replace(markov, batch=8), 47.0: replace(markov, temperature=1.0),
    }
    engine = tabulate_engine(GPU, [*torch_fits(), *((key, exact_fit(step, 3.0)) for step, key in others.items())], "made up")
    write_engine(engine, tmp_path / "engines" / "torch-stepwise.toml")
    monkeypatch.setattr("cost_model.engines.data_root", lambda: tmp_path)
    assert load_engine("torch-stepwise") == engine and len(engine.paths[0].points) == 6
    assert predicted(151_936).step_us == pytest.approx(38.1)
    assert predicted(151_936, batch=8).step_us == pytest.approx(61.0) and predicted(151_936, temperature=0.7).step_us == pytest.approx(47.0)
    whole = predict(GPU, RNN, Workload(precision="bf16"), "stepwise", "torch-stepwise")
    assert whole.step_us == pytest.approx(80.0) and whole.terms["step"]["state"].exposed_us == 0, "a measured step holds its state"
    told = predict(GPU, replace(RNN, hidden_size=4096), Workload(precision="bf16"), "stepwise", "torch-stepwise").terms["step"]
    assert told["state"].exposed_us == engine.paths[0].states["rnn"].value, "another hidden size was not measured"


def test_what_cannot_be_tabulated_is_said():
    with pytest.raises(CalibrationError, match="no usable greedy series of torch-stepwise with a Markov head"):
        tabulate_engine(GPU, [(series_key("resident"), exact_fit(2.5, 10.0))], "made up")
    with pytest.raises(CalibrationError, match="below launches and byte floor"):
        tabulate_engine(GPU, [(key, replace(fit, step_us=9.0)) for key, fit in torch_fits()], "made up")
    assert COLD_ENTRY in tabulate_engine(GPU, torch_fits(), "made up").paths[0].figures
