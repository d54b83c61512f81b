"""SGLang's own files, imported without its package: from an installed distribution, or from a folder that its wheel was unpacked into.

Importing ``sglang`` itself would start a serving engine's worth of imports. Here the modules that somebody names are run from their
files, under their own names; everything else of the package that they import is a stand-in whose classes do nothing and whose
instances are false. Nothing is copied from SGLang. Packages that these modules need and that are not installed (msgspec) are looked for
in the same folder; ``make sglang`` fills one with both.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

from cost_model.errors import BadInput
from cost_model.workload import ENGINE

TESTED_VERSIONS = (ENGINE.removeprefix("sglang-"),)
"""Versions whose files these loaders have been tried with: what they import, and how they are called."""

PACKAGE = "sglang"


def locate(root: Path | None = None) -> tuple[str, Path]:
    """Version of SGLang and the folder that holds ``sglang/``.

    :param root: folder that holds ``sglang/`` and ``sglang-<version>.dist-info/`` (an unpacked wheel); None: the installed one.
    :raises BadInput: no such files, or a version that is not in `TESTED_VERSIONS` or cannot be told.
    """
    version, folder = _installed() if root is None else _unpacked(Path(root))
    if version not in TESTED_VERSIONS:
        raise BadInput(f"sglang {version} has not been tried here; tested: {', '.join(TESTED_VERSIONS)}")
    return version, folder


@contextmanager
def importable(folder: Path, names: frozenset[str]) -> Iterator[None]:
    """While this is open, ``import sglang...`` gives the named modules from their files and stand-ins for all others.

    What was imported of SGLang before is put aside and put back.

    :param folder: as `locate` gives it.
    :param names: full names of the modules to be run from their files.
    :raises BadInput: at the import of a named module whose file is missing.
    """
    finder, path = _Finder(folder, names), sys.path[:]
    before = {name: module for name, module in sys.modules.items() if _is_sglangs(name)}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    sys.path.append(str(folder))
    stand_ins = _missing_packages()
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = path
        for name in [name for name in sys.modules if _is_sglangs(name) or sys.modules[name] is stand_ins.get(name, finder)]:
            del sys.modules[name]
        sys.modules.update(before)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of SGLang: the named ones in their files, the others empty."""

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self.folder, self.names = folder, names

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """As the import system asks."""
        if not _is_sglangs(name):
            return None
        if name not in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        place = self.folder.joinpath(*name.split("."))
        files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
        if not files:
            raise BadInput(f"{place.with_suffix('.py')} is missing; the sglang wheel is incomplete")
        inside = {"submodule_search_locations": []} if files[0].name == "__init__.py" else {}
        return importlib.util.spec_from_file_location(name, files[0], **inside)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty module whose every name is a `_StandIn`."""
        module = ModuleType(spec.name)
        module.__getattr__ = _stand_in
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class _StandIn:
    """In place of a class or function of SGLang: can be called, subclassed and asked for attributes; its instances are false."""

    def __init__(self, *values: object, **named: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False


def _stand_in(name: str) -> type:
    """A class of that name; dunder names are left to the import system."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_StandIn,), {})


def _is_sglangs(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _installed() -> tuple[str, Path]:
    """Version and site folder of the installed distribution."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise BadInput(f"sglang is not installed; install {ENGINE.replace('-', ' ')}, or give the folder of its unpacked wheel as root") from error
    return distribution.version, Path(str(distribution.locate_file("")))


def _unpacked(root: Path) -> tuple[str, Path]:
    """Version, as the wheel's METADATA says, and the folder itself."""
    found = sorted(root.glob("sglang-*.dist-info/METADATA"))
    version = re.search(r"^Version: *(\S+)", found[0].read_text("utf-8"), re.MULTILINE) if found else None
    if version is None:
        raise BadInput(
            f"{root} holds no sglang-*.dist-info/METADATA that tells the version; unpack the whole wheel of sglang {' or '.join(TESTED_VERSIONS)} there"
        )
    return version.group(1), root


def _missing_packages() -> dict[str, ModuleType]:
    """Stand-ins for msgspec and triton where they are missing: as much of them as lets SGLang's step kernels and CPU references load."""
    modules = {}
    if importlib.util.find_spec("msgspec") is None:
        modules["msgspec"] = _module("msgspec", Struct=type("Struct", (), {}))
    if importlib.util.find_spec("triton") is None:
        extra = _module("triton.language.extra", libdevice=None)
        language = _module("triton.language", constexpr=lambda value: SimpleNamespace(value=value), extra=extra)
        triton = _module("triton", jit=lambda function: function, cdiv=lambda a, b: -(-a // b), language=language)
        modules |= {module.__name__: module for module in (triton, language, extra)}
    return modules


def _module(name: str, **contents: object) -> ModuleType:
    """A module that holds just these names."""
    module = ModuleType(name)
    vars(module).update(contents)
    return module
