"""Accepted length: counts and closed forms, intervals that hold what they should, and logs that cannot be."""

from __future__ import annotations

import json

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model import accepted_length as lengths
from cost_model.accepted_length import LogError, accepted_length, gather, length_change, read_log
from cost_model.errors import BadInput


def rows(*rounds: tuple[str | int, int, int]) -> list[dict]:
    """Rounds as (prompt, drafted, accepted), tokens spelled out."""
    return [{"prompt": prompt, "drafted": list(range(drafted)), "accepted": list(range(accepted))} for prompt, drafted, accepted in rounds]


def traffic(generator: numpy.random.Generator, prompts: int, rate: float, spread: float = 0.1, first: int = 0) -> lengths.AcceptanceLog:
    """A log in which a prompt has an acceptance rate of its own, of 7 drafted tokens a round."""
    found = []
    for prompt in range(first, first + prompts):
        own = min(0.95, max(0.05, rate + spread * generator.standard_normal()))
        for _ in range(generator.integers(3, 12)):
            found.append((prompt, 7, int(min(7, generator.geometric(1 - own) - 1))))
    return gather({"prompt": prompt, "drafted": drafted, "accepted": accepted} for prompt, drafted, accepted in found)


def test_a_round_yields_its_accepted_tokens_and_the_targets_own():
    log = gather(rows(("a", 4, 0), ("a", 4, 4), ("b", 4, 1), ("a", 2, 1)))
    assert log.prompts == ("a", "b") and log.rounds.tolist() == [3, 1] and log.accepted_tokens.tolist() == [5, 1]
    assert log.accepted_length == pytest.approx((0 + 4 + 1 + 1 + 4) / 4)
    assert log.position_shares == pytest.approx([3 / 4, 1 / 4, 1 / 3, 1 / 3]), "the round of two tokens has no third and fourth position"


def test_numbers_of_tokens_count_as_the_tokens_do():
    spelled = rows(("a", 7, 3), ("b", 7, 0), ("b", 5, 5))
    counted = [{"prompt": row["prompt"], "drafted": len(row["drafted"]), "accepted": len(row["accepted"])} for row in spelled]
    first, second = gather(spelled), gather(counted)
    assert first.prompts == second.prompts and first.accepted_length == second.accepted_length and first.position_shares == second.position_shares


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 9)), min_size=1))
def test_tokens_and_rounds_are_conserved(rounds):
    kept = [(prompt, drafted, min(drafted, accepted)) for prompt, drafted, accepted in rounds]
    log = gather(rows(*kept))
    assert log.rounds.sum() == len(kept) and log.accepted_tokens.sum() == sum(accepted for *_, accepted in kept)
    assert log.accepted_by_length.sum() == log.accepted_tokens.sum() and log.drafted_by_length.sum() == sum(drafted for _, drafted, _ in kept)


# --- intervals


def test_an_interval_is_that_of_the_linearised_ratio_where_prompts_are_many():
    log = traffic(numpy.random.default_rng(1), 2000, 0.6)
    share = log.accepted_tokens.sum() / log.rounds.sum()
    residuals = log.accepted_tokens - share * log.rounds
    half = 1.96 * numpy.sqrt((residuals**2).sum()) / log.rounds.sum()
    found = accepted_length(log, resamples=20_000)
    assert found.value == pytest.approx(1 + share)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)
    assert (found.low + found.high) / 2 == pytest.approx(found.value, abs=0.1 * half)


def test_prompts_and_not_rounds_are_what_was_sampled():
    """Rounds of a prompt that are all alike say no more than one of them."""
    once = gather(rows(*((prompt, 7, prompt % 8) for prompt in range(40))))
    often = gather(rows(*((prompt, 7, prompt % 8) for prompt in range(40) for _ in range(25))))
    one, many = accepted_length(once), accepted_length(often)
    assert (one.low, one.high) == pytest.approx((many.low, many.high)) and one.high - one.low > 1


def test_the_same_log_twice_is_no_change_at_all():
    log = traffic(numpy.random.default_rng(2), 50, 0.6)
    change = length_change(log, log)
    assert change.is_paired and not change.is_distinguishable
    for found, value in ((change.difference, 0.0), (change.ratio, 1.0)):
        assert (found.value, found.low, found.high) == pytest.approx((value, value, value))


