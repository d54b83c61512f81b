"""What this machine is: provenance for records, and the doctor that lists every fault in one pass with its mend.

:func:`snapshot` never fails: what cannot be found out is ``None``. :func:`doctor` never raises: a check that breaks is itself a
finding. Nothing is looked up at import.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

LEAST_PYTHON = (3, 11)
LEAST_CAPABILITY = (8, 0)
GIT_TIMEOUT_S = 10

MEASURING, RECORDS, REPORT, LAB = "measuring", "reading and fitting records", "the report", "the lab"
OPTIONAL = (REPORT, LAB)
"""Parts that an environment may go without: the commands work, and `make lab` installs what the lab needs."""

Answer = TypeVar("Answer")


def guarded(ask: Callable[[], Answer]) -> Answer | None:
    """The answer, or ``None`` where asking fails in any way."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - provenance must never stop the work it describes
        return None


# --- provenance ------------------------------------------------------------------------------------------------------


def snapshot() -> dict[str, Any]:
    """Provenance columns of a record, each ``None`` where unknown.

    Keys: command, git_commit, git_dirty, wts_lab_version, gpu_name, gpu_sm_count, driver_version, cuda_version (of the
    compiler that builds the kernels, else the one torch was built with), torch_version.
    """
    commit, dirty = git_state(Path(__file__).resolve().parent.parent)
    name, sm_count = guarded(_device_facts) or (None, None)
    return {
        "command": guarded(command_line), "git_commit": commit, "git_dirty": dirty, "wts_lab_version": guarded(_own_version),
        "gpu_name": name, "gpu_sm_count": sm_count, "driver_version": guarded(_driver_version),
        "cuda_version": guarded(_nvcc_release) or guarded(_torch_cuda), "torch_version": guarded(lambda: metadata.version("torch")),
    }


def command_line() -> str:
    """The command line of this process as it can be typed again: the interpreter and script by name, not by place."""
    words = list(getattr(sys, "orig_argv", None) or sys.argv)
    if "ipykernel_launcher" in words:
        return "python -m ipykernel_launcher"  # a notebook's kernel: its arguments name a file that is gone with it
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        words[0] = "python"
        if len(words) > 1 and Path(words[1]).parent.name in ("bin", "Scripts"):
            words = [Path(words[1]).name, *words[2:]]
    elif words:
        words[0] = Path(words[0]).name
    return shlex.join(words)


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether tracked files differ from it) of the checkout at ``root``.

    A tree without history takes both from ``WTS_LAB_COMMIT``, written as ``git describe --always --dirty`` would; else ``None``.
    """
    if not (root / ".git").exists():
        stated = os.environ.get("WTS_LAB_COMMIT")
        return (stated.removesuffix("-dirty"), stated.endswith("-dirty")) if stated else (None, None)

    def ask(*words: str) -> str:
        answer = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
        return answer.stdout.strip()

    commit = guarded(lambda: ask("rev-parse", "HEAD"))
    dirty = guarded(lambda: bool(ask("status", "--porcelain", "--untracked-files=no"))) if commit else None
    return commit, dirty


def require_device() -> None:
    """Raise BadInput unless a GPU that runs the kernels is here."""
    from cost_model.errors import BadInput
    from wts_lab.study import capable_device

    if capable_device() is None:
        raise BadInput("measuring needs torch and a CUDA GPU of compute capability 8.0 or more, and this machine has none that works; "
                       "run `wts-lab doctor` to see why, or `wts-lab study` to replay recorded runs")


def device_id(device: int = 0) -> str:
    """Catalogue id of the CUDA device, or a name made from its own where the catalogue has none.

    Raises:
        RuntimeError: torch sees no CUDA device.
        AmbiguousGpu: several SKUs fit; the id must be given.
    """
    from cost_model.gpu import UnknownGpu, recognise_gpu

    facts = guarded(lambda: _device_properties(device))
    if facts is None:
        raise RuntimeError("no CUDA device is visible to torch; run wts-lab doctor to see what is missing")
    try:
        return recognise_gpu(facts.name, facts.multi_processor_count, facts.total_memory).id
    except UnknownGpu:
        return re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-") or "unknown-gpu"


def _device_properties(device: int = 0) -> Any:
    """torch's description of a device; raises where there is none."""
    import torch

    return torch.cuda.get_device_properties(device)


def _device_facts() -> tuple[str, int]:
    """(name, multiprocessors that this process sees)."""
    facts = _device_properties()
    return facts.name, facts.multi_processor_count


