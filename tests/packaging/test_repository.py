"""What a tracked file may not hold: paths of one machine, addresses of registries, outputs of notebooks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HOME_OR_WORK = re.compile(r"(?<![\w.])/(?:home|Users|root|work|mnt|scratch)/[\w.-]+")
REGISTRY = re.compile(
    r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|anaconda|debian|ubuntu|download\.pytorch)[\w.-]*"
    r"|--(?:extra-)?index-url\b|--find-links\b"
)
OWN_TEXT = Path(__file__).name
"""This file shows the scans what to find, so they pass it over."""


def tracked_files() -> list[Path]:
    """List the files that git tracks; skip where this is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list of tracked files")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    """Return a text file's text, None for a binary file."""
    content = path.read_bytes()
    return None if b"\0" in content[:8192] else content.decode()


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Text of every tracked text file but this one, by its name in the repository."""
    read = {str(path.relative_to(ROOT)): text_of(path) for path in tracked_files() if path.name != OWN_TEXT}
    assert len(read) > 20, "the scan saw almost nothing"
    return {name: text for name, text in read.items() if text is not None}


def findings(texts: dict[str, str], pattern: re.Pattern) -> list[str]:
    """List `file:line: match` for every match."""
    return [
        f"{name}:{number}: {match[0]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
    ]


@pytest.mark.parametrize("folders", [("home", "someone", "lab"), ("mnt", "disk", "lab"), ("root", ".cache", "x")])
def test_the_scan_finds_machine_paths(folders):
    assert findings({"a": f'see "/{"/".join(folders)}"'}, HOME_OR_WORK)


@pytest.mark.parametrize("line", ["https://registry.npmjs.example/x", "pip install --index-url X y"])
def test_the_scan_finds_addresses_of_registries(line):
    assert findings({"a": line}, REGISTRY)


@pytest.mark.parametrize("line", ["a framework/main thing", "work/share", "docs/home/page"])
def test_the_scan_leaves_other_words_alone(line):
    assert findings({"a": line}, HOME_OR_WORK) == []


def test_no_file_holds_a_path_of_one_machine(texts):
    assert findings(texts, HOME_OR_WORK) == []


def test_no_file_holds_the_address_of_a_registry(texts):
    assert findings(texts, REGISTRY) == []


def test_notebooks_have_no_outputs(texts):
    """Those in data are evidence: executed ones, kept with what they showed."""
    for name in (name for name in texts if name.endswith(".ipynb") and not name.startswith("data/")):
        for cell in json.loads(texts[name])["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [] and cell["execution_count"] is None, f"{name} has outputs; strip them"


def test_record_files_hold_no_path_of_one_machine():
    """Records keep the command that made them; it must not name a home folder."""
    parquet = pytest.importorskip("pyarrow.parquet")
    for path in sorted((ROOT / "data").rglob("*.parquet")):
        for command in parquet.read_table(path, columns=["command"]).column("command").unique().to_pylist():
            assert not HOME_OR_WORK.search(command or ""), f"{path.name}: {command}"


def test_ci_script_is_executable_and_calls_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("make test")


def test_browser_tests_need_a_browser_and_no_driver():
    """They speak the browser's own protocol."""
    assert "driver" not in (ROOT / ".ci" / "run").read_text()
    assert "chromedriver" not in (ROOT / "tests" / "conftest.py").read_text()
