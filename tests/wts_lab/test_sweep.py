"""Sweeps on real workers, processes of this machine and a Dask cluster's, that measure torch's walk on the CPU (tests/cpu_bench.py)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pyarrow")

from benchmarks import sweep as sweep_benchmarks  # noqa: E402
from benchmarks.cases import Benchmark, find  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import Head  # noqa: E402
from cost_model.measurement import read_walk  # noqa: E402
from tests.cpu_bench import CPU_WORKER, cpu_place  # noqa: E402
from wts_lab import sweep_pools  # noqa: E402
from wts_lab.bench_plan import resident_case, stepwise_case  # noqa: E402
from wts_lab.sweep import Outcome, Place, SweepIncomplete, SweepInterrupted, Worker, plannable, run_sweep  # noqa: E402
from wts_lab.sweep_pools import ClusterPool, LocalPool, local_devices  # noqa: E402

CASES = [stepwise_case(Head.markov(size, 32), batch=batch) for size in (256, 512, 1024) for batch in (1, 2)]
WRONG = stepwise_case(Head("gated", "gated", 256, 256, 256, 32, hidden_size=64))
"""A walk that the bench here has no hidden vectors for."""

GRID = {"steps": (1, 3), "l2_states": ("warm",), "processes": 2, "repeats": 3, "groups_per_job": 1, "case_name": "grid", "progress": False}
POINTS = {(case.head.vocab_size, case.batch, steps, process) for case in CASES for steps in (1, 3) for process in (0, 1)}


@pytest.fixture(scope="module")
def notes_folder(tmp_path_factory):
    """Folder in which workers note what they measured; they are told of it when they start."""
    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("SWEEP_TEST_NOTES", str(folder))
        yield folder


@pytest.fixture
def notes(notes_folder):
    """The same, empty."""
    for file in notes_folder.iterdir():
        file.unlink()
    return notes_folder


@pytest.fixture(scope="module")
def pool(notes_folder):
    """Two workers of this machine, for all tests: starting one takes longer than what it measures."""
    with LocalPool(["0", "1"]) as pool:
        yield pool


@pytest.fixture(scope="module")
def cluster(notes_folder):
    """The scheduler's address of a cluster of two workers."""
    distributed = pytest.importorskip("distributed", reason="needs dask.distributed (the extra cluster)")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


def points(path):
    """What a record's rows are about; a row that is there twice fails."""
    frame = read_walk(path)
    found = list(zip(frame["vocab_size"], frame["batch"], frame["steps"], frame["process_index"], strict=True))
    assert len(found) == len(set(found)), "every row once"
    assert all(len(samples) == 3 and min(samples) > 0 for samples in frame["samples_us"])
    return set(found)


def measured_by(notes):
    """(process, devices that it saw) of each measured process of a job."""
    return [tuple(line.split()) for line in (notes / "measured").read_text().splitlines()]


# --- processes of this machine


def test_a_grid_is_measured_once_over_all_workers_of_the_machine(tmp_path, notes, pool):
    said = []
    (notes / "all-devices").touch()
    path = run_sweep(CASES, pool, CPU_WORKER, out=tmp_path, say=said.append, **GRID)
    assert points(path) == POINTS and path.parent.name == "some-cpu" and path.name.endswith("-grid.parquet") and said == []
    who = measured_by(notes)
    assert len(who) == len(CASES) * 2 and len({process for process, _ in who}) == 2 and {device for _, device in who} == {"0", "1"}
    assert list(tmp_path.glob("some-cpu/.*")) == [], "nothing is left beside the record"
    frame = read_walk(path)
    assert frame["run_id"].nunique() == len(CASES) and {frame[name].nunique(dropna=False) for name in ("command", "git_commit", "wts_lab_version")} == {1}
    with pytest.raises(BadInput, match="exists; records are never changed"):
        run_sweep(CASES, pool, CPU_WORKER, out=tmp_path, **GRID)


def test_a_killed_worker_costs_its_own_job_alone_and_is_replaced(tmp_path, notes, pool):
    (notes / "die-once").touch()
    (notes / "all-devices").touch()
    path = run_sweep(CASES, pool, CPU_WORKER, out=tmp_path, **GRID)
    (died,) = notes.glob("died-*")
    assert points(path) == POINTS and len(measured_by(notes)) == len(CASES) * 2
    assert died.name.removeprefix("died-") not in {process for process, _ in measured_by(notes)}, "it died before it had measured anything here"
    assert {device for _, device in measured_by(notes)} == {"0", "1"}, "its successor sees its device"


