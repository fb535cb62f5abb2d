"""Rotary embedding: keys at their own positions, queries once for each shift of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni_core.model_config import TextConfig
from omni_core.reference.rotary import rotary_tables
from omni_core.units import Int32
from omni_cuda.devices import upload


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x[..., T, heads, head_dim]`` in float32: dimension ``i`` pairs with ``i + half``."""
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


@dataclass(frozen=True)
class Turns:
    """The rotations of a step's queries that a layer group's cells are read by.

    Attributes:
        cos, sin: ``float32[m, 1, T, 1, head_dim / 2]``, a table for each distinct shift.
        runs: ``(start, stop, table)`` of each stretch of cells, oldest first.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    runs: tuple[tuple[int, int, int], ...]

    def rotated(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Queries ``start`` to ``stop`` of ``[streams, T, heads, head_dim]``, each by every table.

        Returns:
            ``float32[m, streams, stop - start, heads, head_dim]``.
        """
        tables = self.cos[:, :, start:stop], self.sin[:, :, start:stop]
        return rotate(queries[None, :, start:stop].float(), *tables)


class StepRotary:
    """Tables of one step, one for each shift, whichever layer groups read at it."""

    def __init__(self, positions: Int32, text: TextConfig, device: torch.device) -> None:
        self._positions, self._text, self._device = positions, text, device
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tables(self, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``float32[T, 1, head_dim / 2]`` of the step's positions + ``shift``."""
        if shift not in self._made:
            text, places = self._text, self._positions + np.int32(shift)
            cos, sin = rotary_tables(places, text.head_dim, text.rope_theta, text.mrope_section)
            self._made[shift] = (
                upload(cos[:, None], self._device),
                upload(sin[:, None], self._device),
            )
        return self._made[shift]

    def turns(self, runs: Sequence[tuple[int, int, int]]) -> Turns:
        """What the queries of a group are turned by; ``runs`` are ``(start, stop, shift)``."""
        shifts = list(dict.fromkeys(shift for _, _, shift in runs)) or [0]
        cos, sin = zip(*map(self.tables, shifts), strict=True)
        numbered = tuple((start, stop, shifts.index(shift)) for start, stop, shift in runs)
        return Turns(torch.stack(cos)[:, None], torch.stack(sin)[:, None], numbered)


class DeviceRotary:
    """Tables made on the device, from positions that are there already."""

    def __init__(self, text: TextConfig, device: torch.device) -> None:
        half = text.head_dim // 2
        frequencies = text.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
        self._frequencies = upload(frequencies, device)
        sections = text.mrope_section or (half,)
        rows = np.repeat(np.arange(len(sections)), sections)
        self._rows = upload(rows, device)

    def tables(
        self, positions: torch.Tensor, shifts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``float32[m + 1, T, head_dim / 2]``: at the positions, then shifted.

        Args:
            positions: ``int32[3, T]``.
            shifts: ``int32[m]``.
        """
        places = positions.index_select(0, self._rows).T
        shifted = torch.cat([places[None], places + shifts[:, None, None]])
        # In float64: float32 angles are off by 0.0035 at position 1e5.
        angles = shifted * self._frequencies
        return angles.cos().float(), angles.sin().float()