def test_prompts_that_both_runs_answered_are_drawn_together_whatever_their_order():
    """A constant gain of one token a round has no spread, however different the prompts are."""
    before = rows(*((prompt, 7, prompt % 6) for prompt in range(30)))
    after = rows(*((prompt, 7, prompt % 6 + 1) for prompt in reversed(range(30))))
    change = length_change(gather(before), gather(after))
    assert change.is_paired and (change.difference.value, change.difference.low, change.difference.high) == pytest.approx((1, 1, 1))
    apart = length_change(gather(before), gather([row | {"prompt": row["prompt"] + 100} for row in after]))
    assert not apart.is_paired and apart.difference.value == pytest.approx(1) and apart.difference.high - apart.difference.low > 1
    assert (apart.prompts_before, apart.prompts_after, apart.rounds_before, apart.rounds_after) == (30, 30, 30, 30)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Runs of equal prompts and of different ones, drawn from one truth: the difference is 0, and 95 of 100 intervals hold it."""
    generator, inside = numpy.random.default_rng(3), []
    for _ in range(200):
        change = length_change(traffic(generator, 60, 0.6), traffic(generator, 60, 0.6, first=1000), resamples=500)
        inside.append(change.difference.low <= 0 <= change.difference.high)
    assert 0.90 <= numpy.mean(inside) <= 0.99


def test_a_seed_gives_the_same_interval():
    log = traffic(numpy.random.default_rng(4), 40, 0.5)
    assert accepted_length(log, seed=7) == accepted_length(log, seed=7) != accepted_length(log, seed=8)
    assert accepted_length(log).told == "{0.value:.4g}:{0.low:.4g}:{0.high:.4g}".format(accepted_length(log))


# --- what cannot be compared


def test_too_few_prompts_and_half_shared_ones_are_refused():
    one, two, other = (gather(rows(*rounds)) for rounds in ([(1, 7, 3)], [(1, 7, 3), (2, 7, 3)], [(2, 7, 3), (3, 7, 3)]))
    with pytest.raises(BadInput, match="a log has 1 prompt; an interval needs two or more"):
        accepted_length(one)
    with pytest.raises(BadInput, match="share 1 prompts, the first log has 2 and the second 2"):
        length_change(two, other)
    with pytest.raises(BadInput, match="resamples is 10; it must be from 100 to 1,000,000"):
        accepted_length(two, resamples=10)
    with pytest.raises(BadInput, match="resamples is 100,000,000,000; it must be from 100 to 1,000,000"):
        accepted_length(two, resamples=10**11)
    with pytest.raises(BadInput, match="seed is -1; it must be at least 0"):
        length_change(two, two, seed=-1)


WRONG = [
    ({"prompt": "a", "drafted": [1, 2]}, "lacks accepted"), ({"drafted": 1, "accepted": 1}, "lacks prompt"), ([1], "must be an object with prompt, drafted, accepted"),
    ({"prompt": 1.5, "drafted": 2, "accepted": 1}, "prompt is 1.5; it must be a text or a whole number"),
    ({"prompt": True, "drafted": 2, "accepted": 1}, "prompt is True"), ({"prompt": "a", "drafted": 2, "accepted": 3}, "accepted tokens is 3; it must be from 0 to 2"),
    ({"prompt": "a", "drafted": 0, "accepted": 0}, "drafted tokens is 0; it must be from 1 to 4,096"), ({"prompt": "a", "drafted": -1, "accepted": 0}, "drafted is -1"),
    ({"prompt": "a", "drafted": [5, 6], "accepted": [5, 7]}, "are not the first of drafted"), ({"prompt": "a", "drafted": [5, 6], "accepted": [5, 6, 7]}, "are not the first"),
    ({"prompt": "a", "drafted": [5, -6], "accepted": 1}, "a token of drafted is -6"), ({"prompt": "a", "drafted": "7", "accepted": 1}, "drafted is '7'"),
    ({"prompt": "a", "drafted": 7, "accepted": True}, "accepted is True"),
    ({"prompt": "a", "drafted": 10**23, "accepted": 3}, "drafted tokens is 100,000,000,000,000,000,000,000; it must be from 1 to 4,096"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_a_row_that_cannot_be_is_named(row, message, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(rows(("a", 2, 1))[0]) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(LogError, match=message) as refusal:
        read_log(path)
    assert str(refusal.value).startswith(f"{path}, row 2: ")


def test_files_say_the_same_in_both_forms(tmp_path):
    pandas = pytest.importorskip("pandas")
    found = rows(("a", 4, 0), ("b", 4, 3), ("b", 2, 2))
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n\n")
    frame = pandas.DataFrame(found)
    frame.assign(request=1).to_parquet(tmp_path / "log.parquet")
    frame.assign(drafted=frame["drafted"].map(len), accepted=frame["accepted"].map(len)).to_parquet(tmp_path / "counts.parquet")
    logs = [read_log(tmp_path / name) for name in ("log.jsonl", "log.parquet", "counts.parquet")]
    assert len({(log.prompts, log.accepted_length, tuple(log.position_shares), tuple(log.rounds)) for log in logs}) == 1


def test_files_that_are_no_logs_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    (tmp_path / "torn.jsonl").write_text('{"prompt": 1, "drafted": 2, "accepted": 1}\n{"prompt": 1, "dra')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    pandas.DataFrame({"prompt": [1], "drafted": [2]}).to_parquet(tmp_path / "less.parquet")
    for name, message in [("torn.jsonl", "line 2: is no JSON"), ("empty.jsonl", "holds no round"), ("bytes.jsonl", "cannot be read"), ("none.jsonl", "cannot be read .no such file."),
                          ("torn.parquet", "cannot be read"), ("less.parquet", "lacks the columns accepted"), ("log.csv", "one of .jsonl, .parquet")]:  # fmt: skip
        with pytest.raises(LogError, match=message):
            read_log(tmp_path / name)


@given(st.text())
def test_any_other_text_is_refused_or_counted(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("logs") / "log.jsonl"
    path.write_text(text, encoding="utf-8", errors="ignore")
    with pytest.raises(LogError):
        read_log(path)
