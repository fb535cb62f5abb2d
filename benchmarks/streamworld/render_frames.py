"""Frames of units: a thing on a background that moves, seen by a camera of some quality."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld import spec
from streamworld.banks import Bank
from streamworld.dice import Floats, choice, noise, seed_of, spread
from streamworld.script import Units

# Columns of `look`: what the dice of a scene decide.
PICTURE, CENTRE_X, CENTRE_Y, SIZE, ANGLE, SPEED_X, SPEED_Y, GROWTH = range(8)
INK, GROUND, GROUND_A, GROUND_B = 8, 11, 12, 15
FREQUENCY, DIRECTION, PHASE, DRIFT, BLUR, GAIN, OFFSET, BALANCE = 18, 19, 20, 21, 22, 23, 24, 25
GRAIN, STYLE, MIRROR, PHOTO = 28, 29, 30, 31
# Columns of `shot`: what the dice of a frame decide.
SEED, FLICKER, SHAKE_X, SHAKE_Y = 0, 2, 3, 4

INKS = np.float32(
    [
        *([0.85, 0.1, 0.1], [0.98, 0.52, 0.05], [0.95, 0.88, 0.12], [0.1, 0.62, 0.2]),
        *([0.12, 0.25, 0.85], [0.55, 0.14, 0.68], [0.95, 0.95, 0.95], [0.06, 0.06, 0.06]),
    ]
)
"""What the eight colours' names mean, ``float32[8, 3]``."""

Size = tuple[int, int]
"""Height and width of a frame in pixels."""
SQUARE = (spec.FRAME, spec.FRAME)
_CHUNK = 64


def frames(
    units: Units, bank: Bank, phase: float = 0.5, size: Size = SQUARE
) -> npt.NDArray[np.uint8]:
    """``uint8[N, H, W, 3]``: each unit's picture at ``phase`` (0 to 1) of its second.

    A thing is as large beside the shorter side as in a square frame, and roams over the longer one.

    Raises:
        ValueError: the bank's photographs do not cover a frame of ``size``.
    """
    if max(size) > bank.photos.shape[1]:
        raise ValueError(
            f"frames of {size[1]}x{size[0]} pixels, expected at most the {bank.photos.shape[1]} a "
            "side of the bank's photographs: ask for smaller ones"
        )
    made = np.empty((len(units), *size, 3), np.uint8)
    for start in range(0, len(units), _CHUNK):
        rows = slice(start, start + _CHUNK)
        made[rows] = _frames(units[rows], bank, phase, size)
    return made


def _frames(units: Units, bank: Bank, phase: float, size: Size) -> npt.NDArray[np.uint8]:
    look, thing = units.look, units.thing.astype(np.int64)
    # Seconds since the scene began.
    time = units.age.astype(np.float32) + np.float32(phase)
    ink = _inks(look, thing)
    ground = _grounds(units, bank, time, ink, size)
    colour, alpha = _figures(units, bank, time, ink, size)
    image = ground + (colour - ground) * alpha[..., None]
    image = _blurred(image, look[:, BLUR])
    flicker = spread(units.shot[:, FLICKER], 0.96, 1.04)
    gain = spread(look[:, GAIN], 0.7, 1.2) * flicker
    balance = spread(look[:, BALANCE : BALANCE + 3], 0.94, 1.06) * gain[:, None]
    image = (
        image * balance[:, None, None, :] + spread(look[:, OFFSET], 0, 0.08)[:, None, None, None]
    )
    # Half of the scenes have hardly any grain.
    level = np.maximum(0.004, spread(look[:, GRAIN], -0.07, 0.07))
    grain = noise(seed_of(units.shot[:, SEED], units.shot[:, SEED + 1]), size[0] * size[1] * 3)
    image = image + level[:, None, None, None] * grain.reshape(image.shape)
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def is_kind(thing: Any, kind: str) -> Any:
    """Whether things are shapes, digits or clothes."""
    low, high = {
        "shape": (spec.FIRST_SHAPE, spec.FIRST_DIGIT),
        "digit": (spec.FIRST_DIGIT, spec.FIRST_CLOTHING),
        "clothing": (spec.FIRST_CLOTHING, spec.THINGS),
    }[kind]
    return (thing >= low) & (thing < high)


