"""Provenance never fails, the doctor lists every fault in one pass, and build locks are told apart."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys

import pytest

from cost_model.measurement import WALK_COLUMNS
from wts_lab import environment
from wts_lab.environment import Finding, build_locks, clear_stale_locks, command_line, device_id, doctor, git_state, snapshot


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_checkout_gives_its_commit(checkout):
    commit, dirty = git_state(checkout)
    assert len(commit) == 40 and dirty is False


def test_a_changed_tracked_file_makes_it_dirty_and_an_untracked_one_does_not(checkout):
    (checkout / "notes.txt").write_text("untracked\n")
    assert git_state(checkout)[1] is False
    (checkout / "code.py").write_text("two\n")
    assert git_state(checkout)[1] is True


def test_a_folder_that_is_no_checkout_is_unknown_even_inside_one(checkout):
    inside = checkout / "site-packages"
    inside.mkdir()
    assert git_state(inside) == (None, None)


def test_the_snapshot_has_only_columns_of_the_record_and_never_fails(monkeypatch):
    def broken(*_, **__):
        raise OSError("nothing works here")

    for name in ("_device_facts", "_driver_version", "_nvcc_release", "_torch_cuda", "command_line"):
        monkeypatch.setattr(environment, name, broken)
    monkeypatch.setattr(environment.subprocess, "run", broken)
    facts = snapshot()
    assert facts.keys() <= set(WALK_COLUMNS)
    assert {facts[name] for name in ("gpu_name", "gpu_sm_count", "driver_version", "cuda_version", "command", "git_commit", "git_dirty")} == {None}
    assert facts["wts_lab_version"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/opt/env/bin/python3.12", "-m", "benchmarks.run", "grid", "--out", "a b"], "python -m benchmarks.run grid --out 'a b'"),
        (["/opt/env/bin/python3", "/opt/env/bin/wts-lab", "measure", "--steps", "1"], "wts-lab measure --steps 1"),
        (["/usr/bin/wts-lab", "study"], "wts-lab study"),
    ],
)
def test_the_command_can_be_typed_elsewhere(monkeypatch, words, shown):
    monkeypatch.setattr(sys, "orig_argv", words)
    assert command_line() == shown


def test_a_missing_device_is_an_error_that_sends_to_the_doctor(monkeypatch):
    monkeypatch.setattr(environment, "_device_properties", lambda device=0: 1 / 0)
    with pytest.raises(RuntimeError, match="wts-lab doctor"):
        device_id()


def device(name, sm_count, memory):
    return type("Properties", (), {"name": name, "multi_processor_count": sm_count, "total_memory": memory, "major": 9, "minor": 0})()


def test_a_known_device_gets_its_catalogue_id_and_an_unknown_one_its_own_name(monkeypatch):
    monkeypatch.setattr(environment, "_device_properties", lambda device=0, known=device("NVIDIA H200", 132, 150_000_000_000): known)
    assert device_id() == "h200-sxm"
    monkeypatch.setattr(environment, "_device_properties", lambda device=0, other=device("Maker X-1 (rev 2)", 7, 10**9): other)
    assert device_id() == "maker-x-1-rev-2"


# --- the doctor -----------------------------------------------------------------------------------------------------------


def test_all_faults_come_in_one_pass_each_with_a_mend(monkeypatch, tmp_path):
    """A machine on which everything is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(environment, "_device_properties", lambda device=0: 1 / 0)
    monkeypatch.setattr(environment.metadata, "version", lambda name: 1 / 0)
    from wts_lab import build

    def no_nvcc():
        raise build.BuildError("no CUDA compiler found: set CUDA_HOME")

    monkeypatch.setattr(build, "find_nvcc", no_nvcc)
    findings = {finding.name: finding for finding in doctor()}
    for name in ("torch", "CUDA device", "NVML", "nvcc", "ninja", "C++ compiler", "pandas", "pyarrow", "scipy", "plotly", "ipywidgets", "anywidget"):
        assert not findings[name].ok and findings[name].mend, name
    assert findings["python"].ok and findings["build locks"].ok
    assert {finding.name for finding in findings.values() if not finding.ok and not finding.fault} == {"plotly", "ipywidgets", "anywidget", "jupyterlab", "voila"}
    assert findings["jupyterlab"].detail == "not installed, needed for the lab only"


