"""What all tests share: hypothesis settings, and skips with their reason where a GPU or a browser is missing."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller say where an unpacked wheel of SGLang lies."""
    parser.addoption("--sglang-root", type=Path, help="folder of an unpacked sglang wheel; default: what `make sglang` unpacked, or the installed sglang")


def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis no deadline (shared machines stall), and fixed examples where CI runs."""
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("lab", deadline=None, derandomize="CI" in os.environ, max_examples=50)
    settings.load_profile("lab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and skip those whose machine this is not."""
    for item in items:
        folders = item.path.relative_to(REPOSITORY).parts
        if "gpu" in folders:
            item.add_marker(pytest.mark.gpu)
        if "browser" in folders:
            item.add_marker(pytest.mark.browser)
        for marker, missing in (("gpu", missing_for_gpu_tests), ("browser", missing_for_browser_tests)):
            if item.get_closest_marker(marker) and missing():
                item.add_marker(pytest.mark.skip(reason=missing()))


@cache
def missing_for_gpu_tests() -> str | None:
    """Say what the GPU tests lack here, or None."""
    try:
        import torch
    except ImportError:
        return "needs torch"
    if not torch.cuda.is_available():
        return "needs a CUDA GPU; torch sees none"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"needs compute capability 8.0; this GPU has {torch.cuda.get_device_capability()}"
    return None


@cache
def missing_for_browser_tests() -> str | None:
    """Say what the browser tests lack here, or None."""
    found = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")))
    return None if found else "needs Chromium; the tests speak to it themselves, without a driver"


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def sglang_root(request: pytest.FixtureRequest) -> Path | None:
    """Where SGLang's files come from (None: the installed distribution); skips where there are none."""
    pytest.importorskip("torch", reason="needs torch")
    from wts_lab.engines.sglang import load_step_kernels

    unpacked = REPOSITORY / ".venv" / "sglang"
    root = request.config.getoption("--sglang-root") or (unpacked if unpacked.is_dir() else None)
    try:
        load_step_kernels(root)
    except ValueError as missing:
        if root is not None:
            raise
        pytest.skip(f"{missing} (--sglang-root, or `make sglang`)")
    return root


@pytest.fixture(scope="module")
def contract(sglang_root: Path | None):
    """SGLang's own contract and draft modules by the names of `tests.sglang_contract.MODULES`, importable during a file."""
    from tests.sglang_contract import contract_modules

    with contract_modules(sglang_root) as modules:
        yield modules
