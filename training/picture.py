"""Frames of units on the training device: what ``streamworld.render_frames`` defines."""

from __future__ import annotations

import math

import torch

from streamworld import render_frames as world
from streamworld import spec
from training.bank import DeviceBank, Units, choice, constant, noise, seed_of, spread

_INKS = tuple(map(tuple, world.INKS.tolist()))


def frames(
    units: Units, bank: DeviceBank, phase: float = 0.5, size: world.Size = world.SQUARE
) -> torch.Tensor:
    """Grey levels ``float32[N, H, W, 3]``, whole numbers of 0 to 255."""
    look, shot, thing = units["look"], units["shot"], units["thing"].long()
    time = units["age"].float() + phase
    ink = _inks(look, thing)
    ground = _grounds(units, bank, time, ink, size)
    colour, alpha = _figures(units, bank, time, ink, size)
    image = _blurred(torch.lerp(ground, colour, alpha[..., None]), look[:, world.BLUR])
    gain = spread(look[:, world.GAIN], 0.7, 1.2) * spread(shot[:, world.FLICKER], 0.96, 1.04)
    balance = spread(look[:, world.BALANCE : world.BALANCE + 3], 0.94, 1.06) * gain[:, None]
    offset = spread(look[:, world.OFFSET], 0, 0.08)
    image = image * balance[:, None, None] + offset[:, None, None, None]
    level = spread(look[:, world.GRAIN], -0.07, 0.07).clamp(min=0.004)
    seed = seed_of(shot[:, world.SEED], shot[:, world.SEED + 1])
    grain = noise(seed, size[0] * size[1] * 3).view(image.shape)
    return ((image + level[:, None, None, None] * grain).clamp(0, 1) * 255).round()


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None]


def _is_shape(thing: torch.Tensor) -> torch.Tensor:
    return (thing >= spec.FIRST_SHAPE) & (thing < spec.FIRST_DIGIT)


def _is_clothing(thing: torch.Tensor) -> torch.Tensor:
    return thing >= spec.FIRST_CLOTHING


