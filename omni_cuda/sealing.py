"""Sealed pages in PyTorch's operations: cells become codes, and codes what attention multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from omni_core.backend import PAGE, SUBBLOCK, ArenaLayout, MovePlan
from omni_core.host_sealing import Cells, coded
from omni_core.paging.mirror import TableMirror
from omni_core.quantization import DEFAULT, LayerTables, codec, digest, mxfp4, packing
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Int32
from omni_cuda.arena import Arena
from omni_cuda.arena import Cells as Rows
from omni_cuda.devices import download, upload

if TYPE_CHECKING:
    from omni_cuda.sealing_kernels import SealingKernels

_WORD, _HALF = 32, 16


class Sealer:
    """Seals cells of an arena, and decodes its sealed pages.

    Args:
        layout: of an arena that has some.
        tables: of each layer of the model.
        device: where the arena is.
        kernels: whether Triton's seal, where they know the codec.

    Attributes:
        turn: ``float32[D, D]``, by which queries are rotated to meet keys.
        bytes: of its tables on the device.
        digest: of its tables.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        tables: Sequence[LayerTables],
        device: torch.device,
        kernels: bool = False,
    ) -> None:
        self._layout, self._format, self._tables = layout, layout.sealed, tables
        self.digest = digest(tables)
        self._codec = codec(layout.codec, layout.bits)
        self.turn = upload(hadamard(layout.head_dim), device)
        self._levels = [
            upload(levels, device) for levels in (self._codec.key_levels, self._codec.value_levels)
        ]
        # An exponent of 127 is a factor of 1.
        every = np.arange(16, dtype=np.uint8), np.full(1, 127, np.uint8)
        self._mxfp4 = upload(mxfp4.decode(*every), device)
        # [layers, modalities, kv_heads, D, D] and [layers, kv_heads, 1, D]
        self._rotations = upload(np.stack([t.rotations.swapaxes(0, 1) for t in tables]), device)
        means = upload(np.stack([t.key_means for t in tables]), device)
        self._means = (means @ self.turn)[:, :, None]
        self.bytes: int = self._rotations.nbytes + self._means.nbytes + self.turn.nbytes
        self._kernels: SealingKernels | None = None
        alike = len({each.feedback is None for each in tables}) == 1
        if kernels and layout.codec == DEFAULT and alike:
            from omni_cuda.sealing_kernels import SealingKernels

            self._kernels = SealingKernels(layout, tables, self._rotations, device)
            self.bytes += self._kernels.bytes

    def seal(self, arena: Arena, plan: MovePlan, mirror: TableMirror) -> None:
        """Code the cells that a plan seals, in all layers and streams; none if one is refused.

        Where no kernel does, they are coded on the host.

        Raises:
            BackendError: see :func:`omni_core.host_sealing.coded`.
        """
        if self._kernels and self._kernels.seal(arena, plan, mirror):
            return
        # Who refuses says which layer it is, and why.
        made = coded(
            plan,
            mirror,
            self._layout,
            self._tables,
            partial(self._gathered, arena),
            partial(self.read, arena),
        )
        for layer, pages, stored in made:
            self.write(arena, layer, pages, stored)

    def read(self, arena: Arena, layer: int, pages: Int32) -> npt.NDArray[np.uint8]:
        """Bytes ``[streams, n, kv_heads, bytes]`` of pages of a group's layer."""
        return download(arena.sealed[layer][:, self._places(arena, pages)])

    def write(self, arena: Arena, layer: int, pages: Int32, stored: npt.NDArray[np.uint8]) -> None:
        """Store what :meth:`read` gave."""
        arena.sealed[layer][:, self._places(arena, pages)] = upload(stored, arena.sealed.device)

    def keys(self, stored: torch.Tensor, layer: int) -> torch.Tensor:
        """Keys ``float32[streams, kv_heads, n * PAGE, D]`` as rotated queries meet them.

        Args:
            stored: ``uint8[streams, n, kv_heads, bytes]``, pages.
            layer: of the model.
        """
        own = self._format
        words = self._part(stored, own.key_codes, own.key_code_bytes).view(torch.int32)
        ranges = self._part(stored, own.ranges, own.range_bytes).int()
        exponents = self._part(stored, own.exponents, own.exponent_bytes).int()
        factors = (exponents << 23).view(torch.float32).unflatten(-1, (-1, 2))
        factors = factors.repeat_interleave(mxfp4.BLOCK, -2)[..., : own.head_dim, :]
        offsets = self._mxfp4[ranges & 15] * factors[..., 0]
        spans = self._mxfp4[ranges >> 4] * factors[..., 1]
        found = offsets[..., None, :] + spans[..., None, :] * self._levels[0][self._keys(words)]
        norms = self._part(stored, own.key_scales, own.scale_bytes).view(torch.float16)
        return _cells(found * norms.float()[..., None]) + self._means[layer]

    def values(self, stored: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """Values ``float32[streams, kv_heads, n * PAGE, D]``, rotated: see :meth:`undone`.

        Args:
            stored: ``uint8[streams, n, kv_heads, bytes]``, pages.
            live: ``bool[n * PAGE]``; others are 0, whatever their bytes are.
        """
        own = self._format
        words = self._part(stored, own.value_codes, own.value_code_bytes).view(torch.int32)
        scales = self._part(stored, own.value_scales, own.scale_bytes).view(torch.float16)
        scales = _cells(scales.float()[..., None]).masked_fill(~live[:, None], 0)
        return _cells(self._levels[1][self._values(words)]) * scales

    def undone(self, mixed: torch.Tensor, layer: int, modality: int) -> torch.Tensor:
        """A sum ``[streams, kv_heads, n, D]`` of rotated values, as values are."""
        return mixed @ self._rotations[layer, modality]

    def _gathered(self, arena: Arena, layer: int, cells: Int32) -> Cells:
        given = arena.gather(layer, Rows.of(cells, arena.sealed.device))
        keys, values = (download(part.float()) for part in given)
        return keys, values

    def _places(self, arena: Arena, pages: Int32) -> torch.Tensor:
        return upload(pages - self._layout.pages, arena.sealed.device, torch.int64)

    def _part(self, stored: torch.Tensor, begin: int, size: int) -> torch.Tensor:
        """``uint8[streams, n, kv_heads, 2, size]``, of both subblocks."""
        part = stored[..., begin : begin + PAGE // SUBBLOCK * size]
        return part.unflatten(-1, (-1, size)).contiguous()

    def _keys(self, words: torch.Tensor) -> torch.Tensor:
        """Codes ``int32[..., 32, D]`` of :func:`omni_core.quantization.packing.pack_keys`."""
        codes, begin, low = 0, 0, 0
        for plane in packing.planes(self._layout.bits):
            count = -(-self._layout.head_dim * plane // _WORD)
            part = words[..., begin : begin + SUBBLOCK * count].unflatten(-1, (count, SUBBLOCK))
            # [word, cell, place, half]
            split = _split(part, plane).transpose(-4, -3).flatten(-3)
            codes = codes | split[..., : self._layout.head_dim] << low
            begin, low = begin + SUBBLOCK * count, low + plane
        return codes

    def _values(self, words: torch.Tensor) -> torch.Tensor:
        """Codes ``int32[..., 32, D]`` of :func:`omni_core.quantization.packing.pack_values`."""
        codes, begin, low = 0, 0, 0
        for plane in packing.planes(self._layout.bits):
            count = self._layout.head_dim * plane
            part = words[..., begin : begin + count].unflatten(-1, (-1, SUBBLOCK // 8, 4))
            # [word, cells / 8, cell % 4, place, half] to [cells / 8, half, cell % 4, word, place]
            split = _split(part, plane).movedim((-5, -1), (-2, -4))
            codes = codes | split.flatten(-2).flatten(-4, -2) << low
            begin, low = begin + count, low + plane
        return codes


def _split(words: torch.Tensor, plane: int) -> torch.Tensor:
    """The codes ``[..., place, half]`` of words."""
    places = torch.arange(_HALF // plane, dtype=torch.int32, device=words.device) * plane
    halves = torch.arange(2, dtype=torch.int32, device=words.device) * _HALF
    return (words[..., None, None] >> (places[:, None] + halves)) & ((1 << plane) - 1)


def _cells(found: torch.Tensor) -> torch.Tensor:
    """``[streams, n, kv_heads, 2, 32, size]`` with all cells of a head side by side."""
    return found.transpose(1, 2).flatten(2, 4)
