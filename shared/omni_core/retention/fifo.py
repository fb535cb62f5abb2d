"""First in, first out, by whole units: the *basic* window of MiniCPM-o."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.retention.base import (
    Bool,
    Reasons,
    arrival_tiers,
    count_units,
    from_newest,
    require_room,
)
from omni_core.units import Int8, Role, TokenBlock


@dataclass(frozen=True)
class Fifo:
    """Drops the oldest units until the low watermark holds; the prefix stays."""

    name: str = "fifo"
    scored: bool = False

    def tiers(self, block: TokenBlock) -> Int8:
        """All content is alike."""
        return arrival_tiers(block, np.zeros(len(block), np.bool_))

    def evict(self, view: LedgerView, low: int) -> Bool:
        """The oldest units."""
        counts = count_units(view)
        tail = view.role != Role.PREFIX
        left = from_newest(counts.held(tail))
        newest = counts.units.size - 1
        require_room(counts, int(left[newest]), low)
        first = int(np.flatnonzero(counts.prefix + left <= low)[0])
        gone: Bool = tail & (counts.owner < first)
        return gone

    def why_kept(self, view: LedgerView) -> Reasons:
        """The prefix, and whole units."""
        prefix = view.role == Role.PREFIX
        return {"pinned": prefix, "recent": ~prefix}

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """By age."""
        return {"oldest unit": gone}
