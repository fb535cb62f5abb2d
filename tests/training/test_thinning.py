"""What questions see of old units."""

from __future__ import annotations

import numpy as np
import pytest

from training.batch import TURN, world_frontend
from training.layout import arrange, layout
from training.thinning import RECENT, delimiters_alone, thin

UNITS = 6


@pytest.fixture(scope="module")
def laid():
    return layout(world_frontend())


def _content(laid, arranged):
    """Vision and audio tokens of the stream, ``bool[T]``."""
    vocabulary = np.concatenate([laid.prefix, np.tile(laid.unit, UNITS), np.full(2 * TURN, 1)])
    return vocabulary[arranged.order] == 0


def test_whole_streams_keep_all(laid) -> None:
    arranged = arrange(laid, UNITS)
    assert thin(np.random.default_rng(1), 0.0, 4, laid, arranged).kept.all()


def test_text_and_delimiters_always_stay(laid) -> None:
    arranged = arrange(laid, UNITS, [1, 4], TURN)
    content = _content(laid, arranged)
    assert content.sum() == UNITS * 41
    thinned = thin(np.random.default_rng(2), 1.0, 300, laid, arranged)
    assert thinned.kept[:, ~content].all()
    assert set(thinned.recent) <= set(RECENT)
    left = thinned.kept[:, content].sum(axis=1)
    # Mostly delimiters alone or a few first tokens, at times some at random.
    assert left.min() == 0
    assert left.max() < content.sum() / 2
    assert len(set(left)) > 8


def test_delimiters_alone(laid) -> None:
    arranged = arrange(laid, UNITS, [1], TURN)
    thinned = delimiters_alone(2, 3, laid, arranged)
    content = _content(laid, arranged)
    assert np.array_equal(thinned.kept, np.tile(~content, (3, 1)))
    assert (thinned.recent == 2).all()


def test_owners(laid) -> None:
    arranged = arrange(laid, UNITS, [1], TURN)
    inside = np.repeat(np.arange(UNITS), laid.unit.size)
    turn = laid.prefix.size + 2 * laid.unit.size
    expected = np.concatenate(
        [
            np.full(laid.prefix.size, UNITS),
            inside[: 2 * laid.unit.size],
            np.full(TURN, UNITS),
            inside[2 * laid.unit.size :],
        ]
    )
    assert turn == np.flatnonzero(arranged.owner == UNITS)[laid.prefix.size]
    assert np.array_equal(arranged.owner, expected)


def test_a_fifth_of_the_streams_keep_tokens_anywhere(laid) -> None:
    arranged = arrange(laid, UNITS)
    thinned = thin(np.random.default_rng(3), 1.0, 1000, laid, arranged)
    inside = arranged.order - laid.prefix.size
    place = np.where((inside >= 0) & (inside < UNITS * laid.unit.size), inside % laid.unit.size, -1)
    for span in (laid.vision, laid.audio):
        late = (place >= span.start + 4) & (place < span.stop)
        kept = thinned.kept[:, late]
        scattered = kept.any(axis=1)
        assert 0.15 < scattered.mean() < 0.25
        assert 0.1 < kept[scattered].mean() < 0.2
