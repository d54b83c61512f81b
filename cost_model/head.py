"""Head: the shape of a serial draft head, and the catalogue of released ones in `data/heads/`.

A head projects a latent of `rank` elements through `W2` `[padded_vocab_size, rank]` in every step. `W1` `[target_vocab_size,
rank]` turns the previous token into the latent. Sizes are in elements.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.paths import data_root
from cost_model.workload import require_whole, require_word

HEAD_KINDS = ("markov", "gated", "rnn", "domino")
"""Markov: the W1 row is the latent. Gated, RNN (DSpark) and Domino (GRU prefix) compute it from state."""

MAX_VOCAB_SIZE = 1 << 20
"""The selection word keeps 20 bits for the index, so a vocabulary has at most 1,048,576 entries."""

MAX_RANK = 512
RANK_MULTIPLE = 32
"""One int8 product instruction takes 32 elements of the latent; integer sums stay exact in fp32 up to rank 512."""

HEAD_SCHEMA_VERSION = 1

_SIZES = {"vocab_size", "target_vocab_size", "padded_vocab_size", "rank"}
_OPTIONAL = {"hidden_size", "gru_size", "candidate_pool", "block", "checkpoint", "note"}
_NEEDED_BY_KIND = {"markov": (), "gated": ("hidden_size",), "rnn": ("hidden_size",), "domino": ("hidden_size", "gru_size")}


class UnknownHead(BadInput):
    """No head of that name is in the catalogue; the message lists those that are."""


class IncompleteHead(BadInput):
    """The head is listed, but its released material does not give all sizes; the message names the missing ones."""


@dataclass(frozen=True)
class Head:
    """Shape of a draft head.

    Attributes:
        name: catalogue name, or a description such as `markov-151936-r256`.
        kind: one of HEAD_KINDS.
        vocab_size: rows of W2 that may be chosen (the draft vocabulary), 1 to 1,048,576.
        target_vocab_size: rows of W1, the ids that the walk starts from and returns.
        padded_vocab_size: rows of W2 as stored, at least `vocab_size`; rows beyond it are never chosen.
        rank: elements of the latent, a multiple of 32 up to 512.
        hidden_size: elements of the backbone's hidden vector; needed by gated, rnn and domino heads.
        gru_size: elements of the GRU state; needed by domino heads.
        candidate_pool: candidates that a domino head rescoring uses; None for the whole vocabulary.
        block: tokens drafted a round by the released model; None where not stated.
        checkpoint: the released checkpoint; None for a made-up shape.
        source: where the shape was read.

    Raises:
        BadInput: a size is outside what is allowed; the message says which and what to do.
    """

    name: str
    kind: str
    vocab_size: int
    target_vocab_size: int
    padded_vocab_size: int
    rank: int
    hidden_size: int | None = None
    gru_size: int | None = None
    candidate_pool: int | None = None
    block: int | None = None
    checkpoint: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        require_word("head kind", self.kind, HEAD_KINDS)
        for field in ("vocab_size", "target_vocab_size", "padded_vocab_size"):
            require_whole(field, getattr(self, field), 1, MAX_VOCAB_SIZE)
        if self.padded_vocab_size < self.vocab_size:
            raise BadInput(
                f"padded_vocab_size is {self.padded_vocab_size:,}, below vocab_size {self.vocab_size:,}; "
                "padding only adds rows, so give at least vocab_size"
            )
        require_rank(self.rank)
        for field in ("hidden_size", "gru_size", "candidate_pool", "block"):
            if getattr(self, field) is not None:
                require_whole(field, getattr(self, field), 1, None)
        missing = [field for field in _NEEDED_BY_KIND[self.kind] if getattr(self, field) is None]
        if missing:
            raise BadInput(f"a {self.kind} head needs {' and '.join(missing)}; none was given")

    @classmethod
    def markov(cls, vocab_size: int, rank: int, target_vocab_size: int | None = None) -> Head:
        """Return an unnamed Markov head; the target vocabulary is the draft vocabulary unless given."""
        target = vocab_size if target_vocab_size is None else target_vocab_size
        return cls(f"markov-{vocab_size}-r{rank}", "markov", vocab_size, target, vocab_size, rank)

    def as_dict(self) -> dict:
        """Return the fields as plain values, ready for JSON."""
        return asdict(self)


def walked_shape(head: Head) -> Head:
    """Return the shape as a walk's kernel sees it: with a candidate pool, the candidates and one row more for the first token, which is
    chosen from the whole vocabulary (`wts_lab/pool.py`). Every batch row has candidates of its own and is walked alone."""
    if head.candidate_pool is None:
        return head
    rows = min(head.candidate_pool, head.vocab_size) + 1
    return replace(head, vocab_size=rows, padded_vocab_size=rows, candidate_pool=None)


def require_rank(rank: object) -> None:
    """Raise BadInput unless the rank is a multiple of 32 from 32 to 512."""
    require_whole("rank", rank, 1, MAX_RANK)
    if rank % RANK_MULTIPLE:
        above = -(-rank // RANK_MULTIPLE) * RANK_MULTIPLE
        raise BadInput(
            f"rank is {rank}; it must be a multiple of {RANK_MULTIPLE} up to {MAX_RANK}. "
            f"Pad W1 and W2 with zero columns to rank {above}, which changes no product"
        )


def list_heads() -> tuple[str, ...]:
    """Return the names of the catalogued heads whose sizes are all known, sorted."""
    return tuple(sorted(path.stem for path in _files() if _SIZES <= read_facts(path).keys()))


def load_head(name: str) -> Head:
    """Return a catalogued head.

    Raises:
        UnknownHead: no such name; lists the known ones.
        IncompleteHead: a size was never published.
        CatalogueError: the file does not have the form that `data/README.md` describes.
    """
    for path in _files():
        if path.stem == name:
            return _head_from_file(path)
    raise UnknownHead(
        f"unknown head {name!r}; known are {', '.join(list_heads())}. "
        "For a shape of your own give a vocabulary size and a rank"
    )


def _files() -> list[Path]:
    """List the fact files of heads."""
    return sorted((data_root() / "heads").glob("*.toml"))


def _head_from_file(path: Path) -> Head:
    """Build a Head from its file."""
    facts = read_facts(path)
    check_version(path, facts, HEAD_SCHEMA_VERSION)
    check_keys(path, "the head", facts, {"schema_version", "name", "kind", "source"}, _SIZES | _OPTIONAL)
    if facts["name"] != path.stem:
        raise CatalogueError(f"{path}: is named {facts['name']!r}; the name must be the file's")
    missing = sorted(_SIZES - facts.keys())
    if missing:
        raise IncompleteHead(
            f"the released material of {path.stem} does not give {', '.join(missing)}; "
            "measure or read it from the checkpoint, and give a vocabulary size and a rank instead of the name"
        )
    fields = {key: value for key, value in facts.items() if key not in ("schema_version", "note")}
    return Head(**fields)
