"""A bank of pictures and clips on the training device, and dice as numbers there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from streamworld import banks
from streamworld.mu_law import EXPANDED

Units = dict[str, torch.Tensor]
"""The fields of a script's units as int32 tensors ``[N]`` or ``[N, dice]``."""


@dataclass(frozen=True)
class DeviceBank:
    """The arrays of :class:`streamworld.banks.Bank` as tensors, labels as int64."""

    glyphs: torch.Tensor
    glyph_start: torch.Tensor
    glyph_count: torch.Tensor
    clothes: torch.Tensor
    clothes_start: torch.Tensor
    clothes_count: torch.Tensor
    photos: torch.Tensor
    sound: torch.Tensor
    clip_offset: torch.Tensor
    clip_length: torch.Tensor
    clip_start: torch.Tensor
    clip_count: torch.Tensor
    expanded: torch.Tensor

    @classmethod
    def of(cls, bank: banks.Bank, device: torch.device) -> DeviceBank:
        """A bank on ``device``."""
        names = [name for name in cls.__dataclass_fields__ if name != "expanded"]
        moved = {name: torch.from_numpy(getattr(bank, name)).to(device) for name in names}
        return cls(**moved, expanded=torch.from_numpy(EXPANDED).to(device))


@lru_cache(maxsize=64)
def constant(values: tuple[object, ...], device: torch.device) -> torch.Tensor:
    """A table on a device, moved there once: a copy would end the capture of a graph."""
    return torch.tensor(values, device=device)


def spread(dice: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Dice as numbers evenly spread over ``low`` to ``high``."""
    return low + (dice.float() + 0.5) * (1 / 65_536) * (high - low)


def choice(dice: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """Dice as integers below ``count``."""
    return (dice.long() * count) >> 16


def seed_of(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """A 32-bit seed from two dice, in the bits of an int32."""
    return high.int() << 16 | low.int()


def noise(seed: torch.Tensor, size: int) -> torch.Tensor:
    """``float32[N, size]`` of nearly normal noise for int32 seeds ``[N]``.

    Integers wrap, and a shift to the right keeps its sign, which the masks take away.
    """
    bits = seed[:, None] * _signed(0x9E3779B9) + torch.arange(
        size, dtype=torch.int32, device=seed.device
    )
    bits = bits ^ (bits >> 16 & 0xFFFF)
    bits = bits * _signed(0x7FEB352D)
    bits = bits ^ (bits >> 15 & 0x1FFFF)
    bits = bits * _signed(0x846CA68B)
    bits = bits ^ (bits >> 16 & 0xFFFF)
    total = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255)
    return (total.float() - 510) * (1 / 147.8)


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits
