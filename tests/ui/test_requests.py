"""The panel's request: ranges, couplings, messages, and the round trip through JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE, RANK_MULTIPLE, load_head
from wts_lab.ui.requests import MAX_STEPS, OWN_SIZES, PRECISIONS_BY_MODE, PanelRequest, RequestError, describe


def requests() -> st.SearchStrategy[PanelRequest]:
    """Every valid request with own sizes."""
    ways = [(mode, precision) for mode, precisions in PRECISIONS_BY_MODE.items() for precision in precisions]
    return st.builds(
        lambda gpu, way, vocab, rank, l2, steps: PanelRequest(
            gpu=gpu, mode=way[0], precision=way[1], vocab_size=vocab, rank=rank, l2_state=l2, steps=steps
        ),
        st.sampled_from(describe()["gpu"].choices),
        st.sampled_from(ways),
        st.integers(1, MAX_VOCAB_SIZE),
        st.integers(1, MAX_RANK // RANK_MULTIPLE).map(lambda count: count * RANK_MULTIPLE),
        st.sampled_from(describe()["l2_state"].choices),
        st.integers(1, MAX_STEPS),
    )


@given(requests())
def test_a_request_comes_back_from_json_the_same(request: PanelRequest) -> None:
    assert PanelRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    "name, value, allowed, mend",
    [
        ("rank", 100, "multiples of 32 from 32 to 512", "nearest possible value is 96"),
        ("rank", 544, "multiples of 32 from 32 to 512", "nearest possible value is 512"),
        ("vocab_size", 0, "whole numbers from 1 to 1048576", "nearest possible value is 1."),
        ("vocab_size", -7, "whole numbers from 1 to 1048576", "nearest possible value is 1."),
        ("steps", 33, "whole numbers from 1 to 32", "nearest possible value is 32"),
        ("steps", 2.5, "whole numbers from 1 to 32", "whole number"),
        ("steps", True, "whole numbers from 1 to 32", "whole number"),
        ("gpu", "h300", "h200-sxm", "Choose one of these"),
        ("head", "no-such-head", OWN_SIZES, "Choose one of these"),
        ("precision", "bf16", "int8x2 when mode is resident", "Choose int8x2"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, value: object, allowed: str, mend: str) -> None:
    with pytest.raises(RequestError) as caught:
        PanelRequest(**{name: value})
    message = str(caught.value)
    assert caught.value.field_name == name and repr(value) in message and allowed in message and mend in message
    assert isinstance(caught.value, BadInput)


def test_a_catalogue_head_brings_its_sizes() -> None:
    head = load_head("dspark-kimi-k3.1-r512")
    request = PanelRequest().with_values(head=head.name)
    assert (request.vocab_size, request.rank, request.load_head()) == (head.vocab_size, head.rank, head)


def test_a_mode_brings_a_precision_that_it_has() -> None:
    stepwise = PanelRequest().with_values(mode="stepwise")
    assert stepwise.precision == "bf16"
    assert stepwise.with_values(mode="streaming").precision == "bf16"
    assert stepwise.with_values(mode="resident").precision == "int8x2"


@pytest.mark.parametrize(
    "steps, lengths",
    [(16, (1, 2, 4, 7, 11, 15, 16)), (7, (1, 2, 4, 7)), (9, (1, 2, 4, 7, 9)), (1, (1,)), (32, (1, 2, 4, 7, 11, 15, 16, 32))],
)
def test_a_run_times_the_standard_lengths_and_the_asked_one(steps: int, lengths: tuple[int, ...]) -> None:
    assert PanelRequest(steps=steps).walk_lengths() == lengths


def test_every_field_has_label_help_and_a_range() -> None:
    specs = describe()
    assert list(specs) == [field.name for field in dataclasses.fields(PanelRequest)]
    for spec in specs.values():
        assert spec.label and spec.help.endswith(".")
        assert spec.choices or (spec.minimum is not None and spec.maximum is not None)
    assert specs["vocab_size"].caption == "Vocabulary [tokens]"
    assert specs["rank"].caption == "Rank [elements]"
    assert len({spec.label for spec in specs.values()}) == len(specs)


@pytest.mark.parametrize(
    "text, reason", [("{", "not JSON"), ("[1]", "a JSON object"), (json.dumps({"colour": "red"}), "'colour'")]
)
def test_foreign_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        PanelRequest.from_json(text)
