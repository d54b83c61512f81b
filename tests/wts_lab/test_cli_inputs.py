"""What words on the command line mean."""

from __future__ import annotations

import pytest

pytest.importorskip("typer")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from tests.command_line import SHAPE, refused  # noqa: E402
from wts_lab import cli_inputs, measured_text  # noqa: E402


def test_lists_are_split_sorted_and_freed_of_repeats():
    assert cli_inputs.wholes_from("--steps", "16, 1,7,7") == (1, 7, 16)
    assert cli_inputs.words_from(["a,b", "b", " c ,"]) == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["", "0", "-1,2", "1,x", "1.5"])
def test_lists_of_steps_hold_whole_numbers_of_at_least_1(text):
    with pytest.raises(BadInput, match="--steps"):
        cli_inputs.wholes_from("--steps", text)


def test_a_placement_is_read_in_the_order_of_its_help():
    assert cli_inputs.placement_from("8,40,16,16,8") == Placement(8, 40, 16, 16, 8)


@pytest.mark.parametrize("text", ["0.7x", "", "1,5"])
def test_numbers_are_numbers(text):
    assert measured_text.number_from("--temperature", "0.7") == 0.7
    with pytest.raises(BadInput, match="--temperature"):
        measured_text.number_from("--temperature", text)


SAMPLING = {
    "predict": ("--gpu", "h200-sxm", *SHAPE), "plan": ("--gpu", "h200-sxm", *SHAPE), "decide": ("--gpu", "h200-sxm", *SHAPE), "study": ("--replay",),
    "round": ("--gpu", "h200-sxm", "--drafter", "dspark-qwen3-8b", "--accepted-length", "4"), "tune": SHAPE, "measure": SHAPE, "sweep": SHAPE,
}  # fmt: skip


@pytest.mark.parametrize("command", SAMPLING)
@pytest.mark.parametrize("temperature", ["nan", "-1", "inf"])
def test_every_command_refuses_a_temperature_that_is_none(command, temperature):
    said = refused(command, *SAMPLING[command], "--temperature", temperature)
    assert f"temperature is {float(temperature)}; it must be a finite number of at least 0 (0 is greedy)" in said
