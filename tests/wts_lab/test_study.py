"""The study: source and labels, comparison, decision, files, and what it does without torch or plotly."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.decide import VERDICTS
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu, require_same_gpu
from cost_model.head import Head, load_head
from cost_model.measurement import record_path, write_walk
from cost_model.settings import SettingsMismatch, load_settings
from tests.synthetic_records import GPU_ID, GPU_NAME, LINES_US, synthetic_rows, write_synthetic
from wts_lab import outputs, study
from wts_lab.outputs import write_outputs
from wts_lab.recordings import NothingRecorded
from wts_lab.study import Device, NoDevice, StudyRequest, run_study

REPOSITORY = Path(__file__).resolve().parents[2]
HEAD = Head.markov(151_936, 256)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic records of two vocabularies."""
    folder = write_synthetic(tmp_path_factory.mktemp("records"))
    write_walk(folder / GPU_ID / "2026-02-01-more.parquet", synthetic_rows(129_280))
    return folder


@pytest.fixture(scope="module")
def result(records: Path) -> study.StudyResult:
    """The replayed study of those records."""
    return run_study(StudyRequest(records=records, live=False))


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


def test_replay_of_an_unrecorded_gpu_lists_the_recorded_ones(records: Path) -> None:
    with pytest.raises(NothingRecorded, match="recorded are h200-sxm"):
        run_study(StudyRequest(gpu="a100-sxm-80gb", records=records, live=False))


def test_live_without_a_gpu_is_refused_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: None)
    with pytest.raises(NoDevice, match="wts-lab doctor"):
        run_study(StudyRequest(live=True))


def test_live_on_another_gpu_than_the_one_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "capable_device", lambda: Device("NVIDIA H200", 132, 150_109_945_856, (9, 0)))
    with pytest.raises(NoDevice, match="the GPU here is h200-sxm"):
        run_study(StudyRequest(gpu="b200-sxm", live=True))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch):
    """Stands for a machine with an H200: `measure` writes synthetic rows as its record."""
    calls = []

    def measure(cases, *, out, case_name, gpu, **options):
        from datetime import datetime, timezone

        calls.append((cases, case_name, options))
        return write_walk(record_path(out, gpu, datetime.now(timezone.utc), case_name), synthetic_rows())

    monkeypatch.setattr(study, "capable_device", lambda: Device("NVIDIA H200", 132, 150_109_945_856, (9, 0)))
    monkeypatch.setattr("wts_lab.bench.measure", measure)
    return calls


def test_a_live_study_measures_the_four_ways_and_keeps_its_record(tmp_path: Path, measuring) -> None:
    first = run_study(StudyRequest(out=tmp_path), progress=False)
    second = run_study(StudyRequest(out=tmp_path, processes=2), progress=False)
    assert (first.kind, first.source) == ("measured", "measured here: NVIDIA H200")
    assert first.record.is_file() and first.record != second.record
    cases, name, options = measuring[0]
    assert {(case.mode, case.precision) for case in cases} == {
        ("resident", "int8x2"),
        ("streaming", "int8x2"),
        ("streaming", "bf16"),
        ("stepwise", "bf16"),
    }
    assert (
        (name, measuring[1][1]) == ("study", "study-2")
        and options["steps"] == (1, 2, 4, 7, 11, 15, 16)
        and measuring[1][2]["processes"] == 2
    )
    assert first.decision.settings.fingerprint.kernel_hash and first.decision.settings.source == "measured here"


def test_an_unknown_gpu_is_measured_but_marked_unverified() -> None:
    gpu = study.recognise(Device("NVIDIA X999", 77, 10**10, (9, 0)))
    assert gpu.id.startswith("unverified-") and gpu.sm_count == 77 and not gpu.has("l2_bytes")
    require_same_gpu(gpu, "NVIDIA X999", 77)  # its own records are its own


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"steps": (1, 16)}, "at least three walk lengths"),
        ({"steps": (0, 1, 2)}, "steps"),
        ({"l2_states": ("hot",)}, "l2_state"),
        ({"processes": 0}, "processes"),
        ({"repeats": -1}, "repeats"),
    ],
)
def test_a_bad_request_is_refused(wrong: dict, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        StudyRequest(**wrong)


def test_outputs_hold_the_same_rows_and_settings_that_load_back(result: study.StudyResult, tmp_path: Path) -> None:
    import pandas

    written = write_outputs(result, tmp_path)
    names = {path.name for path in written}
    assert {"step_costs.csv", "step_costs.parquet", "step_costs.md", "settings.json", "settings-markov-129280-r256.json"} <= names
    frame = pandas.read_parquet(tmp_path / "step_costs.parquet")
    with (tmp_path / "step_costs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(frame) == len(rows) == len(result.rows) == 2 * 3 * 6
    page = (tmp_path / "step_costs.md").read_text()
    assert page.startswith(f"# Step costs on {result.gpu.name}, replayed: {GPU_NAME}, recorded 2026-01-31")
    assert page.count("\n| ") == len(rows) + 1 and "Experiments" not in page
    settings = load_settings(tmp_path / "settings.json", load_gpu(GPU_ID), HEAD)
    assert settings.mode == "resident" and settings.verdict == "deploy resident" and settings.placement is not None
    with pytest.raises(SettingsMismatch, match="b200-sxm"):
        load_settings(tmp_path / "settings.json", load_gpu("b200-sxm"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_an_earlier_study_left_does_not_stay_beside_the_new_answer(
    result: study.StudyResult, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_outputs(result, tmp_path)
    (tmp_path / "settings-mine.json").write_text('{"form": "something else"}')
    assert (tmp_path / "settings-markov-129280-r256.json").is_file()
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    write_outputs(run_study(StudyRequest(records=records, live=False, heads=(HEAD,))), tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step_costs.csv", "step_costs.parquet", "step_costs.md", "settings.json", "settings-mine.json"}


def test_without_plotly_all_but_the_report_is_written_and_said(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    written = write_outputs(result, tmp_path)
    assert not (tmp_path / "report.html").exists() and (tmp_path / "settings.json").is_file()
    assert "plotly is not installed" in written.left_out[0]


def test_a_file_that_fails_leaves_the_old_one_alone(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr("wts_lab.report.render_report", lambda _: (_ for _ in ()).throw(RuntimeError("drawing failed")))
    with pytest.raises(RuntimeError):
        write_outputs(result, tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"


def test_an_interrupt_while_the_report_is_drawn_leaves_the_folder_as_it_was(
    result: study.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.json").write_text("old")
    monkeypatch.setattr("wts_lab.report.render_report", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_outputs(result, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"settings.json": "old"}


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
