"""Which live token stands for which place of the picture, and where its embedding is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from omni_core.ledger import LedgerView
from omni_core.state import expect, listed
from omni_core.units import Int32, Int64, Modality

_MOST_SLOT = 2**24
"""Beyond what any picture takes: a saved slot must not ask for all memory."""


def _none(count: int = 0) -> Int64:
    return np.full(count, -1, np.int64)


@dataclass(frozen=True)
class Places:
    """What stands for each of the ``n`` places of a picture, line by line.

    A merged token stands for the places of all that were merged into it. What is at a place now
    hides what was there before, which need not be kept: so this takes two frames' room, however
    long the stream is.

    Attributes:
        size: height and width of the picture in patches: of another size, no place is the same.
        order: ``int64[n]``, of the token that stands for it, -1 for none.
        slot: ``int32[n]``, of the token's embedding, -1 for none.
    """

    size: tuple[int, int] = (0, 0)
    order: Int64 = field(default_factory=_none)
    slot: Int32 = field(default_factory=lambda: _none().astype(np.int32))

    @property
    def known(self) -> Int32:
        """The places that something stands for."""
        return np.flatnonzero(self.order >= 0).astype(np.int32)

    @property
    def slots(self) -> Int32:
        """The slots in use, ascending."""
        return np.unique(self.slot[self.slot >= 0])

    def of(self, size: tuple[int, int], count: int) -> Places:
        """These, if they are of a picture of this size; else as many of which nothing is known."""
        if self.size == size and self.order.size == count:
            return self
        return Places(size, _none(count), _none(count).astype(np.int32))

    def among(self, view: LedgerView) -> Places:
        """With those alone whose token is alive in every layer group."""
        alive = view.order[(view.cells >= 0).all(axis=0)]
        at = np.minimum(np.searchsorted(alive, self.order), max(alive.size - 1, 0))
        held = alive[at] == self.order if alive.size else np.zeros(self.order.size, np.bool_)
        slot = np.where(held, self.slot, np.int32(-1))
        return replace(self, order=np.where(held, self.order, -1), slot=slot)

    def renewed(self, place: Int32, order: Int64, slot: Int32) -> Places:
        """With other tokens that stand for some places."""
        orders, slots = self.order.copy(), self.slot.copy()
        orders[place], slots[place] = order, slot
        return replace(self, order=orders, slot=slots)

    def moved(self, first: int, where: Int32) -> Places:
        """With the orders from ``first`` on by where their tokens are now, counted from there."""
        order = self.order.copy()
        new = order >= first
        order[new] = first + where[order[new] - first]
        return replace(self, order=order)

    def state(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            "size": list(self.size),
            "order": self.order.tolist(),
            "slot": self.slot.tolist(),
        }

    @staticmethod
    def restored(state: Mapping[str, Any], view: LedgerView) -> Places:
        """What :meth:`state` told of.

        Args:
            state: as it was.
            view: the tokens that are alive.

        Raises:
            ValueError, KeyError, TypeError: no such places of live vision tokens.
        """
        size = listed(state["size"], np.int64, 2).tolist()
        order = listed(state["order"], np.int64, None, least=-1)
        slot = listed(state["slot"], np.int32, order.size, least=-1)
        expect(order.size <= size[0] * size[1], "at most a place for each patch")
        expect(bool(((order >= 0) == (slot >= 0)).all()), "a slot for each token")
        seen = view.order[view.modality == Modality.VISION]
        expect(bool(np.isin(order[order >= 0], seen).all()), "places of live vision tokens")
        pairs = np.unique(np.stack([order, slot.astype(np.int64)]), axis=1)
        expect(
            np.unique(pairs[0]).size == pairs.shape[1] == np.unique(pairs[1]).size,
            "a slot of its own for each token",
        )
        expect(bool((slot <= _MOST_SLOT).all()), "slots of a few frames")
        return Places((size[0], size[1]), order, slot)


def free_slots(taken: Int32, count: int) -> Int32:
    """The lowest ``count`` slots that are not among ``taken``, which may hold -1."""
    unused = np.ones(taken.size + count, np.bool_)
    unused[taken[(taken >= 0) & (taken < unused.size)]] = False
    return np.flatnonzero(unused)[:count].astype(np.int32)
