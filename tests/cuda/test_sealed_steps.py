"""Steps over both pools through kernels: bytes to the bit, logits as over what was decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.backend import FREE, ArenaLayout, MovePlan, Seals, StepPlan, TableDelta
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import BackendError
from omni_core.frontend.base import UnitMedia
from omni_core.model_config import thinker_config
from omni_core.session import Model, Session
from omni_core.units import Modality
from tests.cuda.step_pairs import spare_products
from tests.parity import tiny
from tests.parity.conftest import Tiny, Twin
from tests.parity.oracle import text
from tests.parity.planner import Planner
from tests.parity.sealed import Followed
from tests.parity.test_batch import MediaFrontend
from tests.parity.wandering import step

SHAPE = tiny.Shape(48, 3, 1, 32, (4, 6, 6), layers=2)
TOLERANCE = 5e-3
"""Queries and weights are halves where they meet codes."""
_NONE = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    model = tiny.make(SHAPE)
    return Tiny(SHAPE, tiny.save(model, tmp_path_factory.mktemp("sealed")), model)


@pytest.fixture
def follow(load_path: Callable[..., Any], kernel_device: str, made: Tiny) -> Callable[..., Any]:
    """Loads a backend whose kernels read sealed pages, and what compares each of its steps."""

    def load() -> tuple[Followed, Any]:
        backend = load_path(made.folder, kernel_device)
        backend._reads_sealed = True
        spare_products(backend)
        twin = Twin("cuda", kernel_device)
        return Followed(backend, twin, made, mass=False, tolerance=TOLERANCE), backend

    return load


def _delta(pages: dict[int, tuple[int, int, Modality]]) -> TableDelta:
    """Occupancy words and modality of pages; those without live cells are free."""
    words = np.array([page[:2] for page in pages.values()], np.uint32)
    return TableDelta(
        np.array(list(pages), np.int32),
        np.where(words.any(axis=1), 0, FREE).astype(np.int32),
        words,
        np.array([page[2] for page in pages.values()], np.int8),
        np.zeros(len(pages), np.int32),
    )


def _seals(planner: Planner, parts: list[tuple[list[int], int]]) -> Seals:
    source = np.full((len(parts), 32), -1, np.int32)
    for row, (orders, _) in enumerate(parts):
        source[row, : len(orders)] = [planner.where[0][order] for order in orders]
    return Seals(source, np.array([target for _, target in parts], np.int32))


def _arena(planner: Planner, bits: int) -> ArenaLayout:
    return replace(planner.layout(SHAPE), sealed_pages=3, bits=bits, codec="fitted")


@pytest.mark.parametrize(
    ("bits", "processors"),
    # Rows dealt out to programs, and cut between a few or read by one.
    [(2, 6), (3, 4), (4, 1)],
)
def test_steps_over_both_pools(follow: Callable[..., Any], bits: int, processors: int) -> None:
    followed, backend = follow()
    planner, tokens = Planner(pages=3), text(80)
    followed.allocate(_arena(planner, bits))
    backend._steps.shared.processors = processors
    counts = np.arange(40, dtype=np.int32) % 3 + 1
    followed.forward(step(planner, tokens, 0, 40, logits=[39], counts=counts))
    seals = _seals(planner, [(list(range(32)), 2 * 3), (list(range(33, 38)), 2 * 5 + 1)])
    planner.evict([*range(32), *range(33, 38)])
    kept = (0, 0b11000001, Modality.TEXT)
    pages = {0: kept, 3: (0xFFFFFFFF, 0, Modality.AUDIO), 5: (0, 31, Modality.VISION)}
    followed.move(MovePlan(_NONE, _NONE, _delta(pages), seals))
    later: dict[str, Any] = {"frame": 1, "shifts": {0: 20}}
    followed.forward(step(planner, tokens, 40, 41, **later))
    followed.forward(step(planner, tokens, 41, 46, logits=[0, 4], **later))
    # Cells of sealed pages die one by one, and all of a subblock.
    pages = {3: (0x0F0F0F01, 0, Modality.AUDIO), 5: (0, 0, Modality.VISION)}
    followed.move(MovePlan(_NONE, _NONE, _delta(pages)))
    followed.forward(step(planner, tokens, 46, 47, **later))
    assert followed.sealed == 37 and followed.compared == 5


def test_mass_is_told_without_kernels(follow: Callable[..., Any]) -> None:
    followed, _ = follow()
    planner, tokens = Planner(pages=3), text(60)
    followed.allocate(_arena(planner, 2))
    followed.forward(step(planner, tokens, 0, 33, logits=[]))
    seals = _seals(planner, [(list(range(32)), 2 * 3)])
    planner.evict(range(32))
    pages = {0: (0, 1, Modality.TEXT), 3: (0xFFFFFFFF, 0, Modality.AUDIO)}
    followed.move(MovePlan(_NONE, _NONE, _delta(pages), seals))
    counts = np.array([1, 5], np.int32)
    with_mass = replace(step(planner, tokens, 33, 35, logits=[1], counts=counts), mass=True)
    found = _forwarded(followed, with_mass)
    assert found.mass[0].shape == (35,) and abs(found.mass[0].sum() - 2 * 3 * 2) < 1e-3
    # The kernels know of the cells that were written without them, and of their biases.
    followed.forward(step(planner, tokens, 35, 40))
    assert followed.compared == 6


def _forwarded(followed: Followed, plan: StepPlan) -> Any:
    followed._mass = True
    try:
        return followed.forward(plan)
    finally:
        followed._mass = False


def test_what_is_not_finite_is_refused(follow: Callable[..., Any]) -> None:
    followed, backend = follow()
    planner, tokens = Planner(pages=3), text(40)
    followed.allocate(_arena(planner, 2))
    followed.forward(step(planner, tokens, 0, 33, logits=[]))
    seals = _seals(planner, [(list(range(32)), 2 * 3)])
    pages = {0: (0, 1, Modality.TEXT), 3: (0xFFFFFFFF, 0, Modality.AUDIO)}
    plan = MovePlan(_NONE, _NONE, _delta(pages), seals)
    cells = seals.source[0]
    keys, values = (part.copy() for part in backend.read(1, cells))
    broken = values.copy()
    broken[0, 5, 0, 3] = np.nan
    backend.write(1, cells, keys, broken)
    with pytest.raises(BackendError, match="layer 1: values hold a number that is not finite"):
        backend.move(plan)
    assert backend.mirror.group[3] == FREE and backend.mirror.occupancy[0].tolist() == [
        0xFFFFFFFF,
        1,
    ]
    backend.write(1, cells, keys, values)
    followed.move(plan)
    assert followed.sealed == 32


@pytest.mark.cuda
@pytest.mark.parametrize(("bits", "groups"), [(2, 1), (3, 2), (4, 1)])
def test_a_sealed_stream(follow: Callable[..., Any], made: Tiny, bits: int, groups: int) -> None:
    followed, backend = follow()
    config = thinker_config(open_checkpoint(made.folder).config).text
    model = Model(followed, MediaFrontend(), config, "tiny", weights="f32")
    about = {"kv_bits": bits, "groups": groups, "seal": "all", "frame": 128, "system": "hello"}
    session = Session(model, prefill_chunk=7, budget=330, max_tokens=5, **about)
    for index in range(30):
        sound = np.full(1, index, np.float32)
        session.append(UnitMedia(float(index), index + 1.0, audio=sound))
        if index % 7 == 3:
            session.ask("what?")
    assert followed.sealed > 150 and followed.compared > 10
    assert session.summary()["evicted"] > 100
    assert any(kept._graph is not None for kept in backend._steps._kept.values())
