"""Declared benchmarks cover what they promise, and a comparison says slower, faster, same or that it cannot tell."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")

from benchmarks import engine_kernels, phases, run, stress  # noqa: E402
from benchmarks import round as rounds  # noqa: E402
from benchmarks.cases import DISSECTED, SPREAD_VOCAB_SIZE, declared, find, select  # noqa: E402
from benchmarks.compare import compare, describe, judge, lines, main  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.measurement import frame_rows, read_walk, walk_row, write_walk  # noqa: E402
from cost_model.placement import Placement, PlanError  # noqa: E402
from cost_model.walk_class import WALK_CLASSES, walk_class  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from wts_lab import bench_gpu, environment, nvml, study  # noqa: E402
from wts_lab.bench_plan import group_cases, resident_case  # noqa: E402
from wts_lab.bench_run import WorkerFailed  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
times = st.floats(0.5, 1000.0)


# --- declared ------------------------------------------------------------------------------------------------------------


def test_the_grid_is_complete():
    grid = find("walks")
    modes = {(case.head.vocab_size, case.implementation, case.mode, case.precision) for case in grid.cases}
    ways = [("wts", "resident", "int8x2"), ("wts", "streaming", "int8x2"), ("wts", "streaming", "bf16"), ("torch-stepwise", "stepwise", "bf16")]
    assert modes == {(size, *way) for size in (129_280, 151_936, 154_880, 248_320) for way in ways}
    assert {case.head.rank for case in grid.cases} == {256}
    assert (grid.steps, grid.l2_states, grid.processes) == ((1, 2, 4, 7, 11, 15, 16), ("warm", "cold", "serving"), 3)


@pytest.mark.parametrize(("name", "temperature"), [("grid-greedy", 0), ("grid-sampled", 1)])
def test_the_grids_have_every_vocabulary_rank_and_batch(name, temperature):
    grid = find(name)
    sizes = (129_280, 151_936, 154_880, 163_840, 248_320, 262_144)
    wanted = {(size, rank, batch) for size in sizes for rank in (256, 512) for batch in (1, 2, 4, 8, 16, 32)}
    assert {(case.head.vocab_size, case.head.rank, case.batch) for case in grid.cases} == wanted and len(grid.cases) == len(wanted)
    assert {(case.mode, case.precision, case.rounding, case.temperature, case.logits_kept) for case in grid.cases} == {
        ("resident", "int8x2", "once", temperature, bool(temperature))
    }
    assert (grid.steps, grid.l2_states, grid.processes, grid.repeats) == ((1, 2, 4, 7, 11, 15, 16), ("warm", "serving"), 3, 60)


def test_all_heads_are_measured_at_both_shapes():
    cases = find("heads").cases
    shapes = {(case.head.kind, case.head.hidden_size, case.head.gru_size, case.head.candidate_pool) for case in cases}
    assert shapes == {("markov", None, None, None)} | {
        (kind, hidden, gru, pool)
        for hidden in (2560, 4096)
        for kind, gru, pool in (("gated", None, None), ("rnn", None, None), ("domino", 1024, None), ("domino", 1024, 2048))
    }  # fmt: skip
    for head in {case.head for case in cases}:
        greedy = {(case.mode, case.precision) for case in cases if case.head == head and case.batch == 1 and not case.temperature}
        assert {("resident", "int8x2"), ("streaming", "int8x2"), ("stepwise", "bf16")} <= greedy
    assert {case.head.kind for case in cases if case.temperature} == {"markov", "gated", "rnn"}


def test_batches_are_measured_in_every_way():
    ways = {(case.batch, case.temperature, case.mode, case.precision) for case in find("batches").cases}
    greedy = {("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16"), ("stepwise", "bf16")}
    sampled = {("resident", "int8x2"), ("streaming", "int8x2")}
    batches = (1, 2, 4, 8, 16, 32)
    assert ways == {(batch, temperature, *way) for batch in batches for temperature, some in ((0, greedy), (1, sampled)) for way in some}


def test_the_headline_has_the_shapes_of_the_speed_table():
    shapes = [(case.head.kind, case.head.vocab_size, case.mode, case.batch, case.temperature, case.logits_kept) for case in find("headline").cases]
    size = 151_936
    assert shapes == [
        ("markov", size, "resident", 1, 0, False), ("markov", size, "streaming", 1, 0, False), ("markov", size, "resident", 4, 0, False),
        ("markov", size, "resident", 8, 0, False), ("markov", size, "resident", 16, 0, False), ("markov", size, "resident", 32, 0, False),
        ("markov", size, "resident", 1, 1, True), ("markov", 248_320, "resident", 1, 0, False), ("rnn", size, "resident", 1, 0, False),
        ("domino", size, "resident", 1, 0, False),
    ]  # fmt: skip


def test_the_engine_is_measured_interleaved_with_the_walks_it_is_compared_with():
    for group in group_cases(find("engine").cases):
        ways = {(case.implementation, case.variant) for case in group}
        assert ("wts", "resident") in ways and ("sglang-0.5.23", "MarkovSampleStep") in ways
        assert (("sglang-0.5.23", "MarkovGreedyStep") in ways) == (group[0].batch == 1 and group[0].temperature == 0)
        assert len({case.logits_kept for case in group}) == 1
    assert {case.head.vocab_size for case in find("engine").cases} == {151_936, 248_320}


def test_parts_are_measured_beside_the_whole_walk():
    for group in group_cases(find("parts").cases):
        parts = {case.probe for case in group}
        others = set() if group[0].temperature else {"exchange"} | ({"state"} if group[0].head.kind != "markov" else set())
        assert parts == {"none", "fixed_latent"} | others
        assert all(case.variant == case.probe for case in group if case.probe != "none")
    assert {case.head.kind for case in find("parts").cases} == {"markov", "gated", "rnn", "domino"}


def test_every_class_of_walks_is_recorded_at_a_second_vocabulary():
    cases = find("spread").cases
    known = {walk_class(case.head, Workload(case.batch, temperature=case.temperature), case.mode == "streaming") for case in cases if case.head.vocab_size == SPREAD_VOCAB_SIZE}
    assert known == set(WALK_CLASSES) and SPREAD_VOCAB_SIZE not in {case.head.vocab_size for case in (*find("heads").cases, *find("batches").cases)}
    between = [case for case in cases if case.head.vocab_size != SPREAD_VOCAB_SIZE]
    assert {case.batch for case in between} == {4} and {case.head.kind for case in between} == {"gated", "rnn", "domino"}


def test_arithmetic_has_every_rounding_in_both_precisions():
    resident = {(case.precision, case.rounding) for case in find("arithmetic").cases if case.mode == "resident"}
    assert resident == {(precision, rounding) for precision in ("int8x2", "bf16") for rounding in ("once", "twice", "none")}


def test_every_benchmark_says_what_it_is_for():
    for name, benchmark in declared().items():
        assert name == benchmark.name and len(benchmark.about) > 20
        assert bool(benchmark.cases) == (benchmark.kind == "walks") == bool(benchmark.size)


def test_swept_placements_hold_the_whole_matrix_and_differ_in_their_split():
    cases = find("placements").cases
    assert len({case.placement for case in cases}) == len({case.variant for case in cases}) == len(cases)
    for case in cases:
        assert 72 <= case.placement.tiles <= 80, "9,496 tiles over 132 multiprocessors"
        assert (case.mode == "streaming") == (case.placement.residency == 0)
    by_registers = {case.placement.register_tiles for case in cases if case.placement.warps == 8 and case.placement.residency == 1}
    assert by_registers == {24, 32, 40, 48}
    assert {case.placement.staging_tiles // 8 for case in cases if case.mode == "streaming" and case.placement.warps == 8} == {1, 2, 4, 6}
    for group in group_cases(find("exchanges").cases):
        assert [case.exchange for case in group] == ["spread-lines", "dense-lines"]


def test_a_grid_is_recorded_in_parts_that_together_are_the_grid():
    grid = find("grid-greedy")
    part = select(grid, ["v151936,v248320", "b1"])
    assert part.name == "grid-greedy-v151936-v248320-b1"
    assert {(case.head.vocab_size, case.head.rank, case.batch) for case in part.cases} == {(v, r, 1) for v in (151_936, 248_320) for r in (256, 512)}
    assert (part.steps, part.l2_states, part.repeats) == (grid.steps, grid.l2_states, grid.repeats)
    parts = [select(grid, [f"r{rank}", "b[124]" if small else "b8,b16,b32"]) for rank in (256, 512) for small in (True, False)]
    assert sorted(case.label for part in parts for case in part.cases) == sorted(case.label for case in grid.cases)
    assert parts[0].name == "grid-greedy-r256-b-124" and select(grid, []) is grid
    assert {case.implementation for case in select(find("engine"), ["sglang*"]).cases} == {"sglang-0.5.23"}


GRID_WORDS = ("v129280", "v151936", "v154880", "v163840", "v248320", "v262144")


@given(st.sets(st.sampled_from(GRID_WORDS), min_size=1, max_size=5), st.sampled_from(["r256", "r512", "r*"]))
def test_any_part_and_its_rest_are_the_grid(chosen, rank):
    grid = find("grid-sampled")
    parts = [select(grid, [",".join(sorted(words)), rank]) for words in (chosen, set(GRID_WORDS) - chosen)]
    whole = {case for case in grid.cases if rank == "r*" or case.head.rank == int(rank[1:])}
    assert {case for part in parts for case in part.cases} == whole
    assert sum(len(part.cases) for part in parts) == len(whole) and parts[0].name != parts[1].name


@pytest.mark.parametrize(("name", "only"), [("grid-greedy", "b3"), ("probes", "b1")])
def test_a_part_without_cases_is_refused_with_the_words_there_are(capsys, name, only):
    assert run.main([name, "--only", only]) == 2
    said = capsys.readouterr().err
    assert f"no case of {name} has {only}" in said and ("b16" in said) == (name == "grid-greedy")


def test_cases_that_no_placement_holds_are_left_out_and_named(monkeypatch, capsys):
    pytest.importorskip("torch", reason="a device is described by torch")
    from wts_lab import walk as walk_module

    cases = find("grid-greedy").cases[:2]
    monkeypatch.setattr(walk_module, "device_gpu", lambda device: "gpu")

    def spec(case, gpu):
        if case.batch == 2:
            raise PlanError("no placement fits")

    monkeypatch.setattr(bench_gpu, "walk_spec", spec)
    assert run.plannable((*cases, *find("smoke").cases[3:])) == [cases[0], find("smoke").cases[3]]
    assert capsys.readouterr().err == "left out resident int8x2, V 129,280, rank 256, batch 2: no placement fits\n"


def test_an_unknown_benchmark_lists_the_known_ones(capsys):
    assert run.main(["speed"]) == 2
    assert f"declared are {', '.join(declared())}" in capsys.readouterr().err


def test_without_a_name_the_benchmarks_are_listed(capsys):
    assert run.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(declared())


def test_options_reach_the_measurement(monkeypatch, tmp_path, capsys):
    seen = {}

    def measure(cases, **options):
        seen.update(options, cases=len(cases))
        return tmp_path / "record.parquet"

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "require_device", lambda: None)
    monkeypatch.setattr(run, "plannable", list)
    words = ["--repeats", "7", "--commit", "abc", "--no-dirty", "--quiet", "--record", "again", "--sglang-root", "unpacked"]
    assert run.main(["walks", "--out", str(tmp_path), *words]) == 0
    assert seen["engine_root"] == Path("unpacked") and seen["cases"] == 16 and seen["steps"] == (1, 2, 4, 7, 11, 15, 16) and seen["processes"] == 3
    assert (seen["repeats"], seen["commit"], seen["git_dirty"], seen["progress"], seen["case_name"]) == (7, "abc", False, False, "again")
    assert "record.parquet" in capsys.readouterr().out


def test_a_failed_measurement_is_status_1_with_its_reason(monkeypatch, capsys):
    monkeypatch.setattr(run, "require_device", lambda: None)
    monkeypatch.setattr(run, "plannable", list)
    monkeypatch.setattr(run, "measure", lambda *_, **__: (_ for _ in ()).throw(WorkerFailed("process 0 has ended")))
    assert run.main(["smoke"]) == 1
    assert "process 0 has ended" in capsys.readouterr().err


@pytest.mark.parametrize(("program", "words"), [(run.main, ["walks"]), (run.main, ["probes"]), (run.main, ["phases", "--missing"]), (phases.main, [])])
def test_without_a_gpu_every_benchmark_is_refused_with_the_way_to_the_doctor(monkeypatch, capsys, program, words):
    monkeypatch.setattr(study, "capable_device", lambda: None)
    assert program(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "wts-lab doctor" in said


def test_records_go_to_runs_unless_told_otherwise_never_among_those_that_ship():
    assert run.parser().parse_args(["walks"]).out == Path("runs")


def test_phases_are_recorded_with_the_clock_and_the_commit_given(monkeypatch, tmp_path, capsys):
    class Clocked:
        """A device whose driver tells one clock."""

        open = classmethod(lambda cls: cls())
        clocks = lambda self: SimpleNamespace(sm_clock_mhz=1980.0)  # noqa: E731

    case = resident_case(*DISSECTED[-1][:1])
    walk = SimpleNamespace(
        grid_blocks=132, placement=Placement(8, 40, 32, 0, 0), exchange="spread-lines",
        build=SimpleNamespace(registers_per_thread=255, spill_bytes=0),
    )  # fmt: skip
    asked = []

    def measured(repeats, read_clock_mhz):
        asked.append((repeats, clock_mhz := read_clock_mhz()))
        clocks = {"products": [0, 0, 0], "exchange": [16 * 1782, 16 * 1821, 16 * 1801]}
        return phases.phase_rows(case, bench_gpu.walk_facts(walk), clocks, clock_mhz)

    monkeypatch.setattr(nvml, "NvmlDevice", Clocked)
    monkeypatch.setattr(phases, "measure_phases", measured)
    monkeypatch.setattr(study, "capable_device", lambda: "a GPU")
    monkeypatch.setattr(environment, "device_id", lambda: "h200-sxm")
    assert run.main(["phases", "--out", str(tmp_path), "--repeats", "7", "--commit", "abc", "--dirty"]) == 0
    assert phases.main(["--out", str(tmp_path / "again")]) == 0
    assert asked == [(7, 1980.0), (100, 1980.0)]
    (path,) = (tmp_path / "h200-sxm").glob("*-phases.parquet")
    (row,) = frame_rows(read_walk(path))
    assert (row["variant"], row["git_commit"], row["git_dirty"], row["sm_clock_mhz_after"]) == ("exchange", "abc", True, 1980.0)
    assert (row["probe"], row["head_kind"], row["gru_size"], row["register_tiles"], row["steps"]) == ("walk_phase", "domino", 1024, 40, 16)
    assert row["samples_us"] == pytest.approx([0.9, 0.91969697, 0.90959596])
    assert "median   0.910 us" in capsys.readouterr().out


def test_several_are_recorded_in_order_and_those_there_are_passed_over(monkeypatch, tmp_path, capsys):
    made = []
    monkeypatch.setattr(environment, "require_device", lambda: None)
    monkeypatch.setattr(environment, "device_id", lambda: "h200-sxm")
    monkeypatch.setattr(run, "record", lambda benchmark, given: made.append(benchmark.name) or tmp_path / benchmark.name)
    (tmp_path / "h200-sxm").mkdir()
    (tmp_path / "h200-sxm" / "2026-01-31-probes.parquet").touch()
    (tmp_path / "h200-sxm" / "2026-01-31-walks-2.parquet").touch()
    assert run.main(["probes", "walks", "phases", "--missing", "--out", str(tmp_path)]) == 0
    assert made == ["walks", "phases"]
    assert "recorded already: " in capsys.readouterr().out
    assert run.main(["probes", "--out", str(tmp_path)]) == 0 and made[-1] == "probes"
    assert run.main(["probes", "--missing", "--gpu", "b200", "--out", str(tmp_path)]) == 0 and made[-2:] == ["probes"] * 2, "another GPU's record is none of this one's"


@pytest.mark.parametrize(("program", "name"), [(stress, "stress"), (engine_kernels, "engine-kernels"), (rounds, "round")])
def test_programs_of_one_record_pass_over_it_where_it_is_there(program, name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environment, "require_device", lambda: None)
    monkeypatch.setattr(environment, "device_id", lambda: "h200-sxm")
    (tmp_path / "h200-sxm").mkdir()
    (tmp_path / "h200-sxm" / f"2026-01-31-{name}.parquet").touch()
    assert program.main(["--missing", "--out", str(tmp_path)]) == 0
    assert f"recorded already: {tmp_path}" in capsys.readouterr().out


def test_one_name_for_several_records_is_refused(capsys):
    assert run.main(["probes", "walks", "--record", "mine"]) == 2
    assert "one by one" in capsys.readouterr().err


def test_make_records_repeats_every_kind_of_record_that_ships():
    """All but the panel's, which is made by pressing its button."""
    recipe = (ROOT / "Makefile").read_text().split("\nrecords:")[1].split("\n\n")[0]
    commands = re.findall(r"-m benchmarks\.(.*)", recipe)
    assert commands and all("--missing" in command for command in commands), "what is recorded already is passed over, so an interrupted make goes on"
    runs = [re.match(r"run (.*?) --(?:only (\S+))?", command) for command in commands]
    named = {select(find(name), [found[2]] if found[2] else []).name for found in runs if found for name in found[1].split()}
    named |= {(re.search(r"--record (\S+)", command) or [None, command.split()[0].replace("_", "-")])[1] for command, found in zip(commands, runs) if not found}
    shipped = {path.stem[len("2026-11-30-"):] for path in (ROOT / "data" / "measurements").rglob("*.parquet")}
    assert shipped - {"panel"} <= named


