"""How a model spreads its attention over old units, measured while a stream runs.

While nothing is evicted, each query unit's attention mass on *old* units (those before its recent
window) is summed by the key's modality and its offset in its span, delimiters apart, and divided by
the whole mass on old units. Each query unit so gives one distribution of sum 1, however long the
stream is and however many units are old; the profile is their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons
from omni_core.units import Modality, Role
from omni_core.watcher import ClosedUnit, Mass

RECENT = 4
"""Units, the query's own included, whose keys do not count as old."""

Float = npt.NDArray[np.float64]
_ROWS = 2 * len(Modality)


@dataclass(frozen=True)
class QueryUnit:
    """Where one query unit's attention on old units went.

    Rows are content by :class:`~omni_core.units.Modality`, then delimiters by the modality that
    they delimit, at offset 0.

    Attributes:
        unit: its number.
        mass: ``float64[6, offsets]``, shares of the mass on old units; their sum is 1.
        keys: ``float64[6, offsets]``, how many keys there were.
    """

    unit: int
    mass: Float
    keys: Float

    def contrast(self) -> Float:
        """Mass a key as a multiple of the average old key's, ``[6, offsets]``; NaN without keys."""
        with np.errstate(invalid="ignore"):
            times: Float = self.mass / self.keys * self.keys.sum()
        return times


class MassProfile:
    """Watches streams in which nothing is evicted, and adds their attention mass up."""

    mass = True

    def __init__(self, recent: int = RECENT) -> None:
        """Take the units of the recent window, the query's own included, 1 or more."""
        self.recent = recent
        self.streams: list[list[QueryUnit]] = []
        self._mass: Float = np.zeros((_ROWS, 0))
        self._keys: Float = self._mass

    def begin(self) -> None:
        """Another stream follows; its units are numbered from 0."""
        self.streams.append([])
        self._mass = self._keys = np.zeros((_ROWS, 0))

    def stepped(self, view: LedgerView, unit: int, mass: Mass | None) -> None:
        """Add a step's mass to its unit's."""
        old = (view.unit >= 0) & (view.unit <= unit - self.recent)
        if mass is None or not old.any():
            return
        got = np.zeros(len(view))
        for cells, part in zip(view.cells, mass, strict=True):
            got[cells >= 0] += part
        edge = np.isin(view.role, (Role.DELIMITER, Role.BRACKET))[old]
        row = view.sense[old].astype(np.int64) + len(Modality) * edge
        offset = np.where(edge, 0, view.offset[old])
        width = max(self._mass.shape[1], int(offset.max()) + 1)
        cell, size = row * width + offset, _ROWS * width
        sums = np.zeros((_ROWS, width))
        sums[:, : self._mass.shape[1]] = self._mass
        self._mass = sums + np.bincount(cell, got[old], size).reshape(_ROWS, width)
        # The old units are the same for every step of a unit.
        self._keys = np.bincount(cell, minlength=size).reshape(_ROWS, width).astype(np.float64)

    def evicting(self, view: LedgerView, gone: Bool, why: Reasons) -> None:
        """Retention is to keep everything here.

        Raises:
            OmniError: always.
        """
        raise OmniError("a stream that is measured must not evict; use retention no-slide")

    def closed(self, closed: ClosedUnit) -> None:
        """Take the unit's distribution in."""
        total = self._mass.sum()
        if total > 0:
            self.streams[-1].append(QueryUnit(closed.unit, self._mass / total, self._keys))
        self._mass = self._keys = np.zeros((_ROWS, 0))

    def shares(self) -> Float:
        """The mean over all query units: ``float64[6, offsets]`` of sum 1, rows as there.

        Raises:
            OmniError: no stream was long enough to have old units.
        """
        units = [unit for stream in self.streams for unit in stream]
        if not units:
            raise OmniError(
                f"no unit had units before its recent window of {self.recent} to attend to; give "
                "longer clips, or a smaller --recent"
            )
        mean = np.zeros((_ROWS, max(unit.mass.shape[1] for unit in units)))
        for unit in units:
            mean[:, : unit.mass.shape[1]] += unit.mass / len(units)
        return mean
