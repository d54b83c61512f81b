"""Accuracy of number formats: levels from first principles, formats against the twin, measures against plain loops, the record."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS, Head  # noqa: E402
from cost_model.measurement import RecordError  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from wts_lab import accuracy, accuracy_report, accuracy_run, projection_formats  # noqa: E402
from wts_lab.accuracy import COLUMNS, MAGNITUDE_BINS, AccuracyRecordError, accuracy_row, read_accuracy, write_accuracy  # noqa: E402
from wts_lab.accuracy_run import WalkInputs, measure_formats, random_inputs, run_reference  # noqa: E402
from wts_lab.heads import DominoHead, MarkovHead, random_head  # noqa: E402
from wts_lab.projection_formats import (  # noqa: E402
    FORMATS, ProjectionFormat, StoredMatrix, corrections, e4m3_levels, int8_levels, level_shares, magnitude_shares,
)
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.reference import Int8x2Projection  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {form.name: form for form in FORMATS}


def small_shape(kind: str, vocab_size: int = 96, rank: int = 32) -> Head:
    """A head of some kind with a padded projection."""
    hidden, gru = None if kind == "markov" else 16, 8 if kind == "domino" else None
    return Head(f"small-{kind}", kind, vocab_size, vocab_size + 4, vocab_size + 16, rank, hidden, gru)


def random_weights(rows: int = 200, rank: int = 64, seed: int = 0) -> torch.Tensor:
    """Normal bf16 weights, one row of zeros among them."""
    weights = torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed))
    weights[7] = 0
    return weights.to(torch.bfloat16)


# --- levels ---------------------------------------------------------------------------------------------------------------


def levels_from_first_principles() -> list[float]:
    """Positive E4M3 values from sign, exponent and mantissa: bias 7, subnormals at exponent 0, mantissa 7 at exponent 15 is NaN."""
    subnormal = [mantissa / 8 * 2.0**-6 for mantissa in range(1, 8)]
    normal = [(1 + mantissa / 8) * 2.0 ** (exponent - 7) for exponent in range(1, 16) for mantissa in range(8) if (exponent, mantissa) != (15, 7)]
    return sorted(subnormal + normal)


def test_three_quarters_of_e4m3s_levels_lie_below_a_fourteenth_of_its_maximum():
    levels = levels_from_first_principles()
    assert len(levels) == 7 + 8 * 15 - 1 == 126 and levels[-1] == 448
    below = [level for level in levels if level / 448 < 0.0714]
    assert len(below) == 7 + 8 * 11 == 95 and below == [level for level in levels if level < 32]
    assert round(95 / 126, 2) == 0.75 and 32 / 448 == pytest.approx(1 / 14)
    assert e4m3_levels().tolist() == levels
    assert accuracy.below_fourteenth(level_shares(e4m3_levels())) == pytest.approx(95 / 126, abs=1e-12)


def test_a_fourteenth_is_where_int8_becomes_finer_than_e4m3():
    """On the scale where a row's maximum is 448."""
    steps = {low: high - low for low, high in zip(levels_from_first_principles(), levels_from_first_principles()[1:])}
    int8_step = 448 / 127
    assert all((step < int8_step) == (low < 32) for low, step in steps.items())
    assert max(steps.values()) == 32 and 9 < 32 / int8_step < 9.1


def test_int8s_levels_are_even():
    shares = level_shares(int8_levels())
    assert len(shares) == MAGNITUDE_BINS and sum(shares) == pytest.approx(1)
    counts = [round(share * 127) for share in shares]
    assert counts == [sum(math.floor(min(28 * q / 127, 27)) == k for q in range(1, 128)) for k in range(28)]
    assert accuracy.below_fourteenth(shares) == pytest.approx(9 / 127)


