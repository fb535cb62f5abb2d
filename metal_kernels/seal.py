"""The launch that seals: cells of 16 bits become the bytes of sealed pages.

Pages come back in memory of MLX's own, as they were but for the halves that are sealed: nothing is
written in place, so that what is refused has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metal_kernels.launch import CONSTANT_BELOW, SIMDGROUP, Array, Kernel, Launch, grid_of
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.quantization import Codec, SealedLayout
from omni_core.quantization.fitted import DRAWN_IN, WIDER
from omni_core.units import Int32, Modality

STORE = Kernel(
    "sealed_store",
    (
        *("keys", "values", "before", "cells", "kinds", "means", "rotations", "feedback"),
        *("bounds", "numbers", "about"),
    ),
    ("made", "faults", "kept"),
    ("T", "D", "BITS", "FED"),
    frozenset({"numbers", "about"}),
)

CODEC = "fitted"
"""The codec that is sealed by: another is the host's."""

_BOUNDS = 16
NO_FEEDBACK = np.zeros(CONSTANT_BELOW, np.float32)
"""Stands where keys are coded without."""


@dataclass(frozen=True)
class Sealing:
    """What is sealed of a layer.

    Attributes:
        layout: of a sealed page.
        streams, kv_heads: of the arena.
        pages: of 16 bits.
        sealed: pages that are written to.
        fed: whether keys are coded with feedback.
        dtype: of the arena.
    """

    layout: SealedLayout
    streams: int
    kv_heads: int
    pages: int
    sealed: int
    fed: bool
    dtype: str


def store_sealed(of: Sealing) -> Launch:
    """The launch for a layer.

    Its inputs:

    - ``keys`` and ``values``, a layer that lies as ``[streams, pages, kv_heads, PAGE, head_dim]``;
    - ``before uint8[streams, sealed, kv_heads, layout.bytes]``, the pages as they are;
    - ``cells int32[sealed, 2, SUBBLOCK]`` and ``kinds int32[max(2 * sealed, 8)]`` of
      :func:`halves`;
    - ``means float32[kv_heads, head_dim]``, taken from keys, ``rotations float32[modalities,
      kv_heads, head_dim, head_dim]``, and ``feedback float32[kv_heads, head_dim, head_dim]`` or
      :data:`NO_FEEDBACK`, of the layer's :class:`~omni_core.quantization.LayerTables`;
    - ``bounds`` and ``about`` of :func:`codec_numbers`, ``numbers`` of :func:`numbers`.

    It gives ``made``, the pages; ``faults``, for each half and head 0, or 1 where a number is not
    finite, 2 where a value is too large; and ``kept``, of no use to anybody.
    """
    layout, size = of.layout, of.layout.head_dim
    threads = (SIMDGROUP, 1, 1)
    groups = 2 * of.sealed, of.kv_heads * of.streams, 1
    many = groups[0] * groups[1]
    arena = Array((of.streams, of.pages, of.kv_heads, PAGE, size), of.dtype)
    stored = Array((of.streams, of.sealed, of.kv_heads, layout.bytes), "uint8")
    squares = of.kv_heads, size, size
    return Launch(
        STORE,
        (of.dtype, size, layout.bits, of.fed),
        grid_of(groups, threads),
        threads,
        (
            arena,
            arena,
            stored,
            Array((of.sealed, 2, SUBBLOCK), "int32"),
            Array((max(CONSTANT_BELOW, 2 * of.sealed),), "int32"),
            Array((of.kv_heads, size), "float32"),
            Array((len(Modality), *squares), "float32"),
            Array(squares if of.fed else NO_FEEDBACK.shape, "float32"),
            Array((_BOUNDS,), "float32"),
            Array((3,), "int32"),
            Array((3,), "float32"),
        ),
        (
            stored,
            Array((max(CONSTANT_BELOW, many),), "int32"),
            Array((many, size, SUBBLOCK) if of.fed else (CONSTANT_BELOW,), "float32"),
        ),
    )


def numbers(of: Sealing) -> Int32:
    """The input of that name, sizes of the launch."""
    return np.asarray([of.pages, of.kv_heads, of.sealed], np.int32)


def codec_numbers(codec: Codec, head_dim: int) -> dict[str, npt.NDArray[np.float32]]:
    """``bounds float32[16]`` and ``about float32[3]`` of a codec, which is :data:`CODEC`."""
    bits, bounds = codec.bits, codec.value_bounds
    drawn = np.float32((1 - 2 * DRAWN_IN[bits]) / np.float32(2**bits - 1))
    about = [drawn, np.float32(WIDER[bits]), np.float32(head_dim**0.5)]
    return {
        "bounds": np.pad(bounds, (0, _BOUNDS - bounds.size)),
        "about": np.asarray(about, np.float32),
    }


def halves(
    source: Int32, target: Int32, modality: npt.NDArray[np.integer]
) -> tuple[Int32, Int32, Int32]:
    """Pages ``int32[p]`` that are written to, and what is sealed in their halves.

    Args:
        source: ``int32[n, SUBBLOCK]``, cells, filled ones first; -1 is none.
        target: ``int32[n]``, subblocks ``page * 2 + half``.
        modality: of each.

    Returns:
        The pages, ``cells int32[p, 2, SUBBLOCK]`` and ``kinds int32[max(2 * p, 8)]``.
    """
    pages, at = np.unique(target // 2, return_inverse=True)
    cells = np.full((pages.size, 2, SUBBLOCK), -1, np.int32)
    kinds = np.zeros(max(CONSTANT_BELOW, 2 * pages.size), np.int32)
    cells[at, target % 2] = source
    kinds[2 * at + target % 2] = modality
    return pages.astype(np.int32), cells, kinds
