"""A bank small enough to make on the spot: plain masks, and a tone of its own for each clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamworld import banks, spec
from streamworld.mu_law import compress

CLIP_HERTZ = 300 + 100 * np.arange(banks.CLIPS)


def arrays() -> dict[str, np.ndarray]:
    """What a bank's file holds: two glyphs, one garment and two clips a label."""
    glyph_label = np.repeat(np.arange(banks.GLYPHS), 2).astype(np.uint8)
    glyphs = np.zeros((glyph_label.size, 48, 48), np.uint8)
    glyphs[:, 3:45, 3:45] = 255
    clothes = np.full((10, 28, 28), 180, np.uint8)
    label = np.repeat(np.arange(banks.CLIPS), 2).astype(np.uint8)
    length = np.where(np.arange(label.size) % 2, 6_000, 8_000).astype(np.int32)
    clips = [
        compress(0.17 * np.sin(2 * np.pi * CLIP_HERTZ[row] * np.arange(size) / spec.SAMPLE_RATE))
        for row, size in zip(label, length, strict=True)
    ]
    return {
        "glyphs": glyphs,
        "glyph_label": glyph_label,
        "clothes": clothes,
        "clothes_label": np.arange(10, dtype=np.uint8),
        "photos": np.full((2, 144, 144, 3), 90, np.uint8),
        "sound": np.concatenate(clips),
        "clip_label": label,
        "clip_length": length,
        "clip_voice": (np.arange(label.size) % 2).astype(np.uint16),
        "voices": np.asarray(["one:a", "two:b"]),
    }


@pytest.fixture(scope="session")
def bank_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("banks")
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", **arrays())
    return folder


@pytest.fixture(scope="session")
def bank(bank_folder: Path) -> banks.Bank:
    return banks.load(bank_folder, "test")
