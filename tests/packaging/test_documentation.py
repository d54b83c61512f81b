"""The documentation follows the code: every command and option is described, every command shown is one, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def shown_commands(text: str) -> list[list[str]]:
    """Words of every `wts-lab` line in the shell blocks of a document."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "wts-lab" in line]
    return [shlex.split(line.strip().split("wts-lab", 1)[1], comments=True) for line in lines]


def options_of(command) -> set[str]:
    """Option names of a command."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")}


@pytest.fixture(scope="module")
def commands() -> dict:
    typer = pytest.importorskip("typer")
    from wts_lab import cli

    return typer.main.get_command(cli.app).commands


def sections(text: str) -> dict[str, str]:
    """Text of each second-level section of a document, by its title."""
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}


def test_every_command_has_a_section_that_names_every_option_of_its_own(commands):
    """Options that several commands share are described once, in the section about what they share."""
    found = sections((ROOT / "docs" / "command-line.md").read_text())
    for name, command in commands.items():
        words = set(re.findall(r"--[a-z0-9-]+", found["What all commands share"] + found[name]))
        missing = sorted(options_of(command) - words - {"--help"})
        assert not missing, f"docs/command-line.md does not tell of {name} {', '.join(missing)}"


def test_every_benchmark_program_is_described():
    """All modules that can be run; `cases` and `status` are what they share."""
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    found = sections((ROOT / "docs" / "command-line.md").read_text())["From a checkout: benchmarks"]
    rows = [line.split("|")[1] for line in found.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == programs > {"run", "round"}


def test_an_option_of_another_section_does_not_count():
    found = sections("# Title\n\n## fit\n\n`--all`\n\n## decide\n\nnothing\n")
    assert "--all" in found["fit"] and "--all" not in found["decide"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_shown_exist_with_their_options(document, commands):
    for words in shown_commands(document.read_text()):
        assert words[0] in commands, words
        for word in words[1:]:
            if word.startswith("--"):
                assert word in options_of(commands[words[0]]), f"{document.name}: {words[0]} has no {word}"


def test_the_scan_sees_commands():
    assert ["fit", "x", "--json"] in shown_commands("```sh\nwts-lab fit x --json   # comment\n```")
    assert len(shown_commands((ROOT / "docs" / "command-line.md").read_text())) > 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


def test_make_targets_shown_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {first or second for first, second in shown} <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_shown_predictions_and_plans_answer(document):
    testing = pytest.importorskip("typer.testing")
    from wts_lab import cli

    for words in shown_commands(document.read_text()):
        if words[0] in ("predict", "plan"):
            result = testing.CliRunner().invoke(cli.app, words)
            assert result.exit_code == 0, f"{document.name}: {' '.join(words)}: {result.stderr}"


def test_the_python_shown_in_the_readme_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shown: dict = {"print": lambda *values: None}
    exec(compile(block, "README.md", "exec"), shown)
    assert shown["prediction"].step_us > 0


def test_the_times_in_the_readme_are_those_of_the_records():
    """Complete calls of 16 steps and steps, by L2 state; SGLang's from the record of its kernels beside ours."""
    pytest.importorskip("pandas")
    from cost_model.fit import fit_frame
    from cost_model.units import format_us
    from wts_lab.cli_inputs import read_walks

    lines = {line.split("|")[1].split(":")[0].strip(): line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")}
    walks, _ = read_walks([ROOT / "data" / "measurements" / "h200-sxm" / "2026-11-30-walks.parquet"])
    for key, fit in fit_frame(walks[(walks["vocab_size"] == 151_936) & (walks["precision"] == "int8x2")]):
        if key.l2_state in ("warm", "serving"):
            line = lines[key.l2_state]
            assert format_us(fit.call_us(16)) in line, (key.describe(), fit.call_us(16))
            assert key.mode == "streaming" or f"({format_us(fit.step_us)} a step)" in line
    beside, _ = read_walks([ROOT / "data" / "measurements" / "h200-sxm" / "2026-11-30-engine-v151936.parquet"])
    theirs = beside[(beside["implementation"] == "sglang-0.5.23") & (beside["batch"] == 1) & (beside["temperature"] == 0)]
    fits = fit_frame(theirs)
    assert len(fits) == 4 and all(format_us(fit.call_us(16)) in lines[key.l2_state] for key, fit in fits)
