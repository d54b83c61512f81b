"""Accuracy records for tests: made-up rows, valid and unlike each other, and rows measured of small heads. Never part of `data/`."""

from __future__ import annotations

from cost_model.head import Head
from wts_lab.accuracy import FORMAT_NAMES, MAGNITUDE_BINS, accuracy_row


def example_rows(**facts: object) -> list[dict]:
    """Two heads in all formats, 2 walks of 16 steps; `facts` replace columns of every row."""
    return [_row(head, number, place, facts) for number, head in enumerate(("markov", "rnn")) for place in range(len(FORMAT_NAMES))]


def _row(head: str, number: int, place: int, facts: dict) -> dict:
    error = 0.001 * 2**place * (number + 1)
    shares = [1 / MAGNITUDE_BINS] * MAGNITUDE_BINS
    quantiles = {f"{kind}_{end}": error * scale for kind in ("correction_error", "logit_error") for end, scale in (("p50", 1), ("p90", 2), ("p99", 3), ("p999", 4), ("max", 5))}
    if place == 0:
        quantiles["logit_error_p50"] = 0.0
    return accuracy_row(
        **{
            "run_id": "synthetic", "recorded_at_utc": "2026-01-01T00:00:00+00:00", "device": "cpu", "head_name": head, "head_source": "random", "seed": 0, "walks": 2,
            "steps": 16, "rounding": "once", "format": FORMAT_NAMES[place], "equal_step_share": 1 - place / 32, "prefix_length_mean": 16 - place, "equal_walk_share": 0.5,
            "preference_max": 0.0, "correction_std": 1.0, "correction_error_rms": error, "error_samples": 1000, "weight_error_rms": error, "magnitude_shares": shares,
            "level_shares": None if place == 0 else shares, **quantiles, **facts,
        }
    )  # fmt: skip


def small_shape(kind: str, vocab_size: int = 96, rank: int = 32) -> Head:
    """A head of some kind with a padded projection."""
    hidden, gru = None if kind == "markov" else 16, 8 if kind == "domino" else None
    return Head(f"small-{kind}", kind, vocab_size, vocab_size + 4, vocab_size + 16, rank, hidden, gru)


def measured_rows() -> list[dict]:
    """A record's rows of two small random heads, measured on the CPU."""
    from wts_lab import accuracy_run
    from wts_lab.heads import random_head

    heads = [random_head(small_shape(kind, 1200)) for kind in ("markov", "domino")]
    rows = [row for head in heads for row in accuracy_run.measure_head(head, "random", walks=3, steps=4)]
    return accuracy_run.with_provenance(rows, git_commit="0123456789abcdef", command="test")
