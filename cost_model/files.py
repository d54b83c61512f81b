"""Writing a file whole or not at all: into a temporary file beside it, then renamed over it or linked where none is; and why one cannot be read.

Work that ends in a file asks `require_writable` before it begins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cost_model.errors import BadInput


def write_whole(path: Path | str, write: Callable[[Path], None]) -> Path:
    """Call `write` with a temporary path in the same folder and rename the result to `path`.

    The folder is made. On any failure the temporary file goes and `path` is as it was.

    Raises:
        BadInput: `path` is a folder or a device.
        OSError: it cannot be written; names `path`, never the temporary file.
    """
    path = Path(path)
    _require_name_of_file(path)
    with naming(path):
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


def why_unreadable(error: Exception) -> str:
    """Why a file cannot be read, in words: that there is none without the system's number for it, anything else as it was told."""
    return "no such file" if isinstance(error, FileNotFoundError) else str(error)


def require_writable(path: Path | str | None, *, folder: bool = False) -> None:
    """Refuse an output that cannot be written, before work is spent on it. Nothing is left behind.

    Args:
        path: the file that is to be written, None for no file; what is missing of its folders would be made.
        folder: whether `path` is a folder for files instead.

    Raises:
        BadInput: it is a folder or a device where a file is wanted; what should be a folder is a file, or takes no new file.
    """
    if path is None:
        return
    path = Path(path)
    try:
        if not folder:
            _require_name_of_file(path)
        place = path if folder else path.parent
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            raise BadInput(f"{path}: cannot be written, because {place} is no folder; give another place")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror or error}); give another place, or see to it that this one may be written") from error


def _require_name_of_file(path: Path) -> None:
    """Raise BadInput where a path is taken by something that is no ordinary file."""
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is a device, which a file would replace; give the name of a file")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError of the operating system name the file that was asked for, not a temporary one beside it or none."""
    try:
        yield
    except OSError as error:
        temporary = error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(f".{path.stem}")
        if error.errno is None or not temporary:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


def place_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name unless that is taken; FileExistsError then, and what is there stays.

    A hard link refuses a taken name in one step. Where the file system has no links, an empty file claims the name first.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        path.touch(exist_ok=False)
        try:
            os.replace(temporary, path)
        except OSError:
            path.unlink()
            raise


def write_text_whole(path: Path | str, text: str) -> Path:
    """Write text as UTF-8, whole or not at all."""
    return write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _umask() -> int:
    """The process's mask; reading it needs setting it for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