def _inks(look: torch.Tensor, thing: torch.Tensor) -> torch.Tensor:
    dice = look[:, world.INK : world.INK + 3]
    table = constant(_INKS, dice.device)
    colour = ((thing - spec.FIRST_SHAPE) // len(spec.SHAPES)).clamp(0, len(spec.COLOURS) - 1)
    plain = torch.where(dice[:, :1] < 32_768, spread(dice, 0, 0.5), spread(dice, 0.5, 1))
    free = torch.where(_is_clothing(thing)[:, None], spread(dice, 0.72, 1), plain)
    return torch.where(_is_shape(thing)[:, None], table[colour] + spread(dice, -0.06, 0.06), free)


def _grounds(
    units: Units, bank: DeviceBank, time: torch.Tensor, ink: torch.Tensor, size: world.Size
) -> torch.Tensor:
    look, thing = units["look"], units["thing"][:, None, None]
    dice = look[:, world.GROUND_A : world.GROUND_A + 6]
    pair = spread(dice, 0.03, 0.97).view(-1, 2, 3)
    near = (pair - ink[:, None]).abs().mean(2, keepdim=True) < 0.28
    pair = torch.where(near, (pair + 0.5) % 1, pair)
    light = _wide(ink.mean(1) > 0.5)
    apart = pair * 0.45 + torch.where(light, 0.0, 0.55)
    digit = (thing >= spec.FIRST_DIGIT) & ~_is_clothing(thing)
    pair = torch.where(digit, apart, pair)
    lines = [torch.arange(side, device=look.device) for side in size]
    y, x = ((line - (line.numel() - 1) / 2) / (max(size) / 2) for line in lines)
    y = y[:, None]
    turn = _wide(spread(look[:, world.DIRECTION], 0, 2 * math.pi))
    cos, sin = turn.cos(), turn.sin()
    along, across = cos * x + sin * y, cos * y - sin * x
    rate = _wide(spread(look[:, world.FREQUENCY], 2, 9))
    drift = time * spread(look[:, world.DRIFT], -1.2, 1.2)
    shift = _wide(spread(look[:, world.PHASE], 0, 6.28) + drift)
    wave, other = (rate * along + shift).sin(), (rate * across - shift).sin()
    waves = wave + other + (rate * 0.7 * (along + across)).sin()
    kind = _wide(choice(look[:, world.GROUND], 6))
    mix = torch.where(kind == 1, (along * 0.5 + 0.5 + 0.2 * shift.sin()).clamp(0, 1), 0.0)
    mix = torch.where(kind == 2, (wave * 4 + 0.5).clamp(0, 1), mix)
    mix = torch.where(kind == 3, (wave * other * 6 + 0.5).clamp(0, 1), mix)
    mix = torch.where(kind == 4, waves / 6 + 0.5, mix)
    ground = torch.lerp(pair[:, 0, None, None], pair[:, 1, None, None], mix[..., None])
    # A photograph slides to and fro below the thing.
    swing, side = 1 + shift[:, 0].sin(), bank.photos.shape[1]
    rows, columns = (((side - line.numel()) / 2 * swing).round().long() + line for line in lines)
    photo = choice(look[:, world.PHOTO], len(bank.photos))
    seen = bank.photos[_wide(photo), rows[:, :, None], columns[:, None, :]]
    mixed = ground * 0.5 + seen.float() * (0.5 / 255)
    return torch.where((kind == 5)[..., None], mixed, ground)


def _figures(
    units: Units, bank: DeviceBank, time: torch.Tensor, ink: torch.Tensor, size: world.Size
) -> tuple[torch.Tensor, torch.Tensor]:
    look, thing = units["look"], units["thing"].long()
    clothing, shape = _is_clothing(thing), _is_shape(thing)
    shapes = len(spec.SHAPES)
    glyph = torch.where(clothing, 0, (thing - spec.FIRST_DIGIT + shapes).clamp(min=0))
    glyph = torch.where(shape, (thing - spec.FIRST_SHAPE) % shapes, glyph)
    garment = (thing - spec.FIRST_CLOTHING).clamp(min=0)
    large = look[:, world.SIZE]
    grown = (1 + time * spread(look[:, world.GROWTH], -0.05, 0.05)).clamp(0.8, 1.2)
    side = torch.where(clothing, spread(large, 72, 108), spread(large, 56, 108))
    side = (side * grown).clamp(52, 110) * (min(size) / spec.FRAME)
    turn = spread(look[:, world.ANGLE], -0.2, 0.2) * torch.where(clothing, 0.5, 1.0)
    u, v = _grid(units, time, side, turn, size)
    dice = look[:, world.PICTURE]
    drawn = bank.glyph_start[glyph] + choice(dice, bank.glyph_count[glyph])
    line = (_sampled(bank.glyphs, drawn, u, v) - 0.5) * 1.5 + 0.5
    u = torch.where(_wide(clothing & (look[:, world.MIRROR] >= 32768)), -u, u)
    worn = bank.clothes_start[garment] + choice(dice, bank.clothes_count[garment])
    grey = _sampled(bank.clothes, worn, u, v)
    style = _wide(choice(look[:, world.STYLE], 4))
    shade = torch.where(style < 2, 0.12 + 0.88 * grey, torch.where(style == 3, 1 - grey, grey))
    card = ((0.5 - torch.maximum(u.abs(), v.abs())) * 28 + 0.5).clamp(0, 1)
    cloth = torch.where(style < 2, (grey * 5).clamp(max=1), card)
    dressed = _wide(clothing)
    alpha = torch.where(dressed, cloth, line.clamp(0, 1)) * _wide(thing != spec.NOTHING)
    colour = ink[:, None, None] * torch.where(dressed, shade, 1.0)[..., None]
    return colour, alpha


def _grid(
    units: Units, time: torch.Tensor, side: torch.Tensor, turn: torch.Tensor, size: world.Size
) -> tuple[torch.Tensor, torch.Tensor]:
    look, shot = units["look"], units["shot"]
    down = world.CENTRE_Y, world.SPEED_Y, world.SHAKE_Y
    across = world.CENTRE_X, world.SPEED_X, world.SHAKE_X
    lines = []
    for length, (centre, speed, shake) in zip(size, (down, across), strict=True):
        room = ((length - side) / 2).clamp(min=0)
        moved = spread(look[:, centre], -1, 1) * room + time * spread(look[:, speed], -7, 7)
        moved = torch.minimum(torch.maximum(moved, -room - 2), room + 2)
        place = (length - 1) / 2 + moved + spread(shot[:, shake], -1.2, 1.2)
        axis = torch.arange(length, device=look.device).float()
        lines.append((axis - place[:, None]) / side[:, None])
    y, x = lines[0][:, :, None], lines[1][:, None, :]
    cos, sin = _wide(turn.cos()), _wide(turn.sin())
    return x * cos + y * sin, y * cos - x * sin


def _sampled(
    pictures: torch.Tensor, picked: torch.Tensor, u: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Pictures ``[n, s, s]`` read bilinearly at u, v; 0 outside them."""
    side = pictures.shape[1]
    x = ((u + 0.5) * side - 0.5).clamp(-1, side)
    y = ((v + 0.5) * side - 0.5).clamp(-1, side)
    left, top = x.floor(), y.floor()
    right, low = x - left, y - top
    base, total = _wide(picked * side * side), torch.zeros_like(u)
    flat = pictures.view(-1)
    for row, weight_y in ((top, 1 - low), (top + 1, low)):
        for column, weight_x in ((left, 1 - right), (left + 1, right)):
            inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
            place = row.clamp(0, side - 1) * side + column.clamp(0, side - 1)
            total = total + flat[base + place.long()] * inside * (weight_y * weight_x)
    return total * (1 / 255)


def _blurred(image: torch.Tensor, dice: torch.Tensor) -> torch.Tensor:
    sigma = spread(dice, -1.1, 1.1).clamp(min=0.15)[:, None]
    tap = torch.arange(-2, 3, device=image.device).float()
    weight = torch.exp(-(tap**2) / (2 * sigma**2))
    weight = weight / weight.sum(1, keepdim=True)
    for axis in (1, 2):
        length = image.shape[axis]
        first, last = image.narrow(axis, 0, 1), image.narrow(axis, length - 1, 1)
        wide = torch.cat([first, first, image, last, last], axis)
        image = sum(wide.narrow(axis, t, length) * weight[:, t, None, None, None] for t in range(5))
    return image
