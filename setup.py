"""Adds one build step to what pyproject.toml declares: a wheel carries csrc, data and notebooks.

In a checkout these folders lie beside the packages, where people look for them. A wheel holds packages only, so the step
copies them to `wts_lab/_shipped/`. `cost_model.paths` looks in both places.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("csrc", "data", "notebooks")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "*.pyc", "*.o", "*.so", "*.part*")


class BuildWithShippedFolders(build_py):
    """`build_py`, then the copies; an editable install needs none, since it runs from the checkout."""

    def run(self) -> None:
        """Build the packages and copy the shipped folders beside them."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._folders():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=LEFT_OUT)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """List the files that the step writes, the copied ones among them."""
        copied = [
            str(path) for _, target in self._folders() for path in sorted(target.rglob("*")) if path.is_file()
        ]
        return [*super().get_outputs(include_bytecode), *copied]

    def _folders(self) -> list[tuple[Path, Path]]:
        """Pair each folder of the checkout with its place in the build."""
        root = Path(__file__).resolve().parent
        shipped = Path(self.build_lib) / "wts_lab" / "_shipped"
        return [(root / name, shipped / name) for name in SHIPPED]


setup(cmdclass={"build_py": BuildWithShippedFolders})
