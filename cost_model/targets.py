"""Target and Drafter: the shapes that one speculative round is made of, and the catalogues of them in `data/targets/` and `data/drafters/`.

A target is a dense transformer with grouped-query attention and a gated MLP. A parallel drafter is a few layers of the target's own sizes,
which share the target's token embedding and its output projection (DFlash, DSpark and Domino alike). Sizes are in elements; weights are bf16.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.paths import data_root
from cost_model.terms import BYTES_OF_BF16
from cost_model.workload import require_whole, require_word

SCHEMA_VERSION = 1

MEMORY_SCHEMES = ("separate-kv", "target-kv", "window")
"""Where a drafter keeps the context: K and V of its own for all of it (DFlash), the target's in place beside a recurrent state (H-Spec), or
K and V of the last tokens beside recurrent states of fixed size (HyFlash)."""

_TARGET_SIZES = ("layers", "hidden_size", "intermediate_size", "attention_heads", "kv_heads", "head_dim", "vocab_size")


class UnknownShape(BadInput):
    """No target or drafter of that name is in the catalogue; the message lists those that are."""


@dataclass(frozen=True)
class Target:
    """Shape of a target model.

    Attributes:
        name, model: catalogue name and published model; source: where the shape was read.
        layers, hidden_size, intermediate_size, attention_heads, kv_heads, head_dim, vocab_size: as its config has them.
        tied_embeddings: whether the token embedding is the output projection too.
    """

    name: str
    model: str
    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    source: str

    def __post_init__(self) -> None:
        for field in _TARGET_SIZES:
            require_whole(field, getattr(self, field), 1, None)
        if self.attention_heads % self.kv_heads:
            raise BadInput(f"attention_heads is {self.attention_heads} and kv_heads {self.kv_heads}; each kv head serves a whole number of heads")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: Q and O, K and V, and the three matrices of the gated MLP. Norms are left out (under 0.01 %)."""
        attention = 2 * self.hidden_size * self.head_dim * (self.attention_heads + self.kv_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def output_parameters(self) -> int:
        """Weights of the output projection, [vocab_size, hidden_size]."""
        return self.vocab_size * self.hidden_size

    @property
    def kv_bytes_per_layer_token(self) -> int:
        """K and V of one token in one layer, bf16: 2 × kv heads × head size × 2 bytes."""
        return 2 * self.kv_heads * self.head_dim * BYTES_OF_BF16

    def as_dict(self) -> dict:
        """Return the fields as plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Drafter:
    """Shape of a parallel drafter.

    Attributes:
        name: catalogue name; target: that of its target; source: where the shape was read; checkpoint: the released one.
        layers: transformer layers, each of the target's sizes.
        target_features: hidden vectors of the target that are joined and projected into one for each position; 0 for none.
        block: positions of a draft pass; steps: tokens drafted of them. DSpark drafts at every position; DFlash and Domino put the last known
            token first and draft at the others.
        memory: one of MEMORY_SCHEMES.
        head: catalogue name of its serial head; None for DFlash, which has none.
    """

    name: str
    target: str
    layers: int
    target_features: int
    block: int
    steps: int
    memory: str
    source: str
    head: str | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for field, least in (("layers", 1), ("target_features", 0), ("block", 1), ("steps", 1)):
            require_whole(field, getattr(self, field), least, None)
        if self.steps > self.block:
            raise BadInput(f"steps is {self.steps} and block {self.block}; a draft pass drafts at most one token a position")
        require_word("memory", self.memory, MEMORY_SCHEMES)

    def positions(self, steps: int) -> int:
        """Positions of a draft pass that drafts `steps` tokens."""
        return steps + self.block - self.steps

    def parameters(self, target: Target) -> int:
        """Weights of the backbone: its layers, and the projection of the joined target features, [features × hidden, hidden]."""
        return self.layers * target.layer_parameters + self.target_features * target.hidden_size**2

    def as_dict(self) -> dict:
        """Return the fields as plain values, ready for JSON."""
        return asdict(self)


def list_targets() -> tuple[str, ...]:
    """Return the names of the catalogued targets, sorted."""
    return _names("targets")


def list_drafters() -> tuple[str, ...]:
    """Return the names of the catalogued drafters, sorted."""
    return _names("drafters")


def load_target(name: str) -> Target:
    """Return a catalogued target. Raises UnknownShape, or CatalogueError for a file of another form."""
    return Target(**_facts("targets", name, {"name", "model", "tied_embeddings", "source", *_TARGET_SIZES}, set()))


def load_drafter(name: str) -> Drafter:
    """Return a catalogued drafter. Raises UnknownShape, or CatalogueError for a file of another form."""
    return Drafter(**_facts("drafters", name, {"name", "target", "layers", "target_features", "block", "steps", "memory", "source"}, {"head", "checkpoint", "note"}))


def _names(folder: str) -> tuple[str, ...]:
    """Names of the files of a catalogue."""
    return tuple(sorted(path.stem for path in (data_root() / folder).glob("*.toml")))


def _facts(folder: str, name: str, required: set[str], optional: set[str]) -> dict:
    """Read one file of a catalogue into constructor arguments."""
    if name not in _names(folder):
        raise UnknownShape(f"unknown {folder[:-1]} {name!r}; known are {', '.join(_names(folder))}")
    path: Path = data_root() / folder / f"{name}.toml"
    facts = read_facts(path)
    check_version(path, facts, SCHEMA_VERSION)
    check_keys(path, f"the {folder[:-1]}", facts, {"schema_version", *required}, optional)
    if facts["name"] != name:
        raise CatalogueError(f"{path}: is named {facts['name']!r}; the name must be the file's")
    return {key: value for key, value in facts.items() if key not in ("schema_version", "note")}
