"""Recorded runs: found, filtered to the fullest run and to one configuration, and labelled with their origin."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from cost_model.errors import BadInput
from cost_model.gpu import AnotherGpu, load_gpu
from cost_model.head import Head
from cost_model.measurement import RecordError, walk_row, write_walk
from cost_model.workload import DEFAULT_EXCHANGE, Workload
from tests.synthetic_records import GPU_ID, GPU_NAME, STEPS, synthetic_rows, write_synthetic
from wts_lab.compare import predicted_comparisons, with_fits
from wts_lab.recordings import NothingRecorded, describe_origin, read_recording, recorded_gpus, recorded_rows

GPU, HEAD = load_gpu(GPU_ID), Head.markov(151_936, 256)
A100 = {"gpu_name": "NVIDIA A100-SXM4-80GB", "gpu_sm_count": 108}
RESIDENT, REFERENCE = ("resident", "int8x2"), ("stepwise", "bf16")


def test_a_recording_is_labelled_with_gpu_and_days(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    later = [{**row, "recorded_at_utc": "2026-02-03T00:00:00+00:00"} for row in synthetic_rows(129_280)]
    write_walk(folder / GPU_ID / "2026-02-03-later.parquet", later)
    assert recorded_gpus(folder) == (GPU_ID,)
    assert read_recording(GPU_ID, folder).label == f"{GPU_NAME}, recorded 2026-01-31 to 2026-02-03"


def test_without_a_name_the_gpu_recorded_last_is_taken(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    write_walk(
        folder / "a100-sxm-80gb" / "2026-03-01-x.parquet",
        [{**row, **A100, "recorded_at_utc": "2026-03-01T00:00:00+00:00"} for row in synthetic_rows()],
    )
    assert read_recording(None, folder).gpu_id == "a100-sxm-80gb"


def test_probes_are_no_walks(tmp_path: Path) -> None:
    probe = walk_row(
        run_id="p",
        process_index=0,
        recorded_at_utc="2026-01-31T00:00:00+00:00",
        implementation="wts",
        probe="exchange",
        samples_us=[0.8],
    )
    write_walk(tmp_path / GPU_ID / "2026-01-31-probes.parquet", [probe])
    with pytest.raises(NothingRecorded, match="only probes"):
        read_recording(GPU_ID, tmp_path)


def test_the_reference_and_each_path_of_an_engine_are_series_of_their_own(tmp_path: Path) -> None:
    reference = [row for row in synthetic_rows() if row["mode"] == "stepwise"]
    engine = {"implementation": "sglang-0.5.23", "run_id": "engine"}
    paths = [{**row, **engine, "variant": path} for row in reference for path in ("MarkovGreedyStep", "MarkovSampleStep")]
    slower = [{**row, "variant": "graph-2", "samples_us": [us * 2 for us in row["samples_us"]]} for row in reference]
    write_walk(tmp_path / GPU_ID / "2026-01-31-engine.parquet", [*reference, *slower, *paths])
    found = recorded_rows(GPU, HEAD, (REFERENCE,), "warm", max_steps=16, records=tmp_path).frame
    assert found.groupby(["implementation", "variant"]).size().to_dict() == {
        ("sglang-0.5.23", "MarkovGreedyStep"): 21, ("sglang-0.5.23", "MarkovSampleStep"): 21, ("torch-stepwise", "graph"): 21
    }  # fmt: skip
    rows = with_fits(predicted_comparisons(GPU, HEAD, Workload(), (REFERENCE,)), found.to_dict("records"))
    assert [(each.label, len(each.points), each.is_fitted) for each in rows] == [
        ("stepwise torch", 7, True), ("sglang-0.5.23 greedy", 7, True), ("sglang-0.5.23 sample", 7, True)
    ]  # fmt: skip


def test_rows_are_those_of_the_asked_ways_in_the_order_recorded(tmp_path: Path) -> None:
    recording = recorded_rows(GPU, HEAD, (RESIDENT, REFERENCE), "warm", max_steps=11, records=write_synthetic(tmp_path))
    assert {(row["mode"], row["precision"]) for row in recording.rows} == {RESIDENT, REFERENCE}
    assert {row["steps"] for row in recording.rows} == {1, 2, 4, 7, 11} and {row["l2_state"] for row in recording.rows} == {
        "warm"
    }
    assert [row["process_index"] for row in recording.rows] == sorted(row["process_index"] for row in recording.rows)


@pytest.mark.parametrize(("steps", "kept"), [((1, 7, 16), "synthetic"), (STEPS, "later")])
def test_a_quick_look_does_not_hide_a_full_series_but_an_equal_newer_one_does(tmp_path: Path, steps: tuple, kept: str) -> None:
    folder = write_synthetic(tmp_path)
    later = [
        {**row, "run_id": "later", "recorded_at_utc": "2026-02-03T00:00:00+00:00", "variant": f"other-{row['variant']}"}
        for row in synthetic_rows(steps=steps)
    ]  # the label of a benchmark does not make another configuration of our walk
    write_walk(folder / GPU_ID / "2026-02-03-later.parquet", later)
    rows = recorded_rows(GPU, HEAD, (RESIDENT,), "warm", max_steps=16, records=folder).rows
    assert {row["run_id"] for row in rows} == {kept} and {row["steps"] for row in rows} == set(STEPS)


def test_of_several_placements_only_the_fastest_is_replayed(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    rows = [
        {**row, "register_tiles": 48, "shared_tiles": 24, "samples_us": [us * 0.9 for us in row["samples_us"]]}
        for row in synthetic_rows(ways=[("wts", "resident", *RESIDENT)])
    ]
    write_walk(folder / GPU_ID / "2026-02-01-faster.parquet", rows)
    replayed = recorded_rows(GPU, HEAD, (RESIDENT,), "warm", max_steps=16, records=folder).rows
    assert {row["register_tiles"] for row in replayed} == {48} and len(replayed) == 21


def test_an_experimental_exchange_is_not_replayed(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    rows = [
        {**row, "exchange": "slots-x8", "samples_us": [us * 0.5 for us in row["samples_us"]]}
        for row in synthetic_rows(ways=[("wts", "resident", *RESIDENT)])
    ]
    write_walk(folder / GPU_ID / "2026-02-01-exchanges.parquet", rows)
    replayed = recorded_rows(GPU, HEAD, (RESIDENT, REFERENCE), "warm", max_steps=16, records=folder).rows
    assert {row["exchange"] for row in replayed} == {DEFAULT_EXCHANGE, None}


@pytest.mark.parametrize("vocab_size, l2_state, said", [(129_280, "warm", "V 129,280, rank 256"), (151_936, "cold", "L2 cold")])
def test_what_was_not_recorded_is_said_with_what_was(tmp_path: Path, vocab_size: int, l2_state: str, said: str) -> None:
    folder = write_synthetic(tmp_path, l2_states=("warm",))
    with pytest.raises(NothingRecorded) as caught:
        recorded_rows(GPU, Head.markov(vocab_size, 256), (RESIDENT,), l2_state, max_steps=16, records=folder)
    assert said in str(caught.value) and "151,936, 256" in str(caught.value) and "L2 warm" in str(caught.value)


def test_an_empty_folder_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded, match="no record at all"):
        read_recording(None, tmp_path)
    (tmp_path / GPU_ID).mkdir()
    (tmp_path / GPU_ID / "2026-01-31-broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(RecordError, match="2026-01-31-broken.parquet"):
        read_recording(GPU_ID, tmp_path)


def test_rows_of_another_gpu_than_their_folder_says_are_refused_naming_both(tmp_path: Path) -> None:
    write_walk(tmp_path / "rtx-4090" / "2026-01-31-copied.parquet", synthetic_rows())
    with pytest.raises(AnotherGpu, match="NVIDIA H200.*rtx-4090"):
        read_recording("rtx-4090", tmp_path)
    with pytest.raises(AnotherGpu):
        recorded_rows(load_gpu("rtx-4090"), HEAD, (RESIDENT,), "warm", max_steps=16, records=tmp_path)


def test_one_foreign_row_among_many_is_refused(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path)
    write_walk(folder / GPU_ID / "2026-02-01-mixed.parquet", [{**synthetic_rows(129_280)[0], **A100}])
    with pytest.raises(AnotherGpu, match="A100-SXM4-80GB"):
        read_recording(GPU_ID, folder)


def test_a_gpu_that_the_catalogue_lacks_can_be_recorded(tmp_path: Path) -> None:
    rows = [{**row, "gpu_name": "NVIDIA X999", "gpu_sm_count": 77} for row in synthetic_rows()]
    write_walk(tmp_path / "unverified-nvidia-x999" / "2026-01-31-own.parquet", rows)
    assert read_recording("unverified-nvidia-x999", tmp_path).gpu_name == "NVIDIA X999"


def test_a_missing_folder_and_a_file_are_told_apart_from_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_recording(None, tmp_path / "nope")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        read_recording(GPU_ID, tmp_path / "file")


def test_provenance_lists_what_differs_and_merges_what_does_not() -> None:
    rows = [{"gpu_name": "G", "run_id": "a", "driver_version": None}, {"gpu_name": "G", "run_id": "b", "driver_version": None}]
    origin = describe_origin(rows)
    assert (origin["gpu_name"], origin["run_id"], origin["driver_version"]) == ("G", ["a", "b"], None)
