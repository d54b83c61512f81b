"""Timing and measuring on a real GPU: the gate, the L2 states, one small recorded run, and the quick probes."""

from __future__ import annotations

import statistics

import pytest

torch = pytest.importorskip("torch")

from cost_model.head import Head  # noqa: E402
from cost_model.measurement import read_walk  # noqa: E402
from wts_lab.bench import comparison_cases, measure, stream_points  # noqa: E402
from wts_lab.bench_gpu import Flusher, GpuBench  # noqa: E402
from wts_lab.probes import run_probes  # noqa: E402
from wts_lab.timing import CYCLES_A_US, CudaQueue, GateTimer  # noqa: E402

HEAD = Head.markov(4096, 64)


def test_a_kernel_of_known_cycles_takes_that_long_at_a_plausible_clock():
    timer = GateTimer(CudaQueue())
    timer.busy(100_000.0)
    samples = timer.burst("spin", lambda: torch.cuda._sleep(int(100 * CYCLES_A_US)), repeats=20)
    clock_mhz = 100 * CYCLES_A_US / statistics.median(samples)
    assert 300 < clock_mhz < 3500


def test_reading_what_was_just_read_is_faster_than_after_a_flush():
    data = torch.ones(1 << 22, device="cuda")  # 16 MiB
    total = torch.zeros((), device="cuda")
    flush = Flusher(torch.device("cuda"))
    timer = GateTimer(CudaQueue())

    def read():
        torch.sum(data, dim=0, out=total)

    warm = statistics.median(timer.burst("warm", read, repeats=30))
    cold = statistics.median(timer.burst("cold", read, repeats=30, before=flush))
    assert cold > warm


def test_all_walks_of_a_small_head_are_checked_and_timed_in_every_l2_state():
    rows = list(stream_points(comparison_cases(HEAD), (1, 4, 7), ("warm", "cold", "serving"), repeats=5, rounds=1))
    assert len(rows) == 4 * 3 * 3
    for row in rows:
        assert row["tokens_match"] == 1.0
        assert row["tokens_agree_reference"] > 0.9
        assert len(row["samples_us"]) + row["samples_dropped"] == 5
        assert all(sample > 0 for sample in row["samples_us"])
        if row["implementation"] == "wts":
            assert row["registers_per_thread"] > 0 and row["exchange"].startswith("slots-x") and row["warps"] > 0


def test_a_recorded_run_goes_through_real_processes(tmp_path):
    path = measure(comparison_cases(HEAD), steps=(1, 4, 7), l2_states=("warm",), processes=2, repeats=4, out=tmp_path, case_name="smoke", progress=False)
    frame = read_walk(path)
    assert sorted(set(frame["process_index"])) == [0, 1]
    assert len(frame) == 2 * 4 * 3
    assert frame["gpu_name"].notna().all() and frame["cuda_version"].notna().all()


def test_the_quick_probes_give_figures_of_the_right_size():
    failures = []
    rows = run_probes(repeats=5, only=("exchange", "l2_latency", "shared_read", "graph_launch", "cooperative_launch", "graph_node", "mma_s8"),
                      on_failure=lambda *what: failures.append(what))  # fmt: skip
    assert failures == []
    medians = {(row["probe"], row["variant"]): statistics.median(row["samples_us"]) for row in rows}
    assert 0.1 < medians["exchange", "walk-r1"] < 10
    assert 0.05 < medians["l2_latency", "ring-1MiB"] < 1
    assert 0.05 < medians["graph_node", "blocks-1"] < 10


def test_clocks_are_read_or_honestly_unknown():
    reading = GpuBench().clocks()
    assert reading.sm_clock_mhz is None or 100 < reading.sm_clock_mhz < 4000
