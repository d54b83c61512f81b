"""Timing and measuring on a real GPU: the gate, the L2 states, one small recorded run, and the quick probes."""

from __future__ import annotations

import statistics

import pytest

torch = pytest.importorskip("torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.measurement import read_walk  # noqa: E402
from cost_model.workload import DEFAULT_EXCHANGE  # noqa: E402
from wts_lab.bench import comparison_cases, measure, stream_points  # noqa: E402
from wts_lab.bench_gpu import Flusher, GpuBench  # noqa: E402
from wts_lab.bench_plan import engine_case, resident_case, stepwise_case, streaming_case  # noqa: E402
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
            assert row["registers_per_thread"] > 0 and row["exchange"] == DEFAULT_EXCHANGE and row["warps"] > 0


SIZES = {"vocab_size": 4096, "target_vocab_size": 4096, "padded_vocab_size": 4096, "rank": 64, "hidden_size": 96}
GATED, RNN = Head("gated", "gated", **SIZES), Head("rnn", "rnn", **SIZES)
DOMINO = Head("domino", "domino", **SIZES, gru_size=64)
POOL = Head("pool", "domino", **SIZES, gru_size=64, candidate_pool=256)
SAMPLED = {"temperature": 1.0, "logits_kept": True}
"""Small heads, so that what is compiled is what takes time."""


def require_sound(row, least_agreement):
    """A row of a walk that equals its twin, nearly always chooses as the bf16 reference, and was timed."""
    about = {name: row[name] for name in ("head_kind", "candidate_pool", "mode", "precision", "rounding", "batch", "temperature", "steps")}
    assert row["tokens_match"] == 1.0, about
    assert row["tokens_agree_reference"] >= least_agreement, about
    assert len(row["samples_us"]) + row["samples_dropped"] == row["repeats"] and all(sample > 0 for sample in row["samples_us"]), about


def test_every_head_batch_temperature_and_rounding_is_checked_and_timed():
    cases = [
        *(resident_case(head) for head in (GATED, RNN, DOMINO, POOL)), resident_case(DOMINO, batch=3),
        streaming_case(HEAD, batch=3, **SAMPLED), resident_case(GATED, batch=2, **SAMPLED), resident_case(RNN, batch=5, **SAMPLED),
        resident_case(HEAD, precision="bf16"), *(resident_case(HEAD, rounding=rounding) for rounding in ("twice", "none")),
    ]  # fmt: skip
    rows = list(stream_points(cases, (1, 3, 7), ("warm", "serving"), repeats=3, rounds=1))
    assert len(rows) == len(cases) * 3 * 2
    for row in rows:
        require_sound(row, 0.8)
        assert row["logits_kept"] == (row["temperature"] == 1.0) and row["registers_per_thread"] > 0


def test_at_another_temperature_than_one_the_check_is_still_exact():
    rows = list(stream_points([resident_case(HEAD, batch=4, temperature=0.7)], (1, 7), ("warm",), repeats=3, rounds=1))
    assert len(rows) == 2
    for row in rows:
        require_sound(row, 0.8)
        assert row["temperature"] == 0.7


def test_stepwise_walks_of_every_head_are_captured_and_timed():
    rows = list(stream_points([stepwise_case(head, batch=2) for head in (GATED, RNN, DOMINO, POOL)], (1, 4), ("warm",), repeats=3, rounds=1))
    assert len(rows) == 8
    for row in rows:
        assert row["tokens_match"] is None and row["tokens_agree_reference"] == 1.0 and all(sample > 0 for sample in row["samples_us"])


def test_parts_of_a_step_are_timed_beside_it():
    cases = [resident_case(HEAD), *(resident_case(HEAD, probe=part) for part in ("fixed_latent", "exchange")), resident_case(RNN, probe="state")]
    rows = list(stream_points(cases, (1, 16), ("warm",), repeats=10, rounds=1))
    medians = {(row["probe"], row["steps"]): statistics.median(row["samples_us"]) for row in rows}
    assert {row["tokens_match"] for row in rows if row["probe"] != "none"} == {None}
    slopes = {part: (medians[part, 16] - medians[part, 1]) / 15 for part in ("none", "fixed_latent", "walk_exchange", "walk_state")}
    assert 0 < slopes["walk_exchange"] < slopes["none"] and 0 < slopes["fixed_latent"] < slopes["none"] and slopes["walk_state"] > 0, slopes


def test_the_engines_paths_are_timed_beside_ours(pytestconfig):
    from wts_lab.engines.sglang import load_step_kernels

    pytest.importorskip("triton", reason="the engine's kernels are written in Triton")
    root = pytestconfig.getoption("--sglang-root")
    try:
        load_step_kernels(root)
    except BadInput as error:
        pytest.skip(str(error))
    cases = [resident_case(HEAD), engine_case(HEAD, "MarkovGreedyStep"), engine_case(HEAD, "MarkovSampleStep"),
             engine_case(HEAD, "MarkovSampleStep", batch=2, **SAMPLED)]  # fmt: skip
    rows = list(stream_points(cases, (1, 4), ("warm", "serving"), repeats=3, rounds=1, bench=GpuBench(engine_root=root)))
    assert len(rows) == 4 * 2 * 2
    for row in rows:
        assert row["tokens_agree_reference"] > 0.8 and (row["tokens_match"] is None) == (row["implementation"] != "wts")


def test_the_phases_of_every_kind_of_head_add_up_to_about_a_step():
    from benchmarks.phases import measure_case

    for head in (HEAD, GATED, RNN, DOMINO):
        rows = measure_case(resident_case(head), 3, lambda: 1000.0)
        assert {row["probe"] for row in rows} == {"walk_phase"} and {row["head_kind"] for row in rows} == {head.kind}
        assert len({row["variant"] for row in rows}) == len(rows) >= 5
        total_us = sum(statistics.median(row["samples_us"]) for row in rows)
        assert 0.5 < total_us < 50, {row["variant"]: statistics.median(row["samples_us"]) for row in rows}


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