def _inks(look: Any, thing: Any) -> Floats:
    dice = look[:, INK : INK + 3]
    colour = np.where(is_kind(thing, "shape"), (thing - spec.FIRST_SHAPE) // len(spec.SHAPES), 0)
    named = INKS[colour] + spread(dice, -0.06, 0.06)
    dark = np.where(dice[:, :1] < 32_768, spread(dice, 0, 0.5), spread(dice, 0.5, 1))
    free = np.where(is_kind(thing, "clothing")[:, None], spread(dice, 0.72, 1), dark)
    return np.where(is_kind(thing, "shape")[:, None], named, free)


def _grounds(units: Units, bank: Bank, time: Floats, ink: Floats, size: Size) -> Floats:
    """Backgrounds ``float32[N, H, W, 3]`` that differ from the ink."""
    look = units.look
    pair = spread(look[:, GROUND_A : GROUND_A + 6], 0.03, 0.97).reshape(-1, 2, 3)
    near = np.abs(pair - ink[:, None]).mean(axis=2, keepdims=True) < 0.28
    pair = np.where(near, (pair + np.float32(0.5)) % np.float32(1), pair)
    # Thin lines need more: a digit's background is darker, or lighter, than its ink.
    light = ink.mean(axis=1)[:, None, None] > 0.5
    apart = pair * np.float32(0.45) + np.where(light, np.float32(0), np.float32(0.55))
    pair = np.where(is_kind(units.thing, "digit")[:, None, None], apart, pair)
    y, x = ((np.arange(side, dtype=np.float32) - (side - 1) / 2) / (max(size) / 2) for side in size)
    y = y[:, None]
    turn = spread(look[:, DIRECTION], 0, 2 * np.pi)[:, None, None]
    along = np.cos(turn) * x + np.sin(turn) * y
    across = np.cos(turn) * y - np.sin(turn) * x
    rate = spread(look[:, FREQUENCY], 2, 9)[:, None, None]
    shift = spread(look[:, PHASE], 0, 6.28) + time * spread(look[:, DRIFT], -1.2, 1.2)
    shift = shift[:, None, None]
    wave = np.sin(rate * along + shift)
    other = np.sin(rate * across - shift)
    slope = along * np.float32(0.5) + np.float32(0.5) + np.float32(0.2) * np.sin(shift)
    mixes = (
        np.zeros_like(along),
        np.clip(slope, 0, 1),
        np.clip(wave * 4 + np.float32(0.5), 0, 1),
        np.clip(wave * other * 6 + np.float32(0.5), 0, 1),
        (wave + other + np.sin(rate * np.float32(0.7) * (along + across))) / 6 + np.float32(0.5),
        np.zeros_like(along),
    )
    kind = choice(look[:, GROUND], len(mixes))
    mix = np.select([kind[:, None, None] == n for n in range(len(mixes))], mixes)[..., None]
    ground = pair[:, None, None, 0] + (pair[:, None, None, 1] - pair[:, None, None, 0]) * mix
    photo = np.flatnonzero(kind == len(mixes) - 1)
    if photo.size:
        # A photograph slides to and fro below the thing.
        swing = 1 + np.sin(shift[photo, 0, 0])
        room = bank.photos.shape[1] - np.asarray(size)
        step = np.round(room.astype(np.float32) / 2 * swing[:, None]).astype(np.int64)
        for row, (top, left) in zip(photo, step, strict=True):
            pixels = bank.photos[choice(look[row, PHOTO], len(bank.photos))]
            seen = pixels[top : top + size[0], left : left + size[1]]
            ground[row] = ground[row] * np.float32(0.5) + seen * np.float32(0.5 / 255)
    return ground


def _figures(
    units: Units, bank: Bank, time: Floats, ink: Floats, size: Size
) -> tuple[Floats, Floats]:
    """Colour ``[N, H, W, 3]`` and opacity ``[N, H, W]`` of the things."""
    look, thing = units.look, units.thing.astype(np.int64)
    clothing = is_kind(thing, "clothing")
    glyph = np.where(is_kind(thing, "digit"), thing - spec.FIRST_DIGIT + len(spec.SHAPES), 0)
    form = (thing - spec.FIRST_SHAPE) % len(spec.SHAPES)
    glyph = np.where(is_kind(thing, "shape"), form, glyph)
    garment = np.where(clothing, thing - spec.FIRST_CLOTHING, 0)
    grown = np.clip(1 + time * spread(look[:, GROWTH], -0.05, 0.05), 0.8, 1.2)
    side = np.where(clothing, spread(look[:, SIZE], 72, 108), spread(look[:, SIZE], 56, 108))
    side = np.clip(side * grown, 52, 110) * np.float32(min(size) / spec.FRAME)
    turn = spread(look[:, ANGLE], -0.2, 0.2) * np.where(clothing, np.float32(0.5), np.float32(1))
    u, v = _grid(units, time, side, turn, size)
    mirror = np.where(clothing & (look[:, MIRROR] >= 32768), np.float32(-1), np.float32(1))
    picked = bank.glyph_start[glyph] + choice(look[:, PICTURE], bank.glyph_count[glyph])
    alpha = _sampled(bank.glyphs, picked, u, v)
    alpha = np.clip((alpha - np.float32(0.5)) * np.float32(1.5) + np.float32(0.5), 0, 1)
    rows = np.flatnonzero(clothing)
    colour = np.broadcast_to(ink[:, None, None], (*alpha.shape, 3)).copy()
    if rows.size:
        picked = bank.clothes_start[garment] + choice(look[:, PICTURE], bank.clothes_count[garment])
        u, v = u[rows] * mirror[rows, None, None], v[rows]
        grey = _sampled(bank.clothes, picked[rows], u, v)[..., None]
        # A garment is cut out, or lies on a dark or a light card.
        style = choice(look[rows, STYLE], 4)[:, None, None, None]
        shade = np.where(style == 3, 1 - grey, np.where(style < 2, 0.12 + 0.88 * grey, grey))
        colour[rows] *= shade
        card = np.clip((0.5 - np.maximum(np.abs(u), np.abs(v))) * 28 + 0.5, 0, 1)
        alpha[rows] = np.where(style[..., 0] < 2, np.minimum(1, grey[..., 0] * 5), card)
    alpha[thing == spec.NOTHING] = 0
    return colour, alpha


def _grid(
    units: Units, time: Floats, side: Floats, turn: Floats, size: Size
) -> tuple[Floats, Floats]:
    """Where each pixel falls on the thing, whose own square is -0.5 to 0.5."""
    look, shot = units.look, units.shot
    down, across = (CENTRE_Y, SPEED_Y, SHAKE_Y), (CENTRE_X, SPEED_X, SHAKE_X)
    lines = []
    for length, (centre, speed, shake) in zip(size, (down, across), strict=True):
        room = np.maximum(0, (length - side) / 2)
        moved = spread(look[:, centre], -1, 1) * room + time * spread(look[:, speed], -7, 7)
        jitter = spread(shot[:, shake], -1.2, 1.2)
        place = (length - 1) / 2 + np.clip(moved, -room - 2, room + 2) + jitter
        lines.append((np.arange(length, dtype=np.float32) - place[:, None]) / side[:, None])
    y, x = lines[0][:, :, None], lines[1][:, None, :]
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    return x * cos + y * sin, y * cos - x * sin


def _sampled(pictures: npt.NDArray[np.uint8], picked: Any, u: Floats, v: Floats) -> Floats:
    """Pictures ``[n, s, s]`` read bilinearly at u, v; 0 outside them."""
    side = pictures.shape[1]
    x = np.clip((u + np.float32(0.5)) * side - np.float32(0.5), -1, side)
    y = np.clip((v + np.float32(0.5)) * side - np.float32(0.5), -1, side)
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    right, low = (x - left).astype(np.float32), (y - top).astype(np.float32)
    flat = pictures.reshape(-1)
    base = (picked * side * side)[:, None, None]
    total = np.zeros(u.shape, np.float32)
    for down, weight_y in ((0, 1 - low), (1, low)):
        for beside, weight_x in ((0, 1 - right), (1, right)):
            column, row = left + beside, top + down
            inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
            place = base + np.clip(row, 0, side - 1) * side + np.clip(column, 0, side - 1)
            total += np.where(inside, flat[place], 0) * weight_y * weight_x
    return total * np.float32(1 / 255)


def _blurred(image: Floats, dice: Any) -> Floats:
    # Half of the scenes are sharp.
    sigma = np.maximum(0.15, spread(dice, -1.1, 1.1))[:, None]
    weight = np.exp(-(np.arange(-2, 3, dtype=np.float32) ** 2) / (2 * sigma**2))
    weight = (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32)
    for axis in (1, 2):
        around = [(0, 0)] * 4
        around[axis] = (2, 2)
        wide = np.pad(image, around, mode="edge")
        index = [slice(None)] * 4
        total = np.zeros_like(image)
        for tap in range(5):
            index[axis] = slice(tap, tap + image.shape[axis])
            total += wide[tuple(index)] * weight[:, tap, None, None, None]
        image = total
    return image
