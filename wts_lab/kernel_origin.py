"""What a fingerprint says of the machine and the kernels behind measured rows.

Records name the commit that made them, settings the hash of the kernels' sources, because a wheel has no history. In a checkout the
two meet: where nothing that a walk is built from has changed since the records' commits, its kernels are the present ones. Where something
has, `data/same_code.toml` names the shipped runs whose kernels are still the present ones in machine code.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cost_model.catalogue import CatalogueError, check_keys, read_facts
from cost_model.paths import data_root
from wts_lab.environment import GIT_TIMEOUT_S
from wts_lab.tuned import walk_sources_hash

MACHINE_FACTS = ("gpu_name", "gpu_sm_count", "driver_version", "cuda_version")
KERNEL_SOURCES = ("csrc/walk", "wts_lab/abi.py")
"""What `walk_sources_hash` is the hash of, from the root of a checkout: the sources, and what their header is rendered from."""


def known_environment(origin: Mapping[str, Any], *, made_here: bool = False) -> dict[str, Any]:
    """Facts for `cost_model.settings.fingerprint`; one that the rows do not share, or that nobody knows, is left out.

    Args:
        origin: as `recordings.describe_origin` gives it.
        made_here: whether the rows were measured just now, with the present kernels.
    """
    known = {name: origin.get(name) for name in MACHINE_FACTS}
    runs = origin.get("run_id")
    known["kernel_hash"] = (
        walk_sources_hash() if made_here or same_code([runs] if isinstance(runs, str) else runs or ())
        else recorded_kernel_hash(origin.get("git_commit"), origin.get("git_dirty"))
    )  # fmt: skip
    return {name: value for name, value in known.items() if value is not None and not isinstance(value, list)}


def same_code(runs: Collection[str]) -> bool:
    """Whether the kernels of these runs, at least one, are known to be those of the present sources in machine code: `benchmarks.touched` compares them.

    Raises:
        CatalogueError: the file that says so cannot be read.
    """
    path = same_code_path()
    if not runs or not path.is_file():
        return False
    known = read_facts(path)
    check_keys(path, "the file", known, {"kernel_hash", "runs"})
    if not isinstance(known["runs"], Mapping):
        raise CatalogueError(f"{path}: runs is {known['runs']!r}; it must be a table, run id -> record, as python -m benchmarks.touched --write makes it")
    return known["kernel_hash"] == walk_sources_hash() and set(runs) <= known["runs"].keys()


def same_code_path() -> Path:
    """Where the shipped runs of the same machine code are named: ``kernel_hash``, and ``[runs]``, run id -> record."""
    return data_root() / "same_code.toml"


def recorded_kernel_hash(commits: str | list[str] | None, dirty: bool | list[bool] | None, root: Path | None = None) -> str | None:
    """Hash of the kernels that were built from these commits, if they are the present ones; None where they are not, or nobody can tell.

    Args:
        commits, dirty: of the records, one value or several; a tree that differed from its commit tells nothing.
        root: of the checkout; default: where this package lies.
    """
    root = Path(__file__).resolve().parent.parent if root is None else root
    wanted = [commits] if isinstance(commits, str) else commits
    if not wanted or dirty is not False or not (root / ".git").exists():
        return None
    unchanged = all(_succeeds(root, "diff", "--quiet", commit, "--", *KERNEL_SOURCES) for commit in wanted)
    return walk_sources_hash() if unchanged and not _untracked(root) else None


def _succeeds(root: Path, *words: str) -> bool:
    """Whether git ends with status 0; an unknown commit is a failure like any other."""
    return _git(root, *words) is not None


def _untracked(root: Path) -> bool:
    """Whether a kernel source lies there that no commit has, or git cannot say."""
    found = _git(root, "ls-files", "--others", "--", *KERNEL_SOURCES)
    return found is None or any(".cu" in line for line in found.splitlines())


def _git(root: Path, *words: str) -> str | None:
    """What git prints; None where it fails or is missing."""
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
