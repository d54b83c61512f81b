"""Which records a change of the kernel's sources touches: what rows ask for, whose packages plan it, and when machine code is the same."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="records need pyarrow")
pytest.importorskip("pandas", reason="records need pandas")

import pandas  # noqa: E402

from benchmarks import kernel_code, touched  # noqa: E402
from benchmarks.cases import find  # noqa: E402
from benchmarks.kernel_code import Kernel, machine_code  # noqa: E402
from benchmarks.phases import PHASE_PROBE  # noqa: E402
from benchmarks.sanitize import ARRIVE, SYNC  # noqa: E402
from benchmarks.touched import RecordedWalks, Touched, compare_sources, judge, recorded_walks, request_of  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.measurement import read_walk, walk_row  # noqa: E402
from wts_lab import abi, build  # noqa: E402
from wts_lab.bench import case_facts  # noqa: E402
from wts_lab.bench_gpu import walk_facts, walk_options  # noqa: E402
from wts_lab.build import BuildCancelled, BuildError, Nvcc  # noqa: E402
from wts_lab.recordings import measurements_root  # noqa: E402
from wts_lab.tuned import walk_sources_hash  # noqa: E402
from wts_lab.walk_plan import plan_walk  # noqa: E402

H200 = load_gpu("h200-sxm")
COMMIT = "c0ffee" + "0" * 34
NVCC = Nvcc(Path("nvcc"), "13.0")


def row_of(case, **told):
    """The row of a record that a case's walk on an H200 would make."""
    plan = plan_walk(H200, case.head, **walk_options(case))
    facts = {"run_id": "synthetic", "process_index": 0, "recorded_at_utc": "2026-01-31T12:00:00+00:00", "samples_us": [1.0], "steps": 1, "l2_state": "warm"}
    made = {"gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "git_commit": COMMIT, "git_dirty": False}
    return walk_row(**facts | made | case_facts(case) | walk_facts(plan) | told)


# --- what records ran -----------------------------------------------------------------------------------------------------------


def test_what_a_row_asks_for_is_planned_as_its_case_was(tmp_path):
    fused = [case for name in ("headline", "parts", "batches", "arithmetic", "placements", "heads") for case in find(name).cases if case.fused]
    wanted = {}
    for case in fused:
        plan = plan_walk(H200, case.head, **walk_options(case))
        wanted[request_of(row_of(case))] = (plan.spec.name(), plan.spec.translation_unit(), "sm_90a" if plan.spec.products == "warpgroup" else "sm_90")
    kernels = kernel_code.make_kernels(touched.take_present(touched.ROOT, tmp_path), list(wanted))
    assert {request: (kernel.name, kernel.unit, kernel.arch) for request, kernel in kernels.items()} == wanted and len(wanted) > 100
    assert (tmp_path / "wts_abi.h").read_text() == abi.render_header() and len({kernel.sources for kernel in kernels.values()}) == 1


def test_a_phase_is_of_the_kernel_with_clocks():
    case = find("headline").cases[0]
    assert json.loads(request_of(row_of(case)))["options"] == {
        "mode": "resident", "precision": "int8x2", "max_batch": 1, "rounding": "once", "sampling": False, "probe": "none",
    }  # fmt: skip
    assert json.loads(request_of(row_of(case, probe=PHASE_PROBE)))["options"]["probe"] == "phases"


@pytest.mark.parametrize(
    ("told", "said"),
    [({"warps": None, "batch": None}, "does not know its batch, warps"), ({"probe": "warmth"}, "the probe 'warmth' is none of"),
     ({"gpu_name": "Abacus"}, "'Abacus' with 132 multiprocessors is not in the catalogue"), ({"shared_tiles": 33}, "shared_tiles is 33")],
)  # fmt: skip
def test_a_row_that_does_not_say_what_ran_is_refused_with_the_reason(told, said):
    with pytest.raises(BadInput, match=said):
        request_of(row_of(find("headline").cases[0], **told))


def test_rows_become_requests_once_by_record_and_commit():
    one, other = find("headline").cases[:2]
    rows = [row_of(one, steps=steps) for steps in (1, 7)] + [row_of(other), row_of(other, git_commit="b" * 40), row_of(one, mode=None)]
    rows += [row_of(one, implementation="torch-stepwise"), row_of(one, git_commit="d" * 40, git_dirty=True), row_of(one, probe="warmth")]
    found = recorded_walks(pandas.DataFrame(rows).assign(record="h200-sxm/a"))
    asked = request_of(row_of(one)), request_of(row_of(other))
    assert [(walks.commit, walks.requests) for walks in found] == [(COMMIT, asked), ("b" * 40, asked[1:]), ("d" * 40, ())]
    assert [len(walks.unclear) for walks in found] == [1, 0, 1] and "the tree differed from it" in found[2].unclear[0]
    nameless = recorded_walks(pandas.DataFrame([row_of(one, git_commit=None, git_dirty=None)]).assign(record="a"))
    assert [(walks.commit, walks.requests, len(walks.unclear)) for walks in nameless] == [(None, (), 1)]


def test_every_shipped_walk_says_what_ran():
    frame, rounds = touched.read_records([])
    walks = recorded_walks(frame)
    assert len(walks) > 10 and sum(len(one.requests) for one in walks) > 300 and [one.unclear for one in walks] == [()] * len(walks)
    assert "h200-sxm/2026-11-30-round" in rounds and not {one.record for one in walks} & set(rounds)


@pytest.mark.parametrize(("only", "has"), [((), True), (("phases,grid",), True), (("grid", "greedy"), True), (("grid", "sampled"), False)])
def test_words_pick_records(only, has):
    assert touched.has_words("h200-sxm/2026-11-30-grid-greedy", only) is has


# --- whose packages plan it -----------------------------------------------------------------------------------------------------

PLANNER = """
from types import SimpleNamespace as Plan
def plan_walk(gpu, head, **options):
    if head.rank == 512: raise ValueError("nothing fits")
    spec = Plan(products="warpgroup", name=lambda: f"PLAN-r{head.rank}", translation_unit=lambda: f"unit of rank {head.rank}")
    return Plan(grid_blocks=132, spec=spec)
"""
TREE = {
    "csrc/walk/walk.cuh": "code", "data/gpus/h.toml": "", "cost_model/__init__.py": "",
    "cost_model/gpu.py": "def load_gpu(_): return type('Gpu', (), {'compute_capability': (9, 0)})",
    "cost_model/head.py": "from types import SimpleNamespace as Head", "cost_model/placement.py": "from types import SimpleNamespace as Placement",
    "wts_lab/__init__.py": "", "wts_lab/build.py": "FLAGS = ('-O3', '-lineinfo')", "wts_lab/abi.py": "def render_header(): return 'header'", "wts_lab/walk_plan.py": PLANNER.replace("PLAN", "first"),
}  # fmt: skip


def request(rank: int, blocks: int = 132) -> str:
    """What the tiny planner is asked."""
    return json.dumps({"gpu": "h", "grid_blocks": blocks, "head": {"rank": rank}, "placement": {}, "options": {}})


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A tiny checkout with one commit, whose planner gives names that say whose they are; returns (root, commit)."""
    root = tmp_path / "checkout"
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def git(*words):
        about = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")
        return subprocess.run(["git", "-C", str(root), *about, *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    monkeypatch.setattr(touched, "find_nvcc", lambda: NVCC)
    monkeypatch.setattr(kernel_code, "compile_ptx", lambda kernel, *_: kernel.unit + (kernel.tree / "csrc" / "walk" / "walk.cuh").read_text().partition("//")[0])
    monkeypatch.setattr(kernel_code, "assemble", lambda kernel, *_: [(kernel.tree / "csrc" / "walk" / "walk.cuh").read_bytes()])
    return root, git("rev-parse", "HEAD")


def test_what_a_commit_ran_is_planned_and_compiled_by_that_commit(checkout):
    root, commit = checkout
    walks = [RecordedWalks("a", commit, (request(64), request(128), request(512), request(64, 131)), ("a row does not know its batch",))]
    [found] = compare_sources(walks, root)
    assert (found.same, found.changed, found.instantiations) == (("first-r128", "first-r64"), (), 5)
    assert found.unknown == (
        "a row does not know its batch", "its commit: ValueError: nothing fits", "its commit: ValueError: the plan has 132 blocks, and 131 walked",
    )  # fmt: skip
    (root / "csrc/walk/walk.cuh").write_text("code// a remark")
    assert compare_sources(walks, root) == [found], "a remark changes no PTX"
    (root / "csrc/walk/walk.cuh").write_text("other code")
    (root / "wts_lab/walk_plan.py").write_text(PLANNER.replace("PLAN", "second"))
    [found] = compare_sources(walks, root)
    assert (found.same, found.changed) == ((), ("second-r128, before first-r128", "second-r64, before first-r64"))
    (root / "wts_lab/abi.py").write_text("1 / 0")
    [found] = compare_sources(walks[:1], root)
    assert found.unknown[-1] == "the working tree: the tree's own planner fails: ZeroDivisionError: division by zero" and found.instantiations == 5


def test_without_the_commit_a_history_or_a_compiler_nothing_is_compared(checkout, tmp_path, monkeypatch):
    root, commit = checkout
    with pytest.raises(BadInput, match=r"^b was made by commit 0{40}, which the history of .* does not have; fetch it"):
        compare_sources([RecordedWalks("a", commit, (request(64),)), RecordedWalks("b", "0" * 40, (request(64),))], root)
    with pytest.raises(BadInput, match="has no history to take a record's sources from; run this in a clone"):
        compare_sources([RecordedWalks("a", commit, (request(64),))], tmp_path)
    [found] = compare_sources([RecordedWalks("a", None, (), ("no commit",))], root)
    assert found == Touched("a", None, (), (), ("no commit",)), "a record without a commit needs no history"

    def no_nvcc():
        raise BuildError("no CUDA compiler found")

    monkeypatch.setattr(touched, "find_nvcc", no_nvcc)
    with pytest.raises(BuildError, match="no CUDA compiler found"):
        compare_sources([RecordedWalks("a", commit, (request(64),))], root)


def test_an_interrupt_ends_the_comparison_and_keeps_nothing(checkout, tmp_path, monkeypatch):
    root, commit = checkout

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(touched.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(touched, "judge", interrupted)
    with pytest.raises(BuildCancelled, match="nothing is kept"):
        compare_sources([RecordedWalks("a", commit, (request(64), request(128)))], root)
    assert [path.name for path in tmp_path.iterdir()] == ["checkout"]


# --- when machine code is the same ----------------------------------------------------------------------------------------------


def kernel(tree: Path, arch: str = "sm_90", unit: str = "unit", sources: str = "hash") -> Kernel:
    """A kernel of made-up sources."""
    return Kernel("walk", unit, arch, build.FLAGS, sources, tree)


@pytest.mark.parametrize(
    ("ptx", "code", "arch", "verdict", "assembled"),
    [(("a", "a"), (b"1", b"2"), "sm_90", "same", 0), (("a", "b"), (b"1", b"1"), "sm_90", "same", 2), (("a", "b"), (b"1", b"2"), "sm_90", "changed", 2),
     (("a", "a"), (b"1", b"1"), "sm_90a", "changed", 0)],
)  # fmt: skip
def test_code_is_compared_where_ptx_differs(tmp_path, monkeypatch, ptx, code, arch, verdict, assembled):
    seen = []
    monkeypatch.setattr(kernel_code, "compile_ptx", lambda one, folder, nvcc: ptx[one.sources == "now"])
    monkeypatch.setattr(kernel_code, "assemble", lambda one, folder, nvcc: seen.append(folder) or [code[one.sources == "now"]])
    assert judge(kernel(tmp_path), kernel(tmp_path, arch, sources="now"), tmp_path, NVCC) == (verdict, "walk")
    assert len(set(seen)) == assembled and list(tmp_path.iterdir()) == []


def test_equal_sources_are_not_compiled_and_what_does_not_compile_is_unknown(tmp_path, monkeypatch):
    def fails(*_):
        raise BuildError("walk.cu(1): error: no such thing")

    monkeypatch.setattr(kernel_code, "compile_ptx", fails)
    assert judge(kernel(tmp_path), kernel(tmp_path / "elsewhere"), tmp_path, NVCC) == ("same", "walk")
    assert judge(kernel(tmp_path), kernel(tmp_path, unit="other"), tmp_path, NVCC) == ("unknown", "walk does not compile: walk.cu(1): error: no such thing")
    assert judge("nothing fits", kernel(tmp_path), tmp_path, NVCC) == ("unknown", "its commit: nothing fits")
    assert judge(kernel(tmp_path), "nothing fits", tmp_path, NVCC) == ("unknown", "the working tree: nothing fits")


def test_code_and_its_constants_are_read_whatever_they_are_called():
    sections = {".text.b": b"second", ".debug_line": b"lines", ".nv.constant0.b": b"parameters", ".nv.constant3": b"table", ".text.a": b"first"}
    names = b"\0".join([b"", *(name.encode() for name in sections), b".shstrtab", b""])
    contents = [*sections.values(), names]
    header, entries, at = struct.Struct("<40xQ10x3H"), [struct.pack("<IIQQQQ24x", *[0] * 6)], 64
    for name, content in zip([*sections, ".shstrtab"], contents):
        entries.append(struct.pack("<IIQQQQ24x", names.index(name.encode() + b"\0"), 1, 0, 0, at, len(content)))
        at += len(content)
    assert header.size == 64
    assert machine_code(header.pack(at, 64, len(entries), len(entries) - 1) + b"".join([*contents, *entries])) == [b"first", b"second", b"table"]


def test_a_kernel_compiled_twice_is_the_same_and_an_edited_one_is_not(tmp_path):
    try:
        nvcc = build.find_nvcc()
    except BuildError as error:
        pytest.skip(f"needs a CUDA compiler: {error}")
    spec = abi.WalkSpec(4, 1, 1, 0, 0, 1, 32, "int8x2")
    once = "#pragma once"
    edits = {"present": (once, once), "remarked": (once, f"{once}\n// A remark."), "edited": (ARRIVE, SYNC), "broken": (once, "#error broken")}
    kernels = {}
    for name, (old, new) in edits.items():
        source = Path(shutil.copytree(abi.csrc_root(), tmp_path / name / "csrc")) / "walk" / "ptx.cuh"
        assert old in source.read_text()
        source.write_text(source.read_text().replace(old, new))
        (tmp_path / name / "wts_abi.h").write_text(abi.render_header())
        kernels[name] = Kernel(spec.name(), spec.translation_unit(), "sm_90", build.FLAGS, name, tmp_path / name)
    verdicts = {name: judge(kernels["present"], one, tmp_path, nvcc) for name, one in kernels.items() if name != "present"}
    unknown, reason = verdicts.pop("broken")
    assert verdicts == {"remarked": ("same", spec.name()), "edited": ("changed", spec.name())}
    assert unknown == "unknown" and reason.startswith(f"{spec.name()} does not compile: ") and "broken" in reason


# --- the answer -----------------------------------------------------------------------------------------------------------------


def test_the_answer_is_a_table_the_changed_by_name_and_what_to_make_again():
    found = [
        Touched("h/one", COMMIT, ("a", "b"), (), ()), Touched("h/other", None, ("a",), ("c", "d"), ("nobody knows",)),
        Touched("h/third", COMMIT, (), ("c",), ()),
    ]  # fmt: skip
    assert touched.lines(found) == [
        "record   commit     instantiations  same  changed  unknown",
        "h/one    c0ffee000               2     2        0        0",
        "h/other  unknown                 4     1        2        1",
        "h/third  c0ffee000               1     0        1        0",
        "changed: c (h/other, h/third)", "changed: d (h/other)", "unknown: nobody knows (h/other)",
        "to be made again, as far as is known: h/other, h/third",
    ]  # fmt: skip
    assert touched.lines(found[:1])[-1] == "to be made again: nothing"


@pytest.mark.parametrize(("changed", "unknown", "status"), [((), (), 0), (("a",), (), 1), ((), ("why",), 1)])
def test_the_status_says_whether_all_is_the_same(monkeypatch, capsys, changed, unknown, status):
    monkeypatch.setattr(touched, "compare_sources", lambda walks: [Touched(one.record, one.commit, (), changed, unknown) for one in walks])
    assert touched.main(["--only", "phases,probes,round-4b"]) == status
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("h200-sxm/2026-11-30-phases ") and len(said) == 4 + bool(changed) + bool(unknown)
    assert said[-1].endswith("not saying what they ran: h200-sxm/2026-11-30-probes, h200-sxm/2026-11-30-round-4b-c16")


def test_named_records_are_read_from_where_they_lie(monkeypatch, capsys, repository):
    monkeypatch.setattr(touched, "compare_sources", lambda walks: [Touched(one.record, one.commit, one.requests, (), ()) for one in walks])
    records = repository / "data" / "measurements" / "h200-sxm"
    assert touched.main([str(records / "2026-11-30-phases.parquet")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[::2] == ["h200-sxm/2026-11-30-phases", "8", "0"]
    assert touched.main([str(records / "2026-11-30-round.parquet")]) == 2
    assert "is a round record, not a walk record" in capsys.readouterr().err


def test_what_stands_is_written_where_settings_look_for_it(monkeypatch, capsys, tmp_path):
    """Runs of records without a change in any commit that made them, and of no other; never of some records only."""
    said = (
        Touched("h200-sxm/2026-11-30-headline", "1" * 40, ("a",), (), ()), Touched("h200-sxm/2026-11-30-walks", "1" * 40, ("a",), ("b",), ()),
        Touched("h200-sxm/2026-11-30-walks", "2" * 40, ("a",), (), ()), Touched("h200-sxm/2026-11-30-heads", "1" * 40, (), (), ("why",)),
    )  # fmt: skip
    monkeypatch.setattr(touched, "compare_sources", lambda walks: said)
    monkeypatch.setattr(touched, "same_code_path", lambda: tmp_path / "same_code.toml")
    assert touched.main(["--write"]) == 1
    (run,) = read_walk(measurements_root() / "h200-sxm" / "2026-11-30-headline.parquet")["run_id"].unique()
    assert tomllib.loads((tmp_path / "same_code.toml").read_text()) == {"kernel_hash": walk_sources_hash(), "runs": {run: "h200-sxm/2026-11-30-headline"}}
    capsys.readouterr()
    assert touched.main(["--write", "--only", "headline"]) == 2 and "--write compares all shipped records" in capsys.readouterr().err
