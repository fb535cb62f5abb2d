"""What of a cache is sealed: everything, or all but the prefix and the newest units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.backend import SUBBLOCK
from omni_core.errors import OmniError
from omni_core.ledger import LedgerView
from omni_core.paging.layout import Bool
from omni_core.quantization.codec import DEFAULT, codec
from omni_core.units import Modality, Role

RECENT, ALL = "recent", "all"
WINDOW = 128
"""Cells of the recent window: on a text model, perplexity within 2 % of a cache of 16 bits."""
WAITING = 2 * len(Modality) * (SUBBLOCK - 1)
"""Most cells of a position frame that wait to fill a subblock: 31 for each modality of two tiers,
those that are likely to stay and those that are not."""


@dataclass(frozen=True)
class Sealing:
    """A cache that is sealed.

    Attributes:
        bits: of a code: 2, 3 or 4.
        seal: ``recent`` leaves the prefix and the newest units in 16 bits: as many whole units as
            fit :data:`WINDOW` cells, and the last one however long. ``all`` leaves nothing but what
            has not ended, and what waits to fill a subblock.
        codec: a name of :data:`omni_core.quantization.CODECS`.

    Raises:
        OmniError: none of these.
    """

    bits: int
    seal: str = RECENT
    codec: str = DEFAULT

    def __post_init__(self) -> None:
        codec(self.codec, self.bits)
        if self.seal not in (RECENT, ALL):
            raise OmniError(f"seal is {self.seal!r}, expected {RECENT} or {ALL}")

    def held(self, prefix: int, largest: int) -> int:
        """Most cells that stay in 16 bits when a unit has ended, beside those that wait.

        Args:
            prefix: tokens of the system prompt.
            largest: tokens of the largest unit or turn.
        """
        return 0 if self.seal == ALL else prefix + max(WINDOW, largest)

    def ripe(self, view: LedgerView) -> Bool:
        """Which live tokens may be sealed between units, ``bool[n]``."""
        if self.seal == ALL:
            return np.ones(len(view), np.bool_)
        ripe: Bool = view.role != Role.PREFIX
        ripe[_recent(view) :] = False
        return ripe


def _recent(view: LedgerView) -> int:
    """Where the recent window begins: with a unit, whose numbers never fall."""
    unit, count = view.unit, len(view)
    if count <= WINDOW:
        return 0
    begins = int(np.searchsorted(unit, unit[count - WINDOW - 1], side="right"))
    return begins if begins < count else int(np.searchsorted(unit, unit[-1]))


def sealing(kv_bits: int, seal: str) -> Sealing | None:
    """How a cache of ``kv_bits`` a number is sealed; None at 16.

    Raises:
        OmniError: no such bits, or another word than ``recent`` and ``all``.
    """
    chosen = Sealing(2 if kv_bits == 16 else kv_bits, seal)
    return None if kv_bits == 16 else chosen
