"""How a layout answers: which cells a page may share, which free cell comes next, what moves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE
from omni_core.units import Int8, Int32, Int64

Bool = npt.NDArray[np.bool_]
Flat = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassPages:
    """The pages of one page class in one layer group.

    Attributes:
        tier: the class's tier; 0 where a layout does not tell tiers apart.
        pages: ``int64[n]``, ids in the order in which they were opened.
        live: ``bool[n, PAGE]``, occupancy.
        fill: ``int64[n]``, live cells of each page.
    """

    tier: int
    pages: Int64
    live: Bool
    fill: Int64


class Layout(Hashable, Protocol):
    """A way to place tokens. A frozen dataclass whose fields are its parameters."""

    @property
    def name(self) -> str:
        """What ``--layout`` calls it."""
        ...

    @property
    def trim(self) -> bool:
        """Whether the last pages are copied into free ones that lie before them."""
        ...

    def kinds(self, tiers: Int8, modality: Int8) -> Int32:
        """The class of each token, ``int32[T]``, as ``tier * 8 + modality`` or coarser.

        Position frames are told apart whatever this says, since a page has one frame.
        """
        ...

    def room(self, pages: ClassPages) -> Flat:
        """Free cells of a class that new tokens may take, in the order to take them."""
        ...

    def moves(self, pages: ClassPages, urgent: bool) -> tuple[Flat, Flat]:
        """Cells of a class to copy, and where to: what pays, or whatever frees a page if urgent."""
        ...


def holes(pages: ClassPages) -> Flat:
    """Every free cell, lowest page first."""
    order = np.argsort(pages.pages, kind="stable")
    row, slot = np.nonzero(~pages.live[order])
    return pages.pages[order][row] * PAGE + slot


def tail(pages: ClassPages) -> Flat:
    """The free cells behind the last token of the page that was opened last."""
    if not pages.pages.size:
        return np.zeros(0, np.int64)
    last = int(np.flatnonzero(pages.live[-1])[-1])
    return np.arange(last + 1, PAGE, dtype=np.int64) + int(pages.pages[-1]) * PAGE


def nothing() -> tuple[Flat, Flat]:
    """No moves."""
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def empty_pages(pages: ClassPages, worth: int, spare: float = 0.0) -> tuple[Flat, Flat]:
    """Empty the emptiest pages into the holes of the fullest, where that pays.

    Args:
        pages: the class.
        worth: most cells to copy for one page.
        spare: room to leave, as a share of the live cells.
    """
    if pages.pages.size < 2:
        return nothing()
    # A few dozen numbers, looked at after every unit: a list is faster than an array.
    fill = pages.fill.tolist()
    least = -(-int(sum(fill) * (1 + spare)) // PAGE)
    count = min(len(fill) - least, sum(each <= worth for each in fill))
    if count <= 0:
        return nothing()
    ranking = np.argsort(pages.fill, kind="stable")
    # Fullest first, so that the pages that are nearly full become full.
    out, keep = ranking[:count], ranking[count:][::-1]
    row, slot = np.nonzero(pages.live[out])
    source = pages.pages[out][row] * PAGE + slot
    row, slot = np.nonzero(~pages.live[keep])
    target = (pages.pages[keep][row] * PAGE + slot)[: source.size]
    return source, target
