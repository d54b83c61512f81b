"""Notebooks: kept without outputs, narrative, and executable to the end without a widget manager."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

from cost_model.gpu import list_gpus, load_gpu
from cost_model.operand_paths import tier_bytes
from cost_model.units import BYTES_PER_MIB
from tests.synthetic_records import write_synthetic
from tests.ui.story_checks import STORY_CHECKS
from wts_lab.accuracy import FORMAT_NAMES
from wts_lab.accuracy_view import accuracy_study
from wts_lab.exchange_records import exchange_times, stress_study
from wts_lab.recordings import recorded_gpus
from wts_lab.toy import toy_head, toy_walk

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
LONGEST_CELL = 12


def test_there_are_notebooks() -> None:
    assert {
        "01_quickstart",
        "02_fusion_and_residency",
        "03_placement",
        "04_b200_in_bf16",
        "05_round_and_decision",
        "06_walk_on_a_toy_head",
        "07_selection_across_blocks",
        "08_int8_against_fp8",
        "09_operand_paths",
    } <= {path.stem for path in NOTEBOOKS}
    assert set(CHECKS) <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped_short_and_free_of_definitions(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 10 <= len(notebook.cells) <= 20 and notebook.cells[0].cell_type == "markdown"
    for cell in code:
        assert cell.outputs == [] and cell.execution_count is None
        assert cell.source.count("\n") < LONGEST_CELL
        assert not [
            node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))
        ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_headless_and_ends_in_a_picture_and_a_table(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient")
    for needed in ("ipykernel", "ipywidgets", "anywidget", "plotly"):
        pytest.importorskip(needed)
    notebook = nbformat.read(path, as_version=4)
    if not recorded_gpus():
        folder = str(write_synthetic(tmp_path / "records"))
        for cell in notebook.cells:
            cell.source = cell.source.replace("live=False)", f"live=False, records={folder!r})").replace(
                "quickstart_panel()", f"quickstart_panel(records={folder!r})"
            )
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    picture, table = code[-2].outputs[-1], code[-1].outputs[-1]
    assert picture["data"]["application/vnd.plotly.v1+json"]["data"] and "<table" in table["data"]["text/html"]
    if path.stem in CHECKS:
        CHECKS[path.stem](code, picture, table)


def check_the_quickstart(code: list, picture: dict, table: dict) -> None:
    """The pressed button ran, and the last picture and table hold what it replayed."""
    lines = picture["data"]["application/vnd.plotly.v1+json"]["data"]
    measured = next(trace for trace in lines if trace["name"] == "resident int8x2, measured")
    fit = next(trace for trace in lines if trace["name"] == "resident int8x2, fit")
    assert len(measured["x"]) and len(fit["x"])
    assert "resident int8x2" in table["data"]["text/html"] and "step, measured" in table["data"]["text/html"]
    pressed = "".join(str(output.get("data", {}).get("text/plain", "")) for cell in code for output in cell.outputs)
    assert "Done:" in pressed


def check_the_toy_walk(code: list, picture: dict, table: dict) -> None:
    """The stars of the picture stand on the tokens of the walk, and the table says that the twin has every bit."""
    tokens = [step.token for step in toy_walk(toy_head())]
    walked = [trace for trace in picture["data"]["application/vnd.plotly.v1+json"]["data"] if trace["name"].endswith(", y")]
    assert [trace["marker"]["symbol"].index("star") for trace in walked] == tokens
    assert all(f"token {token}, 12 of 12 logits equal" in table["data"]["text/html"] for token in tokens)
    said = text_of(code[-3])
    assert "not run: this machine has no CUDA GPU" in said or "run on" in said


def check_the_formats(code: list, picture: dict, table: dict) -> None:
    """Picture and table show the share of equal steps of every head and format; the source says where it was measured."""
    shown = {trace["name"]: dict(zip(trace["x"], trace["y"])) for trace in picture["data"]["application/vnd.plotly.v1+json"]["data"]}
    source = text_of(code[3])
    assert list(shown) == list(FORMAT_NAMES) and ("recorded on" in source or "measured now on" in source)
    if "recorded on" in source:
        study = accuracy_study(live=False)
        assert all(shown[row["format"]][row["head_name"]] == row["equal_step_share"] for row in study.rows)
        assert all(f"<th>{head}</th>" in table["data"]["text/html"] for head in study.heads)
    assert "75.4 %" in text_of(code[1])


def check_the_operand_paths(code: list, picture: dict, table: dict) -> None:
    """The picture has every GPU of the catalogue with its tiers, the table every instruction that is there."""
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"])) for trace in picture["data"]["application/vnd.plotly.v1+json"]["data"]}
    for name in list_gpus():
        tiers = tier_bytes(load_gpu(name))
        assert {tier: bars[tier][name] for tier in tiers} == {tier: size / BYTES_PER_MIB for tier, size in tiers.items()}
    assert table["data"]["text/html"].count("tensor memory + shared memory") == sum("tensor memory" in tier_bytes(load_gpu(name)) for name in list_gpus())
    assert "'mma.sync', '49.9 %', '100 %'" in text_of(code[4])
    assert "recorded" in text_of(code[7]) or "built now" in text_of(code[7])


def check_the_selection(code: list, picture: dict, table: dict) -> None:
    """The picture has the recorded exchanges, the table the stress or the words that there is none; schemes and needs are told apart."""
    times = exchange_times()
    near = [time for time in times.times if (time.exchange, time.wide) == ("spread-lines", False) and time.grid_blocks == max(each.grid_blocks for each in times.times)]
    shown = {trace["name"]: trace["y"] for trace in picture["data"]["application/vnd.plotly.v1+json"]["data"] if trace["xaxis"] == "x"}
    if near:
        assert sorted(shown["32-bit words, a line for each unit"]) == sorted(time.exchange_us for time in near)
    source = ast.literal_eval(text_of(code[8]))
    stress = stress_study(live=False)
    assert ("no stress" in source and source in table["data"]["text/html"]) if not stress.rows else ("recorded" in source or "stressed now" in source)
    html = "".join(output["data"]["text/html"] for cell in code[4:6] for output in cell.outputs)
    assert html.count("never wrong") == 3 and html.count("goes wrong") == 2 and html.count("PTX memory model") >= 3


def text_of(cell) -> str:
    """What a cell shows as plain text."""
    return "".join(str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs)


CHECKS = {
    "01_quickstart": check_the_quickstart,
    "06_walk_on_a_toy_head": check_the_toy_walk,
    "07_selection_across_blocks": check_the_selection,
    "08_int8_against_fp8": check_the_formats,
    "09_operand_paths": check_the_operand_paths,
    **STORY_CHECKS,
}
"""What a notebook's last picture and table must hold beyond being there, by the notebook's name."""
