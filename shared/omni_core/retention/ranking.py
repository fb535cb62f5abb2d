"""Keeping the best tokens by a score; delimiters are kept as long as something they delimit is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.errors import BudgetError
from omni_core.ledger import LedgerView
from omni_core.retention.base import Bool, Reasons
from omni_core.units import Int64, Role


def drop_all_but_best(view: LedgerView, score: npt.NDArray[np.floating], low: int) -> Bool:
    """Tokens to evict, ``bool[n]``: the lowest scores, of equal ones the oldest; the prefix stays.

    Args:
        view: the ledger.
        score: ``[n]``; of delimiters and the prefix it is not read.
        low: most tokens to leave.

    Raises:
        BudgetError: the prefix alone is more than ``low``.
    """
    prefix = view.role == Role.PREFIX
    room = low - int(prefix.sum())
    if room < 1:
        raise BudgetError(
            f"the prefix takes {int(prefix.sum())} cells and leaves no room below the low "
            f"watermark of {low}; raise --budget or shorten the system prompt"
        )
    edge = np.isin(view.role, (Role.DELIMITER, Role.BRACKET))
    ranked = np.flatnonzero(~prefix & ~edge)
    ranked = ranked[np.lexsort((-view.order[ranked], -score[ranked]))]
    cost = np.ones(ranked.size, np.int64)
    spans = [_spans(view, role) for role in (Role.DELIMITER, Role.BRACKET)]
    for inside, edges in spans:
        # The first token of a span to be kept brings the span's delimiters with it.
        owner = inside[ranked]
        _, first = np.unique(owner, return_index=True)
        first = first[owner[first] >= 0]
        cost[first] += np.bincount(edges[edges >= 0], minlength=inside.max(initial=0) + 1)[
            owner[first]
        ]
    kept = ranked[: int(np.searchsorted(np.cumsum(cost), room, side="right"))]
    keep = prefix.copy()
    keep[kept] = True
    for inside, edges in spans:
        alive = np.unique(inside[kept])
        keep |= (edges >= 0) & np.isin(edges, alive)
    gone: Bool = ~keep
    return gone


def why_kept_but_best(view: LedgerView, reasons: Reasons, rest: str) -> Reasons:
    """Why live tokens stayed: the prefix, delimiters, what ``reasons`` tell, and the ``rest``."""
    prefix = view.role == Role.PREFIX
    edge = np.isin(view.role, (Role.DELIMITER, Role.BRACKET))
    left = ~prefix & ~edge
    words = {"pinned": prefix}
    for word, mask in reasons.items():
        words[word] = left & mask
        left = left & ~mask
    return {**words, rest: left, "delimits": edge}


def why_dropped_but_best(view: LedgerView, gone: Bool, worst: str) -> Reasons:
    """Why tokens went: delimiters with what they delimit, the others as ``worst``."""
    edge = np.isin(view.role, (Role.DELIMITER, Role.BRACKET))
    return {worst: gone & ~edge, "delimits none": gone & edge}


def _spans(view: LedgerView, role: Role) -> tuple[Int64, Int64]:
    """The span of each content token and of each delimiter of one role, as numbers; -1 for others.

    A delimiter's span is its unit's tokens of its sense, a bracket's all content of its turn.
    """
    unit = view.unit.astype(np.int64) + 1
    key = unit * 4 + view.sense if role == Role.DELIMITER else view.turn.astype(np.int64)
    _, number = np.unique(key, return_inverse=True)
    number = number.astype(np.int64)
    inside = np.where(view.role == Role.CONTENT, number, -1)
    return inside, np.where(view.role == role, number, -1)
