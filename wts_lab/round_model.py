"""Target and draft backbone of a measured round: Qwen3's layers with fused projections, and DFlash's use of them, over static caches.

The target is the network of transformers' ``Qwen3ForCausalLM`` (tests compare the two), written as engines run it: Q, K and V are one
product, gate and up another, and everything between products is one kernel (`round_ops.py`). The draft backbone has layers of the
same sizes. It joins hidden vectors of some of the target's layers into one for each verified position, projects K and V of them in
every layer, and attends from all positions of the block to all of the context and the block, without a mask.

Weights are random: nothing timed depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from wts_lab.round_ops import attend, operations, rotary_table

if TYPE_CHECKING:
    from cost_model.targets import Drafter, Target

SPREAD = 0.02
"""Standard deviation of random weights: ``initializer_range`` of the released configs."""


@dataclass(frozen=True)
class Cache:
    """K and V of every layer, ``[layers, B, positions, kv heads, D]`` each."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def empty(cls, layers: int, batch: int, positions: int, target: Target, device: torch.device, dtype: torch.dtype) -> Cache:
        """A cache of layers of the target's sizes."""
        shape = (layers, batch, positions, target.kv_heads, target.head_dim)
        return cls(*(torch.empty(shape, device=device, dtype=dtype) for _ in range(2)))

    def fill(self, positions: int, generator: torch.Generator) -> None:
        """Put random numbers into the first positions: a context that nobody computed."""
        for tensor in (self.keys, self.values):
            for layer in tensor:
                layer[:, :positions].normal_(generator=generator)


