"""Shipped folders: found beside a checkout and inside an installed package, without importing it."""

import shutil
import subprocess
import sys

import pytest

from cost_model.paths import MissingFiles, data_root, resource_root

PROBE = """
import sys
from cost_model.gpu import load_gpu
from cost_model.paths import data_root
print(data_root())
print(load_gpu("h200-sxm", calibrated=False).sm_count)
print("wts_lab" in sys.modules)
"""


def run_away_from_the_checkout(site, code):
    """Run code in a fresh interpreter that sees only `site` and the standard library."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"]
    return subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=60, check=False)


def installed(site, repository, with_data=True):
    """Lay out what a wheel installs."""
    shutil.copytree(repository / "cost_model", site / "cost_model", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "wts_lab").mkdir()
    (site / "wts_lab" / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    if with_data:
        for folder in ("gpus", "published"):
            shutil.copytree(repository / "data" / folder, site / "wts_lab" / "_shipped" / "data" / folder)


def test_a_checkout_finds_its_own_data(repository):
    assert data_root() == repository / "data" == resource_root("data")


def test_an_installed_package_finds_what_ships_inside(tmp_path, repository):
    installed(tmp_path, repository)
    done = run_away_from_the_checkout(tmp_path, PROBE)
    assert done.stdout.split() == [str(tmp_path / "wts_lab" / "_shipped" / "data"), "132", "False"], done.stderr


def test_packages_in_different_places_find_each_other(tmp_path, repository):
    (tmp_path / "one").mkdir()
    installed(tmp_path / "one", repository)
    (tmp_path / "two").mkdir()
    shutil.move(tmp_path / "one" / "cost_model", tmp_path / "two" / "cost_model")
    done = run_away_from_the_checkout(tmp_path / "two", f"sys.path.append({str(tmp_path / 'one')!r})\n{PROBE}")
    assert done.stdout.split() == [str(tmp_path / "one" / "wts_lab" / "_shipped" / "data"), "132", "False"], done.stderr


def test_a_missing_folder_names_every_place(tmp_path, repository):
    installed(tmp_path, repository, with_data=False)
    done = run_away_from_the_checkout(tmp_path, PROBE)
    assert done.returncode != 0
    assert str(tmp_path / "data") in done.stderr and str(tmp_path / "wts_lab" / "_shipped" / "data") in done.stderr
    assert "reinstall the wheel" in done.stderr


def test_only_shipped_folders_have_names():
    with pytest.raises(MissingFiles, match="no shipped folder is called 'secrets'; there are csrc, data, notebooks"):
        resource_root("secrets")
