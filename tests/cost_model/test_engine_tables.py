"""Whole-step tables: what they say is what was measured, SGLang's own code loads them, and misleading ones are refused."""

from __future__ import annotations

import json
import random

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.engine_tables import (
    FINGERPRINT_KEY, StepTableMismatch, StepTableRefused, StepTime, additive_table, load_table, make_table, sps_table, step_times, tensorrt_table, thinned_steps, write_table,
)  # fmt: skip
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.settings import fingerprint
from tests.cost_model.walk_examples import QWEN

ENVIRONMENT = {"gpu_name": "NVIDIA H200", "driver_version": "580.1", "cuda_version": "13.0", "kernel_hash": "abc123"}
HERE = fingerprint(load_gpu("h200-sxm", calibrated=False), QWEN, "int8x2", None, ENVIRONMENT)
BIAS_US, ALPHA_US, THETA_US = 4000.0, {1: 0.0, 4: 100.0, 16: 350.0}, {16: 0.0, 64: 500.0, 128: 1500.0}


def grid(noise_us: float = 10.0) -> list[StepTime]:
    """Steps that are exactly a sum of parts, in no order."""
    steps = [StepTime(n, m, BIAS_US + ALPHA_US[n] + THETA_US[m], noise_us) for n in ALPHA_US for m in THETA_US]
    return random.Random(1).sample(steps, len(steps))


def line(*times_us: float, noise_us: float = 10.0) -> list[StepTime]:
    """Steps of 1, 2, 3... requests of eight tokens."""
    return [StepTime(n, 8 * n, time, noise_us) for n, time in enumerate(times_us, 1)]


def test_steps_a_second_are_those_measured():
    table = sps_table(line(4000, 5000, 8000)[::-1], max_batch_tokens=64)
    assert table["sample_batch_tokens"] == [8, 16, 24] and table["max_batch_tokens"] == 64
    assert table["sample_steps_per_sec"] == pytest.approx([250, 200, 125], rel=1e-12)


def test_parts_are_found_again_in_both_formats():
    ours, theirs = additive_table(grid()), tensorrt_table(grid())
    assert ours["bs_probes"] == theirs["batch_sizes"] == [1, 4, 16] and ours["m_probes"] == theirs["token_counts"] == [16, 64, 128]
    assert ours["bias_seconds"] == pytest.approx(4e-3) and ours["alpha_seconds"] == pytest.approx([0, 1e-4, 3.5e-4], abs=1e-12)
    assert ours["theta_seconds"] == pytest.approx([0, 5e-4, 1.5e-3], abs=1e-12)
    assert theirs["step_time_ms"] == pytest.approx([4, 4.5, 5.5]) and theirs["batch_overhead_ms"] == pytest.approx([0, 0.1, 0.35], abs=1e-9)
    assert theirs["fixed_overhead_ms"] == 0


def test_falls_within_the_noise_are_levelled_and_larger_ones_refused():
    assert sps_table(line(4000, 3995, 5000))["sample_steps_per_sec"][:2] == pytest.approx([250, 250])
    with pytest.raises(StepTableRefused, match="step times by tokens fall by 11 us as the batch grows, and steps repeat within 10 us"):
        sps_table(line(4000, 3989, 5000))


@pytest.mark.parametrize(
    ("make", "steps", "message"),
    [
        (sps_table, line(4000, 4010), "span 10 us, not above the measured noise of 10 us"),
        (sps_table, line(4000), "1 steps were measured; a table needs two"),
        (sps_table, [StepTime(1, 8, 4000, 1), StepTime(2, 8, 5000, 1)], "make an additive one"),
        (additive_table, line(4000, 5000, 6000), "cannot be told apart"),
        (tensorrt_table, line(4000, 5000, 6000), "cannot be told apart"),
        (additive_table, [], "0 steps were measured"),
        (additive_table, grid(noise_us=1500.0), "the part of tokens span 1.5e.03 us, not above"),
        (additive_table, [StepTime(n, m, 100.0 * n * m, 1) for n in (1, 8) for m in (16, 128)], "misses the step of"),
        (additive_table, [StepTime(n, m, 4000 + m - 60 * n, 1) for n in (1, 8) for m in (16, 128)], "the part of requests fall by 420 us"),
    ],
)  # fmt: skip
def test_what_would_mislead_is_refused(make, steps, message):
    with pytest.raises(StepTableRefused, match=message):
        make(steps)


@pytest.mark.parametrize("time_us", [0, -1, float("nan"), float("inf"), None, True])
def test_a_step_is_a_finite_time_above_0(time_us):
    with pytest.raises(StepTableRefused, match="must be finite and above 0"):
        StepTime(1, 8, time_us, 1.0)
    with pytest.raises(BadInput, match="tokens is 1"):
        StepTime(2, 1, 10.0, 1.0)


