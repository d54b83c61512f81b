"""The study: source and labels, comparison, decision, and what it does without torch or plotly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.decide import VERDICTS
from cost_model.errors import BadInput
from cost_model.head import Head, load_head
from cost_model.measurement import write_walk
from tests.synthetic_records import GPU_ID, GPU_NAME, LINES_US, synthetic_rows, write_synthetic
from tests.synthetic_study import records, result  # noqa: F401  (fixtures)
from wts_lab import study
from wts_lab.recordings import NothingRecorded
from wts_lab.study import StudyRequest, run_study
from wts_lab.study_answer import shape_of_head, shape_of_row

REPOSITORY = Path(__file__).resolve().parents[2]
HEAD = Head.markov(151_936, 256)


def test_a_replay_says_which_gpu_and_date_it_shows(result: study.StudyResult) -> None:
    assert (result.kind, result.source) == ("replayed", f"replayed: {GPU_NAME}, recorded 2026-01-31")
    assert result.origin["gpu_name"] == GPU_NAME and result.gpu.id == GPU_ID


def test_every_recorded_head_is_studied_the_usual_one_first(result: study.StudyResult) -> None:
    assert [head.vocab_size for head in result.heads] == [151_936, 129_280]
    assert set(result.decisions) == set(result.heads)


@pytest.mark.parametrize("way", list(LINES_US))
def test_the_fit_is_the_line_that_the_rows_were_made_from(result: study.StudyResult, way: tuple[str, ...]) -> None:
    implementation, _, mode, precision = way
    entry_us, step_us = LINES_US[way]
    (found,) = [
        each
        for each in result.shown(HEAD, "warm")
        if (each.implementation, each.mode, each.precision) == (implementation, mode, precision)
    ]
    assert found.fit.step_us == pytest.approx(step_us, rel=0.02) and found.fit.entry_us == pytest.approx(entry_us, rel=0.2)
    assert found.prediction is not None and found.prediction.workload.l2_state == "warm"
    assert found.tokens_match == 1.0 and len(found.points) == 7


def test_the_engines_taken_and_fastest_paths_stand_beside_ours(result: study.StudyResult) -> None:
    shown = result.shown(HEAD, "warm")
    assert [each.label for each in shown] == [
        "sglang-0.5.23 greedy",
        "sglang-0.5.23 sample",
        "stepwise torch",
        "streaming bf16",
        "streaming int8x2",
        "resident int8x2",
    ]
    assert shown[1].points_kind == "published" and shown[1].points[-1].median_us == 476.1


def test_published_points_are_shown_only_in_the_state_they_were_taken_in(result: study.StudyResult) -> None:
    assert all(each.points == () for each in result.shown(HEAD, "serving") if each.implementation.startswith("sglang"))


def test_the_verdict_is_about_the_serving_state(result: study.StudyResult) -> None:
    assert result.decision.verdict == "deploy resident" and result.decision.verdict in VERDICTS
    assert result.decision.settings.l2_state == "serving"
    assert result.decision.best.call_us == pytest.approx(12 + 9 + 16 * 2.5, rel=0.02)


def test_of_several_placements_the_fastest_is_shown_and_all_are_in_the_table(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    slower = [
        {
            **row,
            "register_tiles": row["register_tiles"] - 8,
            "shared_tiles": row["shared_tiles"] + 8,
            "samples_us": [us * 1.3 for us in row["samples_us"]],
        }
        for row in synthetic_rows(ways=[("wts", "resident", "resident", "int8x2")])
    ]
    write_walk(folder / GPU_ID / "2026-02-01-placements.parquet", slower)
    studied = run_study(StudyRequest(records=folder, live=False, heads=(HEAD,)))
    assert studied.shown(HEAD, "warm")[-1].fit.step_us == pytest.approx(2.5, rel=0.02)
    in_table = [row["step_us"] for row in studied.rows if row["mode"] == "resident" and row["l2_state"] == "warm"]
    assert sorted(in_table) == pytest.approx([2.5, 3.25], rel=0.02)


def test_an_experimental_exchange_is_never_the_answer(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    faster = [
        {**row, "exchange": "slots-x8", "variant": "slots-x8", "samples_us": [us * 0.5 for us in row["samples_us"]]}
        for row in synthetic_rows(ways=[("wts", "resident", "resident", "int8x2")])
    ]
    write_walk(folder / GPU_ID / "2026-02-01-exchanges.parquet", faster)
    studied = run_study(StudyRequest(records=folder, live=False, heads=(HEAD,)))
    for state in ("warm", "serving", "cold"):
        assert studied.shown(HEAD, state)[-1].fit.step_us == pytest.approx(2.5, rel=0.02)
    assert studied.decision.best.step_us == pytest.approx(2.5, rel=0.02)
    assert [row["exchange"] for row in studied.rows[studied.answer_rows :]] == ["slots-x8"] * 3
    assert "slots-x8" not in {row["exchange"] for row in studied.rows[: studied.answer_rows]}


def test_records_of_another_gpu_are_refused_naming_both(tmp_path: Path) -> None:
    write_walk(tmp_path / "rtx-4090" / "2026-01-31-copied.parquet", synthetic_rows())
    for live in (False, None):
        with pytest.raises(BadInput, match="NVIDIA H200.*rtx-4090"):
            run_study(StudyRequest(gpu="rtx-4090", records=tmp_path, live=live))


def test_a_missing_records_folder_is_refused_even_where_a_prediction_could_be_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        run_study(StudyRequest(gpu="b200-sxm", records=tmp_path / "nope"))


def test_where_nothing_can_be_said_the_study_is_refused_with_the_reason(records: Path) -> None:
    with pytest.raises(BadInput, match="nothing can be said about markov-151936-r256 on h20: ") as caught:
        run_study(StudyRequest(gpu="h20", records=records))
    assert str(caught.value).count("h20 ") <= 3, "a reason is given once"


def test_no_call_beyond_the_recorded_walks_is_shown_as_measured(records: Path) -> None:
    studied = run_study(StudyRequest(records=records, live=False, steps=(1, 5, 100)))
    assert studied.request.steps == (1, 2, 4, 7, 11, 15, 16)
    assert {prediction.workload.steps for prediction in studied.predictions} == {16} == {studied.decision.settings.steps}
    assert any("5 and 100 steps were not recorded" in note and "compared at 16 steps" in note for note in studied.notes)


def test_recorded_walk_lengths_that_are_asked_for_are_those_used(records: Path) -> None:
    studied = run_study(StudyRequest(records=records, live=False, steps=(1, 4, 7)))
    assert studied.request.steps == (1, 4, 7) and {fit.steps for _, fit in studied.fits} == {(1, 4, 7)}
    assert not any("not recorded" in note for note in studied.notes)


def test_options_that_only_a_live_run_uses_are_said_to_be_unused(records: Path) -> None:
    studied = run_study(StudyRequest(records=records, live=False, processes=5, repeats=7))
    assert any(note.startswith("processes 5 and repeats 7 asked for") for note in studied.notes)
    assert not any("asked for" in note for note in run_study(StudyRequest(records=records, live=False)).notes)


def test_the_notes_say_what_was_measured_and_what_is_predicted(result: study.StudyResult) -> None:
    (note,) = [each for each in result.notes if each.startswith("measured are")]
    measured, predicted = note.split(";", 1)
    assert "resident int8x2" in measured and "stepwise torch" in measured and "sglang" not in measured
    assert "sglang-0.5.23 greedy" in predicted and "published times beside" in predicted


def test_settings_say_that_a_replay_is_one(result: study.StudyResult) -> None:
    assert {decision.settings.source for decision in result.decisions.values()} == {"replayed"}


def test_table_and_verdict_show_the_same_call(records: Path) -> None:
    curved = [
        {**row, "run_id": "curved", "samples_us": [us + (3 if row["steps"] == 16 else 0) for us in row["samples_us"]]}
        for row in synthetic_rows(151_936, processes=4)
    ]
    write_walk(records.parent / "curved" / GPU_ID / "2026-03-01-curved.parquet", curved)
    studied = run_study(StudyRequest(records=records.parent / "curved", live=False, heads=(HEAD,)))
    resident = studied.shown(HEAD, "serving")[-1]
    row = next(row for row in studied.rows if (row["mode"], row["l2_state"]) == ("resident", "serving"))
    assert resident.fit.status == "curved"
    assert studied.decision.best.call_us == resident.call_us(16) == row["call_us"] == resident.fit.medians_us[16]


def test_only_the_newest_run_of_a_configuration_counts(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    newer = [
        {
            **row,
            "run_id": "newer",
            "recorded_at_utc": "2026-03-01T00:00:00+00:00",
            "samples_us": [us / 2 for us in row["samples_us"]],
        }
        for row in synthetic_rows()
    ]
    write_walk(folder / GPU_ID / "2026-03-01-again.parquet", newer)
    studied = run_study(StudyRequest(records=folder, live=False))
    assert studied.shown(HEAD, "warm")[-1].fit.step_us == pytest.approx(1.25, rel=0.02)
    assert studied.source.endswith("recorded 2026-03-01")


def test_a_gpu_without_records_is_predicted_only(records: Path) -> None:
    said: list[str] = []
    predicted = run_study(StudyRequest(gpu="b200-sxm", records=records), on_stage=said.append)
    assert predicted.kind == "predicted"
    assert predicted.source.startswith("predicted only: never measured on") and predicted.fits == ()
    assert all(row["status"] == "predicted" for row in predicted.rows) and any("b200-sxm" in line for line in said)


def test_a_head_that_was_not_recorded_is_predicted_and_said(records: Path) -> None:
    studied = run_study(StudyRequest(records=records, live=False, heads=(Head.markov(32_000, 128),)))
    assert any("32,000" in note and "predicted only" in note for note in studied.notes)


def test_a_released_markov_head_has_the_walks_that_were_recorded_of_its_sizes() -> None:
    """Its hidden size plays no part in the walk; that of an RNN head does."""
    released, rnn = load_head("dspark-qwen3-8b"), Head("rnn", "rnn", 151_936, 151_936, 151_936, 256, 4096)
    assert released.hidden_size == 4096 and shape_of_head(released) == shape_of_head(Head.markov(151_936, 256))
    row = {"head_kind": "markov", "vocab_size": 151_936, "rank": 256, "hidden_size": None, "gru_size": None, "candidate_pool": None}
    assert shape_of_row(row) == shape_of_head(released) == shape_of_row(row | {"hidden_size": 2560})
    assert shape_of_row(row | {"head_kind": "rnn", "hidden_size": 2560}) != shape_of_head(rnn) == shape_of_row(row | {"head_kind": "rnn", "hidden_size": 4096})


def test_replay_of_an_unrecorded_gpu_lists_the_recorded_ones(records: Path) -> None:
    with pytest.raises(NothingRecorded, match="recorded are h200-sxm"):
        run_study(StudyRequest(gpu="a100-sxm-80gb", records=records, live=False))


def test_a_replay_imports_neither_torch_nor_plotly_nor_widgets(records: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'plotly', 'ipywidgets', 'anywidget'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name in ('torch', 'plotly') else found(name, package)\n"
        "from pathlib import Path\n"
        "from wts_lab.study import StudyRequest, run_study\n"
        "from wts_lab.outputs import write_outputs\n"
        f"result = run_study(StudyRequest(records=Path({str(records)!r})))\n"
        f"written = write_outputs(result, Path({str(tmp_path)!r}))\n"
        "assert result.kind == 'replayed' and len(written.left_out) == 1, written\n"
        "assert not {'torch', 'plotly'} & set(sys.modules)\n"
        "import wts_lab.ui.panels, wts_lab.ui.figures, wts_lab.report\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "settings.json").read_text())["mode"] == "resident"
