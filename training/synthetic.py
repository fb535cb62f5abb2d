"""A bank without a package to build it from: blots for pictures and tones for words.

Labels can be told apart, so that a few steps of training run and learn something anywhere.
"""

from __future__ import annotations

import numpy as np

from streamworld import banks, spec
from streamworld.mu_law import compress

_EACH = 3


def bank(seed: int = 0) -> banks.Bank:
    """Three pictures and three clips for each label."""
    rng = np.random.default_rng(seed)
    glyphs, clothes = _blots(rng, banks.GLYPHS, 48), _blots(rng, len(spec.CLOTHES), 28)
    sound, length = [], []
    for label in range(banks.CLIPS):
        seconds = 0.4 if label < len(spec.WORDS) else 1.5
        for _ in range(_EACH):
            now = np.arange(round(seconds * spec.SAMPLE_RATE)) / spec.SAMPLE_RATE
            pitch = 200 * 1.09**label * rng.uniform(0.99, 1.01)
            sound.append(compress(0.3 * np.sin(2 * np.pi * pitch * now)))
            length.append(now.size)
    lengths = np.asarray(length, np.int64)

    def index(labels: int) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(labels) * _EACH, np.full(labels, _EACH)

    return banks.Bank(
        glyphs,
        *index(banks.GLYPHS),
        clothes,
        *index(len(spec.CLOTHES)),
        rng.integers(0, 256, (4, 144, 144, 3), np.uint8),
        np.concatenate(sound),
        np.cumsum(lengths) - lengths,
        lengths,
        np.zeros(len(lengths), np.int64),
        *index(banks.CLIPS),
        ("synthetic:tone",),
    )


def _blots(rng: np.random.Generator, labels: int, side: int) -> np.ndarray:
    """Smooth random patterns ``uint8[labels * 3, side, side]``, nearly the same for one label."""
    coarse = rng.random((labels, 1, 6, 6)) + 0.15 * rng.random((labels, _EACH, 6, 6))
    fine = np.kron(coarse > 0.55, np.ones((side // 6 + 1,) * 2))[..., :side, :side]
    return (255 * fine).astype(np.uint8).reshape(-1, side, side)