def _driver_version() -> str | None:
    """Driver version through NVML."""
    from wts_lab.nvml import NvmlDevice

    return NvmlDevice.open().driver_version()


def _driver_cuda() -> str | None:
    """Newest CUDA release that the driver runs."""
    from wts_lab.nvml import NvmlDevice

    return NvmlDevice.open().cuda_release()


def _nvcc_release() -> str:
    """Release of the CUDA compiler that builds the kernels."""
    from wts_lab.build import find_nvcc

    return find_nvcc().release


def _torch_cuda() -> str | None:
    """CUDA release that torch was built with."""
    import torch

    return torch.version.cuda


def _own_version() -> str | None:
    """Version of this package."""
    import wts_lab

    return getattr(wts_lab, "__version__", None)


# --- the doctor ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        name: what was checked.
        ok: whether it is as it should be.
        detail: what was found.
        mend: what to do; empty where nothing is wrong.
        needed_for: the part of the lab that fails without it.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""
    needed_for: str = MEASURING

    @property
    def fault(self) -> bool:
        """Whether something that every environment needs is not as it should be."""
        return not self.ok and self.needed_for not in OPTIONAL

    def as_dict(self) -> dict[str, Any]:
        """The fields and whether it is a fault, ready for JSON."""
        return {**asdict(self), "fault": self.fault}


def doctor() -> list[Finding]:
    """Check everything that the lab may need, in one pass; never raises."""
    findings = []
    for name, check in CHECKS:
        try:
            findings += check()
        except Exception as error:  # noqa: BLE001 - a broken check is a finding, and the others still run
            findings.append(Finding(name, False, f"the check itself failed: {type(error).__name__}: {error}", "report this as a fault of the lab"))
    return findings


def _check_python() -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] >= LEAST_PYTHON
    return [Finding("python", ok, version, "" if ok else "use Python 3.11 or newer", "everything")]


def _check_torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return [Finding("torch", False, "not installed", "pip install torch (a CUDA build) to measure; predictions and recorded runs need none")]
    import torch

    built = torch.version.cuda
    mend = "" if built else "install a CUDA build of torch; this one has only the CPU"
    return [Finding("torch", built is not None, f"{torch.__version__}, built for {f'CUDA {built}' if built else 'no CUDA'}", mend)]


def _check_device() -> list[Finding]:
    facts = guarded(_device_properties)
    if facts is None:
        mend = "check that a driver is loaded (nvidia-smi) and the GPU is visible (CUDA_VISIBLE_DEVICES); recorded runs need none"
        return [Finding("CUDA device", False, "none is visible to torch", mend)]
    capability = (facts.major, facts.minor)
    ok = capability >= LEAST_CAPABILITY
    known = guarded(device_id)
    found = [Finding("CUDA device", True, f"{facts.name}, {facts.multi_processor_count} multiprocessors, known as {known or 'one of several'}")]
    mend = "" if ok else "the walk needs compute capability 8.0 or more; use a newer GPU, or replay recorded runs"
    found.append(Finding("compute capability", ok, f"{capability[0]}.{capability[1]}", mend))
    return found


def _check_driver() -> list[Finding]:
    from wts_lab.nvml import NvmlDevice

    if importlib.util.find_spec("pynvml") is None:
        return [Finding("NVML", False, "pynvml is not installed", "pip install nvidia-ml-py; without it clocks and throttling are not recorded")]
    device = NvmlDevice.open()
    if not device.found:
        return [Finding("NVML", False, "no device answers", "load the NVIDIA driver; without it clocks and throttling are not recorded")]
    clocks = device.clocks()
    clock = "n/a" if clocks.sm_clock_mhz is None else f"{clocks.sm_clock_mhz:.0f} MHz"
    reasons = "n/a" if clocks.reasons is None else ", ".join(clocks.reasons) or "none"
    found = [Finding("NVML", True, f"driver {device.driver_version() or 'n/a'}, clock {clock}, throttle reasons {reasons}")]
    mig, mps = device.mig_enabled(), device.mps_processes()
    shared = bool(mig) or bool(mps)
    detail = f"MIG {_on_off(mig)}, MPS processes {'n/a' if mps is None else mps}, MPS pipe {'set' if _mps_pipe() else 'not set'}"
    mend = "measure on a whole GPU: a share sees fewer multiprocessors, and the plan must be made for those" if shared else ""
    return [*found, Finding("GPU sharing", not shared, detail, mend)]


def _on_off(state: bool | None) -> str:
    """A switch in words."""
    return "n/a" if state is None else "on" if state else "off"


