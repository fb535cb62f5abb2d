"""Codecs of keys and values that others have, beside ours, for one harness.

Each takes what is sealed together, 32 tokens of a layer, and gives what attention would read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.backend import SUBBLOCK
from omni_core.quantization import (
    Codec,
    LayerTables,
    SealedLayout,
    decode_keys,
    decode_values,
    seal,
)
from omni_core.quantization.codebooks import lloyd_max, middles
from omni_core.quantization.hadamard import rotate
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]
_HALF, _GROUP = 16, 32
"""Bits of a scale; channels of a value that share a range under KIVI."""


class Method(Protocol):
    """A codec under comparison."""

    @property
    def name(self) -> str:
        """For rows."""
        ...

    @property
    def bits(self) -> int:
        """Of a code."""
        ...

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """Bits that an element of a key and of a value takes, scales and ranges included."""
        ...

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """Keys and values ``float32[32, kv_heads, D]`` as they are read again."""
        ...


@dataclass(frozen=True)
class Ours:
    """A sealed page's codec, with a layer's tables each."""

    codec: Codec
    tables: Sequence[LayerTables]
    name: str

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.codec.bits

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """As the layout has it."""
        layout = SealedLayout(head_dim, self.bits)
        return layout.key_bits, layout.value_bits

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """Sealed and read again."""
        tables = self.tables[layer]
        sealed = seal(keys, values, modality, self.codec, tables)
        count = len(keys)
        found = decode_keys(sealed, self.codec, tables)
        mixed = decode_values(sealed, modality, self.codec, tables)
        return found.swapaxes(0, 1)[:count], mixed.swapaxes(0, 1)[:count]


@dataclass(frozen=True)
class TurboQuant:
    """One Hadamard rotation and a fixed codebook for unit vectors (arXiv 2504.19874)."""

    bits: int
    name: str = "TurboQuant-like"

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """A norm a vector."""
        own = self.bits + _HALF / head_dim
        return own, own

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """Keys and values alike."""
        return self._coded(keys), self._coded(values)

    def _coded(self, x: Float32) -> Float32:
        levels = lloyd_max(self.bits)
        norm = _half(np.linalg.norm(x, axis=-1, keepdims=True))
        root = np.float32(x.shape[-1] ** 0.5)
        unit = rotate(x) / np.maximum(norm, 1e-12) * root
        near = levels[np.searchsorted(middles(levels), unit, side="right")]
        return rotate(near * norm / root)


@dataclass(frozen=True)
class Kivi:
    """Ranges of keys a channel over tokens, of values a token over channels (arXiv 2402.02750)."""

    bits: int
    name: str = "KIVI-like"

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """Two numbers a range of 32."""
        own = self.bits + 2 * _HALF / _GROUP
        return own, own

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """No rotation."""
        parts = values.reshape(*values.shape[:-1], -1, min(_GROUP, values.shape[-1]))
        return _ranged(keys, self.bits, 0), _ranged(parts, self.bits, -1).reshape(values.shape)


@dataclass(frozen=True)
class RoundToNearest:
    """A range a token and head."""

    bits: int
    name: str = "round to nearest"

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """Two numbers a vector."""
        own = self.bits + 2 * _HALF / head_dim
        return own, own

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """Keys and values alike."""
        return _ranged(keys, self.bits, -1), _ranged(values, self.bits, -1)


@dataclass(frozen=True)
class NormScaled:
    """Rotated keys of norm 1 in ranges of their channels: OScaR's idea (arXiv 2605.19660)."""

    bits: int
    name: str = "norm-scaled channels"

    def stored_bits(self, head_dim: int) -> tuple[float, float]:
        """A key's norm and a range of 32; of a value two numbers a vector."""
        return (
            self.bits + 2 * _HALF / SUBBLOCK + _HALF / head_dim,
            self.bits + 2 * _HALF / head_dim,
        )

    def __call__(
        self, layer: int, keys: Float32, values: Float32, modality: Modality
    ) -> tuple[Float32, Float32]:
        """Values are rotated, too, in a range a vector."""
        norm = _half(np.linalg.norm(keys, axis=-1, keepdims=True))
        unit = rotate(keys) / np.maximum(norm, 1e-12)
        return (
            rotate(_ranged(unit, self.bits, 0) * norm),
            rotate(_ranged(rotate(values), self.bits, -1)),
        )


def rivals(bits: int) -> list[Method]:
    """All that are not ours."""
    return [TurboQuant(bits), Kivi(bits), RoundToNearest(bits), NormScaled(bits)]


def _ranged(x: Float32, bits: int, axis: int) -> Float32:
    """The nearest of uniform levels from the least to the largest along an axis."""
    least = _half(x.min(axis=axis, keepdims=True))
    step = _half((x.max(axis=axis, keepdims=True) - least) / (2**bits - 1))
    codes = np.rint((x - least) / np.where(step > 0, step, 1))
    return least + step * np.clip(codes, 0, 2**bits - 1).astype(np.float32)


def _half(x: Float32) -> Float32:
    return x.astype(np.float16).astype(np.float32)
