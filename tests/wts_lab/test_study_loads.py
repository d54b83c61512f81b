"""Which walks answer a study: kinds of heads, batches, temperatures and roundings are each answered by their own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.errors import BadInput
from cost_model.head import Head, load_head
from cost_model.measurement import write_walk
from tests.synthetic_records import GPU_ID, synthetic_rows, write_synthetic
from tests.synthetic_study import records  # noqa: F401  (fixtures)
from wts_lab import study
from wts_lab.outputs import write_outputs
from wts_lab.study import StudyRequest, run_study

HEAD = Head.markov(151_936, 256)


def test_heads_that_share_vocabulary_and_rank_are_studied_one_after_the_other() -> None:
    with pytest.raises(BadInput, match="heads are markov-151936-r256, domino-qwen3-4b; a study tells them apart by vocabulary and rank"):
        StudyRequest(heads=(HEAD, load_head("domino-qwen3-4b")))


def test_a_head_of_another_kind_is_studied_by_its_own_walks(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Walks of a markov head, and of gated heads of another hidden size, lie in the same folder and take other times."""
    from wts_lab.cli_views import show_study

    folder = write_synthetic(tmp_path)
    for day, (hidden, factor) in enumerate(((4096, 2.0), (2560, 3.0)), 1):
        rows = [{**row, "head_kind": "gated", "hidden_size": hidden, "run_id": f"gated-{hidden}", "samples_us": [us * factor for us in row["samples_us"]]}
                for row in synthetic_rows() if row["precision"] == "int8x2" or row["mode"] == "stepwise"]  # fmt: skip
        write_walk(folder / GPU_ID / f"2026-02-0{day}-gated.parquet", rows)
    gated = Head("gated-qwen3-8b", "gated", 151_936, 151_936, 151_936, 256, 4096)
    studied = run_study(StudyRequest(records=folder, live=False, heads=(gated,)))
    assert studied.decision.best.measured and studied.decision.best.call_us == pytest.approx(2 * (12 + 9 + 16 * 2.5), rel=0.02)
    assert studied.decision.settings.fingerprint.head.as_dict() == {**gated.as_dict(), "name": "gated-151936-r256"}
    show_study(studied, write_outputs(studied, tmp_path / "out"))
    assert "gated head, vocabulary 151,936, rank 256, batch 1, greedy" in capsys.readouterr().out
    assert "gated head · V 151,936 · rank 256" in (tmp_path / "out" / "report.html").read_text()


def test_rows_of_another_kind_of_head_are_not_its_measurements(tmp_path: Path) -> None:
    rows = [{**row, "head_kind": "gated", "hidden_size": 4096} for row in synthetic_rows()]
    write_walk(tmp_path / GPU_ID / "2026-01-31-gated.parquet", rows)
    studied = run_study(StudyRequest(records=tmp_path, live=False, heads=(HEAD,)))
    assert studied.fits == () and any("was not recorded" in note for note in studied.notes)


OTHER_LOADS = ({"batch": 4}, {"temperature": 1.0, "logits_kept": True})


@pytest.mark.parametrize("load", OTHER_LOADS)
def test_walks_of_other_batches_and_temperatures_are_not_those_of_one_greedy_row(load: dict, records: Path, tmp_path: Path) -> None:
    """Faster ones of theirs in the same folder leave the answer as it is."""
    folder = write_synthetic(tmp_path)
    write_walk(folder / GPU_ID / "2026-02-01-loads.parquet", [
        {**row, **load, "samples_us": [us * 0.5 for us in row["samples_us"]]} for row in synthetic_rows()
    ])
    alone = run_study(StudyRequest(records=records, live=False, heads=(HEAD,)))
    beside = run_study(StudyRequest(records=folder, live=False, heads=(HEAD,)))
    assert [(each.name, each.call_us, each.measured) for each in beside.decision.options] == [
        (each.name, each.call_us, each.measured) for each in alone.decision.options
    ]
    assert [len(each.points) for each in beside.comparisons] == [len(each.points) for each in alone.comparisons]
    assert len(beside.fits) == len(alone.fits)


@pytest.mark.parametrize(("load", "words"), [(OTHER_LOADS[0], "batch 4, greedy"), (OTHER_LOADS[1], "batch 1, temperature 1")])
def test_the_load_that_is_asked_for_is_the_one_answered(load: dict, words: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Walks of it and of one greedy row in one folder; calls of it take half the time."""
    from wts_lab.cli_views import show_study

    folder = write_synthetic(tmp_path)
    write_walk(folder / GPU_ID / "2026-02-01-loads.parquet", [
        {**row, **load, "samples_us": [us * 0.5 for us in row["samples_us"]]} for row in synthetic_rows()
    ])
    asked = {name: load[name] for name in load if name != "logits_kept"}
    studied = run_study(StudyRequest(records=folder, live=False, heads=(HEAD,), **asked))
    settings = studied.decision.settings
    assert {"batch": settings.batch, "temperature": settings.temperature} == {"batch": 1, "temperature": 0.0} | asked
    assert studied.decision.best.measured and studied.decision.best.call_us == pytest.approx((12 + 9 + 16 * 2.5) / 2, rel=0.02)
    assert {each.workload.temperature for each in studied.predictions} == {settings.temperature}
    assert all(each.workload.logits_kept == bool(settings.temperature) for each in studied.predictions)
    show_study(studied, write_outputs(studied, tmp_path / "out"))
    assert words in capsys.readouterr().out and " · ".join(words.split(", ")) in (tmp_path / "out" / "report.html").read_text()


def test_walks_of_another_rounding_are_not_the_answer(tmp_path: Path) -> None:
    """SGLang's sampler rounds twice; a faster walk that rounds otherwise gives other tokens."""
    folder = write_synthetic(tmp_path)
    ours = synthetic_rows(ways=[("wts", "resident", "resident", "int8x2")])
    write_walk(folder / GPU_ID / "2026-02-01-roundings.parquet", [
        {**row, "rounding": "twice", "samples_us": [us * 0.5 for us in row["samples_us"]]} for row in ours
    ])
    halved = {rounding: run_study(StudyRequest(records=folder, live=False, heads=(HEAD,), rounding=rounding)).decision for rounding in ("once", "twice")}
    assert halved["once"].best.call_us == pytest.approx(12 + 9 + 16 * 2.5, rel=0.02) and halved["once"].settings.rounding == "once"
    assert halved["twice"].best.call_us == pytest.approx((12 + 9 + 16 * 2.5) / 2, rel=0.02) and halved["twice"].settings.rounding == "twice"


@pytest.mark.parametrize("load", OTHER_LOADS)
def test_where_only_other_batches_and_temperatures_were_recorded_the_usual_head_is_predicted(load: dict, tmp_path: Path) -> None:
    write_walk(tmp_path / GPU_ID / "2026-02-01-loads.parquet", [{**row, **load} for row in synthetic_rows()])
    studied = run_study(StudyRequest(records=tmp_path, live=False))
    assert studied.heads == (study.DEFAULT_HEAD,) and studied.fits == ()
    assert any("was not recorded" in note for note in studied.notes)
