"""What a retention policy answers, and the counting that all policies share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.errors import BudgetError, OmniError
from omni_core.ledger import LedgerView
from omni_core.units import Int8, Int64, Role, Tier, TokenBlock

Bool = npt.NDArray[np.bool_]
Reasons = dict[str, Bool]
"""Tokens ``bool[n]`` by the reason, in a policy's own words: every token concerned has one."""


class Policy(Protocol):
    """Which tokens stay. A frozen dataclass whose fields are the method's parameters."""

    @property
    def name(self) -> str:
        """What ``--retention`` calls it."""
        ...

    @property
    def scored(self) -> bool:
        """Whether it reads the ledger's attention mass, which costs every step a little."""
        ...

    def tiers(self, block: TokenBlock) -> Int8:
        """How likely each new token is to stay: ``int8[T]`` of :class:`~omni_core.units.Tier`."""
        ...

    def evict(self, view: LedgerView, low: int) -> Bool:
        """Tokens to evict, ``bool[n]``, so that at most ``low`` are left; called between units.

        Raises:
            BudgetError: what must stay is more than ``low``.
        """
        ...

    def why_kept(self, view: LedgerView) -> Reasons:
        """Why each live token is still there; the same words, in the same order, every time."""
        ...

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """Why each token of ``gone``, which :meth:`evict` gave, goes; words as above."""
        ...


@dataclass(frozen=True)
class UnitCounts:
    """Live tokens by unit, oldest unit first; the prefix is not a unit.

    Attributes:
        units: ``int64[u]``, unit numbers, ascending.
        owner: ``int64[n]``, index into ``units`` of the unit that each token goes with: its own,
            or a bracket's the newest of its turn that has content. Meaningless for the prefix.
        prefix: tokens of the prefix.
    """

    units: Int64
    owner: Int64
    prefix: int

    def held(self, mask: Bool) -> Int64:
        """How many tokens of ``mask`` each unit owns: ``int64[u]``."""
        return np.bincount(self.owner[mask], minlength=self.units.size).astype(np.int64)


def count_units(view: LedgerView) -> UnitCounts:
    """Count a ledger by unit."""
    # The prefix comes first, and unit numbers never fall.
    prefix = int(np.count_nonzero(view.role == Role.PREFIX))
    unit = view.unit[prefix:]
    changes = np.ones(unit.size, np.bool_)
    np.not_equal(unit[1:], unit[:-1], out=changes[1:])
    begins = np.flatnonzero(changes)
    owner = np.zeros(len(view), np.int64)
    owner[prefix:] = np.cumsum(changes) - 1
    edge = view.role == Role.BRACKET
    if edge.any():
        index, content = owner.copy(), view.role == Role.CONTENT
        for turn in np.unique(view.turn[edge]):
            members = index[content & (view.turn == turn)]
            brackets = edge & (view.turn == turn)
            owner[brackets] = members.max() if members.size else index[brackets].max()
    return UnitCounts(unit[begins].astype(np.int64), owner, prefix)


def from_newest(counts: Int64) -> Int64:
    """``out[c]``: tokens in the units from index ``c`` on; one entry more than there are units."""
    return np.concatenate([np.cumsum(counts[::-1])[::-1], [0]]).astype(np.int64)


def require_room(counts: UnitCounts, newest: int, low: int) -> None:
    """Refuse a low watermark that the prefix and the newest unit do not fit.

    Raises:
        BudgetError: with the numbers.
    """
    if counts.prefix + newest > low:
        raise BudgetError(
            f"the prefix ({counts.prefix} cells) and the newest unit ({newest}) do not fit the low "
            f"watermark of {low} cells; raise --budget or shorten the system prompt"
        )


def arrival_tiers(block: TokenBlock, sink: Bool) -> Int8:
    """The tiers of new tokens, given which of them are sinks."""
    tiers = np.where(sink, np.int8(Tier.SINK), np.int8(Tier.TRANSIENT))
    text = (block.role == Role.PROMPT) | (block.role == Role.GENERATED)
    tiers[text & ~sink] = Tier.OPEN
    tiers[block.role == Role.PREFIX] = Tier.PINNED
    return tiers


def require_share(policy: str, field: str, value: float) -> None:
    """Refuse a parameter that is no share from 0 to 1.

    Raises:
        OmniError: naming it.
    """
    if not 0 <= value <= 1:
        raise OmniError(f"{policy}: `{field}` is {value}, expected a share from 0 to 1")


def require_count(policy: str, field: str, value: int) -> None:
    """Refuse a parameter that is no number of tokens.

    Raises:
        OmniError: naming it.
    """
    if not 0 <= value < 2**31:
        raise OmniError(f"{policy}: `{field}` is {value}, expected a number of tokens from 0")