@pytest.mark.parametrize("make", [lambda: sps_table(line(4000, 5000)), lambda: additive_table(grid()), lambda: tensorrt_table(grid())])
def test_a_file_is_read_back_here_and_refused_elsewhere(make, tmp_path):
    path = write_table(make(), tmp_path / "table.json", HERE)
    assert load_table(path, HERE) == make()
    other = fingerprint(load_gpu("h100-sxm", calibrated=False), QWEN, "int8x2", None, {**ENVIRONMENT, "driver_version": "999"})
    with pytest.raises(StepTableMismatch, match="gpu_id is 'h200-sxm' in the file and 'h100-sxm' here") as refusal:
        load_table(path, other)
    assert set(refusal.value.differences) == {"gpu_id", "driver_version"}


WRONG = [
    ({"sample_steps_per_sec": [250.0, float("nan")]}, "finite numbers above 0, falling"), ({"sample_steps_per_sec": [250.0, 260.0]}, "falling"),
    ({"sample_steps_per_sec": [250.0, 0.0]}, "above 0"), ({"sample_steps_per_sec": [250.0, 250.0]}, "flat, or of one probe"),
    ({"sample_steps_per_sec": [250.0]}, "must be 2 finite"), ({"sample_batch_tokens": [16, 8]}, "each above the one before"),
    ({"sample_batch_tokens": [0, 8]}, "at least 1"), ({"sample_batch_tokens": []}, "whole numbers"), ({"max_batch_tokens": 8}, "at least 16"),
    ({"foo": 1}, "those of no format: sps, additive, tensorrt"), ({FINGERPRINT_KEY: {"gpu_id": "h200-sxm"}}, "the fingerprint lacks"),
    ({FINGERPRINT_KEY: None}, "must be a table"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_changed_file_is_refused_with_the_fault(change, message, tmp_path):
    path = write_table(sps_table(line(4000, 5000)), tmp_path / "table.json", HERE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StepTableRefused, match=message) as refusal:
        load_table(path, HERE)
    assert str(refusal.value).startswith(f"{path}: ")


def test_what_is_not_known_here_is_not_compared_and_the_origin_is_for_people(tmp_path):
    path = write_table(sps_table(line(4000, 5000)), tmp_path / "table.json", HERE, {"target": "qwen3-8b", "head_mode": "resident"})
    assert json.loads(path.read_text())["weights_that_stay_origin"] == {"target": "qwen3-8b", "head_mode": "resident"}
    assert load_table(path, fingerprint(load_gpu("h200-sxm", calibrated=False), QWEN, "int8x2", None)) == sps_table(line(4000, 5000))


@pytest.mark.parametrize(("kind", "steps"), [("sps", line(4000, 5000)), ("additive", grid()), ("tensorrt", grid())])
def test_a_format_is_made_by_its_name(kind, steps):
    assert make_table(kind, steps) == {"sps": sps_table, "additive": additive_table, "tensorrt": tensorrt_table}[kind](steps)
    if kind != "sps":
        with pytest.raises(StepTableRefused, match=f"format {kind} has no place for"):
            make_table(kind, steps, 64)


def test_a_table_of_somebody_else_says_that_nothing_tells_its_machine(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(sps_table(line(4000, 5000))))
    with pytest.raises(StepTableRefused, match="nothing says where it was made"):
        load_table(path, HERE)
    path.write_text("{")
    with pytest.raises(StepTableRefused, match="no cost table"):
        load_table(path, HERE)


@given(st.text())
def test_any_other_text_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("tables") / "table.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StepTableRefused):
        load_table(path, HERE)


# --- from round records


def rounds(**changes) -> pandas.DataFrame:
    """Two processes, two numbers of requests, seven drafted tokens; and rows of another phase."""
    shared = dict(run_id="one", gpu_name="NVIDIA H200", target="qwen3-8b", context_tokens=1024, head_implementation="wts", head_mode="resident", draft_tokens=7, samples_dropped=0)
    rows = [
        {**shared, "phase": phase, "concurrency": n, "process_index": process, "samples_us": numpy.array([time - 5, time, time + 50])}
        for phase in ("round", "head") for n, time0 in ((1, 4000.0), (2, 5000.0)) for process in (0, 1) for time in [time0 + 8 * process]
    ]  # fmt: skip
    return pandas.DataFrame([{**row, **changes} for row in rows])


def test_steps_of_a_round_record_are_medians_and_their_spread_is_the_noise():
    assert step_times(rounds()) == [StepTime(1, 8, 4004.0, 8.0), StepTime(2, 16, 5004.0, 8.0)]


def test_processes_of_two_records_are_different_processes():
    again = rounds(run_id="two")
    again["samples_us"] = again["samples_us"] + 3
    steps = step_times(pandas.concat([rounds(), again], ignore_index=True))
    assert [(step.step_us, step.repeatability_us) for step in steps] == [(4005.5, 11.0), (5005.5, 11.0)]


def test_mixed_and_single_process_records_are_refused():
    mixed = rounds()
    mixed.loc[0, "head_mode"] = "stepwise"
    with pytest.raises(StepTableRefused, match="a table is of one head_mode"):
        step_times(mixed)
    with pytest.raises(StepTableRefused, match="measured in one process"):
        step_times(rounds(process_index=0))
    with pytest.raises(StepTableRefused, match="a table is of one gpu_name; the 0 rows of whole rounds have none"):
        step_times(rounds(phase="head"))


def test_steps_that_lost_most_samples_are_left_out_and_told():
    thin = rounds(concurrency=4)
    thin["samples_us"], thin["samples_dropped"] = [numpy.array([7000.0])] + [numpy.array([])] * (len(thin) - 1), 3
    half = rounds(concurrency=8, samples_dropped=None)
    frame = pandas.concat([rounds(samples_dropped=3), thin, half], ignore_index=True)
    assert [step.requests for step in step_times(frame)] == [1, 2, 8]  # three of six are half
    assert thinned_steps(frame) == ["round of 4 requests, 7 tokens drafted (8% of the samples kept)"] and thinned_steps(rounds()) == []
    thin = thin[thin["phase"] == "round"].assign(phase="verify")
    assert thinned_steps(thin) == [] and thinned_steps(thin, shorter=True) == ["verify of 4 requests, 7 tokens drafted (8% of the samples kept)"]
    nothing = rounds()
    nothing["samples_us"] = [numpy.array([])] * len(nothing)
    assert step_times(nothing) == []


def of_two_lengths() -> pandas.DataFrame:
    """Whole rounds of 7 and 3 tokens, and their verify passes, which take 3000 and 2500 us of one request, twice that of two."""
    short = rounds(draft_tokens=3)
    short["samples_us"] = short["samples_us"] - 900
    verifies = [rounds(phase="verify", head_implementation=None, head_mode=None, draft_tokens=drafted, concurrency=n, samples_us=numpy.array([time_us * n])) for drafted, time_us in ((7, 3000.0), (3, 2500.0)) for n in (1, 2)]
    return pandas.concat([rounds(), short, *verifies], ignore_index=True)


def test_fewer_tokens_are_verified_of_the_same_draft():
    steps = step_times(of_two_lengths(), 7, shorter=True)
    assert [(step.requests, step.tokens, step.step_us) for step in steps] == [(1, 4, 3504.0), (1, 8, 4004.0), (2, 8, 4004.0), (2, 16, 5004.0)]
    assert {step.repeatability_us for step in steps} == {8.0}
    assert step_times(of_two_lengths(), 7) == step_times(rounds()) and [step.step_us for step in step_times(of_two_lengths(), 3, shorter=True)] == [3104.0, 4104.0]
    for drafted in (None, 5):
        with pytest.raises(StepTableRefused, match="whole rounds of 3, 7 tokens drafted are recorded; choose one"):
            step_times(of_two_lengths(), drafted)


# --- SGLang's own code


@pytest.fixture
def sps(contract):
    return contract.sps


def test_sglang_loads_steps_a_second_as_measured(sps, tmp_path):
    loaded = sps.load_sps_table_from_path(str(write_table(sps_table(line(4000, 5000, 8000)), tmp_path / "t.json", HERE)))
    assert isinstance(loaded, sps.SpsCostTable) and not sps.is_uninitialized_sps_table(loaded)
    assert [loaded.lookup(tokens) for tokens in (1, 8, 15, 16, 24, 400)] == pytest.approx([250, 250, 250, 200, 125, 125])


def test_sglang_loads_the_parts_and_adds_them_to_what_was_measured(sps, tmp_path):
    loaded = sps.load_sps_table_from_path(str(write_table(additive_table(grid()), tmp_path / "t.json", HERE)))
    assert isinstance(loaded, sps.SpsAdditiveCostTable) and not sps.is_uninitialized_sps_table(loaded)
    for step in grid():
        assert loaded.step_time(num_reqs=step.requests, budget=step.tokens - step.requests) == pytest.approx(step.step_us * 1e-6, rel=1e-9)
    assert loaded.step_time(num_reqs=4, budget=36) == pytest.approx((BIAS_US + 100 + 250) * 1e-6)
