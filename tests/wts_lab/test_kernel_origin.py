"""Whose kernels records were made with: the present ones where nothing changed since their commits, else nobody can say."""

from __future__ import annotations

import subprocess

import pytest

from cost_model.catalogue import CatalogueError, read_facts
from cost_model.measurement import read_walk_folder
from wts_lab import kernel_origin
from wts_lab.kernel_origin import KERNEL_SOURCES, known_environment, recorded_kernel_hash, same_code
from wts_lab.recordings import measurements_root
from wts_lab.tuned import walk_sources_hash


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with two commits: the second leaves the kernels as they are; returns (root, commit function)."""
    monkeypatch.setattr(kernel_origin, "walk_sources_hash", lambda: "c0ffee")

    def git(*words):
        about = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")
        return subprocess.run(["git", "-C", str(tmp_path), *about, *words], check=True, capture_output=True, text=True).stdout.strip()

    def commit(**files):
        for name, text in files.items():
            path = tmp_path / {"kernel": "csrc/walk/walk.cu", "abi": "wts_lab/abi.py", "page": "README.md"}[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git("add", ".")
        git("commit", "--quiet", "--message", "a change")
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    return tmp_path, commit


def test_kernels_are_the_present_ones_while_nothing_of_theirs_changes(checkout):
    root, commit = checkout
    first = commit(kernel="one", abi="one", page="one")
    second = commit(page="two")
    assert recorded_kernel_hash(first, False, root) == recorded_kernel_hash([first, second], False, root) == "c0ffee"
    third = commit(kernel="three")
    assert recorded_kernel_hash(first, False, root) is None and recorded_kernel_hash([third, first], False, root) is None
    assert recorded_kernel_hash(third, False, root) == "c0ffee"
    (root / KERNEL_SOURCES[1]).write_text("edited")
    assert recorded_kernel_hash(third, False, root) is None, "the contract that the header is rendered from differs"


def test_what_nobody_can_tell_is_left_open(checkout, tmp_path_factory):
    root, commit = checkout
    first = commit(kernel="one", abi="one")
    assert recorded_kernel_hash(first, True, root) is None, "the tree that was measured differed from its commit"
    assert recorded_kernel_hash(first, [False, True], root) is None and recorded_kernel_hash(first, None, root) is None
    assert recorded_kernel_hash(None, False, root) is None and recorded_kernel_hash("0" * 40, False, root) is None
    assert recorded_kernel_hash(first, False, tmp_path_factory.mktemp("wheel")) is None, "a wheel has no history"
    (root / "csrc" / "walk" / "new.cuh").write_text("not committed, and hashed")
    assert recorded_kernel_hash(first, False, root) is None


def test_facts_that_rows_do_not_share_are_left_out(monkeypatch):
    monkeypatch.setattr(kernel_origin, "walk_sources_hash", lambda: "c0ffee")
    origin = {"gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "driver_version": ["580.1", "580.2"], "cuda_version": None, "git_commit": "1" * 40,
              "git_dirty": False}  # fmt: skip
    assert known_environment(origin) == {"gpu_name": "NVIDIA H200", "gpu_sm_count": 132}
    assert known_environment(origin, made_here=True)["kernel_hash"] == "c0ffee"


def test_runs_of_the_same_machine_code_are_of_the_present_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_origin, "walk_sources_hash", lambda: "c0ffee")
    monkeypatch.setattr(kernel_origin, "data_root", lambda: tmp_path)
    assert not same_code(["one"]), "no file, nothing known"
    (tmp_path / "same_code.toml").write_text('kernel_hash = "c0ffee"\n[runs]\none = "h200-sxm/a"\ntwo = "h200-sxm/b"\n')
    assert same_code(["one"]) and same_code(["one", "two"]) and not same_code(["one", "three"]) and not same_code([])
    changed = {"git_commit": "0" * 40, "git_dirty": False}
    assert known_environment(changed | {"run_id": "one"})["kernel_hash"] == known_environment(changed | {"run_id": ["one", "two"]})["kernel_hash"] == "c0ffee"
    assert "kernel_hash" not in known_environment(changed | {"run_id": "three"}) and "kernel_hash" not in known_environment(changed)
    monkeypatch.setattr(kernel_origin, "walk_sources_hash", lambda: "decade")
    assert not same_code(["one"]), "the file is about other kernels"


@pytest.mark.parametrize(("text", "told"), [
    ("kernel_hash =", "cannot be read as a fact file"), ('kernel_hash = "c0ffee"', "runs"), ('kernel_hash = "c0ffee"\nruns = 3', "runs is 3; it must be a table"),
])
def test_a_corrupt_file_is_an_error_that_names_it(monkeypatch, tmp_path, text, told):
    monkeypatch.setattr(kernel_origin, "data_root", lambda: tmp_path)
    (tmp_path / "same_code.toml").write_text(text)
    with pytest.raises(CatalogueError, match=f"same_code.toml.*{told}"):
        known_environment({"git_commit": "0" * 40, "git_dirty": False, "run_id": "one"})


def test_the_shipped_file_is_about_the_present_kernels_and_shipped_runs():
    runs = {run for folder in measurements_root().iterdir() for run in read_walk_folder(folder)["run_id"].dropna()}
    known = read_facts(kernel_origin.same_code_path())
    assert known["kernel_hash"] == walk_sources_hash(), "the kernels have changed: make again what python -m benchmarks.touched --write names"
    assert known["runs"].keys() <= runs and {"h200-sxm/2026-11-30-headline", "h200-sxm/2026-11-30-walks"} <= set(known["runs"].values())
