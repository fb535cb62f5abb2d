"""Sealed pages among bytes of nothing, and what a backend must read of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from omni_core.backend import PAGE, ArenaLayout
from omni_core.quantization import (
    Codec,
    LayerTables,
    SealedSubblock,
    codec,
    decode_values,
    seal,
    store,
)
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Modality

KV_HEADS = 2


@dataclass(frozen=True)
class Pages:
    """Three pages of one layer.

    Attributes:
        layout, tables: of their arena, and of the layer.
        stored: ``uint8[1, 3, KV_HEADS, bytes]``.
        live: ``bool[3, 2, 32]``.
        coded: subblocks that hold anything, by page and half.
    """

    layout: ArenaLayout
    tables: LayerTables
    codec: Codec
    stored: np.ndarray
    live: np.ndarray
    coded: dict[tuple[int, int], SealedSubblock]

    @staticmethod
    def of(name: str, bits: int, head_dim: int) -> Pages:
        """Pages of a codec: full subblocks, short ones and empty ones."""
        layout = ArenaLayout(2, 1, 1, KV_HEADS, head_dim, 1, 3, bits, name)
        plain, chosen = LayerTables.uncalibrated(0, KV_HEADS, head_dim), codec(name, bits)
        draw = np.random.default_rng(bits)
        means = draw.normal(size=(KV_HEADS, head_dim)).astype(np.float32)
        tables = replace(plain, key_means=means)
        # Bytes of nothing: not a number, and dead.
        stored = np.full((1, 3, KV_HEADS, layout.sealed.bytes), 255, np.uint8)
        live = np.zeros((3, 2, 32), np.bool_)
        coded = {}
        for page, half, count in ((0, 0, 32), (0, 1, 7), (1, 0, 1), (2, 1, 32)):
            pair = draw.normal(size=(2, count, KV_HEADS, head_dim))
            coded[page, half] = seal(*pair, Modality.AUDIO, chosen, tables)
            store(coded[page, half], layout.sealed, stored[0, page], half)
            live[page, half, :count] = True
        return Pages(layout, tables, chosen, stored, live, coded)

    def check(self, keys: np.ndarray, values: np.ndarray, undone: np.ndarray) -> None:
        """What was read, ``[1, KV_HEADS, 3 * PAGE, D]``: keys, values, and these turned back."""
        head_dim = self.layout.head_dim
        assert keys.shape == values.shape == (1, KV_HEADS, 3 * PAGE, head_dim)
        shape = (KV_HEADS, 3, 2, 32, head_dim)
        keys, values, undone = (part.reshape(shape) for part in (keys, values, undone))
        means = (self.tables.key_means @ hadamard(head_dim))[:, None]
        for (page, half), found in self.coded.items():
            wanted = found.key_scales.astype(np.float32)[..., None] * found.keys.decode(
                self.codec.key_levels
            )
            np.testing.assert_allclose(keys[:, page, half], wanted + means, rtol=1e-6, atol=1e-5)
            scales = found.value_scales.astype(np.float32)[..., None]
            alive_here = self.live[page, half][:, None]
            levels = np.where(alive_here, scales * self.codec.value_levels[found.value_codes], 0)
            np.testing.assert_array_equal(values[:, page, half], levels)
            whole = decode_values(found, Modality.AUDIO, self.codec, self.tables)
            np.testing.assert_allclose(
                undone[:, page, half], np.where(alive_here, whole, 0), rtol=1e-4, atol=1e-5
            )
        assert not values[:, ~self.live].any()
