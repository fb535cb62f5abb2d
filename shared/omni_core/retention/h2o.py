"""H2O (Zhang et al. 2023): the tokens that got most attention, and the newest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons, arrival_tiers, require_share
from omni_core.retention.ranking import (
    drop_all_but_best,
    why_dropped_but_best,
    why_kept_but_best,
)
from omni_core.units import Int8, Int64, Role, Tier, TokenBlock


@dataclass(frozen=True)
class H2O:
    """Keeps heavy hitters by attention mass summed over queries, heads and layers.

    One set of tokens for all heads and layers, so that a page table serves them all. New tokens
    have had no queries yet: the newest stay whatever their mass.

    Attributes:
        recent: share of the cells beyond the prefix for the newest tokens, 0 to 1.
    """

    recent: float = 0.5
    name: str = "h2o"
    scored: bool = True

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        require_share(self.name, "recent", self.recent)

    def tiers(self, block: TokenBlock) -> Int8:
        """Anything but the prefix may go at any time."""
        tiers = arrival_tiers(block, np.zeros(len(block), np.bool_))
        tiers[tiers != Tier.PINNED] = Tier.SCORED
        return tiers

    def evict(self, view: LedgerView, low: int) -> Bool:
        """The tokens with least mass, but not the newest."""
        score = view.mass.copy()
        score[self._newest(view, low)] = np.inf
        return drop_all_but_best(view, score, low)

    def why_kept(self, view: LedgerView) -> Reasons:
        """New, or attended to."""
        heavy = np.ones(len(view), np.bool_)
        heavy[self._newest(view, len(view))] = False
        return why_kept_but_best(view, {"heavy hitter": heavy}, "newest")

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """By score."""
        return why_dropped_but_best(view, gone, "least attention")

    def _newest(self, view: LedgerView, low: int) -> Int64:
        prefix = view.role == Role.PREFIX
        room = low - int(prefix.sum())
        # Delimiters go with their spans: what counts as new is what they delimit.
        tail = np.flatnonzero(~prefix & ~np.isin(view.role, (Role.DELIMITER, Role.BRACKET)))
        newest: Int64 = tail[-max(1, int(self.recent * room)) :]
        return newest
