"""SGLang's step kernel by kernel: a made-up trace comes back as what it was made of, through the record, into the step's parts."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")

from benchmarks import engine_kernels as bench  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.measurement import walk_row, write_walk  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from wts_lab.engine_step import BETWEEN, engine_steps, join_variant, parts_of, split_variant  # noqa: E402

KERNELS = (("void at::native::indexSelect<float, 4>(float*)", 1.5), ("gemv2T_kernel<int>", 20.0), ("_partial_kernel", 4.0), ("_select", 2.0))
GAP_US = 0.25
TAIL = ("CatArrayBatchedCopy", 3.0)


def trace(steps: int, replays: int = 1) -> dict:
    """A trace of replays of some steps: kernels with gaps between, one kernel after the last step; out of order, as profilers write them."""
    now, events = 100.0, [{"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0.0, "dur": 5.0}]
    for _ in range(replays):
        for name, run_us in (*KERNELS * steps, TAIL):
            events.append({"cat": "kernel", "name": name, "ts": now, "dur": run_us})
            now += run_us + GAP_US
        now += 50.0
    return {"traceEvents": events[::-1]}


def test_a_trace_is_taken_apart_into_what_it_was_made_of() -> None:
    longer = bench.split_replays(bench.kernel_runs(trace(bench.STEPS, 3)), 3)
    (shorter,) = bench.split_replays(bench.kernel_runs(trace(bench.SHORTER)), 1)
    kernels = bench.kernels_a_step(len(longer[0]), len(shorter))
    assert kernels == len(KERNELS)
    found = bench.step_samples(longer, kernels)
    assert [name for name, _ in found] == ["indexSelect", "gemv2T_kernel", "_partial_kernel", "_select", BETWEEN]
    for (_, samples), wanted in zip(found, [*(run_us for _, run_us in KERNELS), len(KERNELS) * GAP_US]):
        assert len(samples) == 3 * (bench.STEPS - 1) and samples == pytest.approx([wanted] * len(samples))


def test_what_is_lost_is_refused() -> None:
    with pytest.raises(BadInput, match="saw no kernel"):
        bench.kernel_runs({"traceEvents": [{"cat": "cpu_op", "name": "x", "ts": 0, "dur": 1}]})
    with pytest.raises(BadInput, match="lost some"):
        bench.split_replays(bench.kernel_runs(trace(bench.STEPS, 2))[:-1], 2)
    with pytest.raises(BadInput, match="no whole number a step"):
        bench.kernels_a_step(70, 33)
    with pytest.raises(BadInput, match="path/place/name"):
        split_variant("MarkovSampleStep")


@pytest.mark.parametrize(("name", "short"), [
    ("void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*)", "vectorized_gather_kernel"),
    ("_sample_partial_kernel", "_sample_partial_kernel"), ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"),
])
def test_names_are_short(name: str, short: str) -> None:
    assert bench.short_name(name) == short


def test_cases_are_the_engines_paths_at_both_vocabularies() -> None:
    assert {(case.head.vocab_size, case.variant, case.temperature) for case in bench.CASES} == {
        (size, *path) for size in (151_936, 248_320) for path in (("MarkovGreedyStep", 0.0), ("MarkovSampleStep", 0.0), ("MarkovSampleStep", 1.0))
    }


def test_a_record_gives_the_steps_parts_and_without_one_the_model_does(tmp_path) -> None:
    gpu, head = load_gpu("h200-sxm"), Head.markov(248_320, 256)
    found = bench.step_samples(bench.split_replays(bench.kernel_runs(trace(bench.STEPS, 2)), 2), len(KERNELS))
    case = next(case for case in bench.CASES if case.head.vocab_size == 248_320 and case.variant == "MarkovSampleStep" and not case.temperature)
    shared = {"run_id": "made-up", "process_index": 0, "recorded_at_utc": "2026-01-31T12:00:00+00:00", "gpu_name": "NVIDIA H200", "gpu_sm_count": 132}
    write_walk(tmp_path / "h200-sxm" / "2026-01-31-engine-kernels.parquet", [walk_row(**shared, **row) for row in bench.kernel_rows(case, found)])
    greedy, sample = engine_steps(gpu, head, Workload(), records=tmp_path)
    assert (greedy.path.kernel, greedy.basis, sample.path.kernel, sample.basis) == ("MarkovGreedyStep", "predicted", "MarkovSampleStep", "measured")
    assert [part.name for part in sample.parts] == ["indexSelect", "gemv2T_kernel", "_partial_kernel", "_select", BETWEEN]
    assert sample.parts_us == pytest.approx(sum(run_us + GAP_US for _, run_us in KERNELS))
    assert "profiled on" in sample.source and "2026-01-31" in sample.source
    assert "not recorded" in greedy.source and greedy.parts_us == pytest.approx(greedy.step_us, rel=0.05)
    assert sample.step_basis == "published" and sample.step_us == pytest.approx((659.4 - 47.0) / 15, rel=0.01)


def test_parts_come_in_their_order_with_medians_and_ends() -> None:
    rows = [{"variant": join_variant("P", place, name), "samples_us": samples} for place, name, samples in ((1, "b", [3.0, 1.0, 2.0]), (0, "a/c", [5.0]))]
    first, second = parts_of(rows)
    assert (first.name, first.time_us, second.name, second.time_us, second.time_us_low, second.time_us_high) == ("a/c", 5.0, "b", 2.0, 1.0, 3.0)


def test_without_a_gpu_the_command_says_what_is_missing(monkeypatch, tmp_path, capsys) -> None:
    from wts_lab import environment

    def refuse() -> None:
        raise BadInput("no GPU here")

    monkeypatch.setattr(environment, "require_device", refuse)
    assert bench.main(["--out", str(tmp_path)]) == 2
    assert "no GPU here" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_command_records_every_path_with_the_commit_given(monkeypatch, tmp_path) -> None:
    from cost_model.measurement import frame_rows, read_walk
    from wts_lab import environment

    asked = []

    def measured(case, repeats, engine_root):
        asked.append((case.variant, repeats, engine_root))
        return bench.kernel_rows(case, [("gemv", [3.0, 4.0]), (BETWEEN, [1.0, 1.5])])

    monkeypatch.setattr(environment, "require_device", lambda: None)
    monkeypatch.setattr(bench, "measure_case", measured)
    assert bench.main(["--gpu", "h200-sxm", "--out", str(tmp_path), "--repeats", "2", "--sglang-root", "wheel", "--commit", "abc", "--no-dirty"]) == 0
    (path,) = tmp_path.glob("h200-sxm/*-engine-kernels.parquet")
    rows = frame_rows(read_walk(path))
    assert len(rows) == 2 * len(bench.CASES) and asked[0][1:] == (2, "wheel")
    assert {(row["git_commit"], row["git_dirty"], row["probe"]) for row in rows} == {("abc", False, "engine_kernel")}
    assert bench.main(["--gpu", "h200-sxm", "--out", str(tmp_path)]) == 2, "a record is never written over"
