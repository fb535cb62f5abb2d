"""How attention over pages is cut into programs: by queries, by key head, and by shares of rows."""

from __future__ import annotations

from dataclasses import dataclass

_ROUND = 32
"""Many programs are a multiple of it: rows are dealt out and merged more evenly (on an H200, 64 are
2 % faster than 67, the most that run at once)."""


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


def programs(
    count: int,
    group: int,
    heads: int,
    element: int,
    processors: int,
    tables: int = 1,
    roomy: bool = False,
) -> int:
    """Programs to share a listing, so that all run at once and fill the card.

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
        return 1
    shares = most - most % _ROUND if most > _ROUND else most
    # A program reads for one table; what a query may see in part, no single one does, is apart too.
    parts = tables if count == 1 else 2 * tables
    return max(parts, min(most, shares + parts - 1))