def test_what_only_the_lab_needs_is_no_fault_where_it_is_missing():
    missing = Finding("jupyterlab", False, "not installed, needed for the lab only", "pip install jupyterlab", environment.LAB)
    assert not missing.fault and missing.as_dict()["fault"] is False
    assert Finding("pandas", False, "not installed", "pip install pandas", environment.RECORDS).fault


def test_a_machine_that_cannot_measure_is_told_where_to_look(monkeypatch):
    from cost_model.errors import BadInput
    from wts_lab import study

    monkeypatch.setattr(study, "capable_device", lambda: None)
    with pytest.raises(BadInput, match="wts-lab doctor"):
        environment.require_device()


def test_a_check_that_breaks_is_a_finding_and_the_rest_still_run(monkeypatch):
    def broken():
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(environment, "CHECKS", (("first", broken), ("second", lambda: [Finding("second", True, "fine")])))
    first, second = doctor()
    assert not first.ok and "ZeroDivisionError: surprise" in first.detail and first.mend
    assert second == Finding("second", True, "fine")


@pytest.mark.parametrize(
    ("release", "torch_cuda", "driver_cuda", "mend"),
    [
        ("13.0", "13.0", "13.0", None), ("12.4", "12.8", "13.0", None), ("13.0", None, None, None),
        ("13.0", "12.8", "13.0", "major versions must agree"), ("13.0", "13.0", "12.8", "update the driver"),
    ],
)  # fmt: skip
def test_the_compiler_must_fit_torch_and_the_driver(release, torch_cuda, driver_cuda, mend):
    finding = environment._compiler_finding(release, "nvcc", torch_cuda, driver_cuda)
    assert finding.ok is (mend is None) and release in finding.detail
    assert mend is None or mend in finding.mend


def test_an_old_gpu_is_a_fault(monkeypatch):
    old = device("NVIDIA V100", 80, 10**10)
    old.major, old.minor = 7, 0
    monkeypatch.setattr(environment, "_device_properties", lambda device=0: old)
    capability = environment._check_device()[1]
    assert not capability.ok and capability.detail == "7.0" and "8.0 or more" in capability.mend


# --- build locks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path))
    return tmp_path


def test_a_lock_that_nobody_holds_is_harmless(cache):
    (cache / "walk.lock").write_text("12345")
    assert build_locks() == [(cache / "walk.lock", None)]
    assert environment._check_locks()[0].ok


def test_a_held_lock_names_its_owner(cache):
    with open(cache / "walk.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.write(str(os.getpid()))
        handle.flush()
        assert build_locks() == [(cache / "walk.lock", str(os.getpid()))]
        finding = environment._check_locks()[0]
        assert not finding.ok and str(os.getpid()) in finding.detail
    assert build_locks() == [(cache / "walk.lock", None)]


def test_a_lock_left_by_torch_is_stale_and_can_be_cleared(cache):
    left = cache / "wts_binding_1" / "lock"
    left.parent.mkdir()
    left.touch()
    finding = environment._check_locks()[0]
    assert not finding.ok and str(left) in finding.detail
    assert clear_stale_locks() == [left]
    assert not left.exists() and environment._check_locks()[0].ok


def test_torchs_lock_of_a_build_that_runs_is_left_alone(cache):
    left = cache / "wts_binding_1" / "lock"
    left.parent.mkdir()
    left.touch()
    with open(cache / "wts_binding_1.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert clear_stale_locks() == []
    assert left.exists()


def test_a_tree_without_history_takes_its_commit_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WTS_LAB_COMMIT", raising=False)
    assert git_state(tmp_path) == (None, None)
    monkeypatch.setenv("WTS_LAB_COMMIT", "abc123")
    assert git_state(tmp_path) == ("abc123", False)
    monkeypatch.setenv("WTS_LAB_COMMIT", "abc123-dirty")
    assert git_state(tmp_path) == ("abc123", True)


def test_a_notebooks_kernel_is_named_without_its_passing_file(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "/somewhere/kernel.json"])
    assert command_line() == "python -m ipykernel_launcher"
