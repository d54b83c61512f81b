"""The panel's request: ranges, couplings, messages, and the round trip through JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.errors import BadInput
from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE, RANK_MULTIPLE, load_head
from cost_model.workload import MAX_BATCH
from wts_lab.ui.decision_request import DecisionRequest
from wts_lab.ui.fields import RequestError, describe
from wts_lab.ui.requests import (
    MAX_STEPS,
    OWN_SIZES,
    PLANNED,
    PRECISIONS_BY_MODE,
    ExplorerRequest,
    PanelRequest,
    PlacementRequest,
    placement_of_text,
    text_of_placement,
)


def requests() -> st.SearchStrategy[PanelRequest]:
    """Every valid request with own sizes."""
    ways = [(mode, precision) for mode, precisions in PRECISIONS_BY_MODE.items() for precision in precisions]
    return st.builds(
        lambda gpu, way, vocab, rank, batch, l2, steps, temperature: PanelRequest(
            gpu, OWN_SIZES, vocab, rank, batch, steps, temperature, *way, l2
        ),
        st.sampled_from(describe(PanelRequest)["gpu"].choices),
        st.sampled_from(ways),
        st.integers(1, MAX_VOCAB_SIZE),
        st.integers(1, MAX_RANK // RANK_MULTIPLE).map(lambda count: count * RANK_MULTIPLE),
        st.integers(1, MAX_BATCH),
        st.sampled_from(describe(PanelRequest)["l2_state"].choices),
        st.integers(1, MAX_STEPS),
        st.floats(0, 2),
    )


@given(requests())
def test_a_request_comes_back_from_json_the_same(request: PanelRequest) -> None:
    assert PanelRequest.from_json(request.to_json()) == request


@given(requests(), st.lists(requests(), max_size=2).map(tuple))
def test_an_explorer_comes_back_with_its_pins(request: PanelRequest, pinned: tuple[PanelRequest, ...]) -> None:
    explorer = ExplorerRequest(**dataclasses.asdict(request), pinned=pinned)
    assert ExplorerRequest.from_json(explorer.to_json()) == explorer and explorer.shown == request


@given(
    st.builds(DecisionRequest, target=st.text(), verify_us=st.floats(0, 1e7).map(repr), accepted_length=st.floats(1, 17).map(repr), ranks=st.integers(1, 16)),
    st.integers(1, 32).flatmap(lambda warps: st.integers(1, 9).map(lambda slots: f"{warps},{warps * slots},0,0,0")),
)
def test_the_other_panels_states_come_back_the_same(decision: DecisionRequest, placement: str) -> None:
    assert DecisionRequest.from_json(decision.to_json()) == decision
    request = PlacementRequest(placement=placement)
    assert PlacementRequest.from_json(request.to_json()) == request
    assert text_of_placement(request.load_placement()) == placement


def test_a_file_keeps_a_request_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    request = PlacementRequest(placement="8,40,32,0,0", batch=2)
    assert PlacementRequest.load(request.save(tmp_path / "state.json")) == request
    with pytest.raises(RequestError, match="'placement'"):
        PanelRequest.load(tmp_path / "state.json")
    with pytest.raises(RequestError, match="a file that a panel saved"):
        PanelRequest.load(tmp_path / "nowhere.json")


@given(requests())
def test_the_command_line_predicts_the_same(request: PanelRequest) -> None:
    program, command, *options = request.command().split()
    given = dict(zip(options[::2], options[1::2]))
    assert (program, command) == ("wts-lab", "predict")
    assert PanelRequest(
        gpu=given["--gpu"],
        vocab_size=int(given["--vocab"]),
        rank=int(given["--rank"]),
        batch=int(given["--batch"]),
        steps=int(given["--steps"]),
        temperature=float(given["--temperature"]),
        mode=given["--mode"],
        precision=given["--precision"],
        l2_state=given["--l2-state"],
    ) == request


@pytest.mark.parametrize("text", ["8,40,32", "a", "8,40,32,0,x", "8,-40,32,0,0", ""])
def test_a_placement_is_five_numbers(text: str) -> None:
    with pytest.raises(RequestError, match="W,R,S,X,G"):
        PlacementRequest(placement=text)
    assert placement_of_text(PLANNED) is None


def test_a_placement_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(BadInput, match="register_tiles is 41; it must be a multiple of warps"):
        PlacementRequest(placement="8,41,32,0,0")


@pytest.mark.parametrize("pinned", [(PanelRequest(),) * 3, [PanelRequest()], ("x",)])
def test_pins_are_at_most_two_requests(pinned: object) -> None:
    with pytest.raises(RequestError, match="at most 2 requests"):
        ExplorerRequest(pinned=pinned)


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
        ("temperature", 2.5, "numbers from 0.0 to 2.0", "nearest possible value is 2.0"),
        ("temperature", float("nan"), "numbers from 0.0 to 2.0", "Give a number"),
        ("batch", 0, "whole numbers from 1 to 32", "nearest possible value is 1."),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, value: object, allowed: str, mend: str) -> None:
    with pytest.raises(RequestError) as caught:
        PanelRequest(**{name: value})
    message = str(caught.value)
    assert caught.value.field_name == name and repr(value) in message and allowed in message and mend in message
    assert isinstance(caught.value, BadInput)


def test_a_precision_that_the_mode_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match="precision: 'int8x2' is not possible; allowed: bf16 when mode is stepwise"):
        PanelRequest(mode="stepwise")


def test_a_catalogue_head_brings_its_sizes() -> None:
    head = load_head("dspark-kimi-k3.1-r512")
    request = PanelRequest().with_values(head=head.name)
    assert (request.vocab_size, request.rank, request.load_head()) == (head.vocab_size, head.rank, head)


def test_a_mode_brings_a_precision_that_it_has() -> None:
    stepwise = PanelRequest().with_values(mode="stepwise")
    assert stepwise.precision == "bf16"
    assert stepwise.with_values(mode="streaming").precision == "bf16"
    assert stepwise.with_values(mode="resident", precision="int8x2").precision == "int8x2"


@pytest.mark.parametrize(
    "steps, lengths",
    [(16, (1, 2, 4, 7, 11, 15, 16)), (7, (1, 2, 4, 7)), (9, (1, 2, 4, 7, 9)), (1, (1,)), (32, (1, 2, 4, 7, 11, 15, 16, 32))],
)
def test_a_run_times_the_standard_lengths_and_the_asked_one(steps: int, lengths: tuple[int, ...]) -> None:
    assert PanelRequest(steps=steps).walk_lengths() == lengths


def test_every_field_has_label_help_and_a_range() -> None:
    specs = describe(PanelRequest)
    assert list(specs) == [field.name for field in dataclasses.fields(PanelRequest)]
    for spec in specs.values():
        assert spec.label and spec.help.endswith(".")
        assert spec.choices or spec.min < spec.max
    assert specs["vocab_size"].caption == "Vocabulary [tokens]"
    assert specs["rank"].caption == "Rank [elements]"
    assert len({spec.label for spec in specs.values()}) == len(specs)


@pytest.mark.parametrize(
    "text, reason", [("{", "not JSON"), ("[1]", "a JSON object"), (json.dumps({"colour": "red"}), "'colour'")]
)
def test_foreign_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        PanelRequest.from_json(text)