def _mps_pipe() -> bool:
    """Whether an MPS control daemon's pipe folder exists where clients look by default."""
    return Path("/tmp/nvidia-mps").exists()


def _check_compiler() -> list[Finding]:
    from wts_lab.build import BuildError, find_ninja, find_nvcc

    found = []
    try:
        nvcc = find_nvcc()
        found.append(_compiler_finding(nvcc.release, str(nvcc.path), guarded(_torch_cuda), guarded(_driver_cuda)))
    except BuildError as error:
        found.append(Finding("nvcc", False, "not found", str(error)))
    try:
        found.append(Finding("ninja", True, find_ninja()))
    except BuildError as error:
        found.append(Finding("ninja", False, "not found", str(error)))
    compiler = shutil.which("g++") or shutil.which("c++")
    mend = "" if compiler else "install a C++17 compiler, for instance with apt-get install g++"
    return [*found, Finding("C++ compiler", compiler is not None, compiler or "no g++ or c++ on the path", mend)]


def _compiler_finding(release: str, place: str, torch_cuda: str | None, driver_cuda: str | None) -> Finding:
    """Whether the compiler's major version fits torch (equal) and the driver (not newer); what is not known fits."""
    major = int(release.split(".")[0])
    detail = f"release {release} at {place}; torch is built for {f'CUDA {torch_cuda}' if torch_cuda else 'no CUDA'}, the driver runs CUDA {driver_cuda or 'n/a'}"
    if torch_cuda is not None and int(torch_cuda.split(".")[0]) != major:
        mend = f"install the CUDA {torch_cuda} compiler, or a torch built for CUDA {release}: their major versions must agree"
    elif driver_cuda is not None and int(driver_cuda.split(".")[0]) < major:
        mend = f"update the driver, or install a compiler of CUDA {driver_cuda}: the driver cannot run what CUDA {release} builds"
    else:
        mend = ""
    return Finding("nvcc", not mend, detail, mend)


def _check_locks() -> list[Finding]:
    held = [(path, owner) for path, owner in build_locks() if owner is not None]
    stale = stale_locks()
    if held:
        told = "; ".join(f"{path} held by process {owner}" for path, owner in held)
        return [Finding("build locks", False, told, "a build is running: wait for it, or end that process")]
    if stale:
        told = ", ".join(map(str, stale))
        return [Finding("build locks", False, f"left over: {told}", "no process holds them: `wts-lab doctor --clear-locks` deletes them")]
    return [Finding("build locks", True, "none held")]


def _check_packages() -> list[Finding]:
    found = []
    for name, need in (("pandas", RECORDS), ("pyarrow", RECORDS), ("scipy", RECORDS), ("plotly", REPORT), ("ipywidgets", LAB),
                       ("anywidget", LAB), ("jupyterlab", LAB), ("voila", LAB)):
        version = guarded(lambda name=name: metadata.version(name))
        absent = f"not installed, needed for {need} only" if need in OPTIONAL else "not installed"
        found.append(Finding(name, version is not None, version or absent, "" if version else f"pip install {name}", need))
    return found


CHECKS: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
    ("python", _check_python), ("torch", _check_torch), ("CUDA device", _check_device), ("NVML", _check_driver),
    ("compiler", _check_compiler), ("build locks", _check_locks), ("packages", _check_packages),
)
"""Every check of the doctor, in the order shown."""


# --- build locks -----------------------------------------------------------------------------------------------------


def build_locks() -> list[tuple[Path, str | None]]:
    """Every lock file of the build cache with the process that holds it; ``None`` where nobody does.

    Our locks are the operating system's and end with their owner, so a file that nobody holds is harmless.
    """
    from wts_lab.build import cache_root

    locks = []
    for path in sorted(cache_root().glob("*.lock")):
        with contextlib.suppress(OSError), open(path, "a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owner = None
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "unknown"
            locks.append((path, owner))
    return locks


def stale_locks() -> list[Path]:
    """Lock files that torch's extension builder left in our cache and that no build of ours is behind.

    Torch takes the presence of such a file as "another process builds" and waits for ever.
    """
    from wts_lab.build import cache_root

    held = {path.name.removesuffix(".lock") for path, owner in build_locks() if owner is not None}
    return [path for path in sorted(cache_root().glob("*/lock")) if path.parent.name not in held]


def clear_stale_locks() -> list[Path]:
    """Delete what :func:`stale_locks` lists; returns what was deleted."""
    cleared = stale_locks()
    for path in cleared:
        path.unlink(missing_ok=True)
    return cleared
