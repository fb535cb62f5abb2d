"""How attention is cut into threadgroups, so that a GPU is full and its registers suffice.

It decides nothing of what comes out. Figures of NVIDIA's are measured on an H200, Apple's are
counted: see docs/metal.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from metal_kernels.launch import spread

LINES = 8
"""A query and a head each: the rows of a matrix."""

_MOST_SHARES = 96
"""Programs of a listing: more have more to merge than they save."""

_WORTH = 0.85
"""Of its time, what a launch of many tiles is to take at most if its rows are shared by two."""


@dataclass(frozen=True)
class Gpu:
    """What of a GPU decides how work is cut.

    Attributes:
        cores: or multiprocessors.
        groups: threadgroups that a core should have to choose from.
        tall: whether a simdgroup of a prefill has registers for sixteen lines, not eight.
    """

    cores: int
    groups: int = 6
    tall: bool = False


@dataclass(frozen=True)
class Tiling:
    """How a launch is cut.

    Attributes:
        few: whether each simdgroup has all lines and a part of the cells, not the other way round.
        lines: a query and a head each, that a threadgroup takes.
        simdgroups: of a threadgroup.
    """

    few: bool
    lines: int
    simdgroups: int


def tiling(count: int, group: int, tall: bool) -> Tiling:
    """How ``count`` queries of ``group`` heads a key head are cut, see :class:`Gpu`."""
    lines = count * group
    if count <= 4 or lines <= LINES:
        return Tiling(True, LINES, 4)
    simdgroups = 4 if tall or lines <= 4 * LINES else 8
    return Tiling(False, (16 if tall else 8) * simdgroups, simdgroups)


def programs(count: int, group: int, heads: int, gpu: Gpu, tables: int = 1) -> int:
    """Programs to share a listing, so that the GPU is full whatever is alive.

    Args:
        count, group: as for :func:`tiling`.
        heads: key heads times streams.
        gpu: that runs them.
        tables: shifts of position.
    """
    tiles = spread(count * group, tiling(count, group, gpu.tall).lines) * heads
    room = gpu.groups * gpu.cores
    shares = min(_MOST_SHARES, room // tiles)
    if not shares:
        # What does not run at once runs in turns, the last of which may leave most of a GPU idle.
        halves = spread(2 * tiles, room) / 2
        shares = 2 if halves < _WORTH * spread(tiles, room) else 1
    # Each table takes whole programs, and so do its rows of old and new tokens.
    return shares if shares == 1 else shares + 2 * (tables - 1)
