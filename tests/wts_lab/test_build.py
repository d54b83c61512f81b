"""Builds: everything that needs no GPU. Kernels really compile, for every listed architecture, and ptxas is asked what they take."""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cost_model import Head, load_gpu
from cost_model.placement import Placement, plan, registers_claim
from wts_lab import abi, build

GPU_OF = {"sm_80": "a100-sxm-80gb", "sm_89": "rtx-4090", "sm_90": "h200-sxm", "sm_100": "b200-sxm", "sm_120": "rtx-5090"}
QWEN, LARGE = Head.markov(151_936, 256), Head.markov(248_320, 256)


def planned() -> dict[tuple[str, str], tuple[Placement, int, str]]:
    """What must compile: the planner's choice for each architecture's GPU, and the corners of rank on one."""
    chosen = {}
    for arch, gpu_id in GPU_OF.items():
        gpu = load_gpu(gpu_id)
        for name, head, precision, mode in (
            ("resident", QWEN, "int8x2", "resident"),
            ("streaming", QWEN, "int8x2", "streaming"),
            ("streaming-bf16", QWEN, "bf16", "streaming"),
        ):
            chosen[arch, name] = (plan(gpu, head, precision, mode), 256, precision)
    h200 = load_gpu("h200-sxm")
    chosen["sm_90", "partial"] = (plan(h200, LARGE, "int8x2", "resident"), 256, "int8x2")
    for rank, precision in ((32, "int8x2"), (512, "int8x2"), (160, "bf16")):
        mode = "resident" if precision == "int8x2" else "streaming"
        chosen["sm_90", f"rank-{rank}"] = (plan(h200, Head.markov(40_000, rank), precision, mode), rank, precision)
    return chosen


PLANNED = planned()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache of builds for the module, never the user's."""
    folder = tmp_path_factory.mktemp("builds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WTS_LAB_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def records(cache):
    """Builds of everything planned, two at a time."""

    def one(item):
        (arch, _), (placement, rank, precision) = item
        return build.build_walk(abi.WalkSpec.of(placement, rank=rank, precision=precision, replicas=1), arch)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PLANNED, pool.map(one, PLANNED.items()), strict=True))


@pytest.mark.parametrize("key", PLANNED, ids="-".join)
def test_a_planned_placement_compiles_without_spills_as_the_planner_claims(records, key):
    placement, rank, precision = PLANNED[key]
    record, claim = records[key], registers_claim(placement, rank, precision)
    assert record.library.is_file() and record.arch == key[0]
    assert not claim.spills and record.spill_bytes == 0
    assert 0 < record.registers_per_thread <= 65_536 // (32 * placement.warps)


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_the_probes_compile(cache, arch):
    assert build.build_probes(arch).library.is_file()


def test_a_finished_build_is_found_again_and_a_damaged_one_is_made_anew(records):
    record = records["sm_90", "rank-32"]
    lines: list[str] = []
    placement, rank, precision = PLANNED["sm_90", "rank-32"]
    spec = abi.WalkSpec.of(placement, rank=rank, precision=precision, replicas=1)
    assert build.build_walk(spec, "sm_90", log=lines.append) == record and lines == []
    (record.library.parent / "build.json").write_text("{")
    assert build.build_walk(spec, "sm_90", log=lines.append) == record and lines


def test_an_impossible_specification_fails_with_the_compilers_words(cache):
    spec = abi.WalkSpec(8, 1, 0, 0, 0, 48, "int8x2", 1)
    with pytest.raises(build.BuildError, match="rank is a multiple of 32 up to 512"):
        build.build_walk(spec, "sm_90")


def test_a_cancelled_build_stops_and_leaves_nothing_finished(cache):
    spec = abi.WalkSpec(8, 4, 4, 4, 2, 256, "int8x2", 2)
    cancel = threading.Event()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    with pytest.raises(build.BuildCancelled):
        build.build_walk(spec, "sm_90", cancel=cancel)
    assert not list(cache.glob(f"{spec.name()}-*/build.json"))
    assert build.build_walk(spec, "sm_90").library.is_file(), "the next build starts clean"


def test_a_held_lock_names_its_owner_and_the_wait_ends(tmp_path):
    folder, lines = tmp_path / "some-build", []
    with open(f"{folder}.lock", "w") as handle:
        handle.write("4242")
        handle.flush()
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(build.BuildError, match="held by process 4242"), build.folder_lock(folder, lines.append, timeout_s=0.3):
            pass
    assert len(lines) == 1 and "4242" in lines[0]
    with build.folder_lock(folder, lines.append):
        assert open(f"{folder}.lock").read() == str(os.getpid())


def test_the_build_file_lists_every_source_once_and_all_folders(tmp_path):
    nvcc = build.Nvcc(tmp_path / "nvcc", "13.0", (tmp_path / "include",), (tmp_path / "lib",))
    text = build.ninja_file(nvcc, "sm_89", [tmp_path / "a.cu", tmp_path / "b.cu"], (tmp_path / "csrc",), "libx.so")
    assert "-gencode=arch=compute_89,code=sm_89" in text
    assert f"-I{tmp_path / 'csrc'} -I{tmp_path / 'include'}" in text and f"-L{tmp_path / 'lib'}" in text
    assert text.count(": compile ") == 2 and "build libx.so: link a.o b.o" in text


def test_ptxas_figures_are_those_of_the_named_kernel():
    log = """ptxas info    : Compiling entry function '_Z5otherv' for 'sm_90'
ptxas info    : Function properties for _Z5otherv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compiling entry function '_Z11walk_kernelv' for 'sm_90'
ptxas info    : Function properties for _Z11walk_kernelv
    24 bytes stack frame, 28 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers"""
    assert build.parse_ptxas(log, "walk_kernel") == (255, 60, 24)
    assert build.parse_ptxas(log, "absent") is None


def test_the_key_of_a_build_changes_with_the_contract(monkeypatch):
    folder = (abi.csrc_root() / "walk",)
    before = build.source_hash(folder)
    monkeypatch.setitem(abi.CONSTANTS, "kFirstPollClocks", 299)
    assert build.source_hash(folder) != before


def test_no_compiler_is_said_with_the_places_looked_at(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(build, "_wheel_toolkit", lambda: None)
    monkeypatch.setattr(build, "USUAL_NVCC", tmp_path / "nowhere" / "nvcc")
    with pytest.raises(build.BuildError, match="nowhere.*nvidia-cuda-nvcc wheels"):
        build.find_nvcc()


def test_the_binding_compiles_and_refuses_tensors_before_it_launches(cache):
    torch = pytest.importorskip("torch")
    binding = build.load_binding()
    params = abi.WalkParams(vocab_size=5)
    base, anchor, tokens = torch.zeros(1, 2, 5), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)
    call = (0, 0, ctypes.addressof(params), 4, 16, 0, 0)
    with pytest.raises(ValueError, match="base_logits has dtype Float; it must be BFloat16"):
        binding.launch(*call, base, anchor, tokens)
    with pytest.raises(ValueError, match="base_logits is on the CPU; it must be on cuda:0"):
        binding.launch(*call, base.bfloat16(), anchor, tokens)

