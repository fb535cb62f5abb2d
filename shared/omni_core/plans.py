"""Plans as data: their arrays by name, a running hash, a form for JSON, and comparison."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import SUBBLOCK, MergePlan, MovePlan, Seals, StepPlan, TableDelta

Plan = StepPlan | MovePlan | MergePlan
_DTYPES = {
    "tokens": np.int32, "rows": np.int32, "positions": np.int32, "order": np.int64,
    "counts": np.int32, "cells": np.int32, "logits": np.int32, "source": np.int32,
    "target": np.int32, "pages": np.int32, "group": np.int32, "occupancy": np.uint32,
    "modality": np.int8, "frame": np.int32, "shifts": np.int32, "mass": np.int8,
    "sealed_source": np.int32, "sealed_target": np.int32,
}  # fmt: skip
_WANTED = ("logits", "mass")
"""What a plan asks back: no decision, and more of it in a session that is recorded or watched."""
_NO_PLANS = hashlib.sha256().hexdigest()
_SHAPES = {
    "positions": (3, -1), "occupancy": (-1, 2), "shifts": (-1, 2), "sealed_source": (-1, SUBBLOCK),
}  # fmt: skip
_PARTS = ("delta", "seals")
"""Fields that hold arrays of their own."""


class PlanDigest:
    """A running hash of plans: equal digests mean equal plans.

    Each plan is hashed together with the digest before it, so that a digest is all there is to
    keep of a run that goes on later.
    """

    def __init__(self, state: str = _NO_PLANS) -> None:
        """Begin, or go on from a ``state``.

        Raises:
            ValueError: it is none.
        """
        self._state = bytes.fromhex(state)
        if len(self._state) != hashlib.sha256().digest_size:
            raise ValueError(f"a digest of {len(self._state)} bytes")

    @property
    def state(self) -> str:
        """All hexadecimal digits."""
        return self._state.hex()

    def add(self, plan: Plan) -> None:
        """Take one more plan in."""
        chain = hashlib.sha256(self._state)
        chain.update(type(plan).__name__.encode())
        for name, array in _arrays(plan):
            if name in _WANTED:
                continue
            chain.update(f"{name}{array.shape}".encode())
            chain.update(np.ascontiguousarray(array, _DTYPES[name]).tobytes())
        self._state = chain.digest()

    def hexdigest(self) -> str:
        """The first 16 hexadecimal digits."""
        return self.state[:16]


def _arrays(plan: Plan) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    parts = (plan,) if isinstance(plan, MergePlan) else (plan, plan.delta)
    for part in parts:
        for field in dataclasses.fields(part):
            if field.name not in _PARTS:
                yield field.name, np.asarray(getattr(part, field.name), _DTYPES[field.name])
    # A plan that seals nothing has no word of it.
    if isinstance(plan, MovePlan) and len(plan.seals):
        for name in ("source", "target"):
            yield f"sealed_{name}", np.asarray(getattr(plan.seals, name), np.int32)


def to_lists(plan: Plan) -> dict[str, Any]:
    """A plan as lists of numbers, for JSON."""
    lines = {name: array.tolist() for name, array in _arrays(plan)}
    # Shapes that lists cannot tell when they are empty.
    lines["streams"] = plan.tokens.shape[0] if isinstance(plan, StepPlan) else 0
    lines["groups"] = plan.cells.shape[0] if isinstance(plan, StepPlan) else 0
    return lines


def from_lists(kind: type[Plan], line: dict[str, Any]) -> Plan:
    """The plan that :func:`to_lists` made the lists of."""

    def array(name: str) -> npt.NDArray[Any]:
        values = np.asarray(line[name], _DTYPES[name])
        shape = {"tokens": (line["streams"], -1), "cells": (line["groups"], -1), **_SHAPES}.get(
            name
        )
        return values.reshape(shape) if shape else values

    if issubclass(kind, MergePlan):
        return kind(array("source"), array("target"))
    delta = TableDelta(
        **{field.name: array(field.name) for field in dataclasses.fields(TableDelta)}
    )
    names = [field.name for field in dataclasses.fields(kind) if field.name not in _PARTS]
    values: dict[str, Any] = {name: array(name) for name in names}
    if "sealed_target" in line:
        values["seals"] = Seals(array("sealed_source"), array("sealed_target"))
    if kind is StepPlan:
        values["mass"] = bool(values["mass"])
    return kind(**values, delta=delta)


def differing_field(plan: Plan, other: Plan) -> str:
    """The first array in which two plans of one kind differ; empty where they are equal."""
    one, two = dict(_arrays(plan)), dict(_arrays(other))
    for name in [name for name in {**one, **two} if name not in _WANTED]:
        here, there = one.get(name), two.get(name)
        if here is None or there is None or not np.array_equal(here, there):
            return name
    return ""