def test_a_job_that_kills_every_worker_is_given_up_and_the_sweep_goes_on_later(tmp_path, notes, pool):
    (notes / "always-die").touch()
    with pytest.raises(SweepIncomplete, match="0 of 1 jobs finished") as refusal:
        run_sweep(CASES[1:2], pool, CPU_WORKER, out=tmp_path, say=lambda line: None, **GRID)
    assert "job 0 (stepwise torch, V 256, rank 32, batch 2): 2 processes on device" in str(refusal.value)
    (notes / "always-die").unlink()
    assert points(run_sweep(CASES[1:2], pool, CPU_WORKER, out=tmp_path, **GRID)) == {point for point in POINTS if point[:2] == (256, 2)}


def test_an_interrupted_sweep_keeps_its_finished_jobs_and_measures_only_the_others(tmp_path, notes, pool):
    class Stopped:
        """The pool, but its user presses Ctrl-C after two jobs."""

        shares_files, places = True, pool.places

        def outcomes(self, tasks):
            for number, outcome in enumerate(pool.outcomes(tasks)):
                if number == 2:
                    raise KeyboardInterrupt
                yield outcome

    with pytest.raises(SweepInterrupted, match="stopped with 2 of 6 jobs finished, kept in"):
        run_sweep(CASES, Stopped(), CPU_WORKER, out=tmp_path, **GRID)
    assert points(run_sweep(CASES, pool, CPU_WORKER, out=tmp_path, **GRID)) == POINTS
    assert len(measured_by(notes)) <= 2 * len(CASES) + 4, "the two jobs that were under way may have been measured again, the finished ones not"


def test_a_job_that_fails_is_named_and_can_be_left_out(tmp_path, notes, pool):
    said = []
    with pytest.raises(SweepIncomplete, match=r"1 of 2 jobs finished.*\njob 1 \(stepwise torch, V 256, rank 32, gated gated"):
        run_sweep([CASES[0], WRONG], pool, CPU_WORKER, out=tmp_path, say=said.append, **GRID)
    assert len(said) == 1 and said[0].startswith("job 1: BadInput: ")
    path = run_sweep([CASES[0], WRONG], pool, CPU_WORKER, out=tmp_path, without_failed=True, say=said.append, **GRID)
    assert points(path) == {point for point in POINTS if point[:2] == (256, 1)}
    with pytest.raises(SweepIncomplete, match="0 of 1 jobs finished"):
        run_sweep([WRONG], pool, CPU_WORKER, out=tmp_path / "none", without_failed=True, say=said.append, **GRID)


def test_jobs_take_several_groups_and_a_lost_one_keeps_its_finished_parts(tmp_path, notes, pool):
    (notes / "die-second").touch()
    path = run_sweep(CASES[:4], pool, CPU_WORKER, out=tmp_path, **GRID | {"groups_per_job": 4})
    assert points(path) == {point for point in POINTS if point[0] < 1024} and read_walk(path)["run_id"].nunique() == 1
    assert len(list(notes.glob("died-*"))) == 1 and len(measured_by(notes)) == 2, "each of both processes of the job once"


def test_a_record_grid_is_such_a_sweep(tmp_path, notes, pool):
    given = sweep_benchmarks.parser().parse_args(["grid-greedy", "--out", str(tmp_path), "--processes", "1", "--repeats", "3", "--groups-per-job", "2"])
    grid = Benchmark("tiny-grid", "as grid-greedy, of walks that a CPU can do", "walks", tuple(CASES), (1, 3), ("warm",))
    path = sweep_benchmarks.record(grid, given, pool, CPU_WORKER)
    assert path.name.endswith("-tiny-grid.parquet") and points(path) == {point for point in POINTS if point[3] == 0}
    assert {find(name).kind for name in ("grid-greedy", "grid-sampled", "heads")} == {"walks"}


def test_a_benchmark_without_walks_is_no_sweep(capsys):
    assert sweep_benchmarks.main(["probes"]) == 2
    assert capsys.readouterr().err == "error: probes has no walks to spread over GPUs; record it with `python -m benchmarks.run probes`\n"


# --- a cluster


def test_a_grid_is_measured_once_over_a_cluster(tmp_path, notes, cluster):
    with ClusterPool(cluster) as workers:
        path = run_sweep(CASES, workers, CPU_WORKER, out=tmp_path, **GRID)
    assert points(path) == POINTS and len({process for process, _ in measured_by(notes)}) == 2
    assert list(tmp_path.glob("some-cpu/.*")) == []


def test_a_cluster_gives_the_job_of_a_killed_worker_to_another(tmp_path, notes, cluster):
    (notes / "die-once").touch()
    with ClusterPool(cluster) as workers:
        path = run_sweep(CASES, workers, CPU_WORKER, out=tmp_path, **GRID)
    assert points(path) == POINTS and len(list(notes.glob("died-*"))) == 1


