"""A sweep on real GPUs: one process each, every row once, rows as `measure` makes them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cost_model.head import Head  # noqa: E402
from cost_model.measurement import read_walk  # noqa: E402
from wts_lab.bench_plan import resident_case, stepwise_case  # noqa: E402
from wts_lab.environment import device_id  # noqa: E402
from wts_lab.sweep import GPU_WORKER, run_sweep  # noqa: E402
from wts_lab.sweep_pools import LocalPool, local_devices  # noqa: E402
from wts_lab.tuned import walk_sources_hash  # noqa: E402

HEADS = [Head.markov(size, 64) for size in (4096, 8192)]


def test_a_grid_over_all_gpus_of_this_machine_is_one_record(tmp_path):
    cases = [make(head) for head in HEADS for make in (resident_case, stepwise_case)]
    with LocalPool(local_devices()) as pool:
        places = pool.places(GPU_WORKER.identify)
        assert len({place.device for place in places}) == len(places) == torch.cuda.device_count()
        assert {place.kernel_hash for place in places} == {walk_sources_hash()}
        path = run_sweep(
            cases, pool, GPU_WORKER, steps=(1, 4), l2_states=("warm",), processes=2, repeats=5, groups_per_job=1, out=tmp_path, case_name="grid", progress=False
        )
    frame = read_walk(path)
    assert path.parent.name == device_id() and len(frame) == len(cases) * 2 * 2
    assert not frame.duplicated(["vocab_size", "implementation", "steps", "process_index"]).any()
    assert set(frame["gpu_name"]) == {torch.cuda.get_device_name()} and (frame["tokens_match"].dropna() == 1).all()
    assert all(len(samples) + dropped == 5 for samples, dropped in zip(frame["samples_us"], frame["samples_dropped"], strict=True))
    assert (frame.loc[frame["implementation"] == "wts", "tokens_match"] == 1).all() and list(path.parent.glob(".*")) == []
