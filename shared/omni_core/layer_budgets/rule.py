"""Layer budgets as a session is given them: a model's sensitivity, and how it is weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.layer_budgets.allocation import allocate
from omni_core.layer_budgets.importance import Blend, importance
from omni_core.state import expect, listed, number
from omni_core.units import Int64


@dataclass(frozen=True)
class LayerBudgets:
    """How the cells of a cache are shared out among layers.

    Attributes:
        sensitivity: of each layer, as :func:`~omni_core.layer_budgets.read_sensitivity` gives it.
        blend: the weights of it and of the other parts.
    """

    sensitivity: tuple[float, ...]
    blend: Blend = field(default_factory=Blend)

    def __post_init__(self) -> None:
        """Refuse what is no sensitivity.

        Raises:
            OmniError: naming it.
        """
        importance(self.sensitivity, np.zeros(len(self.sensitivity)), self.blend)

    @property
    def online(self) -> bool:
        """Whether what is measured while the stream runs changes them."""
        return self.blend.dynamic > 0

    def cells(
        self, groups: int, budget: int, least: int, utility: npt.ArrayLike | None = None
    ) -> Int64:
        """Cells of each layer group, ``int64[groups]``; their mean is the budget.

        Args:
            groups: which the layers divide into; a group's share is the sum of its layers'.
            budget: the mean, in cells.
            least: cells that each group needs.
            utility: ``[layers]``, what the stream has told of each layer; None before it has.

        Raises:
            OmniError: the layers do not divide into so many groups.
            BudgetError: the budget is less than the groups need.
        """
        layers = len(self.sensitivity)
        if layers % groups:
            raise OmniError(
                f"sensitivity is of {layers} layers, which do not divide into {groups} layer "
                "groups; give the file of this model"
            )
        measured = np.zeros(layers) if utility is None else utility
        shares = importance(self.sensitivity, measured, self.blend)
        total = groups * budget
        most = total - (groups - 1) * least
        return allocate(shares.reshape(groups, -1).sum(axis=1), total, least, max(least, most))

    def state(self) -> dict[str, Any]:
        """The parameters as JSON values."""
        return {"sensitivity": list(self.sensitivity), "blend": asdict(self.blend)}

    @staticmethod
    def restored(state: Mapping[str, Any] | None) -> LayerBudgets | None:
        """What :meth:`state` told of; None of a stream without.

        Raises:
            ValueError, KeyError, TypeError, OmniError: no such parameters.
        """
        if state is None:
            return None
        blend = state["blend"]
        expect(state.keys() == {"sensitivity", "blend"}, "the parameters of layer budgets")
        expect(blend.keys() == asdict(Blend()).keys(), "the weights of layer budgets")
        sensitivity = listed(state["sensitivity"], np.float64, None)
        weights = Blend(number(blend["structural"]), number(blend["dynamic"]))
        return LayerBudgets(tuple(sensitivity.tolist()), weights)
