"""Draft heads as torch modules, random or from safetensors checkpoints: Markov, gated Markov, RNN (DSpark) and Domino.

Every head turns the previous token, the backbone's hidden vector ``h`` of the position and its own state into a latent ``u``
``[rank]``, which one matrix, `DraftHead.projection` ``[padded V, rank]``, turns into corrections of the base logits:

    markov   u = W1[x]
    gated    e = W1[x]; u = sigmoid(Wg [h; e] + bg) * e
    rnn      e = W1[x]; [a; c; o] = Wj [s; e; h] + bj; s' = sigmoid(a) s + (1 - sigmoid(a)) tanh(c); u = tanh(o); s = 0 at first
    domino   s' = GRU(E[x], s); u = SiLU(F1 [h; s']); s = GRU(E[anchor], 0) at first

``x`` is the previous token (a target id), ``W1`` ``[V_target, rank]``, ``E`` ``[V_target, hidden]`` the target model's embedding. The
equations and tensor names are those of the released DSpark and Domino checkpoints. Rows of the projection from ``vocab_size``
on are padding and never chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as functional

from cost_model.errors import BadInput
from cost_model.head import Head, require_rank
from cost_model.workload import require_word
from wts_lab.checkpoints import Checkpoint, measure, solve_sizes

MAX_GRU_SIZE = 1024
GRU_MULTIPLE = 8
"""A lane of the walk's kernel reads eight elements of the state at a time."""

NORMAL_ROWS = 8192
"""Rows of random numbers drawn at a time, so that fp32 temporaries stay small."""

Layout = dict[str, tuple[str, ...]]


