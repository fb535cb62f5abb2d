"""OmniPage (OmniTide): a page for tokens of one likely fate, and moves only where they pay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.backend import PAGE
from omni_core.paging.layout import ClassPages, Flat, empty_pages, holes, tail
from omni_core.units import Int8, Int32, Tier


@dataclass(frozen=True)
class PageLayout:
    """Pages by tier and position frame.

    Tokens of a class go in the order in which they came, so a class grows at its tail and its
    oldest pages die whole. Modalities share pages: a unit's tokens of one tier go together, and
    pages of each modality would be filled a third as fast. Tokens that may go at any time
    (``Tier.SCORED``) fill holes, and are moved together once there is too much room among them.

    Attributes:
        worth: most cells to copy for one freed page, where there is no need.
        spare: room among tokens that may go at any time, as a share of them, before they move.
        trim: also copy the last pages into free ones before them, so that no free page lies between
            used ones. Attention over a page table does not care; a kernel that walks the whole
            span does.
    """

    worth: int = PAGE // 2
    spare: float = 0.1
    trim: bool = False
    name: str = "page"

    def kinds(self, tiers: Int8, modality: Int8) -> Int32:
        """By tier; what is open is going to be transient."""
        fate = np.where(tiers == Tier.OPEN, Tier.TRANSIENT, tiers)
        return fate.astype(np.int32) * 8

    def room(self, pages: ClassPages) -> Flat:
        """The tail, or the holes of a class without an order."""
        return holes(pages) if pages.tier == Tier.SCORED else tail(pages)

    def moves(self, pages: ClassPages, urgent: bool) -> tuple[Flat, Flat]:
        """Nearly empty pages into the holes of others."""
        if urgent:
            return empty_pages(pages, PAGE)
        if pages.tier == Tier.SCORED:
            return empty_pages(pages, PAGE, self.spare)
        return empty_pages(pages, self.worth)
