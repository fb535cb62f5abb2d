"""Sparse page attention by gathering: the live cells are copied together, then attended densely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omni_core.paging.mirror import LiveCells
from omni_core.units import Int64
from omni_mlx.rotary import Turns

SCORES = 1 << 24
"""Scores held at once where they are spelled out: longer prefills take their queries in blocks."""


@dataclass(frozen=True)
class Visibility:
    """Which of ``n`` cells each of ``T`` queries sees, and with what bias: one for all of a group.

    Attributes:
        mask: None where all see all, ``causal`` where the cells end with the queries' own, else
            ``[T, n]``: bool, or numbers to add where cells carry a bias.
        blind: ``bool[T, 1]``, queries that see nothing; None where there are none.
        dtype: what scores are computed in: float32 under an array mask, for which MLX may have no
            fused kernel and would round the scores.
    """

    mask: mx.array | Literal["causal"] | None
    blind: mx.array | None
    dtype: mx.Dtype


def visibility(live: LiveCells, query_order: Int64, dtype: mx.Dtype) -> Visibility:
    """Queries see cells of ``order <= their own``; ``dtype`` is for what fused kernels can do."""
    if query_order.size == 0:
        return Visibility(None, None, dtype)
    if live.order.size == 0 or live.order[0] > query_order.min():
        seen = live.order <= query_order[:, None]
        blind = mx.array(~seen.any(axis=1, keepdims=True))
        return Visibility(_array_mask(seen, live), blind, mx.float32)
    if not live.bias.any():
        if live.order[-1] <= query_order.min():
            return Visibility(None, None, dtype)
        if np.array_equal(live.order[-query_order.size :], query_order):
            return Visibility("causal", None, dtype)
    seen = live.order <= query_order[:, None]
    return Visibility(_array_mask(seen, live), None, mx.float32)


def _array_mask(seen: npt.NDArray[np.bool_], live: LiveCells) -> mx.array:
    if not live.bias.any():
        return mx.array(seen)
    return mx.array(np.where(seen, live.bias, np.float32(-np.inf)))


def sparse_page_attention(
    queries: mx.array, keys: mx.array, values: mx.array, sight: Visibility, scale: float
) -> mx.array:
    """Attention over gathered cells, softmax in float32.

    Args:
        queries: ``[streams, q_heads, T, head_dim]``, rotated.
        keys, values: ``[streams, kv_heads, n, head_dim]``, oldest cell first.
        sight: what each query sees.
        scale: factor on the dot products.

    Returns:
        ``[streams, q_heads, T, head_dim]``, of the queries' dtype; exactly 0 where nothing is seen.
    """
    if keys.shape[2] == 0 or queries.shape[2] == 0:
        return mx.zeros_like(queries)
    out = mx.fast.scaled_dot_product_attention(
        queries.astype(sight.dtype),
        keys.astype(sight.dtype),
        values.astype(sight.dtype),
        scale=scale,
        mask=sight.mask,
    )
    if sight.blind is not None:
        out = mx.where(sight.blind, mx.zeros_like(out), out)
    return out.astype(queries.dtype)


@dataclass(frozen=True)
class Orders:
    """What tells which cells a query sees: ``int64[T, 1]``, ``int64[n]``, and ``float32[n]``."""

    queries: mx.array
    cells: mx.array
    bias: mx.array

    @staticmethod
    def of(live: LiveCells, query_order: Int64) -> Orders:
        """Of a layer group."""
        return Orders(mx.array(query_order)[:, None], mx.array(live.order), mx.array(live.bias))


def turned_attention(
    queries: mx.array, keys: mx.array, values: mx.array, turns: Turns, orders: Orders, scale: float
) -> tuple[mx.array, mx.array]:
    """Attention whose scores are spelled out, in float32: over frames, and for what cells got.

    Args:
        queries: ``[streams, q_heads, T, head_dim]``, not rotated.
        keys, values: ``[streams, kv_heads, n, head_dim]``, oldest cell first; ``n`` is above 0.
        turns: how queries are rotated for each stretch of cells; one softmax spans them all.
        orders: queries see cells of ``order <= their own``.
        scale: factor on the dot products.

    Returns:
        ``[streams, q_heads, T, head_dim]``, of the queries' dtype, exactly 0 where nothing is seen;
        and ``float32[n]``, shares summed over queries, heads and streams.
    """
    streams, q_heads, count, head_dim = queries.shape
    kv_heads, cells = keys.shape[1:3]
    columns = keys.astype(mx.float32).swapaxes(2, 3)
    stretches = [(columns[..., start:stop], table) for start, stop, table in turns.runs]
    wide, parts, mass = values.astype(mx.float32), [], mx.zeros(cells)
    block = max(1, SCORES // (streams * q_heads * cells))
    for start in range(0, count, block):
        stop = min(start + block, count)
        turned = turns.slice(start, stop)(queries[:, :, start:stop].astype(mx.float32))
        grouped = turned.reshape(turned.shape[0], streams, kv_heads, -1, head_dim)
        scores = mx.concatenate([grouped[table] @ piece for piece, table in stretches], axis=-1)
        scores = scores.reshape(streams, kv_heads, -1, stop - start, cells) * scale + orders.bias
        seen = orders.cells <= orders.queries[start:stop]
        shares = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1)
        # A query that sees nothing has no softmax, and what stands in its place is not shown.
        shares = mx.where(seen, shares, 0.0)
        mass = mass + shares.sum(axis=(0, 1, 2, 3))
        mixed = shares.reshape(streams, kv_heads, -1, cells) @ wide
        parts.append(mixed.reshape(streams, q_heads, -1, head_dim).astype(queries.dtype))
        if block < count:
            mx.eval(parts[-1], mass)
    return mx.concatenate(parts, axis=2), mass
