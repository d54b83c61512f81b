"""Ninja builds of ``csrc/``: one translation unit a placement, cached, locked, with the compiler's own account kept.

The kernels build as a torch-free shared library that needs nothing but the CUDA compiler, so they compile where torch
has no CUDA. The one binding is built by ``torch.utils.cpp_extension``. Results live under the cache folder
(``WTS_LAB_CACHE``, else the user's cache), keyed by sources, flags, compiler and architecture; a finished build is a
``build.json`` written last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from wts_lab import abi

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
"""Architectures that every instantiation must compile for."""

FLAGS = ("-O3", "-std=c++17", "-lineinfo", "-Xptxas", "-v", "-Xcompiler", "-fPIC")
LOCK_TIMEOUT_S = 600.0
USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")

Log = Callable[[str], None]


class BuildError(RuntimeError):
    """A build that failed; the message ends with the compiler's own words."""


class BuildCancelled(RuntimeError):
    """A build that was stopped on request; nothing of it is kept."""


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler: executable, release such as ``13.0``, and extra folders when it came as Python wheels."""

    path: Path
    release: str
    include_dirs: tuple[Path, ...] = ()
    library_dirs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class BuildRecord:
    """What a build produced, as the compiler reports it.

    ``registers_per_thread``, ``spill_bytes`` (stores plus loads) and ``stack_bytes`` are ptxas's figures for the walk
    kernel; ``kernel_hash`` covers every source that went in.
    """

    name: str
    library: Path
    arch: str
    kernel_hash: str
    nvcc_release: str
    registers_per_thread: int | None
    spill_bytes: int | None
    stack_bytes: int | None


def cache_root() -> Path:
    """Folder of all builds: ``WTS_LAB_CACHE`` or ``$XDG_CACHE_HOME/wts-lab`` or ``~/.cache/wts-lab``."""
    given = os.environ.get("WTS_LAB_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wts-lab"


def _wheel_toolkit() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        for toolkit in sorted(Path(place).glob("cu[0-9]*"), reverse=True):
            if (toolkit / "bin" / "nvcc").is_file():
                return toolkit
    return None


def find_nvcc() -> Nvcc:
    """The CUDA compiler: ``CUDA_HOME``, then the path, then the Python wheels, then the usual folder.

    Raises :class:`BuildError` saying where it looked.
    """
    wheels = _wheel_toolkit()
    home = os.environ.get("CUDA_HOME")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates += [wheels / "bin" / "nvcc"] if wheels else []
    candidates.append(USUAL_NVCC)
    for path in candidates:
        if not path.is_file():
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        release = re.search(r"release (\d+\.\d+)", answer.stdout)
        if answer.returncode == 0 and release:
            own = wheels is not None and path.is_relative_to(wheels)
            return Nvcc(path, release[1], (wheels / "include",) if own else (), (wheels / "lib",) if own else ())
    raise BuildError(
        "no CUDA compiler found: looked in " + ", ".join(str(path) for path in candidates)
        + "; install the CUDA toolkit or the nvidia-cuda-nvcc wheels, or set CUDA_HOME"
    )


def find_ninja() -> str:
    """The ninja executable, from the path or from the Python package; raises :class:`BuildError` with the mend."""
    found = shutil.which("ninja")
    if found is None and importlib.util.find_spec("ninja"):
        import ninja

        found = str(Path(ninja.BIN_DIR) / "ninja")
    if found is None:
        raise BuildError("ninja not found: looked on the path and for the Python package; pip install ninja")
    return found


def parse_ptxas(log: str, kernel: str) -> tuple[int, int, int] | None:
    """(registers a thread, spill bytes, stack bytes) that ptxas reports for the entry whose name contains ``kernel``."""
    entry = re.search(
        rf"Compiling entry function '[^']*{re.escape(kernel)}[^']*'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        rf"(\d+) bytes spill loads.*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    if entry is None:
        return None
    stack, stores, loads, registers = (int(text) for text in entry.groups())
    return registers, stores + loads, stack


def ninja_file(nvcc: Nvcc, arch: str, sources: Sequence[Path], include_dirs: Sequence[Path], library: str) -> str:
    """Text of ``build.ninja``: one object a source, one shared library."""
    number = arch.removeprefix("sm_")
    includes = " ".join(f"-I{path}" for path in (*include_dirs, *nvcc.include_dirs))
    libraries = " ".join(f"-L{path}" for path in nvcc.library_dirs)
    lines = [
        "ninja_required_version = 1.5",
        f"nvcc = {nvcc.path}",
        f"flags = {' '.join(FLAGS)} -gencode=arch=compute_{number},code=sm_{number} {includes}",
        "rule compile",
        "  command = $nvcc $flags -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = $nvcc -shared {libraries} $in -o $out",
    ]
    objects = []
    for source in sources:
        objects.append(f"{source.stem}.o")
        lines.append(f"build {objects[-1]}: compile {source}")
    lines += [f"build {library}: link {' '.join(objects)}", f"default {library}", ""]
    return "\n".join(lines)


@contextlib.contextmanager
def folder_lock(folder: Path, log: Log, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds ``<folder>.lock``; a waiter is told whom it waits for, and gives up after ``timeout_s``.

    The lock is the operating system's, so it ends with its owner; the process number inside is only for the message.
    """
    path = folder.with_name(folder.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as handle:
        deadline, told = time.monotonic() + timeout_s, False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "unknown"
                if not told:
                    log(f"waiting for the build lock {path}, held by process {owner}")
                    told = True
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"the build lock {path} was held by process {owner} for {timeout_s:.0f} s; end that process or wait"
                    ) from None
                time.sleep(0.2)
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def run_ninja(folder: Path, log: Log, cancel: threading.Event | None = None) -> str:
    """Runs ninja in ``folder``, passing its lines on as they come; returns all of them.

    Raises :class:`BuildError` with the compiler's output, :class:`BuildCancelled` when ``cancel`` is set meanwhile.
    """
    process = subprocess.Popen(
        [find_ninja(), "-v"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    lines: list[str] = []

    def collect() -> None:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            log(lines[-1])

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    while process.poll() is None:
        if cancel is not None and cancel.is_set():
            os.killpg(process.pid, 15)
            process.wait(30)
            raise BuildCancelled(f"the build in {folder} was cancelled")
        time.sleep(0.05)
    reader.join(10)
    text = "\n".join(lines)
    if process.returncode:
        raise BuildError(f"ninja failed in {folder}:\n" + "\n".join(lines[-40:]))
    return text


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def source_hash(folders: Sequence[Path]) -> str:
    """Hash of the rendered header and every CUDA file of the given folders, names included."""
    files = sorted(path for folder in folders for path in folder.glob("*.cu*"))
    return _digest([abi.render_header(), *(part for path in files for part in (path.name, path.read_text()))])


def compile_library(
    name: str,
    sources: dict[str, str] | Sequence[Path],
    arch: str,
    source_folders: Sequence[Path],
    *,
    kernel: str | None = None,
    log: Log | None = None,
    cancel: threading.Event | None = None,
) -> BuildRecord:
    """Builds (or finds) the shared library ``name`` for ``arch``.

    ``sources`` are paths, or file names with their text for generated units; ``kernel`` names the entry whose ptxas
    figures are kept. Raises :class:`BuildError` and :class:`BuildCancelled`.
    """
    say = log or (lambda line: None)
    nvcc = find_nvcc()
    generated = sources if isinstance(sources, dict) else {}
    kernel_hash = _digest([source_hash(source_folders), *(part for item in generated.items() for part in item)])
    folder = cache_root() / f"{name}-{arch}-{_digest([kernel_hash, nvcc.release, *FLAGS])}"
    with folder_lock(folder, say):
        record = _read_record(folder)
        if record is not None:
            return record
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "wts_abi.h").write_text(abi.render_header())
        for file_name, text in generated.items():
            (folder / file_name).write_text(text)
        paths = [folder / file_name for file_name in generated] or list(sources)
        library = f"lib{name}.so"
        (folder / "build.ninja").write_text(ninja_file(nvcc, arch, paths, (abi.csrc_root(), folder), library))
        output = run_ninja(folder, say, cancel)
        figures = parse_ptxas(output, kernel) if kernel else None
        record = BuildRecord(name, folder / library, arch, kernel_hash, nvcc.release, *(figures or (None, None, None)))
        _write_record(folder, record)
        return record


def _write_record(folder: Path, record: BuildRecord) -> None:
    fields = asdict(record) | {"library": record.library.name}
    partial = folder / "build.json.part"
    partial.write_text(json.dumps(fields, indent=1))
    partial.rename(folder / "build.json")


def _read_record(folder: Path) -> BuildRecord | None:
    """The finished build in ``folder``; anything unreadable counts as none, and is built again."""
    try:
        fields = json.loads((folder / "build.json").read_text())
        record = BuildRecord(**fields | {"library": folder / fields["library"]})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if record.library.is_file() else None


def build_walk(
    spec: abi.WalkSpec, arch: str, *, log: Log | None = None, cancel: threading.Event | None = None
) -> BuildRecord:
    """Builds one instantiation of the walk; errors as :func:`compile_library`. Products of warpgroups are instructions of sm_90 alone."""
    if spec.products == "warpgroup":
        if arch != "sm_90":
            raise BuildError(f"{spec.name()} multiplies by warpgroups, which sm_90 alone does; plan the walk for {arch}")
        arch = "sm_90a"
    unit = {f"{spec.name()}.cu": spec.translation_unit()}
    return compile_library(
        spec.name(), unit, arch, (abi.csrc_root() / "walk",), kernel="walk_kernel", log=log, cancel=cancel
    )


def build_probes(arch: str, *, log: Log | None = None, cancel: threading.Event | None = None) -> BuildRecord:
    """Builds the library of micro-measurements, every file of ``csrc/probes`` in one."""
    folder = abi.csrc_root() / "probes"
    return compile_library(
        "wts-probes", sorted(folder.glob("*.cu")), arch, (abi.csrc_root() / "walk", folder), log=log, cancel=cancel
    )


def load_binding(log: Log | None = None):
    """The torch extension of ``csrc/binding.cpp``, built on first use through ``torch.utils.cpp_extension``.

    Raises :class:`BuildError` with the compiler's output.
    """
    import torch
    from torch.utils import cpp_extension

    say = log or (lambda line: None)
    source = abi.csrc_root() / "binding.cpp"
    key = _digest([abi.render_header(), source.read_text(), torch.__version__, sys.version])
    name = f"wts_binding_{key}"
    if name in sys.modules:
        return sys.modules[name]
    folder = cache_root() / name
    with folder_lock(folder, say):
        folder.mkdir(parents=True, exist_ok=True)
        header, text = folder / "wts_abi.h", abi.render_header()
        if not (header.is_file() and header.read_text() == text):  # written again, it would have ninja compile again
            header.write_text(text)
        (folder / "lock").unlink(missing_ok=True)  # torch's own lock, stale by now: ours is held
        os.environ["PATH"] = f"{Path(find_ninja()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        say(f"building the torch binding in {folder}")
        try:
            module = cpp_extension.load(
                name, [str(source)], extra_include_paths=[str(folder)], extra_cflags=["-O2"], build_directory=str(folder),
                with_cuda=False,
            )
        except RuntimeError as error:
            raise BuildError(f"the torch binding did not build: {error}") from error
    sys.modules[name] = module
    return module
