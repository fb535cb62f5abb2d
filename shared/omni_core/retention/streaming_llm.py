"""StreamingLLM (Xiao et al. 2023): attention sinks at the stream's start, and the newest tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons, arrival_tiers, require_count
from omni_core.retention.ranking import (
    drop_all_but_best,
    why_dropped_but_best,
    why_kept_but_best,
)
from omni_core.units import Int8, Role, TokenBlock


@dataclass(frozen=True)
class StreamingLLM:
    """Keeps the prefix, the first tokens after it, and a sliding window by token.

    Attributes:
        sinks: content tokens at the stream's start that stay, beside the prefix.
    """

    sinks: int = 4
    name: str = "streaming-llm"
    scored: bool = False

    def __post_init__(self) -> None:
        """Refuse a count that is none."""
        require_count(self.name, "sinks", self.sinks)

    def tiers(self, block: TokenBlock) -> Int8:
        """All content is alike: the few sinks share their page with the first units."""
        return arrival_tiers(block, np.zeros(len(block), np.bool_))

    def evict(self, view: LedgerView, low: int) -> Bool:
        """The oldest tokens but the sinks."""
        score = view.order.astype(np.float64)
        score[self._sinks(view)] = np.inf
        return drop_all_but_best(view, score, low)

    def why_kept(self, view: LedgerView) -> Reasons:
        """The stream's start, and the window."""
        return why_kept_but_best(view, {"sink": self._sinks(view)}, "recent")

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """By age."""
        return why_dropped_but_best(view, gone, "oldest")

    def _sinks(self, view: LedgerView) -> Bool:
        ranked = np.isin(view.role, (Role.CONTENT, Role.PROMPT, Role.GENERATED))
        sinks: Bool = ranked & (np.cumsum(ranked) <= self.sinks)
        return sinks