class DraftHead(torch.nn.Module):
    """What all heads share; each kind is a subclass.

    Attributes:
        kind: one of `cost_model.head.HEAD_KINDS`.
        TENSORS: names in checkpoints (and in the state dict), each with its dimensions; the constructor takes them in this order,
            the token table first.
        PROJECTION: the one of them that is the vocabulary projection.
        first_step: positions before the head's first step. 0, or 1 for Domino, whose position 0 is the base logits' argmax.
        vocab_size: rows of the projection that may be chosen.
        target_vocab_size: rows of the token table: the ids that a walk starts from and returns.
        padded_vocab_size: rows of the projection as stored.
        rank: elements of the latent.
        hidden_size, gru_size, candidate_pool: as in `cost_model.head.Head`; None where the kind has none.
    """

    kind: ClassVar[str]
    TENSORS: ClassVar[Layout]
    PROJECTION: ClassVar[str] = "markov_w2.weight"
    first_step: ClassVar[int] = 0

    def __init__(self, *tensors: torch.Tensor, vocab_size: int | None = None, name: str | None = None) -> None:
        super().__init__()
        sizes = solve_sizes(self.TENSORS, dict(zip(self.TENSORS, tensors, strict=True)))
        require_rank(sizes["rank"])
        self.rank, self.target_vocab_size, self.padded_vocab_size = (sizes[key] for key in ("rank", "target_vocab_size", "padded_vocab_size"))
        self.hidden_size, self.gru_size = sizes.get("hidden_size"), sizes.get("gru_size")
        self.candidate_pool: int | None = None
        self.vocab_size = self.padded_vocab_size if vocab_size is None else vocab_size
        if not 1 <= self.vocab_size <= self.padded_vocab_size:
            raise BadInput(f"vocab_size must be 1 to {self.padded_vocab_size}, the rows of {self.PROJECTION}; got {vocab_size}")
        self._name = name

    @classmethod
    def random(
        cls,
        vocab_size: int,
        rank: int,
        *,
        hidden_size: int | None = None,
        gru_size: int | None = None,
        candidate_pool: int | None = None,
        target_vocab_size: int | None = None,
        padded_vocab_size: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> DraftHead:
        """A head of normal random weights, scaled for hidden vectors of standard deviation 1: see `random_head`.

        :raises BadInput: a size that cannot be, or one that the kind needs and was not given.
        """
        name = f"{cls.kind}-{vocab_size}-r{rank}"
        sizes = (vocab_size, target_vocab_size or vocab_size, padded_vocab_size or vocab_size, rank)
        return random_head(Head(name, cls.kind, *sizes, hidden_size, gru_size, candidate_pool), seed=seed, device=device, dtype=dtype)

    @classmethod
    def from_safetensors(
        cls, path: str | Path, *, vocab_size: int | None = None, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
    ) -> DraftHead:
        """Load the tensors named in `TENSORS`, with or without the prefix ``markov_head.``.

        :param path: a ``.safetensors`` file, or a folder that holds some.
        :param vocab_size: logical draft vocabulary where the projection is padded; default: all its rows.
        :param dtype: what the weights are converted to.
        :raises BadInput: no such file, not a safetensors file, a tensor missing (the names found are listed), quantised, or of
            the wrong shape.
        """
        return cls._load(path, Checkpoint(path).read(cls.TENSORS), device, dtype, vocab_size=vocab_size)

    @classmethod
    def _load(cls, path: str | Path, tensors: Mapping[str, torch.Tensor], device, dtype, **options: Any) -> DraftHead:
        """The head of tensors read from a path, which is named where they do not fit."""
        try:
            return cls(*(tensors[name].to(device, dtype) for name in cls.TENSORS), name=Path(path).stem, **options)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error

    @property
    def shape(self) -> Head:
        """The sizes alone, as the cost model takes them."""
        return Head(
            self._name or f"{self.kind}-{self.vocab_size}-r{self.rank}", self.kind, self.vocab_size, self.target_vocab_size,
            self.padded_vocab_size, self.rank, self.hidden_size, self.gru_size, self.candidate_pool,
        )  # fmt: skip

    @property
    def projection(self) -> torch.Tensor:
        """``W2`` (Domino: ``F2``) ``[padded_vocab_size, rank]``, padding included: what every step reads."""
        return self.get_parameter(self.PROJECTION)

    @property
    def embedding(self) -> torch.Tensor:
        """``W1`` ``[target_vocab_size, rank]`` (Domino: ``E`` ``[target_vocab_size, hidden_size]``): a row a token."""
        return self.get_parameter(next(iter(self.TENSORS)))

    @classmethod
    def spreads(cls, shape: Head) -> dict[str, float | torch.Tensor]:
        """Standard deviation of the random elements of each tensor: a number, or one a column."""
        raise NotImplementedError

    def initial_state(self, anchor: torch.Tensor) -> torch.Tensor | None:
        """The state before the first step, ``[B, ...]`` in the weights' dtype, from the anchors int64 ``[B]``; None without state."""
        return None

    def latent(
        self, previous: torch.Tensor, hidden: torch.Tensor | None = None, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The latent ``[B, rank]`` of one step and the state after it, computed in the weights' dtype as serving engines do.

        :param previous: int64 ``[B]``, target ids.
        :param hidden: ``[B, hidden_size]`` of this position; not read by Markov heads.
        :param state: what the step before returned, or `initial_state`.
        """
        raise NotImplementedError

    def forward(
        self, previous: torch.Tensor, hidden: torch.Tensor | None = None, state: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Corrections ``[B, padded_vocab_size]`` of the logits of one step; parameters as `latent`."""
        return functional.linear(self.latent(previous, hidden, state)[0], self.projection)


class MarkovHead(DraftHead):
    """``markov_w1`` is an Embedding ``[target_vocab_size, rank]``, ``markov_w2`` a Linear ``[padded_vocab_size, rank]`` without bias.

    :raises BadInput: tensors of other shapes, a rank that is not a multiple of 32 up to 512, or a vocabulary beyond the rows of
        ``markov_w2.weight``. So do all heads.
    """

    kind = "markov"
    TENSORS: ClassVar[Layout] = {"markov_w1.weight": ("target_vocab_size", "rank"), "markov_w2.weight": ("padded_vocab_size", "rank")}

    def __init__(self, w1: torch.Tensor, w2: torch.Tensor, *others: torch.Tensor, vocab_size: int | None = None, name: str | None = None):
        super().__init__(w1, w2, *others, vocab_size=vocab_size, name=name)
        self.markov_w1 = torch.nn.Embedding.from_pretrained(w1, freeze=True)
        self.markov_w2 = _linear(w2)

    @classmethod
    def spreads(cls, shape: Head) -> dict[str, float | torch.Tensor]:
        """Of both matrices alike, so that their product has a standard deviation of 1."""
        return {"markov_w1.weight": shape.rank**-0.25, "markov_w2.weight": shape.rank**-0.25}

    def latent(self, previous, hidden=None, state=None):
        """``W1[previous]``."""
        return self.markov_w1(previous), None


class GatedHead(MarkovHead):
    """A Markov head whose latent is gated by ``gate_proj``, a Linear from ``[h; e]`` to ``rank``."""

    kind = "gated"
    TENSORS: ClassVar[Layout] = MarkovHead.TENSORS | {"gate_proj.weight": ("rank", "hidden_size + rank"), "gate_proj.bias": ("rank",)}

    def __init__(self, w1, w2, gate_weight, gate_bias, *, vocab_size: int | None = None, name: str | None = None):
        super().__init__(w1, w2, gate_weight, gate_bias, vocab_size=vocab_size, name=name)
        self.gate_proj = _linear(gate_weight, gate_bias)

    @classmethod
    def spreads(cls, shape: Head) -> dict[str, float | torch.Tensor]:
        """Hidden vector, token and bias move a gate's argument by 1, 1 and 0.5; its square is then 0.33 on average."""
        columns = _columns((shape.hidden_size, shape.hidden_size**-0.5), (shape.rank, shape.rank**-0.25))
        markov = MarkovHead.spreads(shape)
        return markov | {"markov_w2.weight": shape.rank**-0.25 / 0.33**0.5, "gate_proj.weight": columns, "gate_proj.bias": 0.5}

    def latent(self, previous, hidden=None, state=None):
        """``sigmoid(Wg [h; e] + bg) * e``."""
        row = self.markov_w1(previous)
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, row], dim=-1))) * row, None


