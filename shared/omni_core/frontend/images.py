"""Frames to patches: target size, antialiased bicubic resizing, normalisation and patch order.

Sizes and patch order are those of transformers' Qwen2-VL video processor, resizing is Pillow's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError
from omni_core.frontend.base import VisionInput

Frame = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_MAX_ASPECT = 200
_UNIT = 1 << 22
"""Pillow's fixed-point weights for 8-bit pictures, in parts of one."""
_BLOCK = 64
"""Output samples a matrix product: wide enough for BLAS, narrow enough to skip most zeros."""


@dataclass(frozen=True)
class ImageSpec:
    """How a checkpoint wants its frames.

    Attributes:
        patch: side of a patch in pixels.
        merge: patches a side that become one token.
        temporal: frames in a patch.
        min_pixels, max_pixels: limits of one resized frame.
        mean, std: of each channel, for values in [0, 1].
    """

    patch: int = 14
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 768 * 28 * 28
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that a frame is resized to."""
        factor = self.patch * self.merge
        return smart_resize(height, width, factor, self.min_pixels, self.max_pixels)

    @property
    def most_tokens(self) -> int:
        """Most tokens of one temporal patch, whatever the shape of its frames.

        A side is at least one token, so long strips exceed ``max_pixels``; and what is enlarged to
        ``min_pixels`` has both sides rounded up.
        """
        token = (self.patch * self.merge) ** 2
        shrunk = max(1, self.max_pixels // token, isqrt(_MAX_ASPECT * self.max_pixels // token))
        return max(shrunk, _most_enlarged(self.min_pixels, token))


def _most_enlarged(pixels: int, token: int) -> int:
    """Most tokens of a picture enlarged to ``pixels`` at ``token`` pixels each.

    The shorter side is ``n`` tokens where it was just over ``n - 1`` before rounding. One more than
    the longer side's whole tokens covers what floating point adds to a side that was whole.
    """
    longest = isqrt(_MAX_ASPECT * pixels // token) + 1
    most = longest
    for shorter in range(2, isqrt(pixels // token) + 2):
        most = max(most, shorter * min(longest, pixels // (token * (shorter - 1)) + 1))
    return most


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The size nearest to the frame's shape with sides that are multiples of ``factor``.

    Source: ``smart_resize`` of transformers' Qwen2-VL processors.

    Raises:
        MediaError: a frame without pixels, or one side more than 200 times the other.
    """
    if min(height, width) < 1 or max(height, width) > _MAX_ASPECT * min(height, width):
        raise MediaError(
            f"a frame is {width}x{height} pixels, expected at least one pixel and an aspect ratio "
            f"of at most {_MAX_ASPECT}: crop or scale the picture first"
        )
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif tall * wide < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return tall, wide


def resize(frame: Frame, height: int, width: int) -> Frame:
    """Resize as Pillow's ``BICUBIC`` does: across, then down, each pass rounded to 8 bits.

    Where a side shrinks the kernel is widened, so nothing aliases. Pillow 13 does some pictures
    down first, which differs where a pass overshoots the range of 8 bits.

    Shapes: ``uint8[H, W, 3] -> uint8[height, width, 3]``.
    """
    planes = _resize_planes(_planes(frame), height, width)
    return np.ascontiguousarray(planes.astype(np.uint8).transpose(1, 2, 0))


def frame_patches(frames: Sequence[Frame], spec: ImageSpec) -> VisionInput:
    """Patches of one unit's frames; the last frame is repeated to fill the last temporal patch.

    All frames take the target size of the first. Patches run by time, then by token (``merge *
    merge`` patches each, row by row), and hold ``[channel, time, row, column]``.

    Raises:
        MediaError: no frame, or one that is not ``uint8[H, W, 3]``.
    """
    if not frames:
        raise MediaError("a unit without frames has no patches: leave its picture out")
    first = _checked(frames[0])
    height, width = spec.size(first.shape[0], first.shape[1])
    scale = 1 / (255 * np.asarray(spec.std)[:, None, None])
    shift = (np.asarray(spec.mean) / np.asarray(spec.std))[:, None, None]
    grid = (-(-len(frames) // spec.temporal), height // spec.patch, width // spec.patch)
    tokens_high, tokens_wide = grid[1] // spec.merge, grid[2] // spec.merge
    cell = (tokens_high, spec.merge, spec.patch, tokens_wide, spec.merge, spec.patch)
    order = (grid[0], tokens_high, tokens_wide, spec.merge, spec.merge)
    out = np.empty((*order, 3, spec.temporal, spec.patch, spec.patch), np.float32)
    for index in range(grid[0] * spec.temporal):
        if index < len(frames):
            planes = _resize_planes(_planes(_checked(frames[index])), height, width)
            planes *= scale
            planes -= shift
            tiles = planes.reshape(3, *cell).transpose(1, 4, 2, 5, 0, 3, 6)
        out[index // spec.temporal, ..., index % spec.temporal, :, :] = tiles
    return VisionInput(out.reshape(math.prod(grid), -1), grid)


def _checked(frame: Frame) -> Frame:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise MediaError(
            f"a frame is {frame.dtype}{list(frame.shape)}, expected RGB uint8[height, width, 3]: "
            "convert it before it enters the stream"
        )
    return frame


def _planes(frame: Frame) -> Float64:
    planes = np.empty((3, *frame.shape[:2]))
    for channel in range(3):
        planes[channel] = frame[:, :, channel]
    return planes


def _resize_planes(planes: Float64, height: int, width: int) -> Float64:
    """Resize ``[3, H, W]`` of whole grey levels to ``[3, height, width]`` of the same.

    In float64, which adds whole levels times 22-bit weights without an error.
    """
    _, tall, wide = planes.shape
    if wide != width:
        rows = planes.reshape(3 * tall, wide)
        across = np.empty((3 * tall, width))
        for (start, stop), (low, high), band in _bands(wide, width):
            np.matmul(rows[:, low:high], band.T, out=across[:, start:stop])
        planes = _round_levels(across).reshape(3, tall, width)
    if tall != height:
        down = np.empty((3, height, width))
        for (start, stop), (low, high), band in _bands(tall, height):
            np.matmul(band, planes[:, low:high], out=down[:, start:stop])
        planes = _round_levels(down)
    return planes


def _round_levels(values: Float64) -> Float64:
    values += 0.5
    np.floor(values, out=values)
    return np.clip(values, 0, 255, out=values)


_Range = tuple[int, int]


@lru_cache(maxsize=64)
def _bands(size: int, target: int) -> tuple[tuple[_Range, _Range, Float64], ...]:
    """The resampling matrix ``[target, size]`` as dense blocks along its band."""
    scale = size / target
    widen = max(scale, 1.0)
    support = 2.0 * widen
    centre = (np.arange(target) + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), size)
    blocks = []
    for start in range(0, target, _BLOCK):
        stop = min(start + _BLOCK, target)
        first, last = int(low[start]), int(high[stop - 1])
        taps = np.arange(first, last)
        weights = _cubic((taps + 0.5 - centre[start:stop, None]) / widen)
        weights[(taps < low[start:stop, None]) | (taps >= high[start:stop, None])] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        fixed = np.trunc(weights * _UNIT + np.copysign(0.5, weights)) / _UNIT
        blocks.append(((start, stop), (first, last), fixed))
    return tuple(blocks)


def _cubic(distance: Float64) -> Float64:
    """Keys' cubic convolution kernel with a = -1/2, Pillow's choice."""
    x = np.abs(distance)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