def test_a_job_that_fails_on_a_cluster_is_named(tmp_path, notes, cluster):
    with ClusterPool(cluster) as workers, pytest.raises(SweepIncomplete, match="1 of 2 jobs finished(.|\n)*job 1 .*BadInput"):
        run_sweep([CASES[0], WRONG], workers, CPU_WORKER, out=tmp_path, say=lambda line: None, **GRID)


def test_a_cluster_that_cannot_measure_is_refused(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs dask.distributed (the extra cluster)")
    with pytest.raises(BadInput, match="no Dask scheduler answers at nonsense"):
        ClusterPool("nonsense://here")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster:
        with pytest.raises(BadInput, match="runs 2 tasks at once; start one a GPU"):
            ClusterPool(cluster.scheduler_address)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster, pytest.raises(BadInput, match="has no worker; start one a GPU"):
        ClusterPool(cluster.scheduler_address)


def test_without_dask_a_cluster_is_refused_with_the_mend(monkeypatch):
    monkeypatch.setattr(sweep_pools.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'weights-that-stay\[cluster\]'"):
        ClusterPool("tcp://127.0.0.1:8786")


# --- who may take part


class Somewhere:
    """Workers at given places, which nobody asks to measure."""

    shares_files = True

    def __init__(self, *places):
        self._places = list(places)

    def places(self, identify):
        return self._places

    def outcomes(self, tasks):
        raise AssertionError("a sweep began that must not")


HERE = Place("one", "GPU-1", "h200-sxm", "c0ffee")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ((), "there is no worker"),
        ((HERE, replace(HERE, device="GPU-2", gpu_id="h100-sxm")), "one kind of GPU .* one GPU-2: h100-sxm"),
        ((HERE, replace(HERE, host="two", kernel_hash="decade")), "one state of the kernels.*two GPU-1: h200-sxm, kernels decade"),
        ((HERE, replace(HERE, host="two"), HERE), "would share a GPU and disturb each other's times: one GPU-1, one GPU-1, two GPU-1"),
    ],
)
def test_workers_that_do_not_belong_together_are_refused(places, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        run_sweep(CASES, Somewhere(*places), CPU_WORKER, out=tmp_path, **GRID)


def other_place():
    """Another kind of device at a process's second look: as a worker that joins late."""
    seen = os.environ.setdefault("SWEEP_TEST_LOOKS", "")
    os.environ["SWEEP_TEST_LOOKS"] += "."
    return replace(cpu_place(), gpu_id="other") if seen else cpu_place()


def test_a_worker_that_turns_out_to_be_another_machine_does_not_measure(tmp_path, notes, pool):
    with pytest.raises(SweepIncomplete, match="has other with kernels c0ffee; the sweep is of some-cpu with c0ffee"):
        run_sweep(CASES[:1], pool, Worker(other_place, CPU_WORKER.run_worker), out=tmp_path, say=lambda line: None, **GRID)
    assert not (notes / "measured").exists()


def test_a_record_that_was_cut_short_on_its_way_is_refused_and_its_job_still_missing(tmp_path):
    class Cut(Somewhere):
        def outcomes(self, tasks):
            yield Outcome(0, b"PAR1 and nothing more")

    with pytest.raises(BadInput, match="job-0"):
        run_sweep(CASES[:1], Cut(HERE), CPU_WORKER, out=tmp_path, **GRID)
    (folder,) = (tmp_path / "h200-sxm").glob(".grid-*.sweep")
    assert not (folder / ".job-0.parquet").exists()


def test_cases_without_a_placement_are_left_out_and_said():
    said = []
    huge = resident_case(Head.markov(1_048_576, 512), batch=32)
    assert plannable([CASES[0], resident_case(Head.markov(151_936, 256)), huge], "h200-sxm", said.append)[0] == CASES[0]
    assert plannable([huge], "no-such-gpu", said.append) == [huge]


def test_devices_are_those_that_the_process_sees(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local_devices() == ["0", "1", "2"] and local_devices(["2", "0"]) == ["2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa, GPU-bb,GPU-cc")
    assert local_devices() == ["GPU-aa", "GPU-bb", "GPU-cc"] and local_devices(["1"]) == ["GPU-bb"]
    with pytest.raises(BadInput, match="GPUs 3 were asked for; torch sees 0, 1, 2"):
        local_devices(["3"])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(BadInput, match="GPUs of this machine were asked for; torch sees none"):
        local_devices()
    with pytest.raises(BadInput, match="devices are 0, 0; give each GPU once"):
        LocalPool(["0", "0"])
