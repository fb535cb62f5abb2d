"""Models as attention sees them, and which cells of an arena are alive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.units import Int32, Int64

K = 1024
KINDS = ("pages", "subblocks", "cells")
"""What holes are made of."""


@dataclass(frozen=True)
class Shape:
    """A model as attention sees it."""

    name: str
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int = 128

    @property
    def group(self) -> int:
        """Query heads a key head."""
        return self.q_heads // self.kv_heads

    def layer_bytes(self, cells: int) -> int:
        """Bytes of 16-bit keys and values of a layer."""
        return cells * self.kv_heads * self.head_dim * 4

    def flops(self, history: int, new: int) -> int:
        """Of one layer: both products, over what each new token sees."""
        seen = new * history + new * (new + 1) // 2
        return 4 * self.q_heads * self.head_dim * seen


SHAPES = (
    Shape("Qwen2.5-Omni-7B", 28, 28, 4),
    Shape("Qwen2.5-Omni-3B", 36, 16, 2),
    Shape("MiniCPM-o-4.5", 36, 32, 8),
)


@dataclass(frozen=True)
class Live:
    """Which cells of an arena are alive.

    Attributes:
        pages: ``int32[n]``, in the order of the stream.
        alive: ``bool[n, PAGE]``.
        arena: pages of the arena.
        new: the newest cells, which are the queries' own; 0 for one query that sees all.
    """

    pages: Int32
    alive: npt.NDArray[np.bool_]
    arena: int
    new: int = 0

    @property
    def cells(self) -> int:
        """How many are alive."""
        return int(self.alive.sum())

    @property
    def order(self) -> Int64:
        """``int64[n, PAGE]``, counting live cells; of dead ones nothing that means anything."""
        return np.cumsum(self.alive).reshape(self.alive.shape) - 1

    @property
    def query_order(self) -> Int64:
        """Orders of the queries, ``int64[max(new, 1)]``."""
        return np.arange(self.cells - max(self.new, 1), self.cells)


def scattered(draw: np.random.Generator, cells: int, arena: int, new: int = 0) -> Live:
    """Full pages anywhere in the arena, then pages for the new tokens."""
    old, own = -(-cells // PAGE), -(-new // PAGE)
    alive = np.concatenate([np.arange(old * PAGE) < cells, np.arange(own * PAGE) < new])
    pages = draw.permutation(arena)[: old + own].astype(np.int32)
    return Live(pages, alive.reshape(-1, PAGE), arena, new)


def holed(draw: np.random.Generator, cells: int, share: float, kind: str) -> Live:
    """So many live cells in an arena of which a share is holes of a kind."""
    arena = round(cells / PAGE / (1 - share))
    if kind == "pages":
        return scattered(draw, cells, arena)
    size = {"subblocks": SUBBLOCK, "cells": 1}[kind]
    bits = np.zeros(arena * PAGE // size, np.bool_)
    bits[draw.permutation(bits.size)[: cells // size]] = True
    alive = np.repeat(bits, size).reshape(-1, PAGE)
    some = alive.any(axis=1)
    return Live(draw.permutation(arena).astype(np.int32)[some], alive[some], arena)
