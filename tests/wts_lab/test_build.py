"""Builds: everything that needs no GPU. Kernels really compile, for every listed architecture, and ptxas is asked what they take."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from cost_model import Head, load_gpu
from cost_model.placement import Kernel, Placement, register_cap, registers_claim, shared_bytes
from wts_lab import abi, build
from wts_lab.walk_plan import WalkPlan, plan_walk

H200 = "h200-sxm"
QWEN, LARGE, SMALL = Head.markov(151_936, 256), Head.markov(248_320, 256), Head.markov(20_000, 64)
GATED, RNN = (replace(QWEN, kind=kind, hidden_size=4096) for kind in ("gated", "rnn"))
DOMINO = replace(RNN, kind="domino", gru_size=1024)

# What must compile: name -> GPU, head, and the request. On the H200 every head, batch, arithmetic, precision and mode; on each other
# architecture what differs there: capacities, and the instructions of sampling, states and both precisions.
REQUESTS = {
    "resident": (H200, QWEN, {}),
    "streaming": (H200, QWEN, {"mode": "streaming"}),
    "streaming-bf16": (H200, QWEN, {"mode": "streaming", "precision": "bf16"}),
    "partial": (H200, LARGE, {}),
    "partial-bf16": (H200, QWEN, {"precision": "bf16"}),
    "twice": (H200, QWEN, {"rounding": "twice", "max_batch": 2}),
    "none": (H200, QWEN, {"rounding": "none"}),
    "sampling": (H200, QWEN, {"sampling": True}),
    "rows-2-sampling": (H200, QWEN, {"max_batch": 2, "sampling": True}),
    "rows-4": (H200, QWEN, {"max_batch": 4}),
    "rows-4-sampling": (H200, QWEN, {"max_batch": 3, "sampling": True}),
    "rows-8": (H200, QWEN, {"max_batch": 8}),
    "rows-8-bf16": (H200, QWEN, {"max_batch": 8, "precision": "bf16"}),
    "rows-16-streaming": (H200, QWEN, {"max_batch": 16, "mode": "streaming"}),
    "rows-32": (H200, QWEN, {"max_batch": 32}),
    "rows-32-sampling": (H200, QWEN, {"max_batch": 32, "sampling": True}),
    "gated": (H200, GATED, {}),
    "gated-bf16": (H200, GATED, {"precision": "bf16", "max_batch": 4}),
    "rnn": (H200, RNN, {}),
    "rnn-rows-4-sampling": (H200, RNN, {"max_batch": 4, "sampling": True}),
    "domino": (H200, DOMINO, {}),
    "domino-rows-8": (H200, DOMINO, {"max_batch": 8}),
    "rank-32": (H200, Head.markov(40_000, 32), {}),
    "rank-512": (H200, Head.markov(40_000, 512), {"max_batch": 4}),
    "rank-160-bf16": (H200, Head.markov(40_000, 160), {"mode": "streaming", "precision": "bf16"}),
    "fixed-latent": (H200, SMALL, {"probe": "fixed_latent"}),
    "phases": (H200, QWEN, {"probe": "phases"}),
    "exchange": (H200, SMALL, {"probe": "exchange"}),
    "state": (H200, replace(RNN, rank=64), {"probe": "state"}),
}
GPU_OF = {"sm_80": "a100-sxm-80gb", "sm_89": "rtx-4090", "sm_100": "b200-sxm", "sm_120": "rtx-5090"}
REQUESTS |= {
    f"{arch}-{name}": (gpu, head, request)
    for arch, gpu in GPU_OF.items()
    for name, head, request in (
        ("resident", QWEN, {}),
        ("sampling", SMALL, {"sampling": True, "max_batch": 2}),
        ("domino-bf16", replace(DOMINO, vocab_size=20_000, padded_vocab_size=20_000, rank=64), {"precision": "bf16", "max_batch": 8}),
    )
}
ARCHITECTURE_OF = {H200: "sm_90", **{gpu: arch for arch, gpu in GPU_OF.items()}}


def planned(name: str) -> WalkPlan:
    """The plan of a request."""
    gpu, head, request = REQUESTS[name]
    return plan_walk(load_gpu(gpu), head, **{"mode": "resident", **request})


def kernel_of(spec: abi.WalkSpec) -> Kernel:
    """What the planner counts of an instantiation."""
    return Kernel(spec.rows, spec.rounding, spec.sampling, spec.head, spec.gru, spec.state_rows, spec.projector_rows, spec.products)


def spec_of(placement: Placement, rank: int, precision: str, kernel: Kernel) -> abi.WalkSpec:
    """The instantiation that the planner counts."""
    slots = {f"{tier}_slots": getattr(placement, f"{tier}_tiles") // placement.warps for tier in ("register", "shared", "streamed")}
    entries = placement.staging_tiles // placement.warps * abi.k_steps(rank, precision) // abi.staging_steps(rank, precision)
    return abi.WalkSpec(placement.warps, **slots, staging_entries=entries, rank=rank, precision=precision, wide=kernel.wide(placement), **asdict(kernel))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache of builds for the module, never the user's."""
    folder = tmp_path_factory.mktemp("builds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WTS_LAB_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def records(cache):
    """Builds of everything requested, two at a time."""

    def one(name):
        return build.build_walk(planned(name).spec, ARCHITECTURE_OF[REQUESTS[name][0]])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(REQUESTS, pool.map(one, REQUESTS), strict=True))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_planned_walk_compiles_and_on_a_hopper_without_spills_as_the_planner_claims(records, name, record_property):
    record, spec = records[name], planned(name).spec
    claim = registers_claim(planned(name).placement, spec.rank, spec.precision, kernel_of(spec))
    record_property("registers_per_thread", record.registers_per_thread)
    record_property("spill_bytes", record.spill_bytes)
    assert record.library.is_file() and record.arch == ARCHITECTURE_OF[REQUESTS[name][0]] + ("a" if spec.products == "warpgroup" else "")
    assert claim.fits and 0 < record.registers_per_thread <= register_cap(spec.warps)
    if record.arch.startswith("sm_90") and not claim.spills:
        assert record.spill_bytes == 0, f"{record.registers_per_thread} registers, {claim.wanted_registers} claimed"