class RnnHead(MarkovHead):
    """A Markov head whose latent comes from a recurrent state ``[rank]``: ``joint_proj`` is a Linear from ``[s; e; h]`` to ``[a; c; o]``."""

    kind = "rnn"
    TENSORS: ClassVar[Layout] = MarkovHead.TENSORS | {
        "joint_proj.weight": ("3*rank", "2*rank + hidden_size"),
        "joint_proj.bias": ("3*rank",),
    }

    def __init__(self, w1, w2, joint_weight, joint_bias, *, vocab_size: int | None = None, name: str | None = None):
        super().__init__(w1, w2, joint_weight, joint_bias, vocab_size=vocab_size, name=name)
        self.joint_proj = _linear(joint_weight, joint_bias)

    @classmethod
    def spreads(cls, shape: Head) -> dict[str, float | torch.Tensor]:
        """State, token, hidden vector and bias move an argument by 1 (a state's elements are near 0.5), 1, 1 and 0.5; the square of
        its tanh is then 0.6 on average."""
        rank = shape.rank
        columns = _columns((rank, 2 * rank**-0.5), (rank, rank**-0.25), (shape.hidden_size, shape.hidden_size**-0.5))
        markov = MarkovHead.spreads(shape)
        return markov | {"markov_w2.weight": (0.6 * rank) ** -0.5, "joint_proj.weight": columns, "joint_proj.bias": 0.5}

    def initial_state(self, anchor: torch.Tensor) -> torch.Tensor:
        """Zeros ``[B, rank]``."""
        return self.embedding.new_zeros(len(anchor), self.rank)

    def latent(self, previous, hidden=None, state=None):
        """``tanh(o)``, and the gated mean of old state and ``tanh(c)``."""
        state = self.initial_state(previous) if state is None else state
        joint = self.joint_proj(torch.cat([state, self.markov_w1(previous), hidden], dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1.0 - gate) * torch.tanh(candidate)


class DominoHead(DraftHead):
    """A GRU over the tokens drafted so far and a two-layer projector.

    ``embed_tokens`` is the target model's Embedding ``[target_vocab_size, hidden_size]``; ``prefix_gru`` a GRU without biases;
    ``embed_proj`` a Sequential of Linear ``[rank, hidden_size + gru_size]`` (``F1``), SiLU, Linear ``[padded_vocab_size, rank]`` (``F2``).

    :param candidate_pool: ids that the steps choose among, the best by base logits; None for the whole vocabulary.
    """

    kind = "domino"
    PROJECTION = "embed_proj.2.weight"
    first_step = 1
    TENSORS: ClassVar[Layout] = {
        "embed_tokens.weight": ("target_vocab_size", "hidden_size"),
        "prefix_gru.weight_ih_l0": ("3*gru_size", "hidden_size"),
        "prefix_gru.weight_hh_l0": ("3*gru_size", "gru_size"),
        "embed_proj.0.weight": ("rank", "hidden_size + gru_size"),
        "embed_proj.2.weight": ("padded_vocab_size", "rank"),
    }

    def __init__(self, embedding, weight_ih, weight_hh, f1, f2, *, candidate_pool=None, vocab_size=None, name=None) -> None:
        super().__init__(embedding, weight_ih, weight_hh, f1, f2, vocab_size=vocab_size, name=name)
        if self.gru_size > MAX_GRU_SIZE or self.gru_size % GRU_MULTIPLE:
            raise BadInput(f"gru_size is {self.gru_size}; it must be a multiple of {GRU_MULTIPLE} up to {MAX_GRU_SIZE}")
        if candidate_pool is not None and candidate_pool < 1:
            raise BadInput(f"candidate_pool is {candidate_pool}; it must be at least 1, or None for the whole vocabulary")
        self.candidate_pool = candidate_pool
        self.embed_tokens = torch.nn.Embedding.from_pretrained(embedding, freeze=True)
        self.prefix_gru = torch.nn.GRU(self.hidden_size, self.gru_size, bias=False, batch_first=True, device="meta")
        self.prefix_gru.weight_ih_l0 = torch.nn.Parameter(weight_ih, requires_grad=False)
        self.prefix_gru.weight_hh_l0 = torch.nn.Parameter(weight_hh, requires_grad=False)
        self.embed_proj = torch.nn.Sequential(_linear(f1), torch.nn.SiLU(), _linear(f2))

    @classmethod
    def from_safetensors(
        cls, path, *, embedding: torch.Tensor | str | Path | None = None, candidate_pool: int | None = None,
        vocab_size: int | None = None, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16,
    ) -> DominoHead:  # fmt: skip
        """Load ``prefix_gru`` and ``embed_proj`` from a path, and the target's embedding.

        :param embedding: the tensor ``[V_target, hidden]``, or the path of the target's checkpoint; default: it lies at ``path`` too.
        :raises BadInput: as `DraftHead.from_safetensors`.
        """
        checkpoint = Checkpoint(path)
        tensors = checkpoint.read(name for name in cls.TENSORS if name != "embed_tokens.weight")
        if not isinstance(embedding, torch.Tensor):
            embedding = (checkpoint if embedding is None else Checkpoint(embedding)).read_embedding()
        tensors["embed_tokens.weight"] = embedding
        return cls._load(path, tensors, device, dtype, vocab_size=vocab_size, candidate_pool=candidate_pool)

    def with_candidate_pool(self, candidate_pool: int | None) -> DominoHead:
        """The same weights, not copied, with another pool."""
        weights = dict(self.named_parameters())
        return DominoHead(
            *(weights[name].detach() for name in self.TENSORS), candidate_pool=candidate_pool, vocab_size=self.vocab_size, name=self._name
        )

    @classmethod
    def spreads(cls, shape: Head) -> dict[str, float | torch.Tensor]:
        """Token and state (elements near 0.5) move a GRU gate's argument by 1 each, hidden vector and state ``F1``'s result
        likewise; the square of its SiLU is then 0.7 on average."""
        hidden, gru = shape.hidden_size, shape.gru_size
        return {
            "embed_tokens.weight": 1.0, "prefix_gru.weight_ih_l0": hidden**-0.5, "prefix_gru.weight_hh_l0": 2 * gru**-0.5,
            "embed_proj.0.weight": _columns((hidden, hidden**-0.5), (gru, 2 * gru**-0.5)), "embed_proj.2.weight": (0.7 * shape.rank) ** -0.5,
        }  # fmt: skip

    def initial_state(self, anchor: torch.Tensor) -> torch.Tensor:
        """``GRU(E[anchor], 0)`` ``[B, gru_size]``."""
        return self._advance(anchor, self.embedding.new_zeros(len(anchor), self.gru_size))

    def latent(self, previous, hidden=None, state=None):
        """``SiLU(F1 [h; s'])`` and ``s' = GRU(E[previous], s)``."""
        state = self.embedding.new_zeros(len(previous), self.gru_size) if state is None else state
        state = self._advance(previous, state)
        return self.embed_proj[1](self.embed_proj[0](torch.cat([hidden, state], dim=-1))), state

    def _advance(self, tokens: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """One GRU step. The bare cell, because the GRU module packs its weights anew on every call."""
        return torch.gru_cell(self.embed_tokens(tokens), state, self.prefix_gru.weight_ih_l0, self.prefix_gru.weight_hh_l0)


HEAD_CLASSES = {head.kind: head for head in (MarkovHead, GatedHead, RnnHead, DominoHead)}


def head_from_safetensors(
    path: str | Path,
    kind: str | None = None,
    *,
    embedding: torch.Tensor | str | Path | None = None,
    candidate_pool: int | None = None,
    vocab_size: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> DraftHead:
    """Load a head of whichever kind the tensors at ``path`` make it, or of the kind given.

    :param embedding, candidate_pool: of Domino heads (`DominoHead.from_safetensors`).
    :raises BadInput: as `DraftHead.from_safetensors`; an unknown kind.
    """
    if kind is None:
        marks = {"prefix_gru.weight_ih_l0": "domino", "joint_proj.weight": "rnn", "gate_proj.weight": "gated"}
        checkpoint = Checkpoint(path)
        kind = next((kind for name, kind in marks.items() if checkpoint.holds(name)), "markov")
    require_word("head kind", kind, tuple(HEAD_CLASSES))
    options = {"vocab_size": vocab_size, "device": device, "dtype": dtype}
    if kind == "domino":
        options |= {"embedding": embedding, "candidate_pool": candidate_pool}
    return HEAD_CLASSES[kind].from_safetensors(path, **options)


def random_head(
    shape: Head, *, seed: int = 0, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> DraftHead:
    """A head of that shape with normal random weights, for hidden vectors of standard deviation 1.

    Corrections have a standard deviation of 1, so that they and base logits of that spread both decide the tokens; gates and
    states are neither stuck nor negligible. The numbers are drawn on the CPU: one seed gives the same head on every device.
    """
    head = HEAD_CLASSES[shape.kind]
    generator, spreads, sizes = torch.Generator().manual_seed(seed), head.spreads(shape), shape.as_dict()
    tensors = [_normal(measure(dims, sizes), spreads[name], generator, dtype).to(device) for name, dims in head.TENSORS.items()]
    options = {} if shape.candidate_pool is None else {"candidate_pool": shape.candidate_pool}
    return head(*tensors, vocab_size=shape.vocab_size, name=shape.name, **options)


def _normal(shape: tuple[int, ...], spread: float | torch.Tensor, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers of mean 0 and a standard deviation for all, or for each of the last axis, on the CPU."""
    numbers = torch.empty(shape, dtype=dtype)
    for rows in numbers.split(NORMAL_ROWS):
        rows.copy_(torch.randn(rows.shape, generator=generator) * spread)
    return numbers


def _columns(*blocks: tuple[int, float]) -> torch.Tensor:
    """A standard deviation for each column: (columns, deviation) side by side."""
    return torch.cat([torch.full((columns,), spread) for columns, spread in blocks])


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Linear:
    """A frozen Linear of these very tensors."""
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = torch.nn.Parameter(bias, requires_grad=False)
    return linear
