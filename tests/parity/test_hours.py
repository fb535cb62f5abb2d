"""Hours of a stream through a session: far positions are exact, distances in the trained range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.checkpoints import open_checkpoint
from omni_core.frontend.base import Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.model_config import thinker_config
from omni_core.session import Model, Session
from omni_core.units import TokenBlock
from tests.core.numpy_backend import PlainFrontend
from tests.parity.exact import Exact, Watched
from tests.parity.oracle import distance
from tests.parity.tiny import MEL_BINS

EIGHT_HOURS = 8 * 3600 * 25
"""Positions of eight hours: a second of sound takes 25."""
REACH = 32_768


class PausingFrontend(PlainFrontend):
    """Units of 6 vision and 5 audio tokens; silence of so many positions follows each of them."""

    def __init__(self, pause: Callable[[int], int]) -> None:
        super().__init__(vision=6, audio=5)
        self.pause = pause
        self.given: list[np.ndarray] = []

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        return self._note(*super().open(system))

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        unit, after = super().unit(media, cursor)
        self._note(unit.block, after)
        draw = np.random.default_rng(int(media.start))
        patches = draw.standard_normal((24, 1176)).astype(np.float32)
        mel = draw.standard_normal((MEL_BINS, 20)).astype(np.float32)
        unit = replace(unit, vision=(VisionInput(patches, (1, 4, 6)),), audio=(mel,))
        return unit, Cursor(after.position + self.pause(int(media.start)))

    def question(self, text: str, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        return self._note(*super().question(text, cursor))

    def answer(self, token: int, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        return self._note(*super().answer(token, cursor))

    def resume(self, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        return self._note(*super().resume(cursor))

    def _note(self, block: TokenBlock, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        self.given.append(block.positions)
        return block, cursor


def _stream(
    twin: Any, tiny: Any, frontend: PausingFrontend, units: int, frame: int, retention: str
) -> Watched:
    text = thinker_config(open_checkpoint(tiny.folder).config).text
    watched = Watched(twin.load(tiny.folder), twin)
    session = Session(
        Model(watched, frontend, replace(text, max_positions=REACH), "tiny", trained=False),
        budget=256,
        retention=retention,
        layout="native",
        system="hello",
        max_tokens=3,
        frame=frame,
    )
    for index in range(units):
        session.append(UnitMedia(float(index), index + 1.0))
        if index % 10 == 9:
            session.ask("what?")
    assert session.summary()["evicted"] > 300
    assert session.summary()["position"] > EIGHT_HOURS
    return watched


@pytest.mark.parametrize(
    ("retention", "units", "pause", "frame"),
    [
        # One pause of eight hours: only the prefix stays from before it, and it comes closer.
        ("fifo", 60, lambda unit: EIGHT_HOURS if unit == 9 else 0, 90),
        ("h2o", 60, lambda unit: EIGHT_HOURS if unit == 9 else 0, 90),
        # Eight hours in even steps, through frames that leave the range while they are kept.
        ("fifo", 240, lambda unit: EIGHT_HOURS // 240, 8192),
    ],
    ids=["pause", "pause-h2o", "even"],
)
def test_eight_hours_equal_float64_at_virtual_positions(
    twin: Any, tiny_of: Any, retention: str, units: int, pause: Callable[[int], int], frame: int
) -> None:
    tiny, frontend = tiny_of("6-2-32"), PausingFrontend(pause)
    steps = _stream(twin, tiny, frontend, units, frame, retention).steps
    given = np.concatenate(frontend.given, axis=1)
    local = np.concatenate([step.plan.positions for step in steps], axis=1)
    exact, compared, most, held, true = Exact(tiny.model, tiny.shape), 0, 0, 0, 0
    for step in steps:
        plan, live = step.plan, step.live[0]
        starts = np.unique(given[:, plan.order] - plan.positions)
        assert starts.size == 1
        origin = int(starts[0])
        # Where this step reads each key from: where it was in the stream, or closer.
        virtual = local[:, live.order] - live.shift + origin
        closer = (virtual - given[:, live.order])[0]
        assert (closer >= 0).all()
        assert (virtual <= given[:, plan.order].max()).all()
        assert given[:, plan.order].max() - virtual.min() < REACH
        held, true = held + int((closer > 0).sum()), true + int((closer == 0).sum())
        most = max(most, len(live.runs()))
        expected, mass = exact.step(step, origin=origin)
        if expected.size:
            assert distance(step.result.logits[0], expected) < 1e-5
            compared += 1
        if step.result.mass is not None:
            assert np.abs(step.result.mass[0] - mass[0]).max() < 1e-5 * mass[0].max()
    assert compared >= units // 10
    assert most > 3 and held > 1000 and true > 3000