SHARED = {
    "one row": ((8, 5, 4, 0, 0), 256, "int8x2", Kernel()),
    "empty columns": ((8, 1, 1, 0, 0), 256, "int8x2", Kernel()),
    "streaming": ((4, 0, 0, 9, 4), 96, "bf16", Kernel()),
    "two sampled rows": ((8, 4, 5, 2, 1), 256, "int8x2", Kernel(2, sampling=True)),
    "fp32 values": ((6, 2, 5, 0, 0), 512, "int8x2", Kernel(4, "none")),
    "many matrix rows": ((8, 4, 5, 8, 2), 32, "int8x2", Kernel()),
    "32 sampled rows": ((8, 2, 4, 3, 2), 160, "bf16", Kernel(32, sampling=True)),
    "warpgroups": ((8, 3, 6, 0, 0), 256, "int8x2", Kernel(32, products="warpgroup")),
    "four warps in a group": ((4, 3, 2, 2, 1), 96, "int8x2", Kernel(8, "none", products="warpgroup")),
    "warpgroups of dominoes": ((8, 3, 2, 4, 2), 160, "int8x2", Kernel(16, head="domino", gru=1000, state_rows=7, projector_rows=1, products="warpgroup")),
    "16 rows": ((12, 2, 3, 2, 1), 224, "int8x2", Kernel(16)),
    "gated": ((8, 5, 4, 0, 0), 256, "int8x2", Kernel(8, head="gated")),
    "rnn": ((8, 5, 4, 0, 0), 96, "int8x2", Kernel(head="rnn", state_rows=3)),
    "sampled rnn": ((8, 5, 2, 2, 1), 512, "bf16", Kernel(4, sampling=True, head="rnn", state_rows=12)),
    "domino": ((8, 5, 4, 0, 0), 256, "int8x2", Kernel(head="domino", gru=1024, state_rows=24, projector_rows=2)),
    "16 dominoes": ((8, 3, 1, 4, 2), 160, "int8x2", Kernel(16, head="domino", gru=1000, state_rows=7, projector_rows=1)),
}
"""Name -> warps and slots a warp by tier, rank, precision, kernel."""


