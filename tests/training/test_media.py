"""Patches and spectrograms of whole batches against the core's, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.frontend.images import frame_patches
from omni_core.frontend.log_mel import log_mel
from training import media
from training.augment import CHANCES, changed
from training.senses import SPEC


def test_patches_are_the_frontends() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 112, 112, 3)).astype(np.uint8)
    found = media.patches(torch.from_numpy(frames), SPEC, torch.float32).numpy()
    for frame, rows in zip(frames, found, strict=True):
        whole = frame_patches((frame,), SPEC).patches.reshape(64, 3, 2, 14 * 14)
        assert np.array_equal(whole[:, :, 0], whole[:, :, 1])
        assert np.abs(rows - whole[:, :, 0].reshape(64, -1)).max() < 1e-5


def test_log_mel_is_the_frontends() -> None:
    draw = np.random.default_rng(1)
    sounds = (draw.standard_normal((4, 16_000)) * 0.1).astype(np.float32)
    sounds[1, 6_000:] = 0
    sounds[2] = 0
    sounds[3] = 0.5 * np.sin(np.arange(16_000) * 0.2)
    found = media.log_mel(torch.from_numpy(sounds), 128).numpy()
    for sound, mel in zip(sounds, found, strict=True):
        assert np.abs(mel - log_mel(sound, 128)).max() < 1e-3


def test_changed_spectrograms_keep_their_range() -> None:
    draw = np.random.default_rng(2)
    mel = torch.from_numpy(draw.standard_normal((64, 128, 100)).astype(np.float32))
    chance = torch.from_numpy(draw.random((64, CHANCES)).astype(np.float32))
    found = changed(mel, chance)
    assert torch.isfinite(found).all()
    assert (found.amin((1, 2)) >= mel.amin((1, 2)) - 1e-6).all()
    assert ((found - mel).abs().amax((1, 2)) > 1e-3).all()
    steady = torch.full_like(chance, 0.5)
    steady[:, 15] = 0
    assert torch.allclose(changed(mel, steady), mel, atol=1e-6)


def test_dimming_covers_at_most_the_stated_band_and_moment(model: Any) -> None:
    mel = torch.arange(128.0)[None, :, None] + torch.zeros(1, 128, 100)
    mel = mel + torch.arange(100.0) * 1e-3
    chance = torch.full((1, CHANCES), 0.5)
    chance[0, 11] = chance[0, 13] = 0.999
    chance[0, 15] = 0.5
    dimmed = changed(mel, chance)[0] == mel.min()
    assert 15 <= dimmed.all(1).sum() <= 19
    assert 9 <= dimmed.all(0).sum() <= 13
