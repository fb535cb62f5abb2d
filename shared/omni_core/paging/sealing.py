"""What is sealed when: tokens of one class, 32 at a time, in the order in which they came.

A class is a layer group, a tier, a modality and a position frame. What does not fill a subblock
waits in 16 bits. Once a frame is closed and all of the class that is left may be sealed, no more
will come, and the rest is sealed as a short subblock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from omni_core.backend import FREE, SUBBLOCK
from omni_core.paging.layout import Bool, Flat
from omni_core.units import Int8, Int32, Int64

KINDS = 64
"""More than there are kinds of a sealed page: ``tier * 8 + modality``."""


@dataclass(frozen=True)
class Ripeness:
    """Which live tokens may be sealed.

    Attributes:
        modality: ``int8[n]``, of each live token, oldest first.
        cells: ``int32[groups, n]``, as the ledger has them.
        ripe: ``bool[n]``, whether it may be sealed now.
        frame: the open position frame.
        short: whether all that may be sealed is, be it in short subblocks.
    """

    modality: Int8
    cells: Int32
    ripe: Bool
    frame: int
    short: bool = False


@dataclass(frozen=True)
class Batch:
    """Cells of one class to be sealed: ``int32[n, SUBBLOCK]``, -1 behind a short one's last."""

    kind: int
    frame: int
    cells: Int32


def batches(
    cells: Int32, kind: Int32, frame: Int32, ripe: Bool, about: Ripeness
) -> Iterator[Batch]:
    """What to seal of a layer group.

    Args:
        cells: ``int32[m]``, 16-bit cells of live tokens, oldest first.
        kind: ``int32[m]``, of the sealed page that each would go to.
        frame: ``int32[m]``.
        ripe: ``bool[m]``.
        about: the open frame, and whether what does not fill a subblock is sealed too.
    """
    keys = frame.astype(np.int64) * KINDS + kind
    taken = np.flatnonzero(ripe)
    taken = taken[np.argsort(keys[taken], kind="stable")]
    own = keys[taken]
    cuts = np.flatnonzero(own[1:] != own[:-1]) + 1
    for start, stop in pairwise([0, *cuts.tolist(), own.size]):
        if start == stop:
            continue
        key = int(own[start])
        # More of the class is to come while its frame is open, or some of it is not ripe.
        rest = about.short or (key // KINDS != about.frame and key not in keys[~ripe])
        if rest or stop - start >= SUBBLOCK:
            found = _subblocks(cells[taken[start:stop]], rest)
            yield Batch(key % KINDS, key // KINDS, found)


def free_subblocks(
    batch: Batch, group: int, pages: tuple[Int32, Int32, Int32], halves: Bool
) -> Int64:
    """Free subblocks that a class may take: those of its own pages, then of pages that none has.

    Args:
        batch: of the class.
        group: its layer group.
        pages: layer group, kind and frame ``int32[p]`` of each sealed page.
        halves: ``bool[p, 2]``, whether anything is alive in each subblock.

    Returns:
        ``int64[n]``, ``page * 2 + half`` counted from the first sealed page, in the order to take.
    """
    owner, kind, frame = pages
    own = (owner == group) & (kind == batch.kind) & (frame == batch.frame)
    page, half = np.nonzero(~halves & own[:, None])
    fresh = np.flatnonzero(owner == FREE)
    both = fresh[:, None] * 2 + np.arange(2)
    return np.concatenate([page * 2 + half, both.reshape(-1)])


def _subblocks(cells: Int32, rest: bool) -> Int32:
    """Cells 32 in a row, the rest in a row of its own if it is wanted."""
    stop = cells.size if rest else cells.size // SUBBLOCK * SUBBLOCK
    filled: Flat = np.full(-(-stop // SUBBLOCK) * SUBBLOCK, -1, np.int64)
    filled[:stop] = cells[:stop]
    return filled.reshape(-1, SUBBLOCK).astype(np.int32)