def test_shared_memory_is_counted_as_the_kernel_lays_it_out(cache, tmp_path):
    lines = ['#include "walk/walk.cuh"']
    for name, ((warps, *slots), rank, precision, kernel) in SHARED.items():
        placement = Placement(warps, *(count * warps for count in slots))
        counted = shared_bytes(placement, rank, precision, kernel)
        config = spec_of(placement, rank, precision, kernel).translation_unit().split("WTS_EXPORT_WALK(")[1].rstrip()[:-1]
        lines.append(f'static_assert(wts::shared_bytes_of<{config}>() == {counted}, "{name}");')
    (tmp_path / "wts_abi.h").write_text(abi.render_header())
    (tmp_path / "shared.cu").write_text("\n".join([*lines, ""]))
    nvcc = build.find_nvcc()
    includes = [f"-I{path}" for path in (abi.csrc_root(), tmp_path, *nvcc.include_dirs)]
    answer = subprocess.run([nvcc.path, "-std=c++17", "-arch=sm_90", "-ptx", *includes, "shared.cu", "-o", "shared.ptx"],
                            cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_the_probes_compile(cache, arch):
    assert build.build_probes(arch).library.is_file()


def test_a_finished_build_is_found_again_and_a_damaged_one_is_made_anew(records):
    record, spec = records["rank-32"], planned("rank-32").spec
    lines: list[str] = []
    assert build.build_walk(spec, "sm_90", log=lines.append) == record and lines == []
    (record.library.parent / "build.json").write_text("{")
    assert build.build_walk(spec, "sm_90", log=lines.append) == record and lines


@pytest.mark.parametrize("change, word", [
    ({"rank": 48}, "rank is a multiple of 32 up to 512"), ({"rows": 3}, "rows are 1, 2, or quads up to 32"), ({"sampling": True}, "64-bit words"),
])
def test_an_impossible_specification_fails_with_the_compilers_words(cache, change, word):
    spec = replace(abi.WalkSpec(8, 1, 0, 0, 0, 1, 64, "int8x2"), **change)
    with pytest.raises(build.BuildError, match=word):
        build.build_walk(spec, "sm_90")


def test_a_cancelled_build_stops_and_leaves_nothing_finished(cache):
    spec = abi.WalkSpec(8, 2, 1, 1, 3, 1, 96, "int8x2")
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
    call, rest = (0, 0, ctypes.addressof(params), 4, 1, 16, 0, 0), (None, None, 0, None, None)
    with pytest.raises(ValueError, match="base_logits has dtype Float; it must be BFloat16"):
        binding.launch(*call, base, anchor, tokens, *rest)
    with pytest.raises(ValueError, match="base_logits is on the CPU; it must be on cuda:0"):
        binding.launch(*call, base.bfloat16(), anchor, tokens, *rest)


def test_a_binding_that_is_built_is_not_compiled_again(cache, monkeypatch):
    pytest.importorskip("torch")
    name = build.load_binding().__name__
    objects = {path: path.stat().st_mtime_ns for path in cache.glob(f"{name}/*.o")}
    monkeypatch.delitem(sys.modules, name)  # as another process begins
    build.load_binding()
    assert objects and {path: path.stat().st_mtime_ns for path in objects} == objects
