"""What is compared: policies and budgets, as shares of the stream or in cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from omni_core.aggregation import Aggregation
from omni_core.backend import ArenaLayout
from omni_core.budget import low_watermark, parse_budget, plan_arena
from omni_core.errors import BudgetError
from omni_core.frames import QUESTION
from omni_core.layer_budgets import LayerBudgets
from omni_core.model_config import TextConfig
from omni_core.retention import Policy
from omni_core.sealing import RECENT, Sealing

UNBOUND = "no-slide"
"""The policy that keeps all, whatever the budget."""


@dataclass(frozen=True)
class Setting:
    """A policy and a budget.

    Attributes:
        policy: which tokens stay.
        budget: cells alive at a unit's end.
        share: the budget as it was asked for; ``all`` where everything is kept.
        sealing: how the cache is sealed; None for one of 16 bits.
        aggregation: which vision tokens do not enter; None where all do.
        layers: how cells are shared out among layers; None for the same in each.
    """

    policy: Policy
    budget: int
    share: str
    sealing: Sealing | None = None
    aggregation: Aggregation | None = None
    layers: LayerBudgets | None = None

    @property
    def name(self) -> str:
        """For people."""
        more = ", aggregated" if self.aggregation else ""
        more += ", by layer" if self.layers else ""
        return f"{self.policy.name} {self.share}{more}"

    @property
    def alone(self) -> bool:
        """Whether streams would go each its own way, so that none can be in step with another."""
        online = self.layers is not None and self.layers.online
        return self.policy.scored or self.aggregation is not None or online

    @property
    def cache(self) -> dict[str, Any]:
        """``kv_bits`` and ``seal``, as a batch takes them and a row tells them."""
        bits, seal = (self.sealing.bits, self.sealing.seal) if self.sealing else (16, RECENT)
        return {"kv_bits": bits, "seal": seal}


@dataclass(frozen=True)
class Extent:
    """Cells that a stream takes.

    Attributes:
        prefix: of the system prompt.
        unit: of one unit.
        largest: of the largest unit that the model may be given.
        units: how many units.
        longest: most tokens of a question with its answer.
    """

    prefix: int
    unit: int
    largest: int
    units: int
    longest: int

    @property
    def stream(self) -> int:
        """All of the stream."""
        return self.prefix + self.unit * self.units

    @property
    def least(self) -> int:
        """The smallest budget: 7/8 of it must hold prefix and unit, or prefix and question."""
        cells = self.prefix + max(self.largest, self.longest)
        return next(
            budget for budget in range(cells, 2 * cells + 8) if cells <= low_watermark(budget)
        )

    @property
    def all(self) -> int:
        """A budget that the stream does not outgrow."""
        return max(self.stream, self.least)


def settings(
    policies: Sequence[Policy],
    budgets: Sequence[str],
    extent: Extent,
    text: TextConfig,
    item: int,
    sealing: Sealing | None = None,
    aggregation: Aggregation | None = None,
    layers: LayerBudgets | None = None,
) -> list[Setting]:
    """Every policy at every budget, largest first; the one that keeps all once, ahead of them.

    Args:
        policies: which.
        budgets: each as ``1/8`` of the stream, as cells or as bytes.
        extent: of the stream.
        text: the model's shapes, for budgets in bytes.
        item: bytes of one key or value number in 16-bit pages.
        sealing: how the cache is sealed; a budget in bytes is then that of all its pages.
        aggregation: which vision tokens do not enter.
        layers: how cells are shared out among layers, where any are evicted.

    Raises:
        BudgetError: too small to go on with; says the smallest that is not.
        OmniError: the model's ``head_dim`` cannot be sealed.
    """
    unbound = [rule for rule in policies if rule.name == UNBOUND]
    bound = [rule for rule in policies if rule.name != UNBOUND]
    cells = {}
    plan = None
    if sealing is not None:
        groups = 1 if layers is None else text.layers
        plan = partial(_plan, extent, text, item, sealing, groups)
    for budget in budgets if bound else ():
        found = _cells(budget, plan, extent, text, item)
        if found < extent.least:
            raise BudgetError(_too_small(budget, found, extent))
        cells[budget] = found
    ordered = sorted(cells.items(), key=lambda entry: -entry[1])
    if plan is not None:
        plan(extent.all)
    how = (sealing, aggregation)
    made = [Setting(rule, extent.all, "all", *how) for rule in unbound]
    return made + [
        Setting(rule, found, budget, *how, layers) for rule in bound for budget, found in ordered
    ]


def _cells(
    budget: str,
    plan: Callable[[int], ArenaLayout] | None,
    extent: Extent,
    text: TextConfig,
    item: int,
) -> int:
    if "/" in budget:
        return int(Fraction(budget) * extent.stream)
    if plan is None:
        return parse_budget(budget).resolve(text, item)
    return parse_budget(budget).resolve_sealed(plan, extent.least, item)


def _plan(
    extent: Extent, text: TextConfig, item: int, sealing: Sealing, groups: int, cells: int
) -> ArenaLayout:
    """The arena of one stream."""
    return plan_arena(
        text,
        budget=cells,
        prefix=extent.prefix,
        unit=extent.largest,
        answer=extent.longest - QUESTION,
        element=item,
        sealing=sealing,
        groups=groups,
    )


def _too_small(budget: str, found: int, extent: Extent) -> str:
    parts = extent.stream // extent.least
    share = (
        f"1/{parts} of this stream is the smallest share that works"
        if parts
        else (f"this stream has {extent.stream} cells; raise --units")
    )
    return (
        f"--budget {budget} is {found} cells of {extent.stream}, but 7/8 of it must hold the "
        f"prefix ({extent.prefix}) and either the largest unit ({extent.largest}) or a question "
        f"with its answer ({extent.longest}), which takes {extent.least}; {share}"
    )
