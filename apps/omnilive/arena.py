"""The cache budget: settled and checked before weights are loaded, and again once they are."""

from __future__ import annotations

from omni_core.budget import default_budget, machine_bytes, parse_budget, plan_arena
from omni_core.session import SYSTEM
from omnilive.models import Prepared
from omnilive.options import LiveOptions


def settle(prepared: Prepared, options: LiveOptions, element: int) -> int:
    """The budget in cells, once the arena that a session will allocate for it is known to fit.

    Args:
        prepared: the model.
        options: ``--budget``, ``--system`` and ``--max-tokens``.
        element: bytes of one key or value number.

    Raises:
        BudgetError: the budget cannot hold the system prompt and a unit, or the machine the arena.
    """
    text, memory = prepared.config.text, machine_bytes()
    if options.budget is None:
        budget = default_budget(text, element, memory)
    else:
        budget = parse_budget(options.budget).resolve(text, element)
    prefix, _ = prepared.frontend.open(SYSTEM if options.system is None else options.system)
    plan_arena(
        text,
        budget=budget,
        prefix=len(prefix),
        unit=prepared.frontend.largest_unit,
        answer=options.max_tokens,
        element=element,
        memory=memory,
    )
    return budget
