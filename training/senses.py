"""Units rendered and encoded: from dice to the embeddings of frames and sounds."""

from __future__ import annotations

import warnings

import torch

from omni_core.frontend.images import ImageSpec
from training.augment import changed
from training.bank import DeviceBank, Units
from training.media import log_mel, patches
from training.picture import frames
from training.shape import PIXELS, SQUARE
from training.sound import sounds
from training.thinker import Thinker

SPEC = ImageSpec(min_pixels=PIXELS[0], max_pixels=PIXELS[1])


class Senses:
    """A thinker's towers behind the renderers of what they see and hear.

    Args:
        thinker: the model.
        fused: units of a batch whose square frames, sounds and towers run compiled, which takes a
            minute to prepare and half of the time; others run plainly, and so does everything
            where this is None.
    """

    def __init__(self, thinker: Thinker, fused: int | None = None) -> None:
        self._thinker, self._fused = thinker, fused
        if fused is not None:
            # The cached tables of numbers that rendering reads are constants.
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools")
            self._frames = torch.compile(frames, dynamic=False)
            self._sounds = torch.compile(sounds, dynamic=False)
            self._look = torch.compile(thinker.visual.look, dynamic=False)
            self._listen = torch.compile(thinker.audio_tower, dynamic=False)

    def rendered(
        self,
        units: Units,
        bank: DeviceBank,
        chance: torch.Tensor | None,
        size: tuple[int, int] = SQUARE,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Patches of frames of ``size`` and log-mel of units; ``chance`` changes the latter."""
        dtype = self._thinker.audio_tower.proj.weight.dtype
        known = units["thing"].shape[0] == self._fused
        with torch.no_grad():
            if known and size == SQUARE:
                pictures = self._frames(units, bank)
            else:
                pictures = frames(units, bank, size=size)
            heard = log_mel((self._sounds if known else sounds)(units, bank), 128)
            if chance is not None:
                heard = changed(heard, chance)
            return patches(pictures, SPEC, dtype), heard.to(dtype)

    def encoded(
        self,
        units: Units,
        bank: DeviceBank,
        chance: torch.Tensor | None = None,
        size: tuple[int, int] = SQUARE,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings ``[N, tokens, hidden]`` of frames and ``[N, 25, hidden]`` of sounds."""
        seen, heard = self.rendered(units, bank, chance, size)
        visual, audio = self._thinker.visual, self._thinker.audio_tower
        # A tower compiled for learning would be compiled once more without gradients.
        if seen.shape[0] != self._fused or not torch.is_grad_enabled():
            return visual(seen, size), audio(heard)
        angles = visual.angles(size, seen)
        look = self._look if size == SQUARE else visual.look
        return look(seen, *angles), self._listen(heard)
