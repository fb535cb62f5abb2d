"""The cache budget: settled and checked before weights are loaded, and again once they are."""

from __future__ import annotations

from omni_core.budget import default_budget, machine_bytes, parse_budget, plan_arena
from omni_core.session import SYSTEM
from omnilive.models import Prepared


def settle(
    prepared: Prepared,
    element: int,
    *,
    budget: str | None,
    system: str | None,
    max_tokens: int,
) -> int:
    """The budget in cells, once the arena that a session will allocate for it is known to fit.

    Args:
        prepared: the model.
        element: bytes of one key or value number.
        budget, system: as given on the command line; None for the default.
        max_tokens: longest answer.

    Raises:
        BudgetError: the budget cannot hold the system prompt and a unit, or the machine the arena.
    """
    text, memory = prepared.config.text, machine_bytes()
    if budget is None:
        cells = default_budget(text, element, memory)
    else:
        cells = parse_budget(budget).resolve(text, element)
    prefix, _ = prepared.frontend.open(SYSTEM if system is None else system)
    plan_arena(
        text,
        budget=cells,
        prefix=len(prefix),
        unit=prepared.frontend.largest_unit,
        answer=max_tokens,
        element=element,
        memory=memory,
    )
    return cells