# --- judging -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([50.0, 50.2, 50.1], [52.0, 52.1, 52.2], "slower"),
        ([52.0, 52.1, 52.2], [50.0, 50.2, 50.1], "faster"),
        ([50.0, 50.2, 50.1], [50.1, 50.3, 50.0], "same"),
        ([50.0, 50.1, 50.2], [50.5, 50.6, 50.4], "same"),  # consistent, but below what matters
        ([50.0, 54.0, 52.0], [53.0, 53.5, 55.0], "ambiguous"),  # 2.9 % in the middle, within the spread
        ([50.0, 55.0, 45.0], [50.0, 55.0, 45.0], "ambiguous"),  # equal, but too scattered to call the same
        ([50.0], [60.0], "ambiguous"),  # one process knows no repeatability
        ([], [50.0, 50.0], "inconclusive"),
    ],
)
def test_verdicts(before, after, verdict):
    assert judge(before, after)[0] == verdict


@given(st.lists(times, min_size=2, max_size=5), st.lists(times, min_size=2, max_size=5))
def test_exchanging_the_sides_exchanges_faster_and_slower_and_keeps_the_interval_around_the_ratio(before, after):
    verdict, (ratio, low, high) = judge(before, after)
    swapped, (other, _, _) = judge(after, before)
    assert low <= ratio <= high and ratio * other == pytest.approx(1)
    if verdict == "faster":
        assert swapped in ("slower",)
    assert (verdict == "slower") <= (low > 1) and (verdict == "faster") <= (high < 1)


