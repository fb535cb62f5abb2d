"""The arena: keys and values of all kept tokens, allocated once and changed in place."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from omni_core.backend import PAGE, ArenaLayout
from omni_core.units import Int32

_COPY_BYTES = 64 * 2**20
"""Copied cells that may be held at a time: more layers at once are faster, and take more."""


class Arena:
    """The pool ``[layers_per_group, streams, pages, kv_heads, PAGE, head_dim]``, keys and values.

    A layer of a group is one array, its middle axes flattened to rows:
    ``[streams, pages * kv_heads * PAGE, head_dim]``. MLX arrays are values; a scatter writes in
    place only where nothing else holds the array and no kernel in flight reads it. So each array is
    written once between two evaluations, by the only reference to it.

    Sealed pages of a layer are ``uint8[streams, sealed_pages, kv_heads, bytes]``; no arrays where
    there are none.
    """

    def __init__(self, layout: ArenaLayout, dtype: mx.Dtype) -> None:
        self.layout = layout
        shape = (layout.streams, layout.pages * layout.kv_heads * PAGE, layout.head_dim)
        self.keys = [mx.zeros(shape, dtype) for _ in range(layout.layers_per_group)]
        self.values = [mx.zeros(shape, dtype) for _ in range(layout.layers_per_group)]
        self.sealed: list[mx.array] = []
        if layout.sealed_pages:
            stored = (layout.streams, layout.sealed_pages, layout.kv_heads, layout.sealed.bytes)
            self.sealed = [mx.zeros(stored, mx.uint8) for _ in range(layout.layers_per_group)]
        mx.eval(self.keys, self.values, self.sealed)

    def rows(self, cells: Int32) -> mx.array:
        """Rows ``int32[kv_heads, n]`` of cells ``int32[n]``."""
        heads = np.arange(self.layout.kv_heads, dtype=np.int32)[:, None]
        page, slot = np.divmod(cells, PAGE)
        return mx.array(((page * self.layout.kv_heads + heads) * PAGE + slot).astype(np.int32))

    def write(self, layer: int, rows: mx.array, keys: mx.array, values: mx.array) -> None:
        """Put ``[streams, kv_heads, n, head_dim]`` where :meth:`rows` says."""
        self.keys[layer][:, rows] = keys.astype(self.keys[layer].dtype)
        self.values[layer][:, rows] = values.astype(self.values[layer].dtype)

    def read(self, layer: int, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values ``[streams, kv_heads, n, head_dim]``, a copy of these rows alone."""
        return mx.take(self.keys[layer], rows, axis=1), mx.take(self.values[layer], rows, axis=1)

    def read_sealed(self, layer: int, pages: mx.array) -> mx.array:
        """Bytes ``[streams, n, kv_heads, bytes]`` of pages, counted from the first sealed one."""
        return mx.take(self.sealed[layer], pages, axis=1)

    def write_sealed(self, layer: int, pages: mx.array, stored: mx.array) -> None:
        """Store what :meth:`read_sealed` gave."""
        self.sealed[layer][:, pages] = stored

    def copy(self, source: Int32, target: Int32) -> None:
        """Copy cells in all layers; a target may be another's source."""
        read, write = self.rows(source), self.rows(target)
        width = 2 * self.layout.streams * read.size * self.layout.head_dim * self.keys[0].itemsize
        layers = range(self.layout.layers_per_group)
        batch = max(1, _COPY_BYTES // width)
        for first in layers[::batch]:
            some = layers[first : first + batch]
            moved = [self.read(layer, read) for layer in some]
            _carry_out(moved)
            for layer, (keys, values) in zip(some, moved, strict=True):
                self.write(layer, write, keys, values)
            self.settle()

    def settle(self, *others: mx.array) -> None:
        """Carry out all pending writes, and whatever else is named."""
        _carry_out([self.keys, self.values, self.sealed, *others])


def _carry_out(arrays: list[Any]) -> None:
    mx.eval(arrays)
    # A GPU lets go of what its kernels read a little after the results are there.
    mx.synchronize()
