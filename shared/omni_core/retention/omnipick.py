"""OmniPick (OmniTide): recent units whole, and of older units the sinks of each modality."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.retention.base import (
    Bool,
    arrival_tiers,
    count_units,
    from_newest,
    require_room,
)
from omni_core.units import Int8, Int32, Modality, Role, TokenBlock


@dataclass(frozen=True)
class OmniPick:
    """Keeps the prefix, the newest units whole, and short sink spans of the units before them.

    A unit's sinks are its delimiters and the first tokens of each modality's span. They take up to
    ``share`` of the room beyond the prefix; when they outgrow it, the oldest unit's go first. What
    they do not need goes to recent units.

    Attributes:
        vision, audio, text: sinks a unit in each modality.
        share: most of the cells beyond the prefix that old units' sinks may take, 0 to 1.
    """

    vision: int = 4
    audio: int = 2
    text: int = 16
    share: float = 0.5
    name: str = "omnipick"

    def tiers(self, block: TokenBlock) -> Int8:
        """Sinks apart from what goes when its unit leaves the recent window."""
        return arrival_tiers(block, self._sinks(block.role, block.sense, block.offset))

    def evict(self, view: LedgerView, low: int) -> Bool:
        """What is not recent and no sink, then the oldest units' sinks."""
        counts = count_units(view)
        tail = view.role != Role.PREFIX
        sinks = tail & self._sinks(view.role, view.sense, view.offset)
        whole, kept = from_newest(counts.held(tail)), from_newest(counts.held(sinks))
        room = low - counts.prefix
        require_room(counts, int(whole[counts.units.size - 1]), low)
        share = int(self.share * room)
        # Units from index c on stay whole; those before keep sinks, at most `share` of the room.
        fits = whole + np.minimum(kept[0] - kept, share) <= room
        recent = int(np.flatnonzero(fits[:-1])[0]) if fits[:-1].any() else counts.units.size - 1
        share = min(share, room - int(whole[recent]))
        oldest = int(np.flatnonzero(kept - kept[recent] <= share)[0])
        gone: Bool = tail & (counts.owner < recent) & ~(sinks & (counts.owner >= oldest))
        return gone

    def _sinks(self, role: Int8, sense: Int8, offset: Int32) -> Bool:
        wanted = np.zeros(3, np.int32)
        wanted[Modality.TEXT] = self.text
        wanted[Modality.VISION] = self.vision
        wanted[Modality.AUDIO] = self.audio
        inside: Bool = np.less(offset, wanted[sense])
        delimits: Bool = np.isin(role, (Role.DELIMITER, Role.BRACKET)) & (wanted[sense] > 0)
        return inside & ~np.isin(role, (Role.DELIMITER, Role.BRACKET)) | delimits
