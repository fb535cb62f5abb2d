"""Streams with media of their own in step: the logits that each gets alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.backend import StepPlan
from omni_core.batch import StreamBatch
from omni_core.checkpoints import open_checkpoint
from omni_core.frontend.base import Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.model_config import thinker_config
from omni_core.session import Model, Session
from tests.core.numpy_backend import PlainFrontend
from tests.parity.oracle import distance
from tests.parity.tiny import MEL_BINS

STREAMS, UNITS = 3, 24
QUESTION = "what?"


class MediaFrontend(PlainFrontend):
    """Units of 6 vision and 5 audio tokens, drawn by the second and by the sound that came."""

    def __init__(self) -> None:
        super().__init__(vision=6, audio=5)

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        unit, after = super().unit(media, cursor)
        assert media.audio is not None
        draw = np.random.default_rng([int(media.start), int(media.audio[0])])
        patches = draw.standard_normal((24, 1176)).astype(np.float32)
        mel = draw.standard_normal((MEL_BINS, 20)).astype(np.float32)
        return replace(unit, vision=(VisionInput(patches, (1, 4, 6)),), audio=(mel,)), after


def _model(twin: Any, tiny: Any, streams: int) -> tuple[Model, list[np.ndarray], list[np.ndarray]]:
    """A model; logits of each token of its units; logits after each question."""
    backend = twin.load(tiny.folder, streams=streams)
    text = thinker_config(open_checkpoint(tiny.folder).config).text
    units: list[np.ndarray] = []
    asked: list[np.ndarray] = []
    forward = backend.forward

    def run(plan: StepPlan, embeddings: Any = None) -> Any:
        if embeddings is None:
            result = forward(plan)
            asked.append(result.logits[:, -1:])
            return result
        every = np.arange(plan.rows.size, dtype=np.int32)
        result = forward(replace(plan, logits=every), embeddings)
        units.append(result.logits)
        return replace(result, given=result.logits[:, plan.logits])

    backend.forward = run
    return Model(backend, MediaFrontend(), text, "tiny", trained=False), units, asked


def _second(index: int, stream: int) -> UnitMedia:
    return UnitMedia(float(index), index + 1.0, audio=np.full(1, stream, np.float32))


@pytest.mark.parametrize("retention", ["no-slide", "fifo", "omnipick"])
def test_streams_in_step_equal_sessions(twin: Any, tiny_of: Any, retention: str) -> None:
    tiny = tiny_of("6-2-32")
    budget = 1024 if retention == "no-slide" else 180
    settings: dict[str, Any] = {"budget": budget, "retention": retention, "system": "hello"}
    model, units, asked = _model(twin, tiny, STREAMS)
    batch = StreamBatch(model, streams=STREAMS, longest=16, **settings)
    question = np.asarray([2 + ord(letter) % 90 for letter in QUESTION], np.int32)
    for index in range(UNITS):
        batch.append(batch.encode([_second(index, stream) for stream in range(STREAMS)]))
        found = batch.branch(np.tile(question, (STREAMS, 1)))
        np.testing.assert_array_equal(found[:, -1:], asked[-1])
    together = [np.concatenate(steps, axis=1) for steps in (units, asked)]
    assert distance(together[0][0], together[0][1]) > 1e-2
    for stream in range(STREAMS):
        model, units, asked = _model(twin, tiny, 1)
        session = Session(model, max_tokens=1, **settings)
        for index in range(UNITS):
            session.append(_second(index, stream))
            session.ask(QUESTION, branch=True)
        for found, steps in zip(together, (units, asked), strict=True):
            assert distance(found[stream], np.concatenate(steps, axis=1)[0]) < 1e-5
    assert (session.summary()["evicted"] > 100) == (retention != "no-slide")
    assert session.summary()["kv"]["most_cells"] == batch.most_cells


def test_embeddings_are_stacked_by_stream(twin: Any, tiny_of: Any) -> None:
    tiny = tiny_of("4-2-16")
    backend = twin.load(tiny.folder, streams=2)
    draw = np.random.default_rng(0)
    pictures = draw.standard_normal((2, 24, 1176)).astype(np.float32)
    units = [backend.encode([VisionInput(patches, (1, 4, 6))], []) for patches in pictures]
    found = twin.array(backend.stack(units))
    assert found.shape == (2, 6, tiny.shape.hidden)
    for stream, unit in enumerate(units):
        np.testing.assert_array_equal(found[stream], twin.array(unit)[stream])
    assert distance(found[0], found[1]) > 1e-2