@given(st.lists(times, min_size=2, max_size=5), st.floats(1.03, 3.0))
def test_a_clear_slowdown_of_steady_processes_is_seen(before, factor):
    steady = [before[0] * (1 + 1e-4 * number) for number in range(3)]
    assert judge(steady, [time * factor for time in steady])[0] == "slower"


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.1])
def test_a_threshold_that_means_nothing_is_refused(threshold):
    with pytest.raises(BadInput, match="above 0 and below 1"):
        judge([1.0, 1.0], [1.0, 1.0], threshold)


# --- records -------------------------------------------------------------------------------------------------------------


def record(path, times_us, *, gpu="NVIDIA H200", steps=(1, 16), commit="a", **facts):
    """One row a walk length and process; a time is that of one step."""
    rows = [
        walk_row(**{
            "run_id": "r", "process_index": process, "recorded_at_utc": "2026-01-31T12:00:00Z", "gpu_name": gpu, "gpu_sm_count": 132,
            "git_commit": commit, "implementation": "wts", "variant": "resident", "mode": "resident", "precision": "int8x2",
            "vocab_size": 151_936, "rank": 256, "batch": 1, "steps": length, "l2_state": "warm", "probe": "none",
            "samples_us": [] if time is None else [time * length, time * length * 1.5, time * length], "samples_dropped": 0, **facts,
        })
        for process, time in enumerate(times_us)
        for length in steps
    ]  # fmt: skip
    return write_walk(path, rows)


