"""Layouts and steps of another model are refused before an index is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from frontend_family import config

from omni_core.backend import ArenaLayout, StepPlan, TableDelta
from omni_core.errors import PlanError
from omni_core.model_config import thinker_config
from omni_core.plan_checks import check_layout, check_step

LAYOUT = ArenaLayout(4, 2, 1, 2, 16, streams=3)
EMPTY = np.zeros(0, np.int32)


def step() -> StepPlan:
    """Four tokens of two streams, the last two embedded."""
    delta = TableDelta(EMPTY, EMPTY, np.zeros((0, 2), np.uint32), EMPTY.astype(np.int8), EMPTY)
    return StepPlan(
        tokens=np.array([[0, 9, -1, -1], [3, 4, -1, -1]], np.int32),
        rows=np.array([-1, -1, 0, 1], np.int32),
        positions=np.zeros((3, 4), np.int32),
        order=np.arange(4),
        counts=np.ones(4, np.int32),
        cells=np.zeros((2, 4), np.int32),
        shifts=np.zeros((1, 2), np.int32),
        logits=np.array([3], np.int32),
        mass=False,
        delta=delta,
    )


def test_what_fits_passes() -> None:
    check_step(step(), 10, 2, 2)
    check_step(replace(step(), logits=EMPTY), 10, 2, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokens": np.zeros((3, 4), np.int32)}, r"tokens .* 2 streams .*\[3, 4\].*\[2, 4\]"),
        ({"tokens": np.zeros((2, 3), np.int32)}, r"tokens .*\[2, 3\], expected \[2, 4\]"),
        ({"tokens": np.full((2, 4), 10, np.int32)}, "ids 10 to 10 with a vocabulary of 10"),
        ({"tokens": np.full((2, 4), -2, np.int32)}, "ids -2 to -2 with a vocabulary of 10"),
        ({"rows": np.array([-1, -1, 0, 2], np.int32)}, "embedding 2 of 2"),
        ({"rows": np.full(4, -1, np.int32)}, "ids -1 to 9"),
        ({"logits": np.array([9999], np.int32)}, "rows 9999 to 9999 of a step of 4"),
        ({"logits": np.array([-1], np.int32)}, "rows -1 to -1"),
        ({"positions": np.zeros((3, 5), np.int32)}, r"positions .*\[3, 5\], expected \[3, 4\]"),
        ({"order": np.arange(3)}, "order"),
        ({"counts": np.ones(5, np.int32)}, "counts"),
        ({"cells": np.zeros((2, 5), np.int32)}, "cells"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        check_step(replace(step(), **changes), 10, 2, 2)


def test_a_step_of_nothing_is_refused() -> None:
    nothing = replace(step(), tokens=np.zeros((2, 0), np.int32), rows=EMPTY)
    with pytest.raises(PlanError, match="at least one token"):
        check_step(nothing, 10, 2, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": 1},
        {"groups": 0},
        {"groups": -2, "layers_per_group": -1},
        {"layers_per_group": 2},
        {"kv_heads": 4},
        {"head_dim": 32},
        {"streams": 1},
        {"pages": 0},
    ],
)
def test_a_layout_of_another_model_is_refused(changes: dict[str, int]) -> None:
    text = thinker_config(config()).text
    check_layout(LAYOUT, text, 3)
    with pytest.raises(PlanError, match=r"the layout has .* model has \(2, 2, 16, 3\)"):
        check_layout(replace(LAYOUT, **changes), text, 3)
