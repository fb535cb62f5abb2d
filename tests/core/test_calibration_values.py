"""Values by modality as a stream runs, and what is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from omni_core import calibration_values
from omni_core.calibration_values import QueryMoments, ValueSamples
from omni_core.ledger import LedgerView
from omni_core.model_config import TextConfig
from omni_core.quantization.hadamard import hadamard
from omni_core.quantization.key_feedback import feedback
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.units import Int32, Modality

LAYERS, GROUPS, Q_HEADS, KV_HEADS, SIZE = 4, 2, 4, 2, 32
TEXT = TextConfig(100, 64, 64, LAYERS, Q_HEADS, KV_HEADS, SIZE, 1e-6, 1e4, (8, 4, 4), 100, True)


@dataclass
class Cache:
    """A backend's stored values: each cell says a thing of its modality's."""

    values: np.ndarray
    bfloat16: bool = False

    def read(self, layer: int, cells: Int32) -> tuple[np.ndarray, np.ndarray]:
        found = self.values[layer][cells][None]
        if self.bfloat16:
            found = (found.view(np.uint32) >> 16).astype(np.uint16)
        return np.full_like(found, 0), found


def stream(tokens: int, seed: int = 0) -> tuple[Cache, LedgerView]:
    draw = np.random.default_rng(seed)
    modality = (np.arange(tokens) // 10 % 3).astype(np.int8)
    things = np.random.default_rng(9).standard_normal((LAYERS, 3, 6, KV_HEADS, SIZE))
    said = things[:, modality, draw.integers(0, 6, tokens)]
    values = (said + 0.2 * draw.standard_normal(said.shape)).astype(np.float32)
    # Tokens lie in cells backwards, in the second group shifted by one.
    cells = np.stack([np.arange(tokens)[::-1], np.roll(np.arange(tokens)[::-1], 1)])
    stored = np.empty_like(values)
    for layer in range(LAYERS):
        stored[layer, cells[layer // (LAYERS // GROUPS)]] = values[layer]
    column = np.zeros(tokens, np.int32)
    view = LedgerView(
        np.arange(tokens, dtype=np.int64),
        column,
        column,
        modality,
        modality,
        modality,
        column,
        np.zeros(tokens),
        cells.astype(np.int32),
        column + 1,
    )
    return Cache(stored), view


def upto(view: LedgerView, first: int, last: int) -> LedgerView:
    columns = {
        name: getattr(view, name)[..., first:last] for name in LedgerView.__dataclass_fields__
    }
    return LedgerView(**columns)


def watched(tokens: int, *, most: int | None = None, bfloat16: bool = False) -> ValueSamples:
    cache, view = stream(tokens)
    cache.bfloat16 = bfloat16
    samples = ValueSamples(cache, TEXT)  # type: ignore[arg-type]
    samples.begin()
    for stop in range(50, tokens + 1, 50):
        # Older tokens may be gone: what is new counts.
        samples.stepped(upto(view, max(0, stop - 80), stop), 0, None)
    return samples


@pytest.mark.parametrize("bfloat16", [False, True])
def test_each_token_is_kept_once_and_helps(bfloat16: bool) -> None:
    samples = watched(1200, bfloat16=bfloat16)
    assert samples.tokens == dict.fromkeys(Modality, 400)
    tables, found = samples.fit()
    assert [own.layer for own in tables] == list(range(LAYERS))
    for kind in Modality:
        one = found[kind]
        assert one.tokens == 400 and one.own
        assert one.fitted < 0.8 * one.hadamard
    for own in tables:
        assert own.rotations.shape == (KV_HEADS, 3, SIZE, SIZE) and own.feedback is None
        apart = own.rotations @ own.rotations.swapaxes(-1, -2) - np.eye(SIZE)
        assert np.abs(apart).max() < 1e-4
        assert not np.allclose(own.rotations[:, 0], own.rotations[:, 1], atol=0.1)


def test_long_streams_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_values, "MOST", 40)
    samples = watched(1500)
    assert samples.tokens == dict.fromkeys(Modality, 500)
    _, view = stream(1500)
    for kind, parts in samples._kept.items():
        kept = np.concatenate(parts, axis=1)
        assert 40 <= kept.shape[1] < 80
        own = np.flatnonzero(view.modality == kind)
        wanted = samples._values(view.cells[:, own[:: samples._every[kind]]])
        assert np.array_equal(kept, wanted)


def test_what_never_came_and_what_came_seldom_keep_hadamard() -> None:
    cache, view = stream(1200)
    view.modality[view.modality == Modality.VISION] = Modality.TEXT
    audio = np.flatnonzero(view.modality == Modality.AUDIO)
    view.modality[audio[9:]] = Modality.TEXT
    # Nine that have nothing in common.
    own = np.random.default_rng(4).standard_normal((9, KV_HEADS, SIZE))
    for layer in range(LAYERS):
        cache.values[layer, view.cells[layer // (LAYERS // GROUPS), audio[:9]]] = own
    samples = ValueSamples(cache, TEXT)  # type: ignore[arg-type]
    samples.begin()
    samples.stepped(view, 0, None)
    tables, found = samples.fit()
    assert not found[Modality.VISION].own and found[Modality.VISION].tokens == 0
    assert np.isnan(found[Modality.VISION].hadamard)
    assert not found[Modality.AUDIO].own and found[Modality.AUDIO].tokens == 9
    assert found[Modality.AUDIO].fitted >= found[Modality.AUDIO].hadamard
    for own in tables:
        for kind in (Modality.VISION, Modality.AUDIO):
            assert np.array_equal(own.rotations[:, kind], [hadamard(SIZE)] * KV_HEADS)
        assert not np.allclose(own.rotations[:, Modality.TEXT], hadamard(SIZE), atol=0.1)


def test_moments_are_of_queries_where_they_stand() -> None:
    draw = np.random.default_rng(3)
    queries = draw.standard_normal((LAYERS, 60, Q_HEADS, SIZE)).astype(np.float32)
    positions = draw.integers(0, 500, (3, 60)).astype(np.int32)
    moments = QueryMoments(TEXT)
    for part in (slice(0, 25), slice(25, 60)):
        for layer in range(LAYERS):
            moments.add(layer, queries[layer, part], positions[:, part])
    cache, view = stream(300)
    samples = ValueSamples(cache, TEXT)  # type: ignore[arg-type]
    samples.begin()
    samples.stepped(view, 0, None)
    tables, _ = samples.fit()
    cos, sin = rotary_tables(positions, SIZE, 1e4, (8, 4, 4))
    for own in moments.feed(tables):
        placed = rotate(queries[own.layer].astype(np.float64), cos, sin) @ hadamard(SIZE)
        rows = placed.reshape(60, KV_HEADS, -1, SIZE).swapaxes(0, 1).reshape(KV_HEADS, -1, SIZE)
        wanted = feedback(np.einsum("hnd,hne->hde", rows, rows) / rows.shape[1])
        assert own.feedback is not None
        assert np.allclose(own.feedback, wanted, atol=1e-4)
