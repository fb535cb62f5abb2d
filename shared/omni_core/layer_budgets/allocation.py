"""From shares to whole cells: they sum to the total, and each layer is within its bounds.

Layers get cells in proportion to their shares. Where that is less than a layer needs or more than
it can hold, it gets just that, and the others share the rest in proportion. What is left of
fractions goes to the largest ones. All is done in whole numbers, without rounding, so that equal
shares give equal cells on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from omni_core.errors import BudgetError, OmniError
from omni_core.units import Int64


def allocate(shares: npt.ArrayLike, total: int, least: npt.ArrayLike, most: npt.ArrayLike) -> Int64:
    """Cells of each layer: ``int64[layers]`` whose sum is ``total``.

    Of layers with equal fractions the first gets one more. Layers without a share get the least,
    and share alike in what no other can hold.

    Args:
        shares: ``[layers]``, 0 or above, of any sum.
        total: cells of all layers.
        least, most: cells of a layer, for all or ``[layers]``.

    Raises:
        BudgetError: the total is less than the layers need, or more than they can hold.
        OmniError: a share that is none.
    """
    weights = _whole(shares)
    low, high = (_each(bound, len(weights)) for bound in (least, most))
    _check(total, low, high)
    cells = [0] * len(weights)
    free, rest = list(range(len(weights))), total
    while free:
        scale = [weights[layer] for layer in free]
        scale = scale if any(scale) else [1] * len(free)
        unit = sum(scale)
        # Everything here is in parts of a cell, `unit` to the whole.
        wanted = {layer: rest * part for layer, part in zip(free, scale, strict=True)}
        given = {n: min(max(wanted[n], low[n] * unit), high[n] * unit) for n in free}
        # What is out of bounds on the side that weighs more stays so, whatever the others get.
        apart = {n: given[n] - wanted[n] for n in free}
        over = sum(apart.values()) > 0
        settled = [n for n in free if (apart[n] > 0 if over else apart[n] < 0)]
        if not settled:
            parts = {n: divmod(wanted[n], unit) for n in free}
            left = rest - sum(floor for floor, _ in parts.values())
            first = sorted(free, key=lambda n: -parts[n][1])[:left]
            for n in free:
                cells[n] = parts[n][0] + (n in first)
            break
        for n in settled:
            cells[n] = given[n] // unit
            rest -= cells[n]
            free.remove(n)
    return np.asarray(cells, np.int64)


def _whole(shares: npt.ArrayLike) -> list[int]:
    """The shares as whole numbers in exactly their proportions."""
    found = np.asarray(shares, np.float64)
    if found.ndim != 1 or not found.size or not (np.isfinite(found) & (found >= 0)).all():
        raise OmniError(
            f"shares of layers are {found.tolist()}; expected a finite number of 0 or above for "
            "each layer"
        )
    ratios = [share.as_integer_ratio() for share in found.tolist()]
    # Denominators of floats are powers of two, so the largest is a multiple of each.
    common = max(below for _, below in ratios)
    return [above * (common // below) for above, below in ratios]


def _each(bound: npt.ArrayLike, layers: int) -> list[int]:
    found: list[int] = np.broadcast_to(np.asarray(bound, np.int64), (layers,)).tolist()
    return found


def _check(total: int, low: Sequence[int], high: Sequence[int]) -> None:
    if any(least < 0 or least > most for least, most in zip(low, high, strict=True)):
        raise BudgetError(
            "a layer needs more cells than it can hold, or fewer than none; give it a least of 0 "
            "or above and a most that is no less"
        )
    if total < sum(low):
        raise BudgetError(
            f"a budget of {total} cells over {len(low)} layers is less than the {sum(low)} that "
            "they need; raise --budget"
        )
    if total > sum(high):
        raise BudgetError(
            f"a budget of {total} cells over {len(high)} layers is more than the {sum(high)} that "
            "they can hold; lower --budget"
        )
