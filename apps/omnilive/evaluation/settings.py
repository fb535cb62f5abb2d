"""What is compared: policies and budgets, as shares of the stream or in cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from omni_core.budget import low_watermark, parse_budget
from omni_core.errors import BudgetError
from omni_core.model_config import TextConfig
from omni_core.retention import Policy

UNBOUND = "no-slide"
"""The policy that keeps all, whatever the budget."""


@dataclass(frozen=True)
class Setting:
    """A policy and a budget.

    Attributes:
        policy: which tokens stay.
        budget: cells alive at a unit's end.
        share: the budget as it was asked for; ``all`` where everything is kept.
    """

    policy: Policy
    budget: int
    share: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.policy.name} {self.share}"


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
    policies: Sequence[Policy], budgets: Sequence[str], extent: Extent, text: TextConfig, item: int
) -> list[Setting]:
    """Every policy at every budget, largest first; the one that keeps all once, ahead of them.

    Args:
        policies: which.
        budgets: each as ``1/8`` of the stream, as cells or as bytes.
        extent: of the stream.
        text: the model's shapes, for budgets in bytes.
        item: bytes of one key or value number.

    Raises:
        BudgetError: too small to go on with; says the smallest that is not.
    """
    unbound = [rule for rule in policies if rule.name == UNBOUND]
    bound = [rule for rule in policies if rule.name != UNBOUND]
    cells = {}
    for budget in budgets if bound else ():
        found = _cells(budget, extent, text, item)
        if found < extent.least:
            raise BudgetError(_too_small(budget, found, extent))
        cells[budget] = found
    ordered = sorted(cells.items(), key=lambda entry: -entry[1])
    made = [Setting(rule, extent.all, "all") for rule in unbound]
    return made + [Setting(rule, found, budget) for rule in bound for budget, found in ordered]


def _cells(budget: str, extent: Extent, text: TextConfig, item: int) -> int:
    if "/" in budget:
        return int(Fraction(budget) * extent.stream)
    return parse_budget(budget).resolve(text, item)


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
