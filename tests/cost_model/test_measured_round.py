"""Recorded rounds: medians and intervals in closed form, gains within a process, and the fit that finds known coefficients again."""

from __future__ import annotations

import dataclasses

import pytest

pandas = pytest.importorskip("pandas")

from cost_model import passes  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.measured_round import (  # noqa: E402
    PHASES, NoRounds, RoundKey, compare_rounds, drafter_of, interval_of, kept_rows, known_phases, measured_parts, work_of,
)
from cost_model.pass_fit import NotFitted, fit_passes  # noqa: E402
from cost_model.passes import COEFFICIENTS  # noqa: E402
from tests.synthetic_rounds import RATES, synthetic_rows  # noqa: E402

GPU = load_gpu("h200-sxm")


def frame_of(rows) -> pandas.DataFrame:
    return pandas.DataFrame(rows)


@pytest.fixture(scope="module")
def noisy():
    return frame_of(synthetic_rows(GPU, noise=0.01))


def test_an_interval_is_student_s():
    low, high = interval_of([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))  # s is 1, t(0.975, 2) 4.302653
    assert interval_of([1.0]) == (None, None)


def test_a_part_is_the_median_over_processes_of_their_medians():
    rows = synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,), processes=3)
    for row in rows:
        if row["phase"] == "verify":
            row["samples_us"] = [[1.0, 2.0, 30.0], [4.0], []][row["process_index"]]
            row["samples_dropped"] = 2 * row["process_index"]
    verify = next(part for part in measured_parts(frame_of(rows)) if part.phase == "verify")
    assert (verify.time_us, verify.samples, verify.dropped) == (3.0, 4, 6)
    assert verify.process_us == {("synthetic", 0): 2.0, ("synthetic", 1): 4.0}


def test_a_round_that_was_measured_again_counts_once():
    def run(name, concurrencies, kept, lost):
        rows = synthetic_rows(GPU, ("qwen3-4b",), concurrencies, (1024,), processes=2)
        return [row | {"run_id": name, "samples_us": [9.0] * kept, "samples_dropped": lost} for row in rows]

    first, again, equal = run("first", (1, 2, 4), 2, 1), run("again", (2,), 3, 0), run("equal", (4,), 4, 2)
    frame = frame_of([*first, *again, *equal])
    runs = {(row["concurrency"], row["run_id"]) for row in kept_rows(frame).to_dict("records")}
    assert runs == {(1, "first"), (2, "again"), (4, "first"), (4, "equal")}
    assert len(kept_rows(frame)) == len(first) // 3 * 2 + len(again) + len(equal)
    assert kept_rows(frame_of(again)).equals(frame_of(again))


@pytest.mark.parametrize("lost", [0, 3])
def test_a_round_without_a_sample_is_kept_where_no_run_has_one(lost):
    rows = [row | {"samples_us": [], "samples_dropped": lost} for row in synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,))]
    assert len(kept_rows(frame_of(rows))) == len(rows)


def test_without_samples_there_is_nothing():
    rows = [row | {"samples_us": []} for row in synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,))]
    with pytest.raises(NoRounds, match="no samples"):
        measured_parts(frame_of(rows))


def test_the_fit_finds_the_coefficients_that_made_a_record():
    found = fit_passes(GPU, measured_parts(frame_of(synthetic_rows(GPU, processes=1))))
    assert [getattr(found, name) for name in COEFFICIENTS] == pytest.approx([getattr(RATES, name) for name in COEFFICIENTS], rel=1e-3)
    assert found.relative_error < 1e-4


def test_the_fit_tells_what_it_leaves(noisy):
    found = fit_passes(GPU, measured_parts(noisy))
    assert 0.002 < found.relative_error < 0.02
    with pytest.raises(NotFitted, match="3 recorded passes"):
        fit_passes(GPU, [part for part in measured_parts(noisy) if part.key == RoundKey("qwen3-4b", 1, 1024, 16)])


def test_no_round_is_predicted_from_itself(noisy):
    compared = compare_rounds(GPU, noisy)
    assert "other targets" in compared.basis
    slower = noisy.copy()
    slower["samples_us"] = [[sample * (2 if target == "qwen3-8b" else 1) for sample in samples] for samples, target in zip(noisy["samples_us"], noisy["target"])]
    changed = compare_rounds(GPU, slower)
    for before, after in zip(compared.parts, changed.parts):
        if before.part.phase in PHASES:
            assert (after.predicted_us == before.predicted_us) is (before.part.key.target == "qwen3-8b")