def test_magnitudes_are_counted_by_row():
    """Row 0: 1/14, 1/2 and 1 of its maximum, each on an edge; row 1 the same, scaled and negative; a row of zeros counts nothing."""
    weight = torch.tensor([[32.0, 224.0, 448.0, 0.0], [-1.0, -7.0, -14.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [0.0] * 28
    expected[0], expected[2], expected[14], expected[27] = 0.25, 0.25, 0.25, 0.25
    assert magnitude_shares(weight) == expected


def test_magnitudes_do_not_depend_on_chunks(monkeypatch):
    weights = random_weights()
    whole = magnitude_shares(weights)
    monkeypatch.setattr(projection_formats, "CHUNK_ROWS", 33)
    assert magnitude_shares(weights) == whole and sum(whole) == pytest.approx(1)


# --- formats --------------------------------------------------------------------------------------------------------------


def test_int8x2_is_the_arithmetic_of_the_twin_bit_for_bit():
    weights, latents = random_weights(), random_weights(30, seed=1)
    form = BY_NAME["int8x2"]
    got = corrections(form.store(weights), form.split(latents))
    twin = Int8x2Projection(*(part.numpy() for part in (*quantize_rows(weights), *quantize_latents(latents))))
    assert np.array_equal(got.numpy(), twin.corrections(np.arange(30), slice(0, 200)))


def test_one_int8_vector_is_the_first_of_the_two():
    weights, latents = random_weights(), random_weights(30, seed=1)
    form = BY_NAME["int8"]
    q1, _, s1, _ = quantize_latents(latents)
    codes, scale = quantize_rows(weights)
    expected = (q1.double() @ codes.double().T).float() * s1[:, None] * scale
    assert torch.equal(corrections(form.store(weights), form.split(latents)), expected)


def test_e4m3_takes_the_nearest_level():
    weights = random_weights()
    stored = BY_NAME["fp8-e4m3"].store(weights)
    levels = torch.tensor(sorted({0.0, *levels_from_first_principles(), *(-level for level in levels_from_first_principles())}))
    kept = stored.scale > 0
    assert kept.sum() == 199 and torch.equal(stored.codes[7], torch.zeros(64)) and stored.scale[7] == 0
    quotients = weights.float()[kept] / stored.scale[kept, None]
    nearest = (quotients[..., None] - levels).abs().amin(dim=-1)
    assert torch.equal((quotients - stored.codes[kept]).abs(), nearest)
    assert torch.allclose(stored.codes.abs().amax(dim=1)[kept], torch.tensor(448.0))


def test_bf16_stores_what_it_is_given():
    weights = random_weights()
    assert torch.equal(BY_NAME["bf16"].store(weights).values(), weights.float())


def test_the_error_of_int8_weights_is_that_of_even_rounding():
    """A step of max/127 errs by step/sqrt(12) in the mean square."""
    weights = random_weights(4000, 256)
    scale = weights.float().abs().amax(dim=1) / 127
    expected = float((scale.square() / 12).mean().sqrt() / weights.float().std())
    found = accuracy_run._weight_columns(BY_NAME["int8"], BY_NAME["int8"].store(weights), weights)["weight_error_rms"]
    assert found == pytest.approx(expected, rel=0.01)


# --- the reference --------------------------------------------------------------------------------------------------------


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


# --- measures -------------------------------------------------------------------------------------------------------------

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


# --- the record -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """A record's rows of two heads, on the CPU."""
    heads = [random_head(small_shape(kind, 1200)) for kind in ("markov", "domino")]
    return accuracy_run.with_provenance(
        [row for head in heads for row in accuracy_run.measure_head(head, "random", walks=3, steps=4)], git_commit="0123456789abcdef", command="test"
    )


def test_a_record_reads_back_as_it_was_written(tmp_path, rows):
    path = tmp_path / "folder" / "a.parquet"
    assert write_accuracy(path, rows) == path
    assert read_accuracy(path) == rows
    assert [row["format"] for row in rows] == [*accuracy.FORMAT_NAMES] * 2
    assert {row["head_name"]: (row["hidden_size"], row["gru_size"], row["padded_vocab_size"]) for row in rows} == {
        "small-markov": (None, None, 1216), "small-domino": (16, 8, 1216)}


def test_a_record_is_never_changed(tmp_path, rows):
    path = write_accuracy(tmp_path / "a.parquet", rows)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="exists; records are never changed"):
        write_accuracy(path, rows)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("column", "value", "reason"), [
    ("format", "int4", "'int4'; it must be one of bf16"), ("equal_step_share", 1.5, "a share is at most 1"),
    ("equal_walk_share", None, "is null, but must be known"), ("walks", 0, "at least 1"), ("schema_version", 2, "reads version 1"),
    ("prefix_length_mean", 5.0, "longer than the walk's 4 steps"), ("correction_error_max", math.inf, "must be finite"),
    ("magnitude_shares", [1.0], "it must have 28 with the sum 1"), ("level_shares", [0.0] * 28, "sum 0"),
    ("recorded_at_utc", "yesterday", "ISO 8601"),
])
def test_values_that_cannot_be_are_refused(tmp_path, rows, column, value, reason):
    with pytest.raises(AccuracyRecordError, match=f"row 0: {column}.*{reason}"):
        write_accuracy(tmp_path / "a.parquet", [rows[0] | {column: value}])
    assert list(tmp_path.iterdir()) == []


def test_rows_have_the_columns_and_no_others(tmp_path, rows):
    with pytest.raises(AccuracyRecordError, match="no column speed"):
        accuracy_row(speed=1)
    with pytest.raises(AccuracyRecordError, match="row 0 has other columns than an accuracy row: speed"):
        write_accuracy(tmp_path / "a.parquet", [rows[0] | {"speed": 1}])
    with pytest.raises(AccuracyRecordError, match="holds no row"):
        write_accuracy(tmp_path / "a.parquet", [])


def test_foreign_and_broken_files_are_refused(tmp_path, rows):
    import pyarrow
    from pyarrow import parquet

    with pytest.raises(AccuracyRecordError, match="no such file"):
        read_accuracy(tmp_path / "none.parquet")
    path = write_accuracy(tmp_path / "a.parquet", rows)
    (tmp_path / "cut.parquet").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(AccuracyRecordError, match="cut.parquet: is not a whole Parquet file"):
        read_accuracy(tmp_path / "cut.parquet")
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(AccuracyRecordError, match="is not an accuracy record of version 1; its columns differ in .*, x"):
        read_accuracy(tmp_path / "other.parquet")


def test_the_dictionary_prints_the_same_columns():
    section = (data_root() / "README.md").read_text("utf-8").split("## Accuracy records")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines == [f"| `{column.name}` | {column.kind} | {'no' if column.required else 'unknown'} | {column.meaning} |" for column in COLUMNS]


def test_formats_and_their_names_are_one_list():
    assert tuple(form.name for form in FORMATS) == accuracy.FORMAT_NAMES


# --- the report -----------------------------------------------------------------------------------------------------------


def made_up_row(rows, **facts) -> dict:
    """A row with some values replaced."""
    return rows[0] | facts


def test_tables_tell_shares_with_their_error_and_tiny_errors_as_such(rows):
    row = made_up_row(rows, equal_step_share=0.75, walks=3, steps=4, prefix_length_mean=2.5, equal_walk_share=1.0, preference_max=0.0625,
                      weight_error_rms=0.0, correction_error_rms=3e-8, logit_error_p50=0.00390625, logit_error_p99=None)
    equality, errors, _ = accuracy_report.accuracy_tables([row])
    assert equality[2] == [("small-markov", "bf16", "75.00 ± 12.50 %", "2.50 of 4", "100 %", "0.0625")]
    assert errors[2][0][2:4] == ("0 %", "< 0.00100 %") and errors[2][0][6:8] == ("0.00391", "n/a")


def test_magnitudes_are_told_once_a_head_and_a_set_of_levels(rows):
    title, columns, cells = accuracy_report.accuracy_tables(rows)[2]
    assert columns == ("of the maximum", "weights of small-markov", "weights of small-domino", "levels of int8x2 and int8", "levels of fp8-e4m3")
    assert len(cells) == 14 and cells[0][3:] == ("7.09 %", "75.4 %") and cells[13][0] == "13/14 to 14/14"
    told = accuracy_report.summary(rows)
    assert told[1].startswith("fp8-e4m3: 75.4 % of the positive levels serve the ") and len(told) == 2


def test_markdown_holds_every_cell_and_says_where_it_is_from(rows):
    text = accuracy_report.accuracy_markdown(rows)
    assert text.startswith("3 walks of 4 steps each, at V 1,200, rank 32; weights: random; CPU, ") and "commit 0123456789." in text
    for _, columns, cells in accuracy_report.accuracy_tables(rows):
        for line in (columns, *cells):
            assert "| " + " | ".join(line) + " |" in text
    assert accuracy_report.LEGEND in text


def test_a_document_takes_the_tables_between_its_marks(tmp_path, rows):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{accuracy_report.BEGIN}\nold\n{accuracy_report.END}\nafter\n", "utf-8")
    accuracy_report.update_document(path, rows)
    once = path.read_text("utf-8")
    assert once == f"before\n{accuracy_report.BEGIN}\n\n{accuracy_report.accuracy_markdown(rows)}\n{accuracy_report.END}\nafter\n"
    accuracy_report.update_document(path, rows)
    assert path.read_text("utf-8") == once
    path.write_text("no marks", "utf-8")
    with pytest.raises(BadInput, match="must have the lines"):
        accuracy_report.update_document(path, rows)


def test_the_documentation_prints_the_shipped_record():
    records = sorted((data_root() / "accuracy").glob("*-heads.parquet"))
    if not records:
        pytest.skip("no accuracy record ships yet: python -m benchmarks.accuracy makes it on a GPU")
    assert accuracy_report.accuracy_markdown(read_accuracy(records[-1])) in (ROOT / "docs" / "accuracy.md").read_text("utf-8")


# --- the benchmark --------------------------------------------------------------------------------------------------------


def test_the_benchmark_records_every_kind_of_head(tmp_path, capsys):
    from benchmarks import accuracy as benchmark

    document = tmp_path / "page.md"
    document.write_text(f"{accuracy_report.BEGIN}{accuracy_report.END}", "utf-8")
    command = ["--out", str(tmp_path), "--vocab", "64", "--walks", "1", "--steps", "2", "--commit", "abc", "--no-dirty", "--document", str(document)]
    assert benchmark.main(command) == 0
    (path,) = (tmp_path / "accuracy").glob("*-heads.parquet")
    rows = read_accuracy(path)
    assert [row["head_kind"] for row in rows[::4]] == list(HEAD_KINDS) and len(rows) == 16
    assert {(row["git_commit"], row["git_dirty"], row["run_id"]) for row in rows} == {("abc", False, rows[0]["run_id"])}
    shown = accuracy_report.accuracy_markdown(rows)
    assert shown in path.with_suffix(".md").read_text("utf-8") and shown in document.read_text("utf-8") and shown in capsys.readouterr().out
    assert benchmark.main(command) == 2 and "exists" in capsys.readouterr().err
    assert benchmark.main(["--record", str(path)]) == 0 and shown in capsys.readouterr().out


def test_the_benchmark_has_the_shape_of_the_released_heads():
    from benchmarks import accuracy as benchmark
    from cost_model.head import load_head

    sizes = {shape.kind: (shape.vocab_size, shape.rank, shape.hidden_size, shape.gru_size) for shape in benchmark.shapes()}
    released = load_head("domino-qwen3-4b")
    assert sizes["domino"] == (released.vocab_size, released.rank, released.hidden_size, released.gru_size)
    assert sizes["rnn"] == sizes["gated"] == (*sizes["domino"][:3], None) and sizes["markov"] == (*sizes["domino"][:2], None, None)
