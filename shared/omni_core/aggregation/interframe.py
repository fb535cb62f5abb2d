"""What of a frame the stream has not shown yet.

A token is compared with the live token that stands for its own place in the picture, the newest
of them. Not with all live tokens: the paper shows that the cosine bounds the error of
attention for tokens whose rotary positions are close (§C.1.2, §C.1.3), and a thing that moves looks
like itself at its old place, while that it moved is the news. Not with an older one of its place
either: what comes back after something else is news as well. And never with a dead one, so that a
scene that stays the same enters again as soon as its cells have gone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.aggregation.likeness import GRID, above
from omni_core.aggregation.rule import Aggregation
from omni_core.units import Int32


def shown(
    valid: npt.NDArray[np.bool_], at: Int32, level: Int32, rule: Aggregation
) -> npt.NDArray[np.bool_]:
    """Which of a frame's tokens are left out for what the stream has shown, ``bool[T]``.

    Args:
        valid: ``bool[T]``, whose embeddings are numbers.
        at: ``int32[m]``, those that were compared.
        level: ``int32[m]``, how alike each was, see :func:`omni_core.aggregation.likeness.levels`.
        rule: the threshold, and how many enter at least.
    """
    likeness = np.full(valid.size, -GRID, np.int32)
    likeness[at] = level
    found: npt.NDArray[np.bool_] = above(likeness, rule.inter) & valid
    lacking = rule.least - int(np.count_nonzero(valid & ~found))
    if lacking > 0:
        ranked = np.flatnonzero(found)
        ranked = ranked[np.argsort(likeness[ranked], kind="stable")]
        found[ranked[:lacking]] = False
    return found
