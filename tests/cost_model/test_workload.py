"""Workload: defaults, and an error that names given and allowed for every bad field."""

import json

import pytest

from cost_model.errors import BadInput
from cost_model.workload import L2_STATES, MODES, PRECISIONS, ROUNDINGS, Workload


def test_defaults_are_those_of_the_command_line():
    assert Workload().as_dict() == {
        "batch": 1, "steps": 16, "temperature": 0.0, "precision": "int8x2", "rounding": "once", "l2_state": "warm", "logits_kept": False,
    }
    assert json.loads(json.dumps(Workload().as_dict())) == Workload().as_dict()


def test_words_are_those_of_the_design():
    assert MODES == ("stepwise", "streaming", "resident")
    assert PRECISIONS == ("bf16", "int8x2")
    assert ROUNDINGS == ("once", "twice", "none")
    assert L2_STATES == ("warm", "cold", "serving")


@pytest.mark.parametrize(("field", "given", "message"), [
    ("batch", 0, "batch is 0; it must be from 1 to 32"),
    ("batch", 33, "batch is 33; it must be from 1 to 32"),
    ("batch", -1, "batch is -1; it must be from 1 to 32"),
    ("batch", 1.5, "batch is 1.5; it must be a whole number from 1 to 32"),
    ("batch", True, "batch is True; it must be a whole number"),
    ("steps", 0, "steps is 0; it must be at least 1"),
    ("temperature", -0.1, "temperature is -0.1; it must be a finite number of at least 0"),
    ("temperature", float("nan"), "temperature is nan"),
    ("temperature", float("inf"), "temperature is inf"),
    ("temperature", True, "temperature is True; it must be a finite number of at least 0"),
    ("temperature", "1", "temperature is '1'; it must be a finite number of at least 0"),
    ("precision", "fp8", "precision is 'fp8'; choose one of bf16, int8x2"),
    ("rounding", "up", "rounding is 'up'; choose one of once, twice, none"),
    ("logits_kept", 1, "logits_kept is 1; it must be True or False"),
    ("l2_state", "hot", "l2_state is 'hot'; choose one of warm, cold, serving"),
])
def test_bad_fields_are_named(field, given, message):
    with pytest.raises(BadInput) as error:
        Workload(**{field: given})
    assert message in str(error.value)


@pytest.mark.parametrize("field", ["batch", "precision"])
def test_a_workload_is_frozen(field):
    with pytest.raises(AttributeError):
        setattr(Workload(), field, 2)