def test_the_model_is_right_about_a_record_made_by_it(noisy):
    compared = compare_rounds(GPU, noisy, RATES)
    assert compared.median_error() < 0.01 and max(abs(one.error) for one in compared.parts) < 0.04
    assert compared.median_error("elsewhere") is None
    exact = compare_rounds(GPU, frame_of(synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,))), RATES)
    assert all(abs(one.error) < 1e-9 for one in exact.parts)
    (gain,) = exact.gains
    assert gain.gain == pytest.approx(gain.predicted_gain) and gain.gain_low == pytest.approx(gain.gain_high)


def test_gains_compare_rounds_of_the_same_process():
    rows = synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,), processes=3)
    for row in rows:
        if row["phase"] == "round":
            drift = (1.0, 5.0, 25.0)[row["process_index"]]
            row["samples_us"] = [drift * (110.0 if row["head_mode"] == "stepwise" else 100.0)]
        if row["phase"] == "head" and row["head_mode"] == "stepwise":
            row["samples_us"] = [55.0]
    (gain,) = compare_rounds(GPU, frame_of(rows), RATES).gains
    assert (gain.gain, gain.gain_low, gain.gain_high) == pytest.approx((0.1, 0.1, 0.1))  # a drift between processes is no gain
    assert gain.head_share == pytest.approx(55 / 550)
    assert gain.as_dict()["target"] == "qwen3-4b" and gain.as_dict()["gain"] == gain.gain


def test_what_was_dropped_is_counted_and_thin_gains_do_not_stand():
    rows = synthetic_rows(GPU, ("qwen3-4b",), (1, 2, 4), (1024,), processes=2)
    for row in rows:
        row["samples_us"] = row["samples_us"] * 4
        if row["concurrency"] == 2 and row["head_implementation"] == "wts" and row["phase"] == "round":
            row |= {"samples_us": row["samples_us"][:1], "samples_dropped": 3, "throttle_reasons": "sw_power_cap"}
        if row["concurrency"] == 4 and row["phase"] == "round":
            row |= {"samples_us": [], "samples_dropped": 4, "throttle_reasons": "hw_slowdown,sw_power_cap"}
    taken = sum(len(row["samples_us"]) for row in rows)
    found = compare_rounds(GPU, frame_of(rows), RATES)
    thin, none = RoundKey("qwen3-4b", 2, 1024, 16), RoundKey("qwen3-4b", 4, 1024, 16)
    dropped = sum(row["samples_dropped"] or 0 for row in rows)
    assert (found.lost.dropped, found.lost.taken, found.lost.reasons) == (dropped, taken + dropped, "hw_slowdown, sw_power_cap")
    assert found.lost.rounds == (thin, none) and found.lost.without_gain == (none,)
    assert {gain.key.concurrency: (gain.kept_share, gain.stands) for gain in found.gains} == {1: (1.0, True), 2: (0.25, False)}
    assert found.as_dict()["lost"]["without_gain"][0]["concurrency"] == 4


def test_one_target_needs_coefficients_that_ship(monkeypatch, tmp_path):
    frame = frame_of(synthetic_rows(GPU, ("qwen3-4b",), (1,), (1024,)))
    monkeypatch.setattr(passes, "rates_path", lambda: tmp_path / "none.toml")
    with pytest.raises(NoRounds, match="qwen3-4b alone"):
        compare_rounds(GPU, frame)
    monkeypatch.setattr(passes, "rates_path", lambda: tmp_path / "passes.toml")
    passes.write_rates(tmp_path / "passes.toml", RATES, "h200-sxm", "made up")
    assert compare_rounds(GPU, frame).basis == "coefficients that ship"


def test_known_phases_are_those_of_the_round_asked_for(noisy):
    parts = measured_parts(noisy)
    key = RoundKey("qwen3-8b", 4, 8192, 16)
    found = known_phases(parts, key)
    assert found.keys() == set(PHASES)
    time_us, (low, high) = found["verify"]
    assert low < time_us < high and time_us == pytest.approx(passes.pass_us(GPU, work_of(key, "verify"), RATES), rel=0.03)
    with pytest.raises(NoRounds, match=r"3 sequences of 8,192 tokens.*qwen3-4b, 1 x 1,024 tokens, 16 drafted"):
        known_phases(parts, dataclasses.replace(key, concurrency=3))


def test_a_target_without_a_markov_drafter_is_refused():
    assert drafter_of("qwen3-8b").name == "dspark-qwen3-8b"
    with pytest.raises(NoRounds, match="nobody"):
        drafter_of("nobody")
    with pytest.raises(BadInput, match="phase is 'other'"):
        work_of(RoundKey("qwen3-8b", 1, 1, 1), "other")


def test_a_comparison_is_plain_values(noisy):
    plain = compare_rounds(GPU, noisy).as_dict()
    assert len(plain["parts"]) == 2 * 3 * 2 * 7 and len(plain["gains"]) == 12
    assert {"target", "phase", "time_us", "predicted_us", "error", "processes"} <= plain["parts"][0].keys()
