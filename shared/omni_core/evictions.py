"""Which tokens each layer group lets go: a policy's choice, made once where groups are alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.errors import BudgetError, OmniError
from omni_core.ledger import LedgerView
from omni_core.retention import Policy
from omni_core.units import Int64

Gone = npt.NDArray[np.bool_]
"""Tokens that go, ``bool[groups, n]``: of each layer group some of those that it holds."""


def evictable(policy: Policy, view: LedgerView, lows: Int64, *, partial: bool = False) -> Gone:
    """Tokens to evict so that each layer group is left with at most so many.

    Groups that hold the same and may keep as many keep the same, so that the policy is asked once.
    A group that holds no more than it may keeps all.

    Args:
        policy: asked for each group about the tokens that it holds.
        view: the live tokens.
        lows: ``int64[groups]``, cells that each may keep.
        partial: whether a group that cannot lose enough keeps all, as long as another can.

    Raises:
        BudgetError: what must stay in a group, or with ``partial`` in each, is more than that.
        OmniError: the policy left more than it was asked to.
    """
    found = np.zeros(view.cells.shape, np.bool_)
    chosen: dict[bytes, Gone] = {}
    refused: BudgetError | None = None
    for group, low in enumerate(lows.tolist()):
        alive = view.cells[group] >= 0
        if np.count_nonzero(alive) <= low:
            continue
        key = low.to_bytes(8, "little") + alive.tobytes()
        if key not in chosen:
            try:
                chosen[key] = _asked(policy, view, alive, low)
            except BudgetError as error:
                if not partial:
                    raise
                refused = error
                continue
        found[group] = chosen[key]
    if refused is not None and not chosen:
        raise refused
    return found


def leaving(view: LedgerView, gone: Gone) -> Gone:
    """Tokens that no layer group keeps once ``gone`` have gone: ``bool[n]``."""
    held: Gone = (view.cells >= 0) & ~gone
    left: Gone = ~np.logical_or.reduce(held, axis=0)
    return left


def _asked(policy: Policy, view: LedgerView, alive: Gone, low: int) -> Gone:
    """The policy's choice among the tokens ``alive``, ``bool[n]`` of all."""
    own = view if alive.all() else view.among(alive)
    gone = policy.evict(own, low)
    left = len(own) - int(gone.sum())
    if left > low:
        raise OmniError(
            f"retention {policy.name} left {left} cells where {low} were asked for: a fault in the "
            "policy"
        )
    found = np.zeros(alive.size, np.bool_)
    found[alive] = gone
    return found
