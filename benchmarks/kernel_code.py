"""What an instantiation of the walk kernel is in machine code, as a tree of sources plans and compiles it: for `benchmarks.touched`."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wts_lab.build import BuildError, Nvcc

COMPILE_TIMEOUT_S = 600


@dataclass(frozen=True)
class Kernel:
    """One instantiation as one tree makes it. Two are equal where all that goes into the compiler is.

    Attributes:
        name: of its `WalkSpec`.
        unit: text of its translation unit.
        arch: what it is built for, such as ``sm_90a``.
        flags: of the compiler, without that which only tells profilers of source lines: these differ after any edit, and the code does not.
        sources: hash of all CUDA sources and of the rendered header.
        tree: folder with ``csrc`` and ``wts_abi.h``.
    """

    name: str
    unit: str
    arch: str
    flags: tuple[str, ...]
    sources: str
    tree: Path = field(compare=False)


def describe_kernels() -> None:
    """Plan the requests of standard input, a JSON list, and print the header, and each kernel or why there is none, as JSON.

    Runs by its source in a process of its own, since a tree's contract is told by that tree's own packages; so it imports all it needs.
    """
    import json
    import sys
    from functools import cache

    from cost_model.gpu import load_gpu
    from cost_model.head import Head
    from cost_model.placement import Placement
    from wts_lab.abi import render_header
    from wts_lab.build import FLAGS
    from wts_lab.walk_plan import plan_walk

    gpu_called = cache(load_gpu)

    def described(asked: dict) -> dict:
        gpu = gpu_called(asked["gpu"])
        plan = plan_walk(gpu, Head(**asked["head"]), placement=Placement(**asked["placement"]), **asked["options"])
        if plan.grid_blocks != asked["grid_blocks"]:
            raise ValueError(f"the plan has {plan.grid_blocks} blocks, and {asked['grid_blocks']} walked")
        arch = "sm_{}{}".format(*gpu.compute_capability) + "a" * (plan.spec.products == "warpgroup")  # as build_walk
        return {"name": plan.spec.name(), "unit": plan.spec.translation_unit(), "arch": arch}

    answers = []
    for asked in json.load(sys.stdin):
        try:
            answers.append(described(asked))
        except Exception as error:  # noqa: BLE001 - whatever an older tree raises is told as the reason
            answers.append({"reason": f"{type(error).__name__}: {error}"})
    json.dump({"header": render_header(), "flags": FLAGS, "kernels": answers}, sys.stdout)


def make_kernels(tree: Path, requests: Sequence[str]) -> dict[str, Kernel | str]:
    """Each request's kernel as the packages and sources of a tree have it, or why it has none; writes the tree's header."""
    program = f"{inspect.getsource(describe_kernels)}\ndescribe_kernels()\n"
    search = os.pathsep.join(path for path in (str(tree), os.environ.get("PYTHONPATH", "")) if path)
    done = subprocess.run(
        [sys.executable, "-c", program], input=f"[{','.join(requests)}]", capture_output=True, text=True, cwd=tree,
        env={**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if done.returncode:
        return dict.fromkeys(requests, f"the tree's own planner fails: {(done.stderr.splitlines() or ['without a word'])[-1]}")
    told = json.loads(done.stdout)
    (tree / "wts_abi.h").write_text(told["header"])
    files = (path for path in sorted((tree / "csrc").rglob("*")) if path.is_file())
    parts = [told["header"].encode(), *(part for path in files for part in (bytes(path.relative_to(tree)), path.read_bytes()))]
    sources = hashlib.sha256(b"\0".join(parts)).hexdigest()
    flags = tuple(flag for flag in told["flags"] if flag != "-lineinfo")
    kernels = (one.get("reason") or Kernel(**one, flags=flags, sources=sources, tree=tree) for one in told["kernels"])
    return dict(zip(requests, kernels, strict=True))


def machine_code(cubin: bytes) -> list[bytes]:
    """Contents of an ELF file's sections of code and of constants that the code reads, sorted: names hold template arguments.

    ``.nv.constant0`` is left out: the launch fills it with the parameters.
    """
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    found = []
    for name_at, _, _, _, start, length in sections:
        name_start = sections[names][4] + name_at
        name = cubin[name_start : cubin.index(b"\0", name_start)]
        if name.startswith((b".text", b".nv.constant", b".nv.global.init")) and not name.startswith(b".nv.constant0"):
            found.append(cubin[start : start + length])
    return sorted(found)


def run_nvcc(nvcc: Nvcc, folder: Path, *words: str | Path) -> None:
    """Run the compiler on a file of that folder; BuildError, with its first line that tells of an error, where it fails."""
    done = subprocess.run(
        [nvcc.path, *words], cwd=folder, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        raise BuildError(next((line for line in said if "error" in line), said[-1]))


def compile_ptx(kernel: Kernel, folder: Path, nvcc: Nvcc) -> str:
    """Compile a kernel as far as PTX, into ``walk.ptx`` of a new folder, and return that."""
    folder.mkdir()
    (folder / "walk.cu").write_text(kernel.unit)
    includes = [f"-I{path}" for path in (kernel.tree / "csrc", kernel.tree, *nvcc.include_dirs)]
    run_nvcc(nvcc, folder, *kernel.flags, *includes, f"-arch={kernel.arch.replace('sm_', 'compute_')}", "-ptx", "walk.cu")
    return (folder / "walk.ptx").read_text()


def assemble(kernel: Kernel, folder: Path, nvcc: Nvcc) -> list[bytes]:
    """The machine code of the PTX that lies in a folder."""
    run_nvcc(nvcc, folder, *kernel.flags, f"-arch={kernel.arch}", "-cubin", "walk.ptx")
    return machine_code((folder / "walk.cubin").read_bytes())


def same_code(before: Kernel, now: Kernel, scratch: Path, nvcc: Nvcc) -> bool:
    """Whether two kernels are the same machine code; where their PTX is the same it is not made.

    Raises:
        BuildError, TimeoutExpired: one of them does not compile.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        sides = [(kernel, Path(folder) / name) for kernel, name in ((before, "before"), (now, "now"))]
        if len({compile_ptx(*side, nvcc) for side in sides}) == 1:
            return True
        first, second = (assemble(*side, nvcc) for side in sides)
        return first == second
