"""Streams whose pictures are grids of colours: a token's embedding is its colour's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy_backend import TEXT, NumpyBackend, PlainFrontend

from omni_core.frontend.base import Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.model_config import TextConfig
from omni_core.session import Model

BAD = 255
"""A colour whose embedding is no number."""


def _colours() -> np.ndarray:
    """Embeddings of which no two have a cosine above 0.7."""
    draw, found = np.random.default_rng(5), np.zeros((0, TEXT.hidden))
    while len(found) <= BAD:
        row = draw.normal(size=TEXT.hidden)
        row /= np.linalg.norm(row)
        if (found @ row).max(initial=0) < 0.7:
            found = np.concatenate([found, row[None]])
    return found


COLOURS = _colours()


class SceneFrontend(PlainFrontend):
    """Takes each frame's first channel for the colours of its ``h x w`` tokens.

    Every frame is a grid of its own in time.
    """

    def __init__(self, noise: float = 0.0, brackets: bool = False) -> None:
        super().__init__(brackets=brackets)
        self.noise, self.largest_unit = noise, 80

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        frames = [frame[:, :, 0] for frame in media.frames]
        self.vision = sum(frame.size for frame in frames)
        tokens, cursor = super().unit(replace(media, frames=()), cursor)
        if not frames:
            marks = tokens.block.sense == 1
            return replace(tokens, block=tokens.block.take(np.flatnonzero(~marks))), cursor
        colours = np.concatenate([frame.reshape(-1) for frame in frames])
        draw = np.random.default_rng(int(media.start * 1000))
        patches = COLOURS[colours] + self.noise * draw.normal(size=(colours.size, TEXT.hidden))
        patches[colours == BAD] = np.nan
        grid = (len(frames), *frames[0].shape)
        picture = VisionInput(patches.astype(np.float32), grid)
        return replace(tokens, vision=(picture,)), cursor


def scene_model(noise: float = 0.0, brackets: bool = False, text: TextConfig = TEXT) -> Model:
    frontend = SceneFrontend(noise, brackets)
    return Model(NumpyBackend(text=text), frontend, text, "scenes", identity="s")


def shot(index: int, *frames: np.ndarray) -> UnitMedia:
    """Second ``index`` of a stream, with frames ``[h, w]`` of colours."""
    pictures = tuple(np.repeat(np.asarray(f, np.uint8)[:, :, None], 3, axis=2) for f in frames)
    return UnitMedia(float(index), index + 1.0, pictures)


def noise(index: int, high: int = 3, wide: int = 3) -> np.ndarray:
    """A frame of colours that are all different, and others the second after."""
    return ((np.arange(high * wide) * 11 + index * 5) % BAD).reshape(high, wide)


def still(colour: int, high: int = 3, wide: int = 3) -> np.ndarray:
    """A frame of one colour."""
    return np.full((high, wide), colour)
