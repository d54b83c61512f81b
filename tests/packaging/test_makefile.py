"""What make would do, read from a dry run: which extras a machine gets, which interpreter, and what it says where none fits."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

BASIC_TOOLS = ("sh", "bash", "awk", "grep", "env", "touch", "rm", "find", "echo", "id", "ls", "cat", "uname", "ldconfig", "test")


@pytest.fixture
def machine(tmp_path):
    """A made-up machine: a checkout with the Makefile, and a PATH of basic tools to which a test adds what it wants."""
    checkout, tools = tmp_path / "a checkout", tmp_path / "tools"
    checkout.mkdir()
    tools.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy2(ROOT / name, checkout / name)
    for name in BASIC_TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)

    def add(name: str, body: str) -> None:
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)

    def make(*words: str) -> subprocess.CompletedProcess:
        environment = {"PATH": str(tools), "HOME": str(tmp_path), "CUDA_HOME": str(tmp_path / "no-toolkit")}
        return subprocess.run([shutil.which("make"), *words], cwd=checkout, env=environment, capture_output=True, text=True)

    make.add = add
    return make


def extras_of(done: subprocess.CompletedProcess) -> str:
    """The extras in the editable install that a dry run shows."""
    (line,) = [line for line in done.stdout.splitlines() if "--editable" in line]
    return line.split("--editable")[1].strip().strip("'").removeprefix(".").strip("[]")


def python_of(version: str) -> str:
    """Body of an interpreter that passes the check for 3.11 only from that version on."""
    return f"exit {0 if tuple(map(int, version.split('.'))) >= (3, 11) else 1}"


def has_toolkit() -> bool:
    """Whether the usual folder of the CUDA toolkit is on this machine; the Makefile looks there too."""
    return os.access("/usr/local/cuda/bin/nvcc", os.X_OK)


def test_a_machine_without_a_gpu_gets_no_torch(machine):
    machine.add("python3", python_of("3.11"))
    assert extras_of(machine("-n", "run")) == ""
    assert extras_of(machine("-n", "lab")) == "lab"


def test_a_machine_with_a_gpu_gets_torch_and_where_needed_a_compiler(machine):
    machine.add("python3", python_of("3.11"))
    machine.add("nvidia-smi", "echo 9.0")
    wanted = "gpu" if has_toolkit() else "gpu,compiler"
    assert extras_of(machine("-n", "run")) == wanted
    machine.add("nvcc", "exit 0")
    assert extras_of(machine("-n", "run")) == "gpu"


@pytest.mark.parametrize(("answer", "extras"), [("echo 7.5", ""), ("echo 8.0", "gpu"), ("echo 12.0", "gpu"), ("echo 7.5; echo 8.9", "gpu"), ("exit 9", ""), ("echo '[N/A]'", "")])
def test_only_a_gpu_that_runs_the_kernels_counts(machine, answer, extras):
    machine.add("python3", python_of("3.12"))
    machine.add("nvcc", "exit 0")
    machine.add("nvidia-smi", answer)
    assert extras_of(machine("-n", "run")) == extras


def test_tests_get_everything(machine):
    machine.add("python3", python_of("3.11"))
    machine.add("nvcc", "exit 0")
    assert extras_of(machine("-n", "test")) == "gpu,lab,test"


def test_a_wheel_needs_setuptools_and_nothing_else(machine):
    """Not torch, nor any package that the lab runs with."""
    machine.add("python3", python_of("3.11"))
    lines = machine("-n", "wheel").stdout.splitlines()
    installs = [line.split("constraints.txt ")[1] for line in lines if " pip install " in line]
    assert installs == ["setuptools"]
    assert any(" pip wheel " in line and "--no-deps" in line and "--no-build-isolation" in line for line in lines)


def test_the_first_interpreter_that_is_new_enough_is_taken(machine):
    machine.add("python3", python_of("3.9"))
    machine.add("python3.12", python_of("3.12"))
    assert '"python3.12" -m venv' in machine("-n", "run").stdout


def test_no_interpreter_says_what_is_needed(machine):
    machine.add("python3", python_of("3.10"))
    done = machine("run")
    assert done.returncode != 0 and "Python 3.11 or newer is needed" in done.stderr and "PYTHON=" in done.stderr


def test_a_named_interpreter_that_is_too_old_is_refused(machine):
    machine.add("python3", python_of("3.12"))
    machine.add("old", python_of("3.10"))
    done = machine("run", "PYTHON=old")
    assert done.returncode != 0 and "old is not Python 3.11 or newer" in done.stderr


def test_a_python_without_ensurepip_names_the_mend(machine):
    machine.add("python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = machine("run")
    assert done.returncode != 0 and "python3-venv" in done.stderr


def test_a_ready_environment_is_not_made_again_until_pins_change(machine, tmp_path):
    machine.add("python3", python_of("3.11"))
    checkout = tmp_path / "a checkout"
    (checkout / ".venv").mkdir()
    for stamp in (".created", ".ready-run-cpu"):
        (checkout / ".venv" / stamp).touch()
    assert "--editable" not in machine("-n", "run").stdout
    later = (checkout / ".venv" / ".ready-run-cpu").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert "--editable" in machine("-n", "run").stdout


def test_make_alone_lists_every_target(machine):
    listed = machine().stdout
    assert all(f"make {target} " in listed for target in ("run", "test", "lab", "wheel", "clean"))
