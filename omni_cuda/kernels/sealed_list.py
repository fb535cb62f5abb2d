"""Listings of sealed rows, and the tables that their kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton

from omni_core.quantization import Codec, SealedLayout
from omni_core.quantization.codebooks import centred
from omni_cuda.devices import upload


@dataclass(frozen=True)
class SealedList:
    """A listing of sealed rows on the device; every query sees all that it names.

    Attributes:
        rows, segments, programs, bias, shares: as in
            :class:`omni_cuda.kernels.attention.PageList`.
        rotations: ``int32[segments]``, the rotation of each segment's values.
        first: page number of the first sealed page.
    """

    rows: torch.Tensor
    segments: torch.Tensor
    programs: int
    bias: torch.Tensor | None
    rotations: torch.Tensor
    first: int
    shares: int = 1

    @property
    def room(self) -> int:
        """Rows of a program."""
        return (self.rows.shape[0] - 1) // self.programs


def undoing(rotations: torch.Tensor, layout: SealedLayout) -> torch.Tensor:
    """Rotations of values as kernels undo them, ``float16[modalities, kv_heads, padded, padded]``.

    Columns stand in the order of places, that is as the codes of values lie in words; what is
    added to fill a power of two is 0.

    Args:
        rotations: ``float32[modalities, kv_heads, head_dim, head_dim]``; a value ``v`` was rotated
            as ``R v``.
        layout: of the pages.
    """
    head_dim = layout.head_dim
    padded = triton.next_power_of_2(head_dim)
    places = 4 if layout.bits == 4 else 8
    at = torch.arange(padded, device=rotations.device)
    channel = at % (padded // places) * places + at // (padded // places)
    found = rotations.new_zeros((*rotations.shape[:2], padded, padded), dtype=torch.float16)
    used = channel < head_dim
    found[:, :, :head_dim, used] = rotations.transpose(2, 3)[..., channel[used]].half()
    return found


def codebook(codec: Codec, device: torch.device) -> torch.Tensor | None:
    """Levels ``float32[2, 2**bits]`` of a codec's keys and values; None where all are uniform.

    Args:
        codec: of the pages.
        device: where kernels run.
    """
    levels = np.stack([codec.key_levels, codec.value_levels])
    if np.array_equal(levels, np.stack([centred(codec.bits)] * 2)):
        return None
    return upload(levels, device)
