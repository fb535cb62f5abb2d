"""A frame as a small picture: two pixels a character cell, or shades where there is no colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from omnilive.screen.lines import Line, Look, blank, centred, style

Pixels = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
SHADES = " .:-=+*#%@"
"""From dark to light, for terminals without colours."""
_FINE = 4
# Nobody sees the lowest two bits, and equal neighbours cost less.
_STEP = 0xFC
_CUBE = np.array([0, 95, 135, 175, 215, 255])
_GREY = 10


@dataclass(frozen=True, eq=False)
class Drawn:
    """A frame's lines at a size, for a look."""

    frame: Pixels
    size: tuple[int, int]
    look: Look
    lines: list[Line]


def drawn(last: Drawn | None, frame: Pixels, width: int, height: int, look: Look) -> Drawn:
    """As :func:`picture`; the last one again for the same frame, which stays a while."""
    size = (width, height)
    if last is not None and last.frame is frame and (last.size, last.look) == (size, look):
        return last
    return Drawn(frame, size, look, picture(frame, width, height, look))


def picture(frame: Pixels, width: int, height: int, look: Look) -> list[Line]:
    """A frame ``uint8[H, W, 3]`` in ``height`` lines of ``width`` cells, its proportions kept."""
    tall, wide = frame.shape[:2]
    if not tall or not wide or width < 1 or height < 1:
        return [blank(width)] * height
    scale = min(width / wide, 2 * height / tall)
    columns = max(1, min(width, round(wide * scale)))
    rows = max(1, min(height, round(tall * scale / 2)))
    coloured = look.unicode and look.colours in ("truecolor", "256")
    made = (_coloured if coloured else _shaded)(frame, columns, rows, look)
    lines = [centred(line, width) for line in made]
    above = (height - rows) // 2
    return [blank(width)] * above + lines + [blank(width)] * (height - rows - above)


def shrunk(frame: Pixels, columns: int, rows: int) -> Int64:
    """Means of a frame's areas, ``int64[rows, columns, 3]``; a large frame is sampled first."""
    tall, wide = frame.shape[:2]
    down, across = max(1, tall // (rows * _FINE)), max(1, wide // (columns * _FINE))
    pixels = frame[::down, ::across].astype(np.int64)
    for axis, count in ((0, rows), (1, columns)):
        size = pixels.shape[axis]
        if size < count:
            pixels = np.take(pixels, np.arange(count) * size // count, axis)
            continue
        edges = np.arange(count + 1) * size // count
        sums = np.add.reduceat(pixels, edges[:-1], axis)
        shape = [-1 if at == axis else 1 for at in range(3)]
        pixels = sums // np.diff(edges).reshape(shape)
    return pixels


def _coloured(frame: Pixels, columns: int, rows: int, look: Look) -> list[Line]:
    pixels = shrunk(frame, columns, rows * 2)
    full = look.colours == "truecolor"
    codes = _packed(pixels) if full else _nearest(pixels)
    lines = []
    for upper, lower in zip(codes[::2].tolist(), codes[1::2].tolist(), strict=True):
        pairs = groupby(zip(upper, lower, strict=True))
        lines.append(
            tuple(Segment("▀" * len(list(run)), _halves(*pair, full)) for pair, run in pairs)
        )
    return lines


def _packed(pixels: Int64) -> Int64:
    packed: Int64 = (pixels & _STEP) @ np.array([1 << 16, 1 << 8, 1])
    return packed


def _nearest(pixels: Int64) -> Int64:
    """Numbers among the 256 colours of xterm: the cube of 6 x 6 x 6, and the greys."""
    levels = np.abs(pixels[..., None] - _CUBE).argmin(-1)
    cube = 16 + levels @ np.array([36, 6, 1])
    mean = pixels.mean(-1)
    grey = 232 + np.clip(np.rint((mean - 8) / 10), 0, 23).astype(np.int64)
    flat = (np.ptp(pixels, axis=-1) < _GREY) & (mean > 4) & (mean < 243)
    colours: Int64 = np.where(flat, grey, cube)
    return colours


@lru_cache(maxsize=8192)
def _halves(upper: int, lower: int, full: bool) -> Style:
    return Style(color=_colour(upper, full), bgcolor=_colour(lower, full))


def _colour(code: int, full: bool) -> Color:
    if full:
        return Color.from_rgb(code >> 16, code >> 8 & 0xFF, code & 0xFF)
    return Color.from_ansi(code)


def _shaded(frame: Pixels, columns: int, rows: int, look: Look) -> list[Line]:
    light = shrunk(frame, columns, rows) @ np.array([299, 587, 114]) // 1000
    marks = light * (len(SHADES) - 1) // 255
    plain = style("")
    return [(Segment("".join(SHADES[mark] for mark in row), plain),) for row in marks.tolist()]
