"""What is aggregated on a device is what the definition in NumPy aggregates."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.aggregation import Aggregation
from omni_core.aggregation.memory import HostMemory, means
from omni_core.backend import MergePlan
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import PlanError
from omni_core.frontend.base import Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.identity import identity
from omni_core.model_config import thinker_config
from omni_core.recording import Recorder, Recording
from omni_core.replay import replay
from omni_core.session import Model, Session
from tests.parity.conftest import NEEDS, Twin
from tests.parity.oracle import distance
from tests.parity.test_batch import MediaFrontend

RULE = Aggregation(0.9, 0.9)
UNITS, SAVED_AT = 36, 19


class SceneFrontend(MediaFrontend):
    """A picture that stays for three seconds, and whose second half repeats its first."""

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        unit, after = super().unit(media, cursor)
        draw = np.random.default_rng(int(media.start) // 3)
        patches = np.tile(draw.standard_normal((12, 1176)), (2, 1)).astype(np.float32)
        if int(media.start) % 3 == 1:
            patches[20:] = np.nan if int(media.start) % 6 == 1 else 1.0
        return replace(unit, vision=(VisionInput(patches, (1, 4, 6)),)), after


class BothMemories:
    """Asks the device and the definition, and wants one answer."""

    def __init__(self, twin: Twin, device: Any, hidden: int) -> None:
        self.twin, self.device, self.host = twin, device, HostMemory(hidden)
        self.asked = 0

    @property
    def bytes(self) -> int:
        return int(self.device.bytes)

    def compare(self, embeddings: Any, *asked: np.ndarray) -> Any:
        found = self.device.compare(embeddings, *asked)
        wanted = self.host.compare(self.twin.array(embeddings), *asked)
        np.testing.assert_array_equal(found[0], wanted[0])
        # One step of the grid is what rounding may do to a number half way between two.
        assert np.abs(found[1] - wanted[1]).max(initial=0) <= 1
        self.asked += found[1].size
        return found

    def nearest(self, embeddings: Any, groups: MergePlan, ids: np.ndarray) -> Any:
        found = self.device.nearest(embeddings, groups, ids)
        wanted = self.host.nearest(self.twin.array(embeddings), groups, ids)
        np.testing.assert_array_equal(found[0], wanted[0])
        assert np.abs(found[1] - wanted[1]).max() <= 1
        self.asked += ids.size
        return found

    def keep(self, embeddings: Any, groups: MergePlan, slots: np.ndarray) -> None:
        self.device.keep(embeddings, groups, slots)
        self.host.keep(self.twin.array(embeddings), groups, slots)
        np.testing.assert_allclose(self.read(slots), self.host.read(slots), rtol=1e-6, atol=1e-6)

    def read(self, slots: np.ndarray) -> np.ndarray:
        return np.asarray(self.device.read(slots))

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        self.device.write(slots, rows)
        self.host.write(slots, rows)


def _model(twin: Twin, folder: Path) -> tuple[Model, list[BothMemories], list[np.ndarray]]:
    """A model, the memories of its sessions, and the logits of each step."""
    backend, checkpoint = twin.load(folder), open_checkpoint(folder)
    text = thinker_config(checkpoint.config).text
    made: list[BothMemories] = []
    logits: list[np.ndarray] = []
    vision_memory, forward = backend.vision_memory, backend.forward

    def both() -> BothMemories:
        made.append(BothMemories(twin, vision_memory(), text.hidden))
        return made[-1]

    def run(plan: Any, embeddings: Any = None) -> Any:
        result = forward(plan, embeddings)
        logits.append(result.logits)
        return result

    backend.vision_memory, backend.forward = both, run
    name = identity(checkpoint)
    model = Model(backend, SceneFrontend(), text, "tiny", identity=name, weights="f32")
    return model, made, logits


def _follow(session: Session, start: int, stop: int) -> None:
    for index in range(start, stop):
        session.append(UnitMedia(float(index), index + 1.0, audio=np.full(1, index, np.float32)))
        if index % 7 == 3:
            session.ask("what?")


def _settings(**more: Any) -> dict[str, Any]:
    return {"budget": 180, "max_tokens": 5, "system": "hello", "aggregation": RULE, **more}


def test_streams_are_aggregated_as_the_definition_says(
    twin: Twin, tiny_of: Any, tmp_path: Path
) -> None:
    tiny = tiny_of("6-2-32")
    model, made, logits = _model(twin, tiny.folder)
    session = Session(model, recorder=Recorder(tmp_path / "r"), **_settings())
    _follow(session, 0, UNITS)
    summary = session.close()
    tally = summary["aggregated"]
    assert min(tally.values()) > 0 and made[0].asked > 100
    assert summary["evicted"] > 0
    assert all(np.isfinite(part).all() for part in logits)
    backend = twin.load(tiny.folder)
    backend.allocate(session._tables.arena)
    report = replay(Recording(tmp_path / "r"), backend, model.frontend)
    assert report.worst < 1e-4 and report.compared > 20 and report.rows > report.merged > 0


def test_a_saved_stream_goes_on_on_either_twin(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    model, _, whole = _model(twin, tiny.folder)
    one = Session(model, **_settings())
    _follow(one, 0, UNITS)
    model, _, first = _model(twin, tiny.folder)
    two = Session(model, **_settings())
    _follow(two, 0, SAVED_AT)
    assert two._cache.aggregator is not None and two._cache.aggregator.places.known.size
    two.save(tmp_path / "saved")
    others = [name for name in NEEDS if importlib.util.find_spec(NEEDS[name])]
    for name in others:
        other = twin if name == twin.name else Twin(name, "cpu")
        model, _, rest = _model(other, tiny.folder)
        three = Session.resume(model, tmp_path / "saved")
        _follow(three, SAVED_AT, UNITS)
        assert three.summary()["plans"] == one.summary()["plans"]
        assert three.summary()["aggregated"] == one.summary()["aggregated"]
        for expected, found in zip(whole, first + rest, strict=True):
            assert not expected.size or distance(found[0], expected[0]) < 1e-4


@pytest.mark.parametrize(("tokens", "things"), [(2, 1), (31, 3), (64, 64), (100, 9)])
def test_likeness_and_means_of_clusters(twin: Twin, tiny_of: Any, tokens: int, things: int) -> None:
    backend = twin.load(tiny_of("6-2-32").folder)
    hidden = thinker_config(open_checkpoint(tiny_of("6-2-32").folder).config).text.hidden
    draw = np.random.default_rng(tokens)
    rows = draw.standard_normal((things, hidden))[draw.integers(0, things, tokens)]
    rows += 0.05 * draw.standard_normal(rows.shape)
    # Some are the same to the bit.
    rows[1::4] = rows[0]
    given = twin.embeddings(rows[None].astype(np.float32))
    both = BothMemories(twin, backend.vision_memory(), hidden)
    at = np.arange(tokens, dtype=np.int32)
    groups = MergePlan.of(at, (at // 3).astype(np.int32))
    both.nearest(given, MergePlan.of(at, at), at)
    both.keep(given, groups, np.arange(len(groups), dtype=np.int32)[::-1] + 3)
    both.compare(given, at[::-1].copy(), at, at // 3 + 3)
    if len(groups) > 1:
        both.nearest(given, groups, at[::3])
    merged = twin.array(backend.merge(given, groups))
    np.testing.assert_allclose(merged[0], means(rows.astype(np.float32), groups), rtol=1e-6)
    assert both.compare(given, at, at[:0], at[:0])[1].size == 0
    none = MergePlan(at[:0], at[:0])
    assert twin.array(backend.merge(given, none)).shape == (1, 0, hidden)
    with pytest.raises(PlanError, match="encode their unit first"):
        backend.merge(given, MergePlan(at[:1] + tokens, at[:1]))


def test_what_is_kept_is_accounted_for(twin: Twin, tiny_of: Any) -> None:
    folder = tiny_of("6-2-32").folder
    backend = twin.load(folder)
    before, memory = backend.memory().accounted, backend.vision_memory()
    hidden = thinker_config(open_checkpoint(folder).config).text.hidden
    memory.write(np.asarray([6], np.int32), np.ones((1, hidden), np.float32))
    assert memory.bytes == 7 * hidden * 4 == backend.memory().accounted - before