@dataclass(frozen=True)
class Places:
    """Where a pass puts its tokens: positions ``first`` to ``first + count`` of a cache, with their rotations ``[count, D]``."""

    first: int
    cosines: torch.Tensor
    sines: torch.Tensor

    @classmethod
    def made(cls, first: int, count: int, size: int, device: torch.device, dtype: torch.dtype) -> Places:
        """Places from ``first`` on, rotated for heads of that size."""
        return cls(first, *rotary_table(first, count, size, device, dtype))

    def to(self, device: torch.device, dtype: torch.dtype) -> Places:
        """The same elsewhere."""
        return Places(self.first, self.cosines.to(device, dtype), self.sines.to(device, dtype))

    @property
    def last(self) -> int:
        """The position after the last."""
        return self.first + len(self.cosines)

    def views(self, cache: Cache, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """These positions of one layer's K and V."""
        return cache.keys[layer, :, self.first : self.last], cache.values[layer, :, self.first : self.last]


class Layer(torch.nn.Module):
    """One layer: grouped-query attention with normed heads, and a gated MLP. Weights are named after what they produce."""

    def __init__(self, target: Target, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = target.attention_heads, target.kv_heads, target.head_dim
        hidden, size = target.hidden_size, target.head_dim

        def weight(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)

        self.qkv, self.out = weight((self.heads + 2 * self.kv_heads) * size, hidden), weight(hidden, self.heads * size)
        self.gate_up, self.down = weight(2 * target.intermediate_size, hidden), weight(hidden, target.intermediate_size)
        self.input_norm, self.inner_norm = weight(hidden), weight(hidden)
        self.query_norm, self.key_norm = weight(size), weight(size)

    def place(self, x: torch.Tensor, places: Places, cache: Cache, layer: int) -> None:
        """K and V of ``x`` ``[B, T, hidden]`` into their places."""
        pairs = functional.linear(x, self.qkv[self.heads * self.head_dim :]).unflatten(-1, (-1, self.head_dim))
        operations(x.device.type).place_keys(pairs, self.key_norm, places.cosines, places.sines, *places.views(cache, layer))

    def attention(self, x: torch.Tensor, places: Places, cache: Cache, layer: int, causal: bool) -> torch.Tensor:
        """Attention of ``x`` ``[B, T, hidden]`` to the cache up to its own places, which it fills, times the output projection."""
        fused = operations(x.device.type)
        projected = functional.linear(x, self.qkv).unflatten(-1, (-1, self.head_dim))
        queries = fused.place_queries(projected[:, :, : self.heads], self.query_norm, places.cosines, places.sines)
        fused.place_keys(projected[:, :, self.heads :], self.key_norm, places.cosines, places.sines, *places.views(cache, layer))
        seen = (tensor[layer, :, : places.last] for tensor in (cache.keys, cache.values))
        return functional.linear(attend(queries, *seen, causal_tail=causal), self.out)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """The gated MLP of ``x`` ``[B, T, hidden]``."""
        return functional.linear(operations(x.device.type).gated(functional.linear(x, self.gate_up)), self.down)


class Stack(torch.nn.Module):
    """Layers and the norm after them."""

    def __init__(self, layers: int, target: Target, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(target, device, dtype) for _ in range(layers))
        self.norm = torch.nn.Parameter(torch.empty(target.hidden_size, device=device, dtype=dtype), requires_grad=False)

    @classmethod
    def of(cls, layers: Sequence[Layer], norm: torch.nn.Parameter) -> Stack:
        """A stack of layers that another one has too."""
        stack = cls.__new__(cls)
        torch.nn.Module.__init__(stack)
        stack.layers, stack.norm = torch.nn.ModuleList(layers), norm
        return stack

    def randomise(self, generator: torch.Generator) -> None:
        """Draw all weights; those of norms are 1."""
        for parameter in self.parameters():
            parameter.fill_(1.0) if parameter.dim() == 1 else parameter.normal_(std=SPREAD, generator=generator)

    def run(
        self, stream: torch.Tensor, places: Places, cache: Cache, causal: bool, taps: dict[int, torch.Tensor] | None = None,
        context: tuple[torch.Tensor, Places] | None = None,
    ) -> torch.Tensor:
        """All layers over ``stream`` ``[B, T, hidden]``; returns the last norm.

        :param taps: layer number -> where its output is copied to, ``[B, T, hidden]``.
        :param context: vectors whose K and V each layer puts into the cache first, and their places.
        """
        fused = operations(stream.device.type)
        added = None
        for number, layer in enumerate(self.layers):
            if added is None:
                x = fused.rms_norm(stream, layer.input_norm)
            else:
                stream, x = fused.add_norm(added, stream, layer.input_norm)
            if taps and number - 1 in taps:
                taps[number - 1].copy_(stream)
            if context is not None:
                layer.place(context[0], context[1], cache, number)
            stream, x = fused.add_norm(layer.attention(x, places, cache, number, causal), stream, layer.inner_norm)
            added = layer.mlp(x)
        return fused.add_norm(added, stream, self.norm)[1]


class TargetModel(Stack):
    """The target: token embedding, layers, norm and output projection, which is the embedding where the two are tied."""

    def __init__(self, target: Target, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(target.layers, target, device, dtype)
        shape = (target.vocab_size, target.hidden_size)
        self.embedding = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)
        self.output = self.embedding if target.tied_embeddings else torch.nn.Parameter(torch.empty_like(self.embedding), requires_grad=False)

    def transformers_state(self) -> dict[str, torch.Tensor]:
        """The weights under the names that transformers' ``Qwen3ForCausalLM`` has for them, as views."""
        state = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm, "lm_head.weight": self.output}
        for number, layer in enumerate(self.layers):
            query, key, value = layer.qkv.split([heads * layer.head_dim for heads in (layer.heads, layer.kv_heads, layer.kv_heads)])
            gate, up = layer.gate_up.chunk(2)
            named = {
                "self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": value, "self_attn.o_proj": layer.out,
                "self_attn.q_norm": layer.query_norm, "self_attn.k_norm": layer.key_norm, "mlp.gate_proj": gate, "mlp.up_proj": up,
                "mlp.down_proj": layer.down, "input_layernorm": layer.input_norm, "post_attention_layernorm": layer.inner_norm,
            }
            state |= {f"model.layers.{number}.{name}.weight": weight for name, weight in named.items()}
        return state

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding, ``[..., hidden]``."""
        return functional.embedding(tokens, self.embedding)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output projection ``[..., V]`` of ``[..., hidden]``."""
        return functional.linear(hidden, self.output)


class BackboneModel(Stack):
    """The parallel drafter: the projection of the joined target features, its norm, layers and norm."""

    def __init__(self, drafter: Drafter, target: Target, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(drafter.layers, target, device, dtype)
        hidden = target.hidden_size
        self.join = torch.nn.Parameter(torch.empty(hidden, drafter.target_features * hidden, device=device, dtype=dtype), requires_grad=False)
        self.join_norm = torch.nn.Parameter(torch.empty(hidden, device=device, dtype=dtype), requires_grad=False)

    def draft(self, block: torch.Tensor, features: torch.Tensor, places: Places, feature_places: Places, cache: Cache) -> torch.Tensor:
        """Hidden vectors ``[B, positions, hidden]`` of a block.

        :param block: embedded tokens ``[B, positions, hidden]``.
        :param features: of the verified positions, ``[B, verified, features × hidden]``; they precede the block.
        """
        joined = operations(block.device.type).rms_norm(functional.linear(features, self.join), self.join_norm)
        return self.run(block, places, cache, causal=False, context=(joined, feature_places))


def tapped_layers(layers: int, count: int) -> tuple[int, ...]:
    """The target layers whose outputs a drafter reads: ``count`` of them, evenly spread, the last layer not among them."""
    return tuple((2 * number + 1) * (layers - 1) // (2 * count) for number in range(count))
