"""Streams of the plain frontend as tests follow them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_backend import second

from omni_core.model import Model
from omni_core.session import Session


def watched(model: Model) -> list[np.ndarray]:
    """The logits of each step, as it is run."""
    found: list[np.ndarray] = []
    forward = model.backend.forward

    def run(plan, embeddings=None):
        result = forward(plan, embeddings)
        found.append(result.logits)
        return result

    model.backend.forward = run
    return found


def follow(session: Session, start: int, stop: int) -> None:
    """Units and questions; one unit fails, and leaves pages that the backend is told of again."""
    for index in range(start, stop):
        if index % 11 == 10:
            session.model.backend.fail_in = 0
            with pytest.raises(RuntimeError):
                session.append(second(index))
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
        if index % 5 == 2:
            session.ask("what else?", branch=True)
