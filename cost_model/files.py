"""Writing a file whole or not at all: into a temporary file beside it, then renamed over it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path | str, write: Callable[[Path], None]) -> Path:
    """Call `write` with a temporary path in the same folder and rename the result to `path`.

    The folder is made. On any failure the temporary file goes and `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_text_whole(path: Path | str, text: str) -> Path:
    """Write text as UTF-8, whole or not at all."""
    return write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _umask() -> int:
    """The process's mask; reading it needs setting it for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
