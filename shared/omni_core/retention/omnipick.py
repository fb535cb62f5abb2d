"""OmniPick (OmniTide): recent units whole, and of older units the sinks of each modality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_core.calibration import read_share, read_sinks
from omni_core.ledger import LedgerView
from omni_core.retention.base import (
    Bool,
    Reasons,
    arrival_tiers,
    count_units,
    from_newest,
    require_count,
    require_room,
    require_share,
)
from omni_core.units import Int8, Int32, Modality, Role, TokenBlock


@dataclass(frozen=True)
class OmniPick:
    """Keeps the prefix, the newest units whole, and short sink spans of the units before them.

    A unit's sinks are its delimiters and the first tokens of each modality's span. They take up to
    ``share`` of the room beyond the prefix; when they outgrow it, the oldest unit's go first. What
    they do not need goes to recent units.

    Attributes:
        vision, audio, text: first tokens a unit in each modality, beside the delimiters; 0 for
            the delimiters alone.
        share: most of the cells beyond the prefix that old units' sinks may take, 0 to 1.
    """

    vision: int = 4
    audio: int = 2
    text: int = 16
    share: float = 0.5
    name: str = "omnipick"
    scored: bool = False

    def __post_init__(self) -> None:
        """Refuse counts and a share that are none."""
        require_share(self.name, "share", self.share)
        for field in ("vision", "audio", "text"):
            require_count(self.name, field, getattr(self, field))

    @classmethod
    def from_calibration(cls, document: Mapping[str, Any]) -> OmniPick:
        """The policy with the sink counts that ``omnilive calibrate retention`` measured.

        What was not measured keeps its default.

        Raises:
            OmniError: no such document.
        """
        sinks = read_sinks(document)
        share = read_share(document)
        return cls(
            vision=sinks.get("vision", cls.vision),
            audio=sinks.get("audio", cls.audio),
            text=sinks.get("text", cls.text),
            share=cls.share if share is None else share,
        )

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

    def why_kept(self, view: LedgerView) -> Reasons:
        """The prefix, whole units, and the sinks of those before them."""
        prefix = view.role == Role.PREFIX
        counts = count_units(view)
        more = ~prefix & ~self._sinks(view.role, view.sense, view.offset)
        # A unit that has more than its sinks is whole.
        recent = ~prefix & (counts.owner >= counts.owner[more].min(initial=counts.units.size - 1))
        return {"pinned": prefix, "recent": recent, "sink": ~prefix & ~recent}

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """Out of the recent window, or a sink of the oldest units."""
        sinks = self._sinks(view.role, view.sense, view.offset)
        return {"not recent": gone & ~sinks, "oldest sink": gone & sinks}

    def _sinks(self, role: Int8, sense: Int8, offset: Int32) -> Bool:
        wanted = np.zeros(3, np.int32)
        wanted[Modality.TEXT] = self.text
        wanted[Modality.VISION] = self.vision
        wanted[Modality.AUDIO] = self.audio
        edge = (role == Role.DELIMITER) | (role == Role.BRACKET)
        # A delimiter stays as long as its unit does, wherever it stands.
        sinks: Bool = edge | np.less(offset, wanted.take(sense))
        return sinks
