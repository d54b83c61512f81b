"""What lies between the matrix products of a transformer layer, and attention over a cache: plain functions, fused on a GPU.

On a CUDA device `operations` compiles each function into one kernel, as serving engines have one for each; elsewhere they run as they are. Roundings are those of
transformers' Qwen3: a norm computes in fp32 and rounds before its weight, rotations are in the tensors' own dtype.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
import torch.nn.functional as functional

NORM_EPS = 1e-6
ROTARY_BASE = 1_000_000.0
"""Of the released Qwen3 configs."""

MOST_VARIANTS = 64
"""Variants of one function that are compiled at most. Batches and lengths share one, but a batch of 1, another hidden size and other strides have theirs; torch's own
limit of 8 is met by the rounds of two targets."""

POINTWISE = ("rms_norm", "add_norm", "place_queries", "place_keys", "gated", "merge")


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x / rms(x) × weight over the last axis; any leading axes."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)).to(x.dtype)


def add_norm(x: torch.Tensor, stream: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual stream with ``x`` added, and its norm."""
    stream = stream + x
    return stream, rms_norm(stream, weight)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: ``x`` ``[B, T, heads, D]``, cosines and sines ``[T, D]``."""
    low, high = x.chunk(2, dim=-1)
    return x * cosines[:, None] + torch.cat((-high, low), dim=-1) * sines[:, None]


def place_queries(queries: torch.Tensor, weight: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Normed and rotated queries ``[B, heads, T, D]`` from ``[B, T, heads, D]``, contiguous: the heads of a group lie side by side."""
    return rotate(rms_norm(queries, weight), cosines, sines).transpose(1, 2).contiguous()


def place_keys(
    pairs: torch.Tensor, weight: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Write normed and rotated keys, and values, into their places of a cache.

    :param pairs: ``[B, T, 2 × kv heads, D]``, the keys' heads first.
    :param keys, values: ``[B, T, kv heads, D]``, views of the cache.
    """
    new_keys, new_values = pairs.chunk(2, dim=2)
    keys.copy_(rotate(rms_norm(new_keys, weight), cosines, sines))
    values.copy_(new_values)


def gated(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) × up of ``[..., 2 × size]``, the gate first."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


def merge(first: torch.Tensor, first_lse: torch.Tensor, second: torch.Tensor, second_lse: torch.Tensor) -> torch.Tensor:
    """Attention over two sets of positions from that over each: outputs ``[B, kv heads, group, T, D]``, logarithms of their sums of
    exponentials ``[B, kv heads, group, T]``. Returns ``[B, T, heads × D]``."""
    both = torch.logaddexp(first_lse, second_lse)
    mixed = first.float() * torch.exp(first_lse - both)[..., None] + second.float() * torch.exp(second_lse - both)[..., None]
    return mixed.to(first.dtype).permute(0, 3, 1, 2, 4).flatten(2)


@cache
def operations(device_type: str) -> SimpleNamespace:
    """The functions of POINTWISE for a kind of device, each compiled once for all batches on a GPU."""
    own = {name: globals()[name] for name in POINTWISE}
    if device_type == "cuda":
        import torch._dynamo.config as compiler

        compiler.recompile_limit = max(compiler.recompile_limit, MOST_VARIANTS)
        own = {name: torch.compile(function, fullgraph=True, dynamic=True) for name, function in own.items()}
    return SimpleNamespace(**own)


def partial_attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention ``[B, heads, T, D]`` and the logarithms of its sums of exponentials, float32 ``[B, heads, T]``.

    :param queries: ``[B, heads, T, D]``; ``keys``, ``values``: ``[B, S, kv heads, D]``, kv heads a divisor of heads.
    :param causal: query t sees the keys up to t; then T = S.
    """
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if queries.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention(queries, keys, values, 0.0, causal)[:2]
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).float() for x in (keys, values))
    scores = queries.float() @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1), float("-inf"))
    return (torch.softmax(scores, dim=-1) @ values).to(queries.dtype), torch.logsumexp(scores, dim=-1)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal_tail: bool) -> torch.Tensor:
    """Attention of a block over the whole cache; returns ``[B, T, heads × D]``.

    The heads of a group become rows of one query, so that K and V are read once for all of them. A causal tail is computed apart, where
    it needs a mask, and merged with the context, where it needs none.

    :param queries: ``[B, heads, T, D]`` contiguous; ``keys``, ``values``: ``[B, S, kv heads, D]``.
    :param causal_tail: whether the last T positions are the block's own, each seen by itself and those after it; else all see all.
    """
    batch, _, block, size = queries.shape
    context = keys.shape[1] - block if causal_tail else keys.shape[1]
    kv_heads = keys.shape[2]
    packed = queries.view(batch, kv_heads, -1, size)
    out, lse = partial_attention(packed, keys[:, :context], values[:, :context], causal=False)
    out = out.unflatten(2, (-1, block))
    if not causal_tail:
        return out.permute(0, 3, 1, 2, 4).flatten(2)
    tail, tail_lse = (x.unflatten(1, (kv_heads, -1)) for x in partial_attention(queries, keys[:, context:], values[:, context:], causal=True))
    return operations(queries.device.type).merge(out, lse.unflatten(2, (-1, block)), tail, tail_lse)


def rotary_table(first: int, count: int, size: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[count, size]`` of the positions from ``first`` on: angles position / base^(2i / size), each twice."""
    inverse = 1.0 / ROTARY_BASE ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    angles = torch.arange(first, first + count, dtype=torch.float32, device=device)[:, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)
