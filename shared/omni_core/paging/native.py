"""The native layout of a flat cache, to compare with: first fit, evicted cells stay as holes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.backend import PAGE
from omni_core.paging.layout import ClassPages, Flat, empty_pages, holes, nothing
from omni_core.units import Int8, Int32


@dataclass(frozen=True)
class NativeLayout:
    """Every token takes the first free cell, whatever it is (llama.cpp's unified KV cache)."""

    name: str = "native"
    trim: bool = False

    def kinds(self, tiers: Int8, modality: Int8) -> Int32:
        """All alike."""
        return np.zeros(tiers.size, np.int32)

    def room(self, pages: ClassPages) -> Flat:
        """The holes."""
        return holes(pages)

    def moves(self, pages: ClassPages, urgent: bool) -> tuple[Flat, Flat]:
        """None, but where the pool would run out."""
        return empty_pages(pages, PAGE) if urgent else nothing()
