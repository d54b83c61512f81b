"""Safetensors checkpoints: tensors by their released names, and the sizes that their shapes imply.

A draft head may lie in a file of its own, or among the tensors of a whole drafter, whose names carry a prefix. Only headers and
the tensors asked for are read, so a target model of many gigabytes may be named for its embedding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from cost_model.errors import BadInput

PREFIXES = ("", "markov_head.", "model.markov_head.", "model.")
"""What releases put before the names of a head's tensors, tried in this order."""

EMBEDDING_NAMES = (
    "embed_tokens.weight",
    "model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
)
"""Where target models keep the token embedding, tried in this order."""

NUMBER_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""How weights may be stored: numbers that mean themselves. Quantised tensors have scales elsewhere."""

LISTED_NAMES = 12
"""Names of a checkpoint that an error message lists at most."""


class Checkpoint:
    """The tensors of one ``.safetensors`` file, or of all those in a folder (the first file that has a name counts).

    :raises BadInput: safetensors is not installed, no such file, or a file that is not safetensors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
        if not files or not files[0].is_file():
            raise BadInput(f"no safetensors file at {path}; give a .safetensors file or a folder that holds some")
        self._files: dict[str, Path] = {}
        for file in files:
            for key in self._keys(file):
                self._files.setdefault(key, file)

    def holds(self, name: str) -> bool:
        """Whether a tensor of that name is there, under any of PREFIXES."""
        return self._key(name) is not None

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Read tensors by their names without prefix, on the CPU, in the dtypes stored.

        :raises BadInput: some are missing (they are named, with what is there) or quantised.
        """
        keys = {name: self._key(name) for name in names}
        missing = [name for name, key in keys.items() if key is None]
        if missing:
            raise BadInput(f"{self.path} lacks {' and '.join(missing)} (also looked for with the prefix markov_head.); {self._contents()}")
        return {name: self._tensor(key) for name, key in keys.items() if key is not None}

    def read_embedding(self) -> torch.Tensor:
        """Read the token embedding ``[V_target, hidden]``, whichever of EMBEDDING_NAMES it has.

        :raises BadInput: none of them is there, or it is quantised.
        """
        for name in EMBEDDING_NAMES:
            if name in self._files:
                return self._tensor(name)
        raise BadInput(f"{self.path} lacks the target's embedding, one of {', '.join(EMBEDDING_NAMES)}; {self._contents()}")

    def _key(self, name: str) -> str | None:
        """The name as stored, or None."""
        return next((prefix + name for prefix in PREFIXES if prefix + name in self._files), None)

    def _keys(self, file: Path) -> list[str]:
        """All names of a file."""
        with open_tensors(file) as tensors:
            return list(tensors.keys())

    def _tensor(self, key: str) -> torch.Tensor:
        """One tensor by its name as stored."""
        with open_tensors(self._files[key]) as tensors:
            tensor = tensors.get_tensor(key)
        if tensor.dtype not in NUMBER_TYPES:
            raise BadInput(
                f"{key} in {self._files[key]} is stored as {str(tensor.dtype).removeprefix('torch.')}; give weights as bfloat16, float16 "
                "or float32 (quantised ones must be converted first)"
            )
        return tensor

    def _contents(self) -> str:
        """The first names, for an error message."""
        names = sorted(self._files)
        return "it holds: " + ", ".join(names[:LISTED_NAMES]) + (", ..." if len(names) > LISTED_NAMES else "")


def open_tensors(file: Path):
    """The open file as a context manager; BadInput where it cannot be read."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise BadInput("reading a checkpoint needs the safetensors package: pip install safetensors") from error
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{file} is not a readable safetensors file: {error}") from error


def solve_sizes(layout: Mapping[str, Sequence[str]], tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Read sizes off the shapes of tensors, and hold all shapes to them.

    :param layout: for each name its dimensions as sums of multiples of sizes, for instance ``("3*rank", "2*rank + hidden_size")``.
        A dimension may hold at most one size that no earlier dimension has settled.
    :returns: each size by its name, at least 1.
    :raises BadInput: a tensor has another shape; the message gives the expected one, with the sizes known so far as numbers.
    """
    sizes: dict[str, int] = {}
    for name, dimensions in layout.items():
        found, known = list(tensors[name].shape), dict(sizes)
        if len(found) != len(dimensions) or not all(map(_fits, dimensions, found, [sizes] * len(found))):
            expected = ", ".join(_describe(dimension, known) for dimension in dimensions)
            raise BadInput(f"{name} must be [{expected}]; found {found}")
    return sizes


def measure(dimensions: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that dimensions such as ``2*rank + hidden_size`` have for given sizes."""
    return tuple(sum(count * sizes[name] for count, name in _terms(dimension)) for dimension in dimensions)


def _terms(dimension: str) -> list[tuple[int, str]]:
    """``2*rank + hidden_size`` as ``[(2, "rank"), (1, "hidden_size")]``."""
    parts = [term.rpartition("*") for term in dimension.split(" + ")]
    return [(int(count or 1), name) for count, _, name in parts]


def _fits(dimension: str, found: int, sizes: dict[str, int]) -> bool:
    """Whether a dimension has the size found; settles the one size that is still unknown."""
    rest, unknown = found, None
    for count, name in _terms(dimension):
        if name in sizes:
            rest -= count * sizes[name]
        else:
            unknown = count, name
    if unknown is None:
        return rest == 0
    count, name = unknown
    if rest < count or rest % count:
        return False
    sizes[name] = rest // count
    return True


def _describe(dimension: str, sizes: Mapping[str, int]) -> str:
    """A dimension with the sizes that are known as one number: ``64 + hidden_size``."""
    known = sum(count * sizes[name] for count, name in _terms(dimension) if name in sizes)
    unknown = [f"{count}*{name}" if count > 1 else name for count, name in _terms(dimension) if name not in sizes]
    return " + ".join(([str(known)] if known else []) + unknown)
