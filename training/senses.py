"""Units rendered and encoded: from dice to the embeddings of frames and sounds."""

from __future__ import annotations

import torch

from omni_core.frontend.images import ImageSpec
from training.augment import changed
from training.bank import DeviceBank, Units
from training.media import log_mel, patches
from training.picture import frames
from training.sound import sounds
from training.thinker import Thinker

SPEC = ImageSpec(min_pixels=112 * 112, max_pixels=112 * 112)


def rendered(
    units: Units, bank: DeviceBank, chance: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches and log-mel of units; ``chance`` changes the latter, for training."""
    with torch.no_grad():
        seen = patches(frames(units, bank), SPEC, dtype)
        heard = log_mel(sounds(units, bank), 128)
        if chance is not None:
            heard = changed(heard, chance)
        return seen, heard.to(dtype)


def encoded(
    thinker: Thinker, units: Units, bank: DeviceBank, chance: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings ``[N, 16, hidden]`` of frames and ``[N, 25, hidden]`` of sounds."""
    dtype = thinker.audio_tower.proj.weight.dtype
    seen, heard = rendered(units, bank, chance, dtype)
    return thinker.visual(seen), thinker.audio_tower(heard)
