"""Drawing a token from logits; done in the core, so that both backends draw alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def draw(
    logits: npt.NDArray[np.float32], temperature: float, generator: np.random.Generator
) -> int:
    """A token id from ``logits[vocab]``: at temperature 0 the largest, ties to the lowest id."""
    if temperature <= 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    shares = np.exp(scaled - scaled.max())
    edges = np.cumsum(shares)
    at = int(np.searchsorted(edges, generator.random() * edges[-1], side="right"))
    return min(at, logits.size - 1)
