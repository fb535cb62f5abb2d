"""Digits drawn with a pen: a path through a few points, a hand's slant, pen and unsteadiness."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

_SIDE = 160
Path = tuple[tuple[float, float], ...]

# Every way to write a digit is a list of pen strokes in a unit square, y downwards.
_WAYS: dict[int, tuple[tuple[Path, ...], ...]] = {
    0: (
        (((0.5, 0), (0.1, 0.3), (0.1, 0.7), (0.5, 1), (0.9, 0.7), (0.9, 0.3), (0.5, 0)),),
        (((0.6, 0), (0.2, 0.2), (0.1, 0.7), (0.45, 1), (0.85, 0.75), (0.85, 0.2), (0.45, 0.05)),),
    ),
    1: (
        (((0.5, 0), (0.5, 0.5), (0.5, 1)),),
        (((0.25, 0.25), (0.55, 0), (0.55, 0.5), (0.55, 1)),),
        (((0.25, 0.25), (0.5, 0)), ((0.5, 0), (0.5, 1)), ((0.2, 1), (0.8, 1))),
    ),
    2: (
        (((0.1, 0.25), (0.45, 0), (0.85, 0.25), (0.6, 0.6), (0.1, 1)), ((0.1, 1), (0.9, 1))),
        (((0.1, 0.2), (0.5, 0), (0.8, 0.3), (0.4, 0.75), (0.15, 0.9), (0.35, 0.85), (0.9, 1)),),
    ),
    3: (
        (
            ((0.15, 0.1), (0.5, 0), (0.85, 0.22), (0.45, 0.46)),
            ((0.45, 0.46), (0.9, 0.7), (0.5, 1), (0.1, 0.88)),
        ),
        (((0.1, 0), (0.85, 0)), ((0.85, 0), (0.45, 0.4)), ((0.45, 0.4), (0.9, 0.7), (0.1, 0.95))),
    ),
    4: (
        (((0.6, 0), (0.1, 0.65)), ((0.1, 0.65), (0.95, 0.65)), ((0.7, 0.3), (0.7, 1))),
        (((0.2, 0), (0.15, 0.5)), ((0.15, 0.5), (0.9, 0.5)), ((0.8, 0), (0.75, 1))),
        (((0.7, 0), (0.1, 0.65)), ((0.1, 0.65), (0.95, 0.65)), ((0.7, 0), (0.7, 1))),
    ),
    5: (
        (
            ((0.85, 0), (0.2, 0)),
            ((0.2, 0), (0.15, 0.45)),
            ((0.15, 0.45), (0.6, 0.38), (0.9, 0.68), (0.55, 1), (0.1, 0.9)),
        ),
    ),
    6: (
        (((0.75, 0), (0.25, 0.35), (0.12, 0.75), (0.5, 1), (0.85, 0.75), (0.5, 0.5), (0.15, 0.7)),),
        (((0.6, 0), (0.2, 0.5), (0.2, 0.9), (0.6, 1), (0.8, 0.7), (0.45, 0.55), (0.2, 0.75)),),
    ),
    7: (
        (((0.1, 0), (0.9, 0)), ((0.9, 0), (0.4, 1))),
        (((0.1, 0), (0.9, 0)), ((0.9, 0), (0.4, 1)), ((0.3, 0.5), (0.8, 0.5))),
        (((0.1, 0.12), (0.12, 0), (0.9, 0)), ((0.9, 0), (0.5, 0.5), (0.42, 1))),
    ),
    8: (
        (
            (
                *((0.5, 0.46), (0.15, 0.22), (0.5, 0), (0.85, 0.22), (0.5, 0.46)),
                *((0.1, 0.75), (0.5, 1), (0.9, 0.75), (0.5, 0.46)),
            ),
        ),
        (
            (
                *((0.85, 0.15), (0.5, 0), (0.2, 0.2), (0.5, 0.48), (0.85, 0.75), (0.5, 1)),
                *((0.15, 0.78), (0.5, 0.5), (0.85, 0.15)),
            ),
        ),
    ),
    9: (
        (((0.85, 0.25), (0.5, 0), (0.15, 0.25), (0.45, 0.5), (0.85, 0.25), (0.8, 0.7), (0.6, 1)),),
        (
            ((0.8, 0.2), (0.4, 0), (0.15, 0.3), (0.45, 0.5), (0.8, 0.25)),
            ((0.8, 0.2), (0.82, 0.6), (0.75, 1)),
        ),
    ),
}


def digit_mask(digit: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """One drawing of ``digit`` by a hand of its own, ``uint8[160, 160]``."""
    ways = _WAYS[digit]
    strokes = ways[int(rng.integers(len(ways)))]
    slant, turn = rng.uniform(-0.3, 0.3), rng.uniform(-0.12, 0.12)
    wide, unsteady = rng.uniform(0.45, 0.8), rng.uniform(0.01, 0.045)
    pen = int(rng.integers(5, 19))
    page = Image.new("L", (_SIDE, _SIDE))
    draw = ImageDraw.Draw(page)
    ends: dict[tuple[float, float], npt.NDArray[np.float64]] = {}
    for stroke in strokes:
        # Strokes that meet share the point where the hand put it.
        points = [
            ends.setdefault(point, np.asarray(point) + rng.normal(0, unsteady, 2))
            for point in stroke
        ]
        x, y = _curve(np.asarray(points)).T - 0.5
        x = x * wide - slant * y
        x, y = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
        line = [(_SIDE / 2 + 110 * a, _SIDE / 2 + 110 * b) for a, b in zip(x, y, strict=True)]
        draw.line(line, fill=255, width=pen, joint="curve")
        for a, b in (line[0], line[-1]):
            draw.ellipse((a - pen / 2, b - pen / 2, a + pen / 2, b + pen / 2), fill=255)
    return np.asarray(page, np.uint8)


def _curve(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A Catmull-Rom curve through the points."""
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    t = np.linspace(0, 1, 12)[:, None]
    pieces = []
    for a, b, c, d in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        straight = 2 * b + (c - a) * t
        bent = (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3
        pieces.append((straight + bent) / 2)
    return np.concatenate(pieces)
