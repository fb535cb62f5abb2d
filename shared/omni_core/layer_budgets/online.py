"""What a running stream has told of its layers: their signals, averaged over the last looks.

Every few units, one step is asked for its attention mass, and some values of the newest unit are
read. A layer group's mass is the attention of a step's queries, query heads and layers together;
the entropy is that of this average, which is no less than the average of their entropies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, Backend, as_floats
from omni_core.layer_budgets.importance import dynamic_utility
from omni_core.layer_budgets.signals import attention_entropy, feature_magnitude
from omni_core.ledger import LedgerView
from omni_core.state import expect, listed, whole
from omni_core.watcher import Mass

EVERY = 16
"""Units and turns from one look to the next: looking has the device wait for the host."""
_LOOKS = 8
"""Looks that are averaged, the older ones fading."""
_PARTS = 256
"""Parts of one that utility is rounded to: backends that differ in last bits then share alike."""

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerSignals:
    """The averages, as a value: a unit that is taken back leaves no trace.

    Attributes:
        looks: how many there have been.
        due: the unit from which on the next one is.
        magnitude, entropy: ``float64[layers]``; zeros before the first look.
    """

    looks: int
    due: int
    magnitude: Float
    entropy: Float

    @staticmethod
    def none(layers: int) -> LayerSignals:
        """Before the first look."""
        return LayerSignals(0, 0, np.zeros(layers), np.zeros(layers))

    def with_look(self, backend: Backend, view: LedgerView, unit: int, mass: Mass) -> LayerSignals:
        """The averages after one more look; as they were where it tells nothing.

        Args:
            backend: whose values are read.
            view: the live tokens.
            unit: the newest, none of which is sealed or evicted yet.
            mass: of a step of it, a layer group each.
        """
        layers, groups = self.magnitude.size, len(mass)
        newest = np.flatnonzero(view.unit == unit)[-PAGE:]
        totals = [float(np.sum(part, dtype=np.float64)) for part in mass]
        if not newest.size or not all(np.isfinite(total) and total > 0 for total in totals):
            return self
        spread = [
            attention_entropy((part / total)[None, None])
            for part, total in zip(mass, totals, strict=True)
        ]
        size = np.zeros(layers)
        for layer in range(layers):
            _, values = backend.read(layer, view.cells[layer * groups // layers, newest])
            norms = np.linalg.norm(as_floats(values), axis=-1)
            size[layer] = feature_magnitude(norms.reshape(-1, norms.shape[-1]))
        if not (np.isfinite(size) & (size > 0)).all():
            return self
        share = 1 / min(self.looks + 1, _LOOKS)
        entropy = np.repeat(spread, layers // groups)
        return LayerSignals(
            self.looks + 1,
            unit + EVERY,
            self.magnitude + share * (size - self.magnitude),
            self.entropy + share * (entropy - self.entropy),
        )

    def utility(self) -> Float:
        """What each layer is worth by them, ``float64[layers]``; zeros before the first look."""
        if not self.looks:
            return np.zeros_like(self.magnitude)
        found: Float = np.round(dynamic_utility(self.magnitude, self.entropy) * _PARTS) / _PARTS
        return found

    def state(self) -> dict[str, Any]:
        """The averages as JSON values."""
        numbers = {"magnitude": self.magnitude.tolist(), "entropy": self.entropy.tolist()}
        return {"looks": self.looks, "due": self.due, **numbers}

    def restored(self, state: Mapping[str, Any]) -> LayerSignals:
        """The averages of as many layers that :meth:`state` told of.

        Raises:
            ValueError, KeyError, TypeError: there are no such averages.
        """
        looks, due, layers = whole(state["looks"]), whole(state["due"]), self.magnitude.size
        magnitude, entropy = (
            listed(state[name], np.float64, layers) for name in ("magnitude", "entropy")
        )
        expect(not looks or bool((magnitude > 0).all()), "magnitudes above 0")
        return LayerSignals(looks, due, magnitude, entropy)
