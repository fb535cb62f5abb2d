"""Attention over gathered cells: plain matrix products, softmax in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_cuda.arena import Arena, Cells
from omni_cuda.rotary import Turns, rotate

_SCORES = 1 << 24
"""Scores held at once: a long prefill takes its queries in blocks and needs no large scratch."""


@dataclass(frozen=True)
class GroupView:
    """What a layer group's attention reads and writes in one step, on the device.

    Attributes:
        write: cells of the ``T`` new tokens.
        read: the ``n`` live cells, oldest first.
        order: ``int64[n]``.
        bias: ``float32[n]``, added to the scaled scores.
        query_order: ``int64[T]``.
        turns: how queries are rotated for each stretch of live cells.
        mass: ``float32[n]``, to which :func:`attend` adds what each cell gets, summed over queries,
            heads and streams; None where nobody asks.
    """

    write: Cells
    read: Cells
    order: torch.Tensor
    bias: torch.Tensor
    query_order: torch.Tensor
    turns: Turns
    mass: torch.Tensor | None = None


@dataclass(frozen=True)
class Gathered:
    """A layer group's attention over a copy of its live cells, on any device.

    Attributes:
        view: what is read and written.
        keys: cosines and sines ``float32[T, 1, head_dim / 2]`` of the new keys.
    """

    view: GroupView
    keys: tuple[torch.Tensor, torch.Tensor]

    def __call__(self, qkv: torch.Tensor, arena: Arena, layer: int) -> torch.Tensor:
        """See :data:`omni_cuda.backbone.Attend`."""
        kv_heads, head_dim = arena.keys.shape[3], arena.keys.shape[5]
        heads = qkv.unflatten(-1, (-1, head_dim))
        q_heads = heads.shape[2] - 2 * kv_heads
        queries, keys, values = heads.split([q_heads, kv_heads, kv_heads], 2)
        keys = rotate(keys, *self.keys)
        arena.write(layer, self.view.write, keys.transpose(0, 1), values.transpose(0, 1))
        stored = arena.gather(layer, self.view.read)
        return attend(queries, *stored, self.view, head_dim**-0.5).flatten(2)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    view: GroupView,
    scale: float,
) -> torch.Tensor:
    """Each query over the cells of ``order <= its own``; exactly 0 where it sees none.

    Args:
        queries: ``[streams, T, q_heads, head_dim]``, not rotated.
        keys, values: ``[n, streams, kv_heads, head_dim]``; query head ``h`` reads key head
            ``h // (q_heads // kv_heads)``.
        view: orders, biases and rotations; one softmax spans all its cells.
        scale: factor on the dot products.

    Returns:
        ``[streams, T, q_heads, head_dim]`` in the queries' dtype.
    """
    streams, count, q_heads, head_dim = queries.shape
    cells, _, kv_heads, _ = keys.shape
    if cells == 0:
        return torch.zeros_like(queries)
    k = keys.permute(1, 2, 3, 0).float()
    v = values.permute(1, 2, 0, 3).float()
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    block = max(1, _SCORES // (streams * q_heads * cells))
    for start in range(0, count, block):
        turned = view.turns.rotated(queries, start, start + block)
        rows = turned.shape[2]
        grouped = turned.unflatten(3, (kv_heads, -1)).permute(0, 1, 3, 4, 2, 5)
        grouped = grouped.reshape(-1, streams, kv_heads, q_heads // kv_heads * rows, head_dim)
        scores = _scores(grouped, k, view.turns.runs)
        scores = scores.view(streams, kv_heads, -1, rows, cells).mul_(scale).add_(view.bias)
        seen = view.order <= view.query_order[start : start + block, None]
        shares = _masked_softmax(scores, seen)
        if view.mass is not None:
            view.mass.add_(shares.sum((0, 1, 2, 3)))
        mixed = shares.view(streams, kv_heads, -1, cells) @ v
        mixed = mixed.view(streams, kv_heads, -1, rows, head_dim).permute(0, 3, 1, 2, 4)
        out[:, start : start + block] = mixed.reshape(streams, rows, q_heads, head_dim)
    return out


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, runs: tuple[tuple[int, int, int], ...]
) -> torch.Tensor:
    if len(runs) == 1:
        return queries[0] @ keys
    return torch.cat([queries[table] @ keys[..., start:stop] for start, stop, table in runs], -1)


def _masked_softmax(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    scores = scores.masked_fill_(~seen, -torch.inf)
    peak = scores.amax(-1, keepdim=True)
    # A row that sees nothing peaks at -inf; any finite stand-in keeps its weights at exp(-inf) = 0.
    weights = scores.sub_(peak.masked_fill(torch.isneginf(peak), 0.0)).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights.div_(total.masked_fill(total == 0, 1.0))
