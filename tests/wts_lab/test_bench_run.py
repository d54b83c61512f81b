"""Recorded runs on the simulated GPU of conftest.py: processes, parts that survive, merging, and what stops a run. Only the device is not real."""

from __future__ import annotations

import json
import statistics
import sys
from threading import Event

import pytest

from cost_model.head import Head
from cost_model.measurement import RecordError, read_walk
from wts_lab import bench_run, environment
from wts_lab.bench import WrongKernel, comparison_cases, measure, measure_probes
from wts_lab.bench_plan import engine_case, resident_case
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed, run_subprocess, work

SMALL, LARGE = Head.markov(512, 32), Head.markov(1024, 32)
COSTS = {"resident": (12.0, 2.5), "streaming": (11.0, 6.5), "graph": (5.0, 30.0)}


class Workers:
    """Runs each process of a plan here, on a fresh simulated bench; can stop or fail before a part."""

    def __init__(self, bench_class, fail_before: int | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.bench_class, self.fail_before, self.error = bench_class, fail_before, error
        self.measured: list[tuple[int, int]] = []

    def __call__(self, plan_file, process_index, progress, cancel) -> None:
        bench = self.bench_class(COSTS)
        prepare = bench.prepare

        def counting(cases, steps, seed):
            if self.fail_before is not None and len(self.measured) == self.fail_before:
                raise self.error("lost the GPU")
            self.measured.append((process_index, cases[0].head.vocab_size))
            return prepare(cases, steps, seed)

        bench.prepare = counting

        def say(line):
            done, total, label = line.removeprefix(bench_run.PROGRESS_PREFIX).split(" ", 2)
            progress(int(done), int(total), label)

        work(plan_file, process_index, bench=bench, say=say, cancel=cancel)


CASES = (*comparison_cases(SMALL), *comparison_cases(LARGE))


REQUEST = dict(steps=(1, 7, 16), l2_states=("warm", "serving"), processes=3, repeats=6, rounds=2, case_name="grid", gpu="h200-sxm",
               commit="c0ffee", git_dirty=False, progress=False)  # fmt: skip


def test_a_record_holds_every_point_of_every_process(simulated, tmp_path):
    path = measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))
    assert path.parent == tmp_path / "h200-sxm" and path.name.endswith("-grid.parquet")
    frame = read_walk(path)
    assert len(frame) == 3 * len(CASES) * 3 * 2
    assert not frame.duplicated(["process_index", "vocab_size", "variant", "precision", "steps", "l2_state"]).any()
    assert set(frame["run_id"]) == {frame["run_id"][0]}
    assert set(frame["git_commit"]) == {"c0ffee"} and not frame["git_dirty"].any()
    resident = frame[(frame["variant"] == "resident") & (frame["steps"] == 16) & (frame["l2_state"] == "warm")]
    assert statistics.median(sample for samples in resident["samples_us"] for sample in samples) == pytest.approx(12 + 16 * 2.5)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "parts are removed once merged"


def test_the_fit_of_a_record_gives_back_the_costs_of_the_simulated_walks(simulated, tmp_path):
    pytest.importorskip("scipy", reason="fits need scipy")
    from cost_model.fit import fit_frame

    fits = fit_frame(read_walk(measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))))
    assert len(fits) == len(CASES) * 2
    for key, fit in fits:
        entry, step = COSTS[key.variant]
        flushed = 5.0 if key.l2_state == "serving" else 0.0
        assert (fit.step_us, fit.entry_us) == pytest.approx((step, entry + flushed))
        assert fit.processes == 3 and fit.samples == 3 * 3 * 6 and fit.status == "ok"


def test_processes_draw_other_inputs_and_orders(simulated, tmp_path):
    seeds = []

    def spy(plan_file, process_index, progress, cancel):
        bench = simulated.Bench(COSTS)
        work(plan_file, process_index, bench=bench, say=lambda line: None)
        seeds.extend(seed for kind, seed in bench.log if kind == "prepare")

    measure(CASES, **REQUEST, out=tmp_path, run_worker=spy)
    assert len(set(seeds)) == 6


def test_a_failed_run_keeps_its_parts_and_the_same_call_goes_on(simulated, tmp_path):
    first = Workers(simulated.Bench, fail_before=3)
    with pytest.raises(RuntimeError, match="lost the GPU"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=first)
    assert not list(tmp_path.glob("h200-sxm/*.parquet")), "no record before all parts are there"
    second = Workers(simulated.Bench)
    frame = read_walk(measure(CASES, **REQUEST, out=tmp_path, run_worker=second))
    assert first.measured + second.measured == [(process, size) for process in range(3) for size in (512, 1024)]
    assert len(frame) == 3 * len(CASES) * 3 * 2
    assert len(set(frame["run_id"])) == 1, "both halves belong to one run"


def test_a_run_of_another_commit_does_not_take_up_old_parts(simulated, tmp_path):
    with pytest.raises(RuntimeError):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench, fail_before=5))
    again = Workers(simulated.Bench)
    measure(CASES, **{**REQUEST, "commit": "decade"}, out=tmp_path, run_worker=again)
    assert len(again.measured) == 6


