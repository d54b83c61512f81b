"""The comparison of number formats: the reference walk, its inputs, and measures against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS  # noqa: E402
from tests.accuracy_examples import small_shape  # noqa: E402
from wts_lab import accuracy, accuracy_run  # noqa: E402
from wts_lab.accuracy_run import WalkInputs, measure_formats, random_inputs, run_reference  # noqa: E402
from wts_lab.heads import DominoHead, MarkovHead, random_head  # noqa: E402
from wts_lab.projection_formats import FORMATS, ProjectionFormat, StoredMatrix  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402

BY_NAME = {form.name: form for form in FORMATS}


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_the_reference_leaves_the_latents_behind_its_own_logits(kind):
    head = random_head(small_shape(kind), seed=3)
    inputs = random_inputs(head, walks=3, steps=5, seed=4)
    run = run_reference(head, inputs)
    assert run.tokens.shape == (3, 5) and run.latents.shape == (3, 5, 32) and run.logits.shape == run.base.shape == (3, 5, 96)
    assert torch.equal(run.base, inputs.base_logits[:, head.first_step :])
    assert torch.equal(run.logits.argmax(dim=-1), run.tokens)
    product = torch.stack([torch.nn.functional.linear(run.latents[:, step], head.projection[:96]) for step in range(5)], 1)
    assert torch.equal(run.base + product, run.logits)


def test_dominos_first_position_only_starts_the_history():
    head = random_head(small_shape("domino"), seed=3)
    inputs = random_inputs(head, walks=2, steps=3, seed=4)
    assert inputs.base_logits.shape == (2, 4, 96) and inputs.hidden.shape == (2, 4, 16)
    run = run_reference(head, inputs)
    first = inputs.base_logits[:, 0].argmax(dim=-1)
    latent, _ = head.latent(first, inputs.hidden[:, 1], head.initial_state(inputs.anchor))
    assert torch.equal(run.latents[:, 0], latent)
    with pytest.raises(BadInput, match="position 0 is no step; give base logits of at least 2 positions"):
        run_reference(head, WalkInputs(inputs.base_logits[:, :1], inputs.anchor, inputs.hidden[:, :1]))


def test_a_candidate_pool_is_not_applied():
    whole = random_head(small_shape("domino"), seed=3)
    pooled = whole.with_candidate_pool(2)
    assert isinstance(pooled, DominoHead) and pooled.candidate_pool == 2
    inputs = random_inputs(whole, walks=2, steps=3)
    assert torch.equal(run_reference(pooled, inputs).tokens, run_reference(whole, inputs).tokens)


def test_inputs_share_no_numbers_with_random_weights_of_the_same_seed():
    head = MarkovHead.random(4000, 32, seed=0)
    inputs = random_inputs(head, walks=1, steps=1, seed=0)
    pair = torch.stack([inputs.base_logits[0, 0].float(), head.embedding.flatten()[:4000].float()])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.1
    assert float(inputs.base_logits.float().std()) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("options", "message"), [
    ({"walks": 0, "steps": 1}, "walks"), ({"walks": 1, "steps": 0}, "steps"), ({"walks": 1, "steps": 1, "base_spread": -1.0}, "at least 0"),
    ({"walks": 1, "steps": 1, "base_spread": math.nan}, "at least 0"),
])
def test_impossible_inputs_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        random_inputs(MarkovHead.random(40, 32), **options)


DOUBLED = ProjectionFormat("bf16", "weights doubled", lambda weight: StoredMatrix(2 * weight.float(), torch.ones(len(weight))),
                           BY_NAME["bf16"].split)
"""A wrong format with a known error: every correction is doubled."""


def test_measures_are_those_of_plain_loops():
    """Integers in bf16, so that every product and sum is exact and the loops need no care."""
    generator = torch.Generator().manual_seed(5)
    w1, w2 = (torch.randint(-2, 3, (40, 32), generator=generator).to(torch.bfloat16) for _ in range(2))
    base = torch.randint(-30, 30, (6, 7, 40), generator=generator).to(torch.bfloat16)
    anchor = torch.arange(6)
    (row,) = measure_formats(MarkovHead(w1, w2), WalkInputs(base, anchor), formats=(DOUBLED,))
    products = (w1.double() @ w2.double().T).numpy()
    equal, prefixes, preferences, errors, exact = [], [], [0.0], [], []
    for walk in range(6):
        previous, alike = int(anchor[walk]), []
        for step in range(7):
            logits, correction = base[walk, step].double().numpy(), products[previous]
            wanted, got = logits + correction, logits + 2 * correction
            exact += correction.tolist()
            errors += np.abs(got - wanted).tolist()
            alike.append(int(got.argmax()) == int(wanted.argmax()))
            preferences.append(wanted.max() - wanted[got.argmax()])
            previous = int(wanted.argmax())
        equal += alike
        prefixes.append((alike + [False]).index(False))
    spread = np.std(exact)
    assert 0 < np.mean(equal) < 1 and 0 < np.mean(prefixes) < 7, "inputs on which some steps differ"
    assert row["equal_step_share"] == np.mean(equal) and row["prefix_length_mean"] == np.mean(prefixes)
    assert row["equal_walk_share"] == np.mean([prefix == 7 for prefix in prefixes]) and row["preference_max"] == max(preferences)
    assert row["correction_std"] == pytest.approx(spread) and row["correction_error_rms"] == pytest.approx(np.sqrt(np.mean(np.square(exact))) / spread)
    assert row["correction_error_max"] == pytest.approx(np.abs(exact).max() / spread) and row["logit_error_max"] == max(errors)
    assert row["logit_error_p90"] == pytest.approx(np.quantile(errors, 0.9)) and row["logit_error_p999"] is None
    assert (row["walks"], row["steps"], row["error_samples"]) == (6, 7, 6 * 7 * 40)
    assert row["weight_error_rms"] == pytest.approx(float(w2.float().square().mean().sqrt() / w2.float().std(correction=0)))


def test_the_equal_prefix_is_that_of_free_running_walks():
    """The twin walks int8x2 on its own history, and is compared with the reference position by position."""
    head = MarkovHead.random(1000, 32, seed=2)
    inputs = random_inputs(head, walks=24, steps=12, base_spread=0.2)
    (row,) = measure_formats(head, inputs, formats=(BY_NAME["int8x2"],))
    free = expected_walks(head, inputs.base_logits, inputs.anchor).tokens == run_reference(head, inputs).tokens
    prefixes = free.int().cumprod(dim=1).sum(dim=1).double()
    assert 0 < row["equal_walk_share"] < 1, "inputs on which some walks differ"
    assert row["prefix_length_mean"] == float(prefixes.mean())
    assert row["equal_walk_share"] == float((prefixes == 12).double().mean())


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_formats_rank_as_their_arithmetic_says(kind):
    head = random_head(small_shape(kind, 1500, 256), seed=1)
    rows = {row["format"]: row for row in measure_formats(head, random_inputs(head, walks=8, steps=8))}
    assert tuple(rows) == accuracy.FORMAT_NAMES
    errors = {name: row["correction_error_rms"] for name, row in rows.items()}
    assert errors["bf16"] < 1e-6 and rows["bf16"]["weight_error_rms"] == 0
    assert errors["bf16"] < errors["int8x2"] < errors["int8"] < errors["fp8-e4m3"]
    # The second vector leaves the weights' error alone, which is independent of the latent's elements.
    assert errors["int8x2"] == pytest.approx(rows["int8x2"]["weight_error_rms"], rel=0.05)
    assert errors["fp8-e4m3"] == pytest.approx(rows["fp8-e4m3"]["weight_error_rms"], rel=0.05)


def test_bf16_rounded_twice_is_the_reference():
    weights = [torch.randint(-3, 4, (64, 32), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16) for seed in (1, 2)]
    head = MarkovHead(*weights)
    (row,) = measure_formats(head, random_inputs(head, 4, 4), formats=(BY_NAME["bf16"],), rounding="twice")
    assert (row["equal_step_share"], row["equal_walk_share"], row["prefix_length_mean"], row["logit_error_max"]) == (1, 1, 4, 0)


def test_measures_do_not_depend_on_chunks(monkeypatch):
    head = MarkovHead.random(500, 32)
    inputs = random_inputs(head, 5, 3)
    whole = measure_formats(head, inputs)
    monkeypatch.setattr(accuracy_run, "CHUNK_VALUES", 2 * 3 * 500)
    for row, again in zip(whole, measure_formats(head, inputs), strict=True):
        for name, value in row.items():
            assert again[name] == (pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value), name


def test_quantiles_rest_on_evenly_spaced_errors_and_the_maximum_on_all(monkeypatch):
    monkeypatch.setattr(accuracy_run, "QUANTILE_VALUES", 2500)
    errors = accuracy_run._Errors(10_000)
    values = torch.arange(10_000, dtype=torch.float64)
    errors.add(values)
    kept = values[::5]  # the stride of 4 made odd
    found = errors.columns("error", 2.0)
    assert errors.samples == len(kept)
    assert found == {"error_p50": float(kept.quantile(0.5)) / 2, "error_p90": pytest.approx(float(kept.quantile(0.9)) / 2),
                     "error_p99": pytest.approx(float(kept.quantile(0.99)) / 2), "error_p999": None, "error_max": 9999 / 2}


def test_a_head_without_corrections_is_refused():
    head = MarkovHead(torch.zeros(40, 32), torch.zeros(40, 32))
    with pytest.raises(BadInput, match="nothing to compare"):
        measure_formats(MarkovHead(*(weight.detach().to(torch.bfloat16) for weight in head.parameters())), random_inputs(head, 1, 2))
