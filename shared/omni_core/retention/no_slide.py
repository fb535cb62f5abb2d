"""Keep everything: the baseline, for streams that fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.errors import BudgetError
from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons, arrival_tiers
from omni_core.units import Int8, Role, TokenBlock


@dataclass(frozen=True)
class NoSlide:
    """Never evicts; a stream that outgrows the budget ends with an error."""

    name: str = "no-slide"
    scored: bool = False

    def tiers(self, block: TokenBlock) -> Int8:
        """All content is alike."""
        return arrival_tiers(block, np.zeros(len(block), np.bool_))

    def evict(self, view: LedgerView, low: int) -> Bool:
        """Nothing can go.

        Raises:
            BudgetError: always.
        """
        raise BudgetError(
            f"the stream has outgrown the budget with {len(view)} cells, and retention 'no-slide' "
            "keeps them all; use --retention omnipick or fifo, or raise --budget"
        )

    def why_kept(self, view: LedgerView) -> Reasons:
        """Nothing ever goes."""
        prefix = view.role == Role.PREFIX
        return {"pinned": prefix, "all stay": ~prefix}

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """No reason is good enough."""
        return {}
