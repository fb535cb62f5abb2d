"""The best cells of a layer by score, as many as its budget."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.errors import BudgetError, OmniError
from omni_core.retention.base import Bool


def keep_best(scores: npt.NDArray[np.floating], budget: int, must: Bool) -> Bool:
    """Cells to keep, ``bool[n]``: as many as there are, or else the budget's number.

    Of equal scores the newest stay, as in retention.

    Args:
        scores: ``[n]``, oldest cell first.
        budget: most cells of the layer.
        must: ``bool[n]``, what stays whatever its score.

    Raises:
        BudgetError: what must stay is more than the budget.
        OmniError: a score is NaN.
    """
    check(scores, budget, int(must.sum()))
    ranked = np.lexsort((-np.arange(scores.size), -scores, ~must))
    kept = np.zeros(scores.size, np.bool_)
    kept[ranked[:budget]] = True
    return kept


def check(scores: npt.NDArray[np.floating], budget: int, must: int) -> None:
    """Refuse what cannot be chosen from.

    Raises:
        BudgetError: what must stay is more than the budget.
        OmniError: a score is NaN.
    """
    if must > budget:
        raise BudgetError(
            f"{must} cells of a layer must stay, and its budget is {budget}; raise --budget, or "
            "the least that a layer gets"
        )
    if np.isnan(scores).any():
        raise OmniError(
            f"cell {int(np.argmax(np.isnan(scores)))} of {scores.size} has no score to keep or "
            "drop it by; the model's keys or values are not finite"
        )
