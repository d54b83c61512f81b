"""One speculative round as work that a CUDA graph can hold: verify, draft backbone, base logits, head, over static caches.

A round starts from a context of a fixed length and writes the same positions of the caches every time, so it can be repeated: every
repetition computes the same. A context is random K and V, as nobody's time depends on its content. Verify takes all of its tokens into the
caches, whatever is accepted: an engine of static shapes does the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from cost_model.errors import BadInput
from cost_model.targets import Drafter, Target, load_drafter, load_target
from cost_model.workload import MAX_BATCH, require_whole
from wts_lab.round_model import BackboneModel, Cache, Places, Stack, TargetModel, tapped_layers
from wts_lab.round_plan import PHASES

Walker = Callable[..., torch.Tensor]
"""A walk: ``walk(base_logits, anchor, tokens_out=...)``."""


@dataclass(frozen=True)
class RoundShape:
    """What decides the sizes of a round.

    Attributes:
        drafter, target: catalogue shapes.
        steps: tokens drafted; verify takes one more.
        concurrency: sequences together.
        context_tokens: of each sequence before the round, at least 1.
    """

    drafter: Drafter
    target: Target
    steps: int
    concurrency: int
    context_tokens: int

    def __post_init__(self) -> None:
        require_whole("steps", self.steps, 1, None)
        require_whole("concurrency", self.concurrency, 1, MAX_BATCH)
        require_whole("context_tokens", self.context_tokens, 1, None)
        if self.drafter.target != self.target.name:
            raise BadInput(f"{self.drafter.name} drafts for {self.drafter.target}, not for {self.target.name}; give that target, or another drafter")

    @classmethod
    def of(cls, drafter: str, steps: int, concurrency: int, context_tokens: int) -> RoundShape:
        """The shape of a catalogued drafter and its target."""
        found = load_drafter(drafter)
        return cls(found, load_target(found.target), steps, concurrency, context_tokens)

    @property
    def verified(self) -> int:
        """Positions that verify takes: the token before the block, and the block."""
        return self.steps + 1

    @property
    def positions(self) -> int:
        """Positions of a draft pass."""
        return self.drafter.positions(self.steps)

    def cache_bytes(self) -> int:
        """K and V of target and drafter, as `RoundParts` allocates them."""
        target = self.context_tokens + self.verified
        rows = self.target.layers * target + self.drafter.layers * (target + self.positions)
        return self.concurrency * rows * self.target.kv_bytes_per_layer_token


class RoundModels:
    """Random weights of a target and its drafter on a device, bf16 unless told otherwise."""

    def __init__(self, drafter: Drafter, target: Target, device: torch.device, seed: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.target, self.backbone = TargetModel(target, device, dtype), BackboneModel(drafter, target, device, dtype)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.device, self.dtype = device, dtype
        for model in (self.target, self.backbone):
            model.randomise(self.generator)

    @cached_property
    def first_layers(self) -> dict[str, tuple[Stack, Stack]]:
        """The first layer of target and drafter with the norm after it, here and in fp32 on the host, to compare with."""
        found = {}
        for name, model in (("target", self.target), ("drafter", self.backbone)):
            one = Stack.of([model.layers[0]], model.norm)
            found[name] = one, copy.deepcopy(one).cpu().float()
        return found


class RoundParts:
    """Buffers of one round, and its phases as functions that enqueue work and return nothing.

    Attributes:
        tokens: int64 ``[B, steps + 1]``, what verify is given: the last known token, then the drafted ones.
        greedy: int64 ``[B, steps + 1]``, what the target would say at each of them.
        anchor: int64 ``[B]``, its token after the last accepted one: where the next block starts.
        accepted: int64 ``[B]``, drafted tokens that equal the target's up to the first that does not.
        features: ``[B, steps + 1, features × hidden]``.
        hidden: ``[B, positions, hidden]``, of the draft.
        base_logits: ``[B, steps, V]``.
        cache, draft_cache: K and V of target and drafter.
    """

    def __init__(self, shape: RoundShape, models: RoundModels) -> None:
        self.shape, self.models = shape, models
        batch, target, device, dtype = shape.concurrency, shape.target, models.device, models.dtype

        def buffer(*sizes: int, of: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros((batch, *sizes), device=device, dtype=of)

        self.tokens, self.greedy = (buffer(shape.verified, of=torch.int64) for _ in range(2))
        self.anchor, self.accepted = (buffer(of=torch.int64) for _ in range(2))
        self.features = buffer(shape.verified, shape.drafter.target_features * target.hidden_size)
        self.hidden = buffer(shape.positions, target.hidden_size)
        self.base_logits = buffer(shape.steps, target.vocab_size)
        self.block = buffer(shape.positions, of=torch.int64)
        self.block.fill_(target.vocab_size - 1)  # stands for the mask token
        self.tokens.random_(0, target.vocab_size, generator=models.generator)

        context, end = shape.context_tokens, shape.context_tokens + shape.verified
        self._verified = Places.made(context, shape.verified, target.head_dim, device, dtype)
        self._drafted = Places.made(end, shape.positions, target.head_dim, device, dtype)
        self.cache = Cache.empty(target.layers, batch, end, target, device, dtype)
        self.draft_cache = Cache.empty(shape.drafter.layers, batch, end + shape.positions, target, device, dtype)
        for cache in (self.cache, self.draft_cache):
            cache.fill(context, models.generator)
        taps = tapped_layers(target.layers, shape.drafter.target_features)
        self._taps = dict(zip(taps, self.features.split(target.hidden_size, dim=-1)))

    @torch.no_grad()
    def verify(self) -> torch.Tensor:
        """The target over `tokens`; fills `greedy`, `accepted`, `anchor` and `features`. Returns its logits ``[B, steps + 1, V]``."""
        target = self.models.target
        logits = target.logits(target.run(target.embed(self.tokens), self._verified, self.cache, causal=True, taps=self._taps))
        torch.argmax(logits, dim=-1, out=self.greedy)
        self.accepted.copy_((self.greedy[:, :-1] == self.tokens[:, 1:]).long().cumprod(dim=1).sum(dim=1))
        self.anchor.copy_(self.greedy.gather(1, self.accepted[:, None])[:, 0])
        return logits

    @torch.no_grad()
    def backbone(self) -> None:
        """The draft pass from `anchor` and `features`; fills `hidden`."""
        self.block[:, 0].copy_(self.anchor)
        block = self.models.target.embed(self.block)
        self.hidden.copy_(self.models.backbone.draft(block, self.features, self._drafted, self._verified, self.draft_cache))

    @torch.no_grad()
    def make_base_logits(self) -> None:
        """The target's output projection of the drafted positions, the last ``steps`` of `hidden`; fills `base_logits`."""
        drafted = self.hidden[:, self.shape.positions - self.shape.steps :].flatten(0, 1)
        torch.mm(drafted, self.models.target.output.t(), out=self.base_logits.flatten(0, 1))

    def phase(self, name: str) -> Callable[[], object]:
        """The work of one of PHASES."""
        return {"verify": self.verify, "backbone": self.backbone, "base_logits": self.make_base_logits}[name]

    def head(self, walk: Walker, tokens_out: torch.Tensor) -> Callable[[], object]:
        """The work of a head's walk over `base_logits` from `anchor`."""
        return lambda: walk(self.base_logits, self.anchor, tokens_out=tokens_out)

    def whole(self, walk: Walker, tokens_out: torch.Tensor) -> Callable[[], None]:
        """The work of a whole round with that head."""
        works = (*(self.phase(name) for name in PHASES), self.head(walk, tokens_out))

        def run() -> None:
            for work in works:
                work()

        return run
