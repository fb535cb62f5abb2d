"""Running a recording again on a backend, and comparing recordings with each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_core.backend import Backend, MergePlan, MovePlan
from omni_core.errors import RecordingError
from omni_core.frontend.base import Cursor, Frontend, UnitMedia
from omni_core.plans import differing_field
from omni_core.recording import Recording


@dataclass(frozen=True)
class ReplayReport:
    """How a replay compares with what was recorded.

    Attributes:
        steps, moves: plans carried out.
        rows, merged: of units that were aggregated: rows that were encoded, and rows that entered.
        compared: rows of logits compared.
        worst: largest difference of a recorded logit, relative to its row's largest.
        agreed: rows whose largest logit is the same token.
    """

    steps: int
    moves: int
    compared: int
    worst: float
    agreed: int
    rows: int = 0
    merged: int = 0


def replay(
    recording: Recording,
    backend: Backend,
    frontend: Frontend,
    on_unit: Callable[[UnitMedia], None] = lambda media: None,
) -> ReplayReport:
    """Carry out a recording's plans on a backend with an allocated arena; compare the logits.

    Args:
        recording: what was recorded.
        backend, frontend: of the recorded model.
        on_unit: called before each unit; may wait until it is due.
    """
    steps = moves = compared = agreed = rows = merged = 0
    worst = 0.0
    embeddings: Any = None
    for entry in recording.entries():
        if entry.media is not None:
            on_unit(entry.media)
            unit, _ = frontend.unit(entry.media, Cursor())
            embeddings = backend.encode(unit.vision, unit.audio)
        elif isinstance(entry.plan, MergePlan):
            if embeddings is None:
                raise RecordingError(
                    f"{recording.folder}: embeddings are merged and no unit came before, expected "
                    "its media; record it again"
                )
            encoded, embeddings = embeddings.shape[1], backend.merge(embeddings, entry.plan)
            rows, merged = rows + encoded, merged + len(entry.plan)
        elif isinstance(entry.plan, MovePlan):
            backend.move(entry.plan)
            moves += 1
        elif entry.plan is not None:
            embedded = bool((entry.plan.rows >= 0).any())
            logits = backend.forward(entry.plan, embeddings if embedded else None).logits
            steps += 1
            if entry.top is not None and entry.values is not None:
                found = np.take_along_axis(logits, entry.top, axis=-1)
                scale = np.abs(entry.values).max(axis=-1, keepdims=True) + 1e-6
                difference = float((np.abs(found - entry.values) / scale).max())
                # NaN on either side is the largest difference there is, and max() would drop it.
                worst = max(worst, difference if np.isfinite(difference) else np.inf)
                agreed += int((logits.argmax(axis=-1) == entry.top[..., 0]).sum())
                compared += int(np.prod(logits.shape[:-1]))
    return ReplayReport(steps, moves, compared, worst, agreed, rows, merged)


def first_difference(one: Recording, other: Recording) -> str | None:
    """Where the plans of two recordings first differ, in words; None where they are equal."""
    left, right = one.plans(), other.plans()
    number = 0
    for number, plan in enumerate(left, 1):
        match = next(right, None)
        if match is None:
            return f"the second recording ends after {number - 1} plans"
        if type(plan) is not type(match):
            return f"plan {number}: {type(plan).__name__} against {type(match).__name__}"
        field = differing_field(plan, match)
        if field:
            return f"plan {number}: {type(plan).__name__}.{field} differs"
    return f"the first recording ends after {number} plans" if next(right, None) else None
