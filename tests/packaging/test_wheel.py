"""The built wheel works away from the checkout: kernels, data and notebooks travel inside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("csrc", "data", "notebooks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, with the setuptools that is installed and no network."""
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    source = tmp_path_factory.mktemp("source") / "checkout"
    names = ["cost_model", "wts_lab", *SHIPPED, "pyproject.toml", "setup.py", "MANIFEST.in", "README.md"]
    source.mkdir()
    for name in names:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    built = subprocess.run([*command, "--wheel-dir", str(target), str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel as an installer would, far from the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_away(unpacked: Path, folder: Path, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess:
    """Run `python -m wts_lab` from the unpacked wheel in a folder that is not the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-m", "wts_lab", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def test_wheel_holds_every_shipped_file(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"wts_lab/_shipped/{path.relative_to(ROOT).as_posix()}"
        for name in SHIPPED
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not any(part.startswith(".") for part in path.parts[len(ROOT.parts):])
        and path.suffix not in (".o", ".so")
    }
    assert len(wanted) > 20
    assert wanted - inside == set()


def test_wheel_holds_packages_and_nothing_else_at_the_top(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cost_model", "wts_lab"}


def test_shipped_folders_are_found_inside_the_wheel(unpacked, tmp_path):
    code = "from cost_model.paths import resource_root; print(*(resource_root(n) for n in ('csrc', 'data', 'notebooks')), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(unpacked / "wts_lab" / "_shipped" / name) for name in SHIPPED]


def test_predict_answers_away_from_the_checkout(unpacked, tmp_path):
    done = run_away(unpacked, tmp_path, "predict", "--gpu", "h200-sxm", "--vocab", "151936", "--rank", "256", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sum(term["exposed_us"] for term in answer["terms"]["step"].values()) == pytest.approx(answer["step_us"])


def test_study_writes_its_files_away_from_the_checkout(unpacked, tmp_path):
    pytest.importorskip("scipy")
    if not any((ROOT / "data" / "measurements").rglob("*.parquet")):
        pytest.skip("no run is recorded to replay")
    done = run_away(unpacked, tmp_path, "study", "--out", "answer", "--replay")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "answer").iterdir()}
    assert {"step_costs.csv", "step_costs.parquet", "step_costs.md", "settings.json"} <= written
