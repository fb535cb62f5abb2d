"""What the Metal kernels are measured on: caches in scattered pages, the same cells side by side.

All that is not alive is NaN, so that a kernel which reads it is found out.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from benchmarks.live_cells import Live, Shape
from benchmarks.metal_shapes import layer_attention
from metal_kernels import attention
from metal_kernels.cutting import Gpu, programs
from omni_core.backend import PAGE
from omni_core.paging.listing import list_subblocks
from omni_core.paging.mirror import ListedPages, pack_occupancy

_SCORES = 1 << 26
"""Scores that the reference computes at a time."""


@dataclass(frozen=True)
class Case:
    """Caches of some layers, and what is alive, on MLX's default device.

    Attributes:
        of: one layer's attention.
        queries: ``[1, T, q_heads, head_dim]``, the first layer's.
        keys, values: of each layer ``[1, pages, kv_heads, PAGE, head_dim]``.
        inputs: of the launch, but for these three.
    """

    shape: Shape
    live: Live
    of: attention.Attention
    queries: mx.array
    keys: list[mx.array]
    values: list[mx.array]
    inputs: dict[str, mx.array]

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.keys)

    @property
    def scale(self) -> float:
        """Factor on the dot products."""
        return float(self.shape.head_dim**-0.5)

    def contiguous(self, layer: int) -> tuple[mx.array, mx.array]:
        """A copy of a layer's live keys and values by order: ``[1, kv_heads, cells, head_dim]``."""
        pages = mx.array(self.live.pages)
        cells = mx.array(np.flatnonzero(self.live.alive).astype(np.int32))
        kv_heads, head_dim = self.shape.kv_heads, self.shape.head_dim
        keys, values = (
            mx.contiguous(
                part[0][pages].swapaxes(0, 1).reshape(1, kv_heads, -1, head_dim)[:, :, cells]
            )
            for part in (self.keys[layer], self.values[layer])
        )
        return keys, values

    def error(self, layer: int, queries: mx.array, out: mx.array) -> float:
        """Relative error of the worst head of ``[1, T, q_heads, head_dim]``; infinite where NaN."""
        reference = expected(queries[0], *self.contiguous(layer), self.scale)
        gap = mx.square(out[0].astype(mx.float32) - reference).sum(axis=(0, 2))
        worst = np.array(mx.sqrt(gap / mx.square(reference).sum(axis=(0, 2))))
        return float(worst.max()) if np.isfinite(worst).all() else float("inf")


def build(shape: Shape, live: Live, layers: int, gpu: Gpu, dtype: str) -> Case:
    """A case of fresh random numbers, for such a GPU."""
    kind, count = getattr(mx, dtype), live.query_order.size
    dead = np.ones((live.arena, PAGE), np.bool_)
    dead[live.pages] = ~live.alive
    mask = mx.array(dead).reshape(1, live.arena, 1, PAGE, 1)
    room = 1, live.arena, shape.kv_heads, PAGE, shape.head_dim
    keys: list[mx.array] = []
    values: list[mx.array] = []
    for _ in range(layers):
        for part in (keys, values):
            part.append(mx.where(mask, mx.nan, mx.random.normal(room, kind)).astype(kind))
        mx.eval(keys[-1], values[-1])
    of, inputs = _listed(shape, live, gpu, dtype)
    queries = mx.random.normal((1, count, shape.q_heads, shape.head_dim), kind)
    mx.eval(queries, inputs)
    return Case(shape, live, of, queries, keys, values, inputs)


def _listed(
    shape: Shape, live: Live, gpu: Gpu, dtype: str
) -> tuple[attention.Attention, dict[str, mx.array]]:
    """What a layer's attention is about, and its inputs but for queries, keys and values."""
    order, query_order = live.order, live.query_order
    checked = (live.alive & (order > query_order[0])).any(axis=1)
    occupancy, shift = pack_occupancy(live.alive), np.zeros(live.pages.size, np.int32)
    listed = ListedPages(live.pages, occupancy, shift, checked, order[checked])
    count = query_order.size
    shares = programs(count, shape.group, shape.kv_heads, gpu)
    rows = attention.padded_listing(list_subblocks(listed, shares), query_order)
    of = layer_attention(
        shape,
        count,
        live.arena,
        dtype,
        len(rows["rows"]),
        len(rows["segments"]),
        shares,
        tall=gpu.tall,
    )
    orders = np.zeros((live.arena, PAGE), np.int64)
    orders[live.pages] = order
    given = {
        **rows,
        "order": orders,
        "bias": attention.NO_BIAS,
        "numbers": attention.numbers(of),
        "scale": attention.factor(shape.head_dim**-0.5),
    }
    return of, {name: mx.array(array) for name, array in given.items()}


def expected(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """The last tokens' attention over all up to themselves, in float32.

    Args:
        queries: ``[T, q_heads, head_dim]``, of the newest ``T`` of the keys, or of one that sees
            all.
        keys, values: ``[1, kv_heads, n, head_dim]``, by order.
        scale: factor on the dot products.

    Returns:
        ``float32[T, q_heads, head_dim]``.
    """
    count, q_heads, head_dim = queries.shape
    _, kv_heads, cells, _ = keys.shape
    k, v = (part[0].astype(mx.float32)[:, None] for part in (keys, values))
    wide = queries.astype(mx.float32).reshape(count, kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
    at, step, parts = mx.arange(cells), max(1, _SCORES // (q_heads * cells)), []
    for start in range(0, count, step):
        some = wide[:, :, start : start + step]
        last = mx.arange(start, start + some.shape[2]) + cells - count
        scores = mx.where(at > last[:, None], -mx.inf, some @ k.swapaxes(2, 3) * scale)
        parts.append(mx.softmax(scores, axis=-1) @ v)
        mx.eval(parts[-1])
    return mx.concatenate(parts, axis=2).transpose(2, 0, 1, 3).reshape(count, q_heads, head_dim)
