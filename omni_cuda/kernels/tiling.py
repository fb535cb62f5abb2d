"""How attention over pages is cut into programs: by queries, by key head, and by shares of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from omni_core.units import Modality

_MERGE = 0.03
"""Of a tile's work, what it takes to write and to merge one more share of it."""
_ROUND = 32
"""Many programs are a multiple of it: rows are dealt out and merged more evenly (on an H200, 64 are
2 % faster than 67, the most that run at once)."""

SEALED_LINES = 128
"""Lines of a program that reads sealed pages for several queries, at most."""
SEALED_WARPS = 2
"""Warps of a program that reads sealed pages for one query: each walks rows of its own."""
_SEALED_HELD = 4
"""Such programs that a multiprocessor's registers hold: on an H200 over 65,536 cells, 7 % faster
than half as many of four warps, and half again as fast as one more than fit."""


@dataclass(frozen=True)
class Tiling:
    """How a launch is cut.

    Attributes:
        queries: lines, a query and a head each, that a program takes: a power of two, 16 or more.
        warps: of a program.
        stages: tiles of keys and values on their way at once.
    """

    queries: int
    warps: int
    stages: int


class Split(NamedTuple):
    """How rows are shared.

    Attributes:
        programs: that a listing is dealt out to.
        shares: programs that cut the rows of a listing between them that is not dealt out.
    """

    programs: int
    shares: int


def tiling(count: int, group: int, element: int, roomy: bool = False) -> Tiling:
    """How ``count`` queries of ``group`` heads a key head are cut.

    Args:
        count: new tokens.
        group: query heads a key head.
        element: bytes of a number.
        roomy: whether a block has more than 99 KB of shared memory.
    """
    lines = count * group
    if element == 4:
        return Tiling(16, 4, 1)
    if lines <= 32:
        return Tiling(16 if lines <= 16 else 32, 4, 3)
    return Tiling(64, 4, 3 if roomy else 2)


def split(
    count: int,
    group: int,
    heads: int,
    element: int,
    processors: int,
    tables: int = 1,
    roomy: bool = False,
) -> Split:
    """How rows are shared, so that all programs run at once and fill the card.

    Args:
        count, group, element, roomy: as for :func:`tiling`.
        heads: key heads times streams.
        processors: multiprocessors of the card.
        tables: shifts of position.
    """
    tiles = -(-count * group // tiling(count, group, element, roomy).queries) * heads
    # Keys and values on their way fill half of a large multiprocessor, or all of a small one.
    most = (2 if roomy else 1) * processors // tiles
    if most <= 1:
        return Split(1, min(range(1, 5), key=lambda each: _taken(tiles, each, processors)))
    # A program reads for one table; what a query may see in part, no single one does, is apart too.
    parts = tables if count == 1 else 2 * tables
    return Split(max(parts, most - most % _ROUND if most > _ROUND else most), 1)


def sealed_split(
    count: int,
    group: int,
    heads: int,
    processors: int,
    tables: int,
    pages: int,
    dealt: bool,
) -> Split:
    """How rows of sealed pages are shared.

    Args:
        count, group, heads, processors, tables: as for :func:`split`.
        pages: sealed pages, of the whole arena.
        dealt: whether the rows of 16 bits are dealt out to programs: then these are as well, for
            one merge follows both.
    """
    tiles = -(-count * group // SEALED_LINES) * heads
    if not dealt:
        return Split(1, min(range(1, 5), key=lambda each: _taken(tiles, each, processors)))
    most = processors // tiles
    if count == 1:
        most = min(_SEALED_HELD * processors // heads, -(-pages // SEALED_WARPS))
    # A program reads for one table, and values of one modality.
    return Split(max(tables * len(Modality), most), 1)


def _taken(tiles: int, shares: int, processors: int) -> float:
    """What the busiest multiprocessor takes, in tiles, and what is merged then."""
    return -(-tiles * shares // processors) / shares + _MERGE * (shares - 1) * tiles / processors
