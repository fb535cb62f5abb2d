"""Rotary embedding: keys at their own positions, queries once for each shift of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from omni_core.model_config import TextConfig
from omni_core.reference.rotary import rotary_tables
from omni_core.units import Int32


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Rotate ``[..., T, head_dim]`` by tables ``float32[T, head_dim / 2]``, in float32."""
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


@dataclass(frozen=True)
class Turns:
    """The rotations of a step's queries that a layer group's cells are read by.

    Attributes:
        cos, sin: ``float32[m, 1, 1, T, head_dim / 2]``, a table for each distinct shift.
        runs: ``(start, stop, table)`` of each stretch of cells, oldest first.
    """

    cos: mx.array
    sin: mx.array
    runs: tuple[tuple[int, int, int], ...]

    def __call__(self, queries: mx.array) -> mx.array:
        """Copies ``[m, streams, heads, T, head_dim]`` of ``[streams, heads, T, head_dim]``."""
        return rotate(queries[None], self.cos, self.sin)

    def slice(self, start: int, stop: int) -> Turns:
        """The same of the queries ``start`` to ``stop``."""
        return Turns(self.cos[..., start:stop, :], self.sin[..., start:stop, :], self.runs)


class StepRotary:
    """Tables of one step, one for each shift, whichever layer groups read at it."""

    def __init__(self, positions: Int32, text: TextConfig) -> None:
        self._positions, self._text = positions, text
        self._made: dict[int, tuple[mx.array, mx.array]] = {}

    def tables(self, shift: int = 0) -> tuple[mx.array, mx.array]:
        """Cosines and sines ``float32[T, head_dim / 2]`` of the step's positions plus ``shift``."""
        if shift not in self._made:
            text, places = self._text, self._positions + np.int32(shift)
            tables = rotary_tables(places, text.head_dim, text.rope_theta, text.mrope_section)
            self._made[shift] = (mx.array(tables[0]), mx.array(tables[1]))
        return self._made[shift]

    def turns(self, runs: Sequence[tuple[int, int, int]]) -> Turns:
        """What the queries of a group are turned by; ``runs`` are ``(start, stop, shift)``."""
        shifts = list(dict.fromkeys(shift for _, _, shift in runs)) or [0]
        cos, sin = zip(*map(self.tables, shifts), strict=True)
        numbered = tuple((start, stop, shifts.index(shift)) for start, stop, shift in runs)
        return Turns(mx.stack(cos)[:, None, None], mx.stack(sin)[:, None, None], numbered)
