"""Executing notebooks for the record: outputs are kept, also of one that fails, the notebooks stay as they are, and a wrong name is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from benchmarks import notebooks as command  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402


def write(folder: Path, *cells: str) -> Path:
    """A notebook of code cells."""
    path = folder / "01_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return path


def test_outputs_are_kept_and_the_notebook_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "from cost_model import Head\nHead.markov(12, 32).rank", "open('left', 'w').close()")
    before = path.read_bytes()
    assert command.execute(path, tmp_path / "out") is None
    kept = nbformat.read(tmp_path / "out" / path.name, as_version=4)
    assert kept.cells[0].outputs[0]["data"]["text/plain"] == "32" and (tmp_path / "out" / "work" / "left").exists()
    assert path.read_bytes() == before


def test_a_notebook_that_fails_is_kept_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path, "1", "1 / 0", "2")
    monkeypatch.setattr(command, "notebooks", lambda only: [path])
    assert command.main(["--out", str(tmp_path / "out")]) == 1
    kept = nbformat.read(tmp_path / "out" / path.name, as_version=4)
    assert [len(cell.outputs) for cell in kept.cells] == [1, 1, 0] and kept.cells[1].outputs[0].ename == "ZeroDivisionError"
    said = capsys.readouterr()
    assert "01_small.ipynb: FAILED" in said.out and "ZeroDivisionError" in said.err


def test_notebooks_are_chosen_by_their_first_letters(capsys: pytest.CaptureFixture) -> None:
    every = command.notebooks()
    assert [path.name for path in command.notebooks(["01", "05"])] == [path.name for path in every if path.name[:2] in ("01", "05")]
    with pytest.raises(BadInput, match="there are 01_quickstart.ipynb"):
        command.notebooks(["77"])
    assert command.main(["--only", "77"]) == 2 and "77" in capsys.readouterr().err