def test_two_records_are_compared_point_by_point(tmp_path):
    before = read_walk(record(tmp_path / "a.parquet", [2.5, 2.51, 2.52], steps=(1, 7, 16)))
    after = read_walk(record(tmp_path / "b.parquet", [2.0, 2.01, 2.02], steps=(1, 16), commit="b"))
    result = compare(before, after)
    assert [(point.point["steps"], point.verdict) for point in result.points] == [(1, "faster"), (16, "faster")]
    assert result.points[1].before_us == pytest.approx(16 * 2.51) and result.points[1].ratio == pytest.approx(2.01 / 2.51)
    assert (result.only_before, result.only_after) == (1, 0)
    assert result.differing == ("git_commit: a before, b after",)


def test_another_placement_is_still_the_same_point(tmp_path):
    before = read_walk(record(tmp_path / "a.parquet", [2.5, 2.5], register_tiles=40))
    after = read_walk(record(tmp_path / "b.parquet", [2.2, 2.2], register_tiles=48))
    assert {point.verdict for point in compare(before, after).points} == {"faster"}


def test_samples_all_dropped_on_one_side_are_inconclusive(tmp_path):
    before, after = (read_walk(record(tmp_path / name, values)) for name, values in (("a.parquet", [2.5, 2.5]), ("b.parquet", [None, None])))
    assert {(point.verdict, point.after_us) for point in compare(before, after).points} == {("inconclusive", None)}


