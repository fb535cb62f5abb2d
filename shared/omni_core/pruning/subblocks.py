"""Pruning sealed pages: a subblock stays or goes whole, since sealed cells do not move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.pruning.keeping import check
from omni_core.retention.base import Bool
from omni_core.units import Int64


def keep_subblocks(
    scores: npt.NDArray[np.floating], subblock: Int64, budget: int, must: Bool
) -> Bool:
    """Cells to keep, ``bool[n]``: all or none of a subblock's, never more than the budget.

    Subblocks are taken in by the sum of their cells' scores, the largest first, each that the room
    left still holds; so none that was dropped would fit beside those that stay. Of equal sums the
    one with the newest cell goes first.

    Args:
        scores: ``[n]``, 0 or above, of the live cells, oldest first.
        subblock: ``int64[n]``, the subblock that each cell lies in, by any number.
        budget: most cells.
        must: ``bool[n]``; a subblock with such a cell stays.

    Raises:
        BudgetError: what must stay, with its subblocks, is more than the budget.
        OmniError: a score is NaN.
    """
    _, owner = np.unique(subblock, return_inverse=True)
    count = int(owner.max(initial=-1)) + 1
    size = np.bincount(owner, minlength=count)
    held = np.zeros(count, np.bool_)
    held[owner[must]] = True
    check(scores, budget, int(size[held].sum()))
    total = np.bincount(owner, scores, count)
    newest = np.zeros(count, np.int64)
    np.maximum.at(newest, owner, np.arange(scores.size))
    room = budget - int(size[held].sum())
    for block in np.lexsort((-newest, -total)).tolist():
        if not held[block] and size[block] <= room:
            held[block] = True
            room -= int(size[block])
    kept: Bool = held[owner]
    return kept
