"""Looking on at a session: what it tells whoever explains or measures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.aggregation.unit import Counts
from omni_core.ledger import LedgerView
from omni_core.paging.table import PageMap, Usage
from omni_core.retention.base import Bool, Reasons
from omni_core.units import Int64

Mass = tuple[npt.NDArray[np.float32], ...]


@dataclass(frozen=True)
class ClosedUnit:
    """A unit or a turn that has just ended, after eviction and migration.

    Attributes:
        unit: its number.
        time: seconds of the stream.
        arrived: ``int64[3]``, its tokens by :class:`~omni_core.units.Modality`.
        view: the live tokens.
        kept: why each is still there.
        usage: how much of the pool is in use.
        maps: the pages of each layer group.
        aggregated: its vision tokens before and after, where they are aggregated.
    """

    unit: int
    time: float
    arrived: Int64
    view: LedgerView
    kept: Reasons
    usage: Usage
    maps: tuple[PageMap, ...]
    aggregated: Counts | None = None


class Watcher(Protocol):
    """Sees what a session does, and changes nothing. Views are valid during the call only."""

    @property
    def mass(self) -> bool:
        """Whether it wants the attention mass of every step, which costs a little."""
        ...

    def stepped(self, view: LedgerView, unit: int, mass: Mass | None) -> None:
        """A step has run.

        Args:
            view: the live tokens, the step's own included.
            unit: the number of the unit or turn that the step belongs to; -1 for the prefix.
            mass: as in :class:`~omni_core.backend.StepResult`.
        """
        ...

    def evicting(self, view: LedgerView, gone: Bool, why: Reasons) -> None:
        """Tokens ``gone`` of ``view`` are about to leave."""
        ...

    def closed(self, closed: ClosedUnit) -> None:
        """A unit or a turn has ended."""
        ...
