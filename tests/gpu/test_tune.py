"""Tuning on a real GPU, through the compiler and real measuring processes, and the way of its answer back into a walk."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.head import Head  # noqa: E402
from cost_model.measurement import read_walk  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.tune import Machine, run_tune  # noqa: E402
from wts_lab.tune_plan import TuneRequest  # noqa: E402
from wts_lab.tuned import TunedMismatch, tuned_for_device, write_tuned  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402

VOCAB_SIZE, RANK = 4096, 64


def test_a_small_shape_is_tuned_and_its_answer_walks(tmp_path):
    head = Head.markov(VOCAB_SIZE, RANK)
    request = TuneRequest(head, warps=(8,), exchanges=("spread-lines",), limit=3, steps=(1, 4, 7), processes=1, repeats=5)
    result = run_tune(request, Machine.here(), out=tmp_path, progress=False)
    assert [trial.problem for trial in result.trials] == [""] * len(result.trials)
    assert all(trial.registers_per_thread > 0 and trial.spill_bytes == 0 for trial in result.trials)
    frame = read_walk(result.records[-1])
    assert set(frame["tokens_match"]) == {1.0}
    first = frame[frame["variant"] == result.planned.name].iloc[0]
    place = result.planned.case.placement
    assert (first["warps"], first["register_tiles"], first["shared_tiles"]) == (place.warps, place.register_tiles, place.shared_tiles)
    assert first["exchange"] == result.planned.case.exchange

    path = write_tuned(result.tuned(), tmp_path / "tuned.json")
    kept = tuned_for_device(head, mode="resident", precision="int8x2", path=path)
    walk = Walk(MarkovHead.random(VOCAB_SIZE, RANK), steps=7, mode="resident", **kept.walk_options())
    assert walk.placement == result.winner.case.placement
    with pytest.raises(TunedMismatch, match="batch is 1 in the file and 4 here"):
        tuned_for_device(head, mode="resident", precision="int8x2", batch=4, path=path)
