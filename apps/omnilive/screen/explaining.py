"""A watcher that keeps the screen's page map and reasons up to date."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.paging import Layout
from omni_core.paging.table import PageMap
from omni_core.retention.base import Bool, Reasons
from omni_core.units import Modality
from omni_core.watcher import ClosedUnit, Mass, Watcher
from omnilive.screen.state import Counts

Told = Callable[[tuple[PageMap, ...], Layout, dict[str, Counts], dict[str, Counts]], None]
"""Takes the page maps, their layout, and the tokens kept and dropped so far, by reason."""


class Onlooker:
    """Tells of each unit and turn that ends; another watcher may look on as well."""

    def __init__(self, told: Told, layout: Layout, other: Watcher | None = None) -> None:
        self._told, self._layout, self._other = told, layout, other
        self._dropped: dict[str, Counts] = {}

    @property
    def mass(self) -> bool:
        """As the other one wants it."""
        return self._other is not None and self._other.mass

    def stepped(self, view: LedgerView, unit: int, mass: Mass | None) -> None:
        """A step has run."""
        if self._other is not None:
            self._other.stepped(view, unit, mass)

    def evicting(self, view: LedgerView, gone: Bool, why: Reasons) -> None:
        """Count what goes."""
        for reason, mask in why.items():
            before = self._dropped.get(reason, (0, 0, 0))
            now = _count(view, mask)
            self._dropped[reason] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
        if self._other is not None:
            self._other.evicting(view, gone, why)

    def closed(self, closed: ClosedUnit) -> None:
        """Tell."""
        kept = {reason: _count(closed.view, mask) for reason, mask in closed.kept.items()}
        self._told(closed.maps, self._layout, kept, dict(self._dropped))
        if self._other is not None:
            self._other.closed(closed)


def _count(view: LedgerView, mask: Bool) -> Counts:
    counts = np.bincount(view.modality[mask], minlength=len(Modality))
    return int(counts[Modality.VISION]), int(counts[Modality.AUDIO]), int(counts[Modality.TEXT])
