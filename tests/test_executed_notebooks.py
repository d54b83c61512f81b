"""Executing notebooks for the record: outputs are kept, also of one that fails, the notebooks stay as they are, and a wrong name is refused.
And those that were executed live and kept as evidence ran to their end, on the kernel that data/README.md names."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from benchmarks import notebooks as command  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.paths import data_root  # noqa: E402

EVIDENCE = sorted((data_root() / "notebooks").glob("*/*.ipynb"))
LIVE_WORDS = re.compile(r"measured here|(measured|stressed) now on|run on NVIDIA")
"""What a notebook says of something that was launched where it ran."""


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


# --- evidence -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_a_kept_notebook_ran_live_to_its_end(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    said = " ".join(str(output.get("data", {}).get("text/plain", "")) for output in outputs)
    assert LIVE_WORDS.search(said), f"{path.stem} says of nothing that it was launched where it ran"
    assert (data_root().parent / "notebooks" / path.name).exists()


def test_kept_records_are_of_the_kernel_that_is_named() -> None:
    pytest.importorskip("pyarrow")
    from cost_model.measurement import read_walk

    told = (data_root() / "README.md").read_text("utf-8").split("## Executed notebooks")[1].split("\n## ")[0]
    records = sorted((data_root() / "notebooks").glob("*/*.parquet"))
    assert len(EVIDENCE) >= 5 and len(records) == 3
    for path in records:
        frame = read_walk(path)
        (commit,) = frame["git_commit"].unique()
        assert f"`{commit[:7]}`" in told and not frame["git_dirty"].any() and (frame["tokens_match"] == 1).all()
        assert set(frame["implementation"]) == {"wts"} and frame["samples_us"].map(len).all()


def test_the_kept_report_of_the_panel_s_tests_names_those_that_there_are() -> None:
    (report,) = (data_root() / "notebooks").glob("*/*-panel-tests.xml")
    (suite,) = xml.parse(report).getroot()
    assert (suite.get("errors"), suite.get("failures"), suite.get("skipped"), suite.get("hostname")) == ("0", "0", "0", None)
    source = (data_root().parent / "tests" / "gpu" / "test_panel.py").read_text("utf-8")
    assert {case.get("name") for case in suite} == set(re.findall(r"^def (test_\w+)", source, flags=re.M))
