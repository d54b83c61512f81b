"""What a screen shows of accuracy: the newest record with its origin, a GPU's own rows where one is, and intervals that hold."""

from __future__ import annotations

import math

import pytest

from cost_model.errors import BadInput
from cost_model.head import Head
from tests.accuracy_examples import example_rows
from wts_lab import accuracy_view
from wts_lab.accuracy import FORMAT_NAMES, write_accuracy
from wts_lab.accuracy_view import AccuracyStudy, NoAccuracy, accuracy_study, equal_share_interval


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: None)


def test_the_newest_record_is_replayed_and_says_where_it_was_made(tmp_path, no_gpu: None) -> None:
    write_accuracy(tmp_path / "b.parquet", example_rows(recorded_at_utc="2026-01-02T00:00:00+00:00"))
    write_accuracy(tmp_path / "a.parquet", example_rows(recorded_at_utc="2026-01-03T00:00:00+00:00", device="cuda", gpu_name="NVIDIA H200", walks=8))
    study = accuracy_study(records=tmp_path)
    assert study.source == "recorded on NVIDIA H200, 2026-01-03: 8 walks of 16 steps a head; weights: random"
    assert study.heads == ("markov", "rnn") and study.row("rnn", "int8")["head_name"] == "rnn" and study.row("rnn", "int8")["format"] == "int8"
    assert "on a CPU, 2026-01-02" in accuracy_study(records=_only(tmp_path, "b")).source


def _only(folder, name):
    other = folder / "other"
    other.mkdir()
    (folder / f"{name}.parquet").rename(other / f"{name}.parquet")
    return other


def test_the_record_that_ships_is_shown(no_gpu: None) -> None:
    study = accuracy_study()
    assert study.source.startswith("recorded on ") and all(len([row for row in study.rows if row["head_name"] == head]) == 4 for head in study.heads)


def test_nothing_to_show_says_what_to_run(tmp_path, no_gpu: None) -> None:
    with pytest.raises(NoAccuracy, match="no accuracy record in .*wts-lab accuracy"):
        accuracy_study(records=tmp_path)
    with pytest.raises(NoAccuracy, match="CUDA GPU of compute capability 8.0"):
        accuracy_study(live=True)
    with pytest.raises(BadInput, match="no accuracy of 'gated' in 'int8'; there are markov, rnn"):
        AccuracyStudy(tuple(example_rows()), "").row("gated", "int8")


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9375, 1.0])
def test_the_interval_is_wilsons(share: float) -> None:
    """Its ends are the shares p whose distance from the one seen is 1.96 of their own standard deviations."""
    low, high = equal_share_interval({"walks": 2, "steps": 16, "equal_step_share": share})
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 32), rel=1e-6)
    if share == 1:
        assert high == 1 and low == pytest.approx(32 / (32 + 1.959964**2))


def test_a_live_study_measures_a_head_of_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(accuracy_view, "LIVE_HEAD", Head.markov(512, 32))
    monkeypatch.setattr(accuracy_view, "LIVE_WALKS", 3)
    study = accuracy_view._measured("a device", place="cpu")
    assert study.source == "measured now on a device: 3 walks of 16 steps; weights: random"
    assert [row["format"] for row in study.rows] == list(FORMAT_NAMES) and all(row["vocab_size"] == 512 for row in study.rows)
    assert study.row(study.heads[0], "int8x2")["correction_error_rms"] < study.row(study.heads[0], "int8")["correction_error_rms"]
