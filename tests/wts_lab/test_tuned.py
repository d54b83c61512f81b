"""Tuned files: written and read back, and refused, field by field, for anything but what they were measured with."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.workload import EXCHANGES
from wts_lab import tuned as tuned_files
from wts_lab.tuned import Tuned, TunedError, TunedFor, TunedMismatch, load_tuned, read_tuned, tuned_folder, walk_sources_hash, write_tuned

WANTED = TunedFor.of("NVIDIA H200", 132, "c0ffee", Head.markov(151_936, 256), mode="resident", precision="int8x2")
TUNED = Tuned(WANTED, Placement(8, 40, 32, 0, 0), "spread-lines", "faster than the planner's choice", 2.25, 2.5, "warm", "2026-11-30-tune-final-0")


@given(
    st.integers(1, 32), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.sampled_from(EXCHANGES),
    st.floats(0.1, 1e4, allow_nan=False), st.integers(1, 32), st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read_back(tmp_path_factory, warps, registers, shared, streamed, exchange, step_us, batch, sampling):
    staging = min(1, streamed)
    placement = Placement(warps, *(count * warps for count in (registers, shared + (registers + shared + streamed == 0), streamed, staging)))
    valid_for = replace(WANTED, batch=batch, sampling=sampling)
    written = replace(TUNED, valid_for=valid_for, placement=placement, exchange=exchange, step_us=step_us)
    path = write_tuned(written, tmp_path_factory.mktemp("tuned") / "x.json")
    assert load_tuned(path, valid_for) == written
    assert written.walk_options() == {"placement": placement, "exchange": exchange}


OTHERS = {
    "gpu_name": "NVIDIA H100", "sm_count": 78, "kernel_hash": "decade", "head_kind": "gated", "vocab_size": 1, "target_vocab_size": 2,
    "padded_vocab_size": 3, "rank": 512, "gru_size": 1024, "candidate_pool": 64, "mode": "streaming", "precision": "bf16", "rounding": "none",
    "batch": 4, "sampling": True,
}  # fmt: skip


def test_every_field_of_the_use_has_another_value_to_try():
    assert set(OTHERS) == {field.name for field in fields(TunedFor)}


@pytest.mark.parametrize("name", OTHERS)
def test_another_use_is_refused_with_both_values(tmp_path, name):
    path = write_tuned(TUNED, tmp_path / "x.json")
    with pytest.raises(TunedMismatch) as refusal:
        load_tuned(path, replace(WANTED, **{name: OTHERS[name]}))
    assert refusal.value.differences == {name: (getattr(WANTED, name), OTHERS[name])}
    assert f"{name} is {getattr(WANTED, name)!r} in the file and {OTHERS[name]!r} here" in str(refusal.value)


def test_all_differences_are_listed(tmp_path):
    path = write_tuned(TUNED, tmp_path / "x.json")
    with pytest.raises(TunedMismatch) as refusal:
        load_tuned(path, replace(WANTED, batch=2, kernel_hash="decade"))
    assert refusal.value.differences == {"batch": (1, 2), "kernel_hash": ("c0ffee", "decade")}


def test_the_cache_folder_is_used_unless_a_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path / "cache"))
    path = write_tuned(TUNED)
    assert path == tmp_path / "cache" / "tuned" / "nvidia-h200-markov-v151936-r256-b1-resident-int8x2-once-greedy.json"
    assert load_tuned(tuned_folder(), WANTED) == TUNED


def test_kernels_that_changed_are_found_and_refused_not_passed_over(tmp_path):
    write_tuned(TUNED, tmp_path / WANTED.file_name)
    with pytest.raises(TunedMismatch, match="kernel_hash is 'c0ffee' in the file and 'decade' here"):
        load_tuned(tmp_path, replace(WANTED, kernel_hash="decade"))


def test_a_use_that_was_never_tuned_is_told_how(tmp_path):
    with pytest.raises(TunedError, match="no such tuned file; `wts-lab tune` makes one"):
        load_tuned(tmp_path, WANTED)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", json.dumps({"form": "weights-that-stay settings"})])
def test_a_foreign_file_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TunedError, match="x.json: (cannot be read|is no file of this tool with the form)"):
        read_tuned(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version is 2; this code reads version 1"),
        ({"colour": "blue"}, "the file has unknown fields colour"),
        ({"placement": {"warps": 8}}, "placement lacks register_tiles"),
        ({"placement": None}, "placement is None; it must be a table"),
        ({"placement": asdict(replace(TUNED.placement, shared_tiles=24)) | {"shared_tiles": 31}}, "must be a multiple of warps"),
        ({"exchange": "atomic"}, "choose one of spread-lines, dense-lines"),
        ({"exchange": 3}, "exchange is 3; choose one of"),
        ({"verdict": 3}, "verdict is 3; it must be a text"),
        ({"step_us": "fast"}, "step_us is 'fast'; it must be a finite number of at least 0"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_fault(tmp_path, change, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**TUNED.as_dict(), **change}))
    with pytest.raises(TunedError, match=message):
        read_tuned(path)


def test_the_hash_covers_the_kernels_and_nothing_else(monkeypatch, tmp_path):
    from wts_lab import abi

    before = walk_sources_hash()
    assert walk_sources_hash() == before
    (tmp_path / "walk").mkdir()
    (tmp_path / "walk" / "walk.cuh").write_text("// another\n")
    monkeypatch.setattr(abi, "csrc_root", lambda: tmp_path)
    assert walk_sources_hash() != before


def test_a_device_is_asked_for_its_name_and_multiprocessors(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="NVIDIA H200", multi_processor_count=132))
    monkeypatch.setattr(tuned_files, "walk_sources_hash", lambda: "c0ffee")
    write_tuned(TUNED, tmp_path / WANTED.file_name)
    head = Head.markov(151_936, 256)
    assert tuned_files.tuned_for_device(head, mode="resident", precision="int8x2", path=tmp_path) == TUNED
    with pytest.raises(TunedError, match="no such tuned file"):
        tuned_files.tuned_for_device(head, mode="resident", precision="int8x2", batch=4, path=tmp_path)
