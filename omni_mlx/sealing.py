"""Sealed pages in MLX's operations: cells become codes, and codes what attention multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from metal_kernels import seal
from metal_kernels.sealed import codebook
from metal_kernels.sealed_step import Run
from omni_core.backend import PAGE, SUBBLOCK, ArenaLayout, MovePlan
from omni_core.host_sealing import Cells, coded
from omni_core.paging.mirror import TableMirror
from omni_core.quantization import LayerTables, codec, digest, mxfp4, packing
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Int32
from omni_mlx.arena import Arena

_WORD, _HALF = 32, 16


class Sealer:
    """Seals cells of an arena, and decodes its sealed pages.

    Args:
        layout: of an arena that has some.
        tables: of each layer of the model.
        run: carries out launches of the kernel that seals, if one is to.

    Attributes:
        turn: ``float32[D, D]``, by which queries are rotated to meet keys.
        book: of :func:`metal_kernels.sealed.codebook`.
        means, rotations: of each layer, as :class:`metal_kernels.sealed_step.SealedLayer` has them.
        bytes: of its tables on the device.
        digest: of its tables.
    """

    def __init__(
        self, layout: ArenaLayout, tables: Sequence[LayerTables], run: Run | None = None
    ) -> None:
        self._layout, self._format, self._tables = layout, layout.sealed, tables
        self.digest = digest(tables)
        self._codec = codec(layout.codec, layout.bits)
        self.turn = mx.array(hadamard(layout.head_dim))
        self._levels = mx.array(self._codec.key_levels), mx.array(self._codec.value_levels)
        table, levels = codebook(self._codec)
        self.book = table, mx.array(levels)
        # An exponent of 127 is a factor of 1.
        every = np.arange(16, dtype=np.uint8), np.full(1, 127, np.uint8)
        self._mxfp4 = mx.array(mxfp4.decode(*every))
        # [layers, modalities, kv_heads, D, D] and [layers, kv_heads, 1, D]
        self._rotations = mx.array(np.stack([t.rotations.swapaxes(0, 1) for t in tables]))
        means = mx.array(np.stack([t.key_means for t in tables]))
        self._means = (means @ self.turn)[:, :, None]
        self.bytes: int = self._rotations.nbytes + self._means.nbytes + self.turn.nbytes
        # Views, made once.
        self.means = [means[:, 0] for means in self._means]
        self.rotations = list(self._rotations)
        mx.eval(self.turn, self._levels, self._mxfp4, self.rotations, self.means, self.book[1])

        self._run = run if self._codec.name == seal.CODEC else None
        if self._run:
            self._seals = [self._seal_inputs(each) for each in tables]
            mx.eval(self._seals)
            self.bytes += sum(x["means"].nbytes + x["feedback"].nbytes for x in self._seals)

    def seal(self, arena: Arena, plan: MovePlan, mirror: TableMirror) -> None:
        """Code the cells that a plan seals, in all layers and streams; none if one is refused.

        Where no kernel does, they are coded on the host.

        Raises:
            BackendError: see :func:`omni_core.host_sealing.coded`.
        """
        if self._run and self._sealed_by(self._run, arena, plan, mirror):
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
        return np.array(arena.read_sealed(layer, self._places(pages)))

    def write(self, arena: Arena, layer: int, pages: Int32, stored: npt.NDArray[np.uint8]) -> None:
        """Store what :meth:`read` gave."""
        arena.write_sealed(layer, self._places(pages), mx.array(stored))
        arena.settle()

    def keys(self, stored: mx.array, layer: int) -> mx.array:
        """Keys ``float32[streams, kv_heads, n * PAGE, D]`` as rotated queries meet them.

        Args:
            stored: ``uint8[streams, n, kv_heads, bytes]``, pages.
            layer: of the model.
        """
        own = self._format
        words = _part(stored, own.key_codes, own.key_code_bytes).view(mx.uint32)
        ranges = _part(stored, own.ranges, own.range_bytes)
        exponents = _part(stored, own.exponents, own.exponent_bytes).astype(mx.uint32)
        factors = mx.unflatten((exponents << 23).view(mx.float32), -1, (-1, 2))
        factors = mx.repeat(factors, mxfp4.BLOCK, axis=-2)[..., : own.head_dim, :]
        offsets = self._mxfp4[ranges & 15] * factors[..., 0]
        spans = self._mxfp4[ranges >> 4] * factors[..., 1]
        levels = self._levels[0][self._keys(words)]
        found = offsets[..., None, :] + spans[..., None, :] * levels
        norms = _part(stored, own.key_scales, own.scale_bytes).view(mx.float16)
        return _cells(found * norms.astype(mx.float32)[..., None]) + self._means[layer]

    def values(self, stored: mx.array, live: mx.array) -> mx.array:
        """Values ``float32[streams, kv_heads, n * PAGE, D]``, rotated: see :meth:`undone`.

        Args:
            stored: ``uint8[streams, n, kv_heads, bytes]``, pages.
            live: ``bool[n * PAGE]``; others are 0, whatever their bytes are.
        """
        own = self._format
        words = _part(stored, own.value_codes, own.value_code_bytes).view(mx.uint32)
        scales = _part(stored, own.value_scales, own.scale_bytes).view(mx.float16)
        scales = mx.where(live[:, None], _cells(scales.astype(mx.float32)[..., None]), 0.0)
        return _cells(self._levels[1][self._values(words)]) * scales

    def undone(self, mixed: mx.array, layer: int, modality: int) -> mx.array:
        """A sum ``[streams, kv_heads, n, D]`` of rotated values, as values are."""
        return mixed @ self._rotations[layer, modality]

    def _sealed_by(self, run: Run, arena: Arena, plan: MovePlan, mirror: TableMirror) -> bool:
        """Seal by the kernel; false if a number cannot be sealed, and nothing is."""
        layout, made, faults = self._layout, [], []
        group = mirror.group[plan.seals.source[:, 0] // PAGE]
        modality, each = mirror.sealed_modality(plan), layout.layers_per_group
        for own in np.unique(group).tolist():
            some = group == own
            source, target = plan.seals.source[some], plan.seals.target[some]
            pages, cells, kinds = seal.halves(source, target, modality[some])
            places = self._places(pages)
            shared = {"cells": mx.array(cells), "kinds": mx.array(kinds)}
            for layer in range(each):
                number = own * each + layer
                inputs = self._seals[number] | shared
                inputs["rotations"] = self.rotations[number]
                inputs["before"] = arena.read_sealed(layer, places)
                inputs["keys"], inputs["values"] = arena.keys[layer], arena.values[layer]
                of = seal.Sealing(
                    layout=self._format,
                    streams=layout.streams,
                    kv_heads=layout.kv_heads,
                    pages=layout.pages,
                    sealed=pages.size,
                    fed=self._tables[number].feedback is not None,
                    dtype=str(arena.keys[layer].dtype).removeprefix("mlx.core."),
                )
                inputs["numbers"] = mx.array(seal.numbers(of))
                stored, fault, _ = run(seal.store_sealed(of), inputs)
                made.append((layer, places, stored))
                faults.append(fault[: 2 * pages.size * layout.kv_heads * layout.streams].max())
        if mx.stack(faults).max().item():
            return False
        for layer, places, stored in made:
            arena.write_sealed(layer, places, stored)
            # The next group may write to the same layer.
            arena.settle()
        return True

    def _seal_inputs(self, tables: LayerTables) -> dict[str, mx.array]:
        """What sealing takes of a layer."""
        fed = seal.NO_FEEDBACK if tables.feedback is None else tables.feedback
        given = {"means": tables.key_means, "feedback": fed}
        given |= seal.codec_numbers(self._codec, self._layout.head_dim)
        return {name: mx.array(array) for name, array in given.items()}

    def _gathered(self, arena: Arena, layer: int, cells: Int32) -> Cells:
        given = arena.read(layer, arena.rows(cells))
        keys, values = (np.array(part.astype(mx.float32)).transpose(2, 0, 1, 3) for part in given)
        return keys, values

    def _places(self, pages: Int32) -> mx.array:
        return mx.array((pages - self._layout.pages).astype(np.int32))

    def _keys(self, words: mx.array) -> mx.array:
        """Codes ``uint32[..., 32, D]`` of :func:`omni_core.quantization.packing.pack_keys`."""
        found, begin, low = [], 0, 0
        for plane in packing.planes(self._layout.bits):
            count = -(-self._layout.head_dim * plane // _WORD)
            part = words[..., begin : begin + SUBBLOCK * count]
            part = mx.unflatten(part, -1, (count, SUBBLOCK))
            # [word, cell, place, half]
            split = mx.flatten(_split(part, plane).swapaxes(-4, -3), -3)
            found.append(split[..., : self._layout.head_dim] << low)
            begin, low = begin + SUBBLOCK * count, low + plane
        return reduce(mx.bitwise_or, found)

    def _values(self, words: mx.array) -> mx.array:
        """Codes ``uint32[..., 32, D]`` of :func:`omni_core.quantization.packing.pack_values`."""
        found, begin, low = [], 0, 0
        for plane in packing.planes(self._layout.bits):
            count = self._layout.head_dim * plane
            part = mx.unflatten(words[..., begin : begin + count], -1, (-1, SUBBLOCK // 8, 4))
            # [word, cells / 8, cell % 4, place, half] to [cells / 8, half, cell % 4, word, place]
            split = _split(part, plane)
            lead = range(split.ndim - 5)
            split = split.transpose(*lead, *(len(lead) + axis for axis in (1, 4, 2, 0, 3)))
            found.append(mx.flatten(mx.flatten(split, -2), -4, -2) << low)
            begin, low = begin + count, low + plane
        return reduce(mx.bitwise_or, found)


def _part(stored: mx.array, begin: int, size: int) -> mx.array:
    """``uint8[streams, n, kv_heads, 2, size]``, of both subblocks."""
    part = stored[..., begin : begin + PAGE // SUBBLOCK * size]
    return mx.contiguous(mx.unflatten(part, -1, (-1, size)))


def _split(words: mx.array, plane: int) -> mx.array:
    """The codes ``[..., place, half]`` of words."""
    places = mx.arange(_HALF // plane, dtype=mx.uint32) * plane
    halves = mx.arange(2, dtype=mx.uint32) * _HALF
    return (words[..., None, None] >> (places[:, None] + halves)) & ((1 << plane) - 1)


def _cells(found: mx.array) -> mx.array:
    """``[streams, n, kv_heads, 2, 32, size]`` with all cells of a head side by side."""
    return mx.flatten(found.swapaxes(1, 2), 2, 4)
