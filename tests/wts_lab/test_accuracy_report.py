"""How accuracy records look, and the benchmark that makes the one that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow", reason="records are Parquet")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS  # noqa: E402
from cost_model.paths import data_root  # noqa: E402
from tests.accuracy_examples import measured_rows  # noqa: E402
from wts_lab import accuracy_report  # noqa: E402
from wts_lab.accuracy import read_accuracy  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """A record's rows of two heads, on the CPU."""
    return measured_rows()


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
