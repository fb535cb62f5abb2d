"""Masks of the eight shapes, drawn with small liberties."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from streamworld.spec import SHAPES

_SIDE = 192
Points = list[tuple[float, float]]


def shape_mask(label: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """One drawing of shape ``label``, ``uint8[192, 192]``."""
    page = Image.new("L", (_SIDE, _SIDE))
    draw = ImageDraw.Draw(page)
    name = SHAPES[label]
    wide, high = 60 * rng.uniform(0.86, 1.14, 2)
    middle = _SIDE / 2
    box = (middle - wide, middle - high, middle + wide, middle + high)
    if name in ("circle", "ring", "moon"):
        draw.ellipse(box, fill=255)
    if name == "ring":
        part = rng.uniform(0.45, 0.72)
        draw.ellipse(_scaled(box, part), fill=0)
    elif name == "moon":
        angle = rng.uniform(-0.5, 0.5) + (math.pi if rng.random() < 0.5 else 0)
        shift = rng.uniform(0.4, 0.6)
        moved = (shift * wide * math.cos(angle), shift * high * math.sin(angle)) * 2
        hole = [side + step for side, step in zip(_scaled(box, 0.9), moved, strict=True)]
        draw.ellipse(hole, fill=0)
    elif name == "square":
        draw.rounded_rectangle(box, radius=rng.uniform(0, 14), fill=255)
    elif name == "triangle":
        tip = rng.uniform(-0.25, 0.25)
        corners: Points = [(tip, -1.0), (1.0, 0.8), (-1.0, 0.8)]
        draw.polygon(_placed(corners, wide, high), fill=255)
    elif name == "star":
        count = int(rng.integers(5, 8))
        inner = rng.uniform(0.36, 0.5)
        turns = [math.pi * i / count for i in range(2 * count)]
        radii = [inner if i % 2 else 1.0 for i in range(2 * count)]
        corners = [(r * math.sin(a), -r * math.cos(a)) for r, a in zip(radii, turns, strict=True)]
        draw.polygon(_placed(corners, wide, high), fill=255)
    elif name == "cross":
        arm = rng.uniform(0.22, 0.36)
        for part in ((arm, 1.0), (1.0, arm)):
            corners = [(part[0] * x, part[1] * y) for x, y in _SQUARE]
            draw.polygon(_placed(corners, wide, high), fill=255)
    elif name == "heart":
        steps = np.linspace(0, 2 * math.pi, 80)
        x = np.sin(steps) ** 3
        bumps = 13 * np.cos(steps) - 5 * np.cos(2 * steps) - 2 * np.cos(3 * steps)
        y = -(bumps - np.cos(4 * steps)) / 15
        draw.polygon(_placed(list(zip(x, y, strict=True)), wide, high), fill=255)
    turned = page.rotate(float(rng.uniform(-8, 8)), Image.Resampling.BICUBIC)
    return np.asarray(turned, np.uint8)


_SQUARE: Points = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]


def _scaled(box: tuple[float, float, float, float], part: float) -> tuple[float, ...]:
    middle = _SIDE / 2
    return tuple(middle + part * (side - middle) for side in box)


def _placed(corners: Points, wide: float, high: float) -> Points:
    return [(_SIDE / 2 + wide * x, _SIDE / 2 + high * y) for x, y in corners]
