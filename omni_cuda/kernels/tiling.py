"""How attention over pages is cut into programs: by queries, by key head, and by shares of rows."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_SHARES = 96
"""Of a listing: more have more to merge than they save (measured on an H200)."""


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
    count: int, group: int, heads: int, element: int, processors: int, tables: int = 1
) -> int:
    """Programs to share a listing, so that the card is full whatever is alive.

    Args:
        count, group, element: as for :func:`tiling`.
        heads: key heads times streams.
        processors: multiprocessors of the card.
        tables: shifts of position.
    """
    tiles = -(-count * group // tiling(count, group, element).queries) * heads
    shares = min(_MOST_SHARES, max(1, 2 * processors // tiles))
    # Each table takes whole programs, and so do its rows of old and new tokens.
    return shares if shares == 1 else shares + 2 * tables - 1