def test_records_of_other_gpus_are_refused_with_both_names(tmp_path, capsys):
    paths = [str(record(tmp_path / f"{gpu}.parquet", [2.5, 2.5], gpu=gpu)) for gpu in ("H200", "A100")]
    assert main(paths) == 2
    assert "H200 before, A100 after" in capsys.readouterr().err


def test_records_without_a_common_point_are_refused(tmp_path):
    frames = [read_walk(record(tmp_path / f"{rank}.parquet", [2.5, 2.5], rank=rank)) for rank in (128, 256)]
    with pytest.raises(BadInput, match="no point in common"):
        compare(*frames)


@pytest.mark.parametrize(("after", "status"), [([2.5, 2.5, 2.5], 0), ([2.9, 2.9, 2.9], 1), ([2.4, 2.7, 2.5], 0)])
def test_the_exit_status_tells_a_slowdown(tmp_path, capsys, after, status):
    paths = [str(record(tmp_path / name, values)) for name, values in (("a.parquet", [2.5, 2.5, 2.5]), ("b.parquet", after))]
    assert main(paths) == status
    assert "2 points:" in capsys.readouterr().out


def test_a_file_that_is_no_record_is_status_2(tmp_path, capsys):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    assert main([str(tmp_path / "x.parquet")] * 2) == 2
    assert "not a whole Parquet file" in capsys.readouterr().err


def test_points_read_as_text(tmp_path):
    result = compare(*[read_walk(record(tmp_path / name, values)) for name, values in (("a.parquet", [2.5, 2.5]), ("b.parquet", [2.9, 2.9]))])
    assert describe(result.points[0].point) == "wts resident int8x2 V 151,936 rank 256 warm 1 steps"
    facts = {"head_kind": "rnn", "hidden_size": 2560, "batch": 8, "temperature": 1.0, "probe": "state"}
    assert describe(result.points[0].point | facts) == (
        "wts resident int8x2 V 151,936 rank 256 rnn hidden 2560 batch 8 temperature 1.0 state alone warm 1 steps"
    )
    assert lines(result)[-1].startswith("2 points: 0 faster, 0 same, 2 slower")