def test_a_run_goes_on_where_the_engine_lies_elsewhere_and_no_row_says_where(simulated, tmp_path, monkeypatch):
    cases, roots = [*comparison_cases(SMALL), engine_case(SMALL, "MarkovGreedyStep"), *comparison_cases(LARGE)], []
    monkeypatch.setattr(environment, "command_line", lambda: f"python measure.py --sglang-root {tmp_path / 'here'} --out runs")

    class RootedWorkers(Workers):
        def __call__(self, plan_file, *others):
            roots.append(json.loads(plan_file.read_text())["plan"]["engine_root"])
            super().__call__(plan_file, *others)

    with pytest.raises(RuntimeError, match="lost the GPU"):
        measure(cases, **REQUEST, out=tmp_path, run_worker=RootedWorkers(simulated.Bench, fail_before=3), engine_root=tmp_path / "here")
    path = measure(cases, **REQUEST, out=tmp_path, run_worker=RootedWorkers(simulated.Bench), engine_root=tmp_path / "there")
    assert roots == [str(tmp_path / "here")] * 2 + [str(tmp_path / "there")] * 2
    frame = read_walk(path)
    assert len(frame) == 3 * 9 * 3 * 2
    assert set(frame["command"]) == {"python measure.py --out runs"}


@pytest.mark.parametrize("written", ["--sglang-root /a/b --out x", "--out x --sglang-root=/a/b", "--out x --sglang-root '/a b'", "--out x --sglang-root"])
def test_the_engines_folder_is_cut_from_a_command(written):
    assert bench_run._without_engine_root(f"python -m benchmarks.run engine {written}") == "python -m benchmarks.run engine --out x"


def test_an_interruption_says_what_is_kept_and_how_to_go_on(simulated, tmp_path):
    workers = Workers(simulated.Bench, fail_before=4, error=KeyboardInterrupt)
    with pytest.raises(MeasurementInterrupted, match="4 of 6 parts finished.*same command again"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=workers)
    assert len(list(tmp_path.rglob(".process-*.parquet"))) == 4


def test_cancelling_a_run_leaves_only_whole_parts(simulated, tmp_path):
    cancel = Event()

    def progress(done, total, label):
        if done >= total // 2 - 1:
            cancel.set()

    with pytest.raises(MeasurementInterrupted, match="of 6 parts finished"):
        measure(CASES, **{**REQUEST, "progress": progress}, out=tmp_path, cancel=cancel, run_worker=Workers(simulated.Bench))
    parts = list(tmp_path.rglob(".process-*.parquet"))
    assert 0 < len(parts) < 6
    assert all(len(read_walk(part)) == 4 * 3 * 2 for part in parts)


def test_progress_grows_to_the_total_and_counts_finished_parts(simulated, tmp_path):
    seen = []
    with pytest.raises(RuntimeError):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench, fail_before=3))
    request = {**REQUEST, "progress": lambda done, total, label: seen.append((done, total))}
    measure(CASES, **request, out=tmp_path, run_worker=Workers(simulated.Bench))
    total = 3 * len(CASES) * 3 * 2 * 2
    assert {one for _, one in seen} == {total}
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[0] == total // 2 + 1 and counts[-1] == total


def test_a_record_that_exists_stops_the_run_before_it_measures(simulated, tmp_path):
    measure(CASES, **REQUEST, out=tmp_path, run_worker=Workers(simulated.Bench))
    idle = Workers(simulated.Bench)
    with pytest.raises(RecordError, match="exists"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=idle)
    assert idle.measured == []


def test_a_worker_that_does_nothing_is_noticed(tmp_path):
    with pytest.raises(WorkerFailed, match="left parts \\[0, 1\\] unmeasured"):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=lambda *arguments: None)


def test_a_wrong_kernel_leaves_no_part(simulated, tmp_path):
    def wrong(plan_file, process_index, progress, cancel):
        work(plan_file, process_index, bench=simulated.Bench(COSTS, match=0.5), say=lambda line: None)

    with pytest.raises(WrongKernel):
        measure(CASES, **REQUEST, out=tmp_path, run_worker=wrong)
    assert not list(tmp_path.rglob("*.parquet"))


def test_probes_run_through_the_same_parts(simulated, tmp_path, monkeypatch):
    from cost_model.measurement import walk_row
    from wts_lab import probes

    def three_rows(*, process_index, run_id, provenance, progress, repeats, **_):
        progress(1, 1, "exchange")
        return [walk_row(**provenance, run_id=run_id, process_index=process_index, recorded_at_utc="2026-01-31T12:00:00Z", probe="exchange",
                         implementation="wts", samples_us=[0.8] * repeats)]  # fmt: skip

    monkeypatch.setattr(probes, "run_probes", three_rows)
    path = measure_probes(processes=2, repeats=4, out=tmp_path, gpu="h200-sxm", commit="c0ffee", progress=False,
                          run_worker=Workers(simulated.Bench))  # fmt: skip
    frame = read_walk(path)
    assert list(frame["process_index"]) == [0, 1]
    assert path.name.endswith("-probes.parquet")


def test_a_real_worker_process_that_fails_is_quoted(tmp_path, monkeypatch):
    """The true subprocess: without a CUDA device (this test hides any) the worker must end with its reason."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(WorkerFailed, match="(?s)status 1.*(no CUDA device is visible to torch|No module named 'torch')"):
        measure([resident_case(SMALL)], **{**REQUEST, "processes": 1}, out=tmp_path, run_worker=run_subprocess)


def test_a_worker_is_stopped_when_the_run_is_cancelled(tmp_path, monkeypatch):
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('progress 1 10 busy', flush=True)\nwhile True:\n    print('x', flush=True); time.sleep(0.05)\n")
    started = []
    real = bench_run.subprocess.Popen

    def popen(command, **options):
        started.append(real([sys.executable, str(script)], **options))
        return started[0]

    monkeypatch.setattr(bench_run.subprocess, "Popen", popen)
    cancel, seen = Event(), []

    def progress(*arguments):
        seen.append(arguments)
        cancel.set()

    run_subprocess(tmp_path / "plan.json", 0, progress, cancel)
    assert seen == [(1, 10, "busy")]
    assert started[0].poll() is not None
