"""The cache budget: settled and checked before weights are loaded, and again once they are."""

from __future__ import annotations

from functools import partial

from omni_core.budget import (
    default_budget,
    least_budget,
    machine_bytes,
    parse_budget,
    plan_arena,
)
from omni_core.sealing import Sealing
from omni_core.session import SYSTEM
from omnilive.models import Prepared


def settle(
    prepared: Prepared,
    element: int,
    *,
    budget: str | None,
    system: str | None,
    max_tokens: int,
    sealing: Sealing | None = None,
    groups: int = 1,
) -> int:
    """The budget in cells, once the arena that a session will allocate for it is known to fit.

    Args:
        prepared: the model.
        element: bytes of one key or value number in 16-bit pages.
        budget, system: as given on the command line; None for the default.
        max_tokens: longest answer.
        sealing: how the cache is sealed; a budget in bytes is then that of all its pages.
        groups: layer groups with page tables of their own.

    Raises:
        BudgetError: the budget cannot hold the system prompt and a unit, or the machine the arena.
        OmniError: the model's ``head_dim`` cannot be sealed.
    """
    text, memory = prepared.config.text, machine_bytes()
    prefix, _ = prepared.frontend.open(SYSTEM if system is None else system)
    unit = prepared.frontend.largest_unit
    plan = partial(
        plan_arena,
        text,
        prefix=len(prefix),
        unit=unit,
        answer=max_tokens,
        element=element,
        sealing=sealing,
        groups=groups,
    )
    if budget is None:
        cells = default_budget(text, element, memory)
    elif sealing is None:
        cells = parse_budget(budget).resolve(text, element)
    else:
        least = least_budget(len(prefix), unit, max_tokens)
        cells = parse_budget(budget).resolve_sealed(
            lambda wanted: plan(budget=wanted), least, element
        )
    plan(budget=cells, memory=memory)
    return cells
