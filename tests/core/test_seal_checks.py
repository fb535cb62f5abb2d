"""Plans that seal what they must not are refused, naming what; others go there and back as data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.backend import (
    FREE,
    PAGE,
    SUBBLOCK,
    ArenaLayout,
    MovePlan,
    Seals,
    StepPlan,
    TableDelta,
)
from omni_core.errors import BackendError, OmniError, PlanError
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import TableMirror
from omni_core.plan_checks import check_layout, check_seals
from omni_core.plans import PlanDigest, differing_field, from_lists, to_lists
from omni_core.units import Modality

LAYOUT = ArenaLayout(4, 2, 1, 2, 16, sealed_pages=3, bits=2, codec="fitted")
NONE = np.zeros(0, np.int32)


def plan() -> MovePlan:
    """Page 0 of layer group 1 is emptied into the first halves of sealed pages 4 and 6."""
    source = np.full((2, SUBBLOCK), -1, np.int32)
    source[0], source[1, :3] = np.arange(32), [40, 41, 63]
    delta = TableDelta(
        pages=np.array([0, 4, 6], np.int32),
        group=np.array([FREE, 1, 1], np.int32),
        occupancy=np.array([[0, 0], [2**32 - 1, 0], [7, 5]], np.uint32),
        modality=np.array([0, Modality.VISION, Modality.AUDIO], np.int8),
        frame=np.array([0, 2, 2], np.int32),
    )
    return MovePlan(NONE, NONE, delta, Seals(source, np.array([8, 12], np.int32)))


def changed(plan: MovePlan, **changes: Any) -> MovePlan:
    """With other seals, ``delta`` entries or cells to copy."""
    for name in ("source", "target"):
        if name in changes:
            plan = replace(plan, seals=replace(plan.seals, **{name: changes.pop(name)}))
    for name in ("copy_source", "copy_target"):
        if name in changes:
            cells = np.asarray(changes.pop(name), np.int32)
            plan = replace(plan, **{name.removeprefix("copy_"): cells})
    return replace(plan, delta=replace(plan.delta, **changes))


def with_cell(row: int, slot: int, cell: int) -> np.ndarray:
    source = plan().seals.source.copy()
    source[row, slot] = cell
    return source


def mirror() -> TableMirror:
    found = TableMirror(LAYOUT)
    found.group[0] = 1
    return found


def test_what_fits_passes_and_is_taken_over() -> None:
    tables = mirror()
    tables.order[0] = np.arange(100, 164)
    tables.counts[0] = np.arange(1, 65)
    tables.check(plan())
    assert tables.sealed_modality(plan()).tolist() == [Modality.VISION, Modality.AUDIO]
    tables.commit(plan())
    assert tables.order[4, :32].tolist() == list(range(100, 132))
    assert tables.order[6, :3].tolist() == [140, 141, 163]
    assert tables.counts[6, :3].tolist() == [41, 42, 64]
    assert tables.modality[[4, 6]].tolist() == [Modality.VISION, Modality.AUDIO]
    live = tables._live(1, tables.group, tables.occupancy, np.zeros(7, np.int32))
    assert live.cells.size == 32 + 3 + 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": np.zeros((2, 31), np.int32)}, r"shape \[2, 31\], expected \[2, 32\]"),
        ({"source": np.zeros((1, 32), np.int32)}, r"shape \[1, 32\], expected \[2, 32\]"),
        ({"target": NONE}, r"seals of 0 subblocks .* \[2, 32\]"),
        ({"target": np.array([7, 12], np.int32)}, "subblocks 7 to 12 .* from 8 to below 14"),
        ({"target": np.array([8, 14], np.int32)}, "subblocks 8 to 14 .* 3 sealed pages"),
        ({"target": np.array([8, 8], np.int32)}, "sealed twice in one plan"),
        ({"source": with_cell(0, 4, 256)}, "cells -1 to 256 .* 4 pages of 16 bits"),
        ({"source": with_cell(0, 4, -2)}, "cells -2 to 63"),
        ({"source": with_cell(1, 5, 50)}, "gap before a token"),
        ({"source": with_cell(1, 0, -1)}, "gap before a token"),
        ({"source": with_cell(1, 0, 0)}, "a cell is to be sealed twice"),
        ({"copy_source": [40], "copy_target": [70]}, "sealed and copied"),
        ({"copy_source": [300], "copy_target": [70]}, "cell 300 is the source .* never move"),
        ({"copy_source": [70], "copy_target": [300]}, "cell 300 is the target .* never move"),
        ({"pages": np.array([0, 4, 5], np.int32)}, "page 6 changes .* does not list it"),
        ({"pages": np.array([1, 4, 6], np.int32)}, "page 0 changes .* does not list it"),
        ({"group": np.array([FREE, FREE, 1], np.int32)}, r"layer groups \[-1, 1\]"),
        ({"modality": np.array([0, 3, 0], np.int8)}, r"modalities \[3, 0\]"),
        (
            {"occupancy": np.array([[0, 0], [2**31 - 1, 0], [7, 5]], np.uint32)},
            "other live cells than those that are sealed",
        ),
        (
            {"occupancy": np.array([[0, 0], [2**32 - 1, 0], [15, 5]], np.uint32)},
            "nothing is sealed twice",
        ),
        (
            {"occupancy": np.array([[8, 0], [2**32 - 1, 0], [7, 5]], np.uint32)},
            "stays alive where it was",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        check_seals(changed(plan(), **changes), LAYOUT)
    with pytest.raises(PlanError, match=says):
        mirror().check(changed(plan(), **changes))


def test_a_freed_cell_may_be_copied_to() -> None:
    occupancy = np.array([[1, 0], [2**32 - 1, 0], [7, 5]], np.uint32)
    check_seals(changed(plan(), copy_source=[70], copy_target=[0], occupancy=occupancy), LAYOUT)


def test_cells_of_another_layer_group_are_refused() -> None:
    with pytest.raises(PlanError, match="another layer group"):
        TableMirror(LAYOUT).check(plan())


def test_new_tokens_never_go_to_sealed_pages() -> None:
    step = StepPlan(
        tokens=np.zeros((1, 1), np.int32),
        rows=np.full(1, -1, np.int32),
        positions=np.zeros((3, 1), np.int32),
        order=np.zeros(1, np.int64),
        counts=np.ones(1, np.int32),
        cells=np.full((2, 1), LAYOUT.pages * PAGE, np.int32),
        shifts=np.zeros((0, 2), np.int32),
        logits=NONE,
        mass=False,
        delta=plan().delta,
    )
    with pytest.raises(PlanError, match="arena of 4 pages"):
        mirror().check(step)


def test_a_backend_that_has_no_sealed_pages_says_so() -> None:
    text = TextConfig(9, 8, 8, 2, 4, 2, 16, 1e-6, 1e4, (4, 2, 2), 4096, True)
    check_layout(LAYOUT, text, 1, seals=True)
    check_layout(replace(LAYOUT, sealed_pages=0), text, 1)
    with pytest.raises(BackendError, match="cannot seal its cache, and 2 bits"):
        check_layout(LAYOUT, text, 1)


def test_plans_that_seal_go_there_and_back() -> None:
    line = json.loads(json.dumps(to_lists(plan())))
    back = from_lists(MovePlan, line)
    assert isinstance(back, MovePlan) and differing_field(plan(), back) == ""
    assert back.seals.source.dtype == back.seals.target.dtype == np.int32
    digests = []
    for each in (plan(), back, replace(plan(), seals=plan_without().seals), plan_without()):
        digest = PlanDigest()
        digest.add(each)
        digests.append(digest.state)
    assert digests[0] == digests[1] != digests[2] == digests[3]
    other = changed(plan(), target=np.array([8, 13], np.int32))
    assert differing_field(plan(), other) == "sealed_target"
    for one, two in ((plan(), plan_without()), (plan_without(), plan())):
        assert differing_field(one, two) == "sealed_source"


def plan_without() -> MovePlan:
    return MovePlan(NONE, NONE, plan().delta)


def test_a_plan_without_seals_has_no_word_of_them() -> None:
    line = to_lists(plan_without())
    assert not any("seal" in name for name in line)
    assert len(from_lists(MovePlan, line).seals) == 0  # type: ignore[union-attr]


def test_layouts_go_there_and_back() -> None:
    plain = replace(LAYOUT, sealed_pages=0, bits=16, codec="")
    assert list(plain.state()) == [
        "pages", "groups", "layers_per_group", "kv_heads", "head_dim", "streams"
    ]  # fmt: skip
    for layout in (LAYOUT, plain):
        assert ArenaLayout.restored(json.loads(json.dumps(layout.state()))) == layout


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pages": 0}, "numbers for pages, groups, .*bits, codec"),
        ({"sealed_pages": "3"}, "numbers"),
        ({"sealed_pages": 0}, "numbers"),
        ({"bits": True}, "numbers"),
        ({"bits": 5}, "a codec of fitted, omnikvquant"),
        ({"codec": "none"}, "a codec of"),
        ({"codec": ["fitted"]}, "a codec of"),
        ({"head_dim": 24}, "a head_dim that can be sealed"),
        ({"more": 1}, "numbers"),
    ],
)
def test_layouts_that_cannot_be_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ArenaLayout.restored({**LAYOUT.state(), **changes})


def test_bytes_are_those_of_both_pools() -> None:
    plain = replace(LAYOUT, sealed_pages=0)
    assert plain.bytes(2) == 2 * 4 * 2 * PAGE * 16 * 2
    assert LAYOUT.bytes(2) == plain.bytes(2) + 3 * 2 * LAYOUT.sealed.bytes
    with pytest.raises(OmniError, match="codes of 16 bits"):
        replace(LAYOUT, bits=16).bytes(2)
