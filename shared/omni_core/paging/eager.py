"""The eager layout, to compare with: after each eviction everything is packed together again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.backend import PAGE
from omni_core.paging.layout import ClassPages, Flat, holes
from omni_core.units import Int8, Int32


@dataclass(frozen=True)
class EagerLayout:
    """First fit, and then one run of cells without holes, in their order."""

    name: str = "eager"
    trim: bool = False

    def kinds(self, tiers: Int8, modality: Int8) -> Int32:
        """All alike."""
        return np.zeros(tiers.size, np.int32)

    def room(self, pages: ClassPages) -> Flat:
        """The holes, which are all at the end."""
        return holes(pages)

    def moves(self, pages: ClassPages, urgent: bool) -> tuple[Flat, Flat]:
        """Every cell behind the first hole, each as far down as it goes."""
        order = np.argsort(pages.pages, kind="stable")
        row, slot = np.nonzero(pages.live[order])
        source = pages.pages[order][row] * PAGE + slot
        rank = np.arange(source.size)
        target = pages.pages[order][rank // PAGE] * PAGE + rank % PAGE
        moving = source != target
        return source[moving], target[moving]
