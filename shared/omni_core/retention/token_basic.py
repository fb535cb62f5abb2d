"""A sliding window by token: the oldest go first, wherever units begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons, arrival_tiers
from omni_core.retention.ranking import (
    drop_all_but_best,
    why_dropped_but_best,
    why_kept_but_best,
)
from omni_core.units import Int8, TokenBlock


@dataclass(frozen=True)
class TokenBasic:
    """Keeps the newest tokens, and the prefix."""

    name: str = "token-basic"
    scored: bool = False

    def tiers(self, block: TokenBlock) -> Int8:
        """All content is alike."""
        return arrival_tiers(block, np.zeros(len(block), np.bool_))

    def evict(self, view: LedgerView, low: int) -> Bool:
        """The oldest tokens."""
        return drop_all_but_best(view, view.order.astype(np.float64), low)

    def why_kept(self, view: LedgerView) -> Reasons:
        """By age."""
        return why_kept_but_best(view, {}, "recent")

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """By age."""
        return why_dropped_but_best(view, gone, "oldest")
