"""A sealed subblock: its parts, and how they are stored in a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.quantization import packing
from omni_core.quantization.key_codes import KeyCodes
from omni_core.quantization.sealed_layout import SealedLayout

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SealedSubblock:
    """32 cells of one modality in one layer.

    Attributes:
        keys: offsets, spans and codes.
        key_scales: ``float16[kv_heads, 32]``; 0 in a cell that holds no token, or a key of 0.
        value_codes: ``uint8[kv_heads, 32, D]``.
        value_scales: ``float16[kv_heads, 32]``.
    """

    keys: KeyCodes
    key_scales: npt.NDArray[np.float16]
    value_codes: UInt8
    value_scales: npt.NDArray[np.float16]


def store(sealed: SealedSubblock, layout: SealedLayout, page: UInt8, subblock: int) -> None:
    """Write a subblock, 0 or 1, of ``page: uint8[kv_heads, layout.bytes]``."""
    keys, bits = sealed.keys, layout.bits
    exponents = np.stack([keys.offset_exponents, keys.span_exponents], axis=-1)
    parts: list[tuple[int, npt.NDArray[Any]]] = [
        (layout.key_codes, packing.pack_keys(keys.codes, bits).astype("<u4")),
        (layout.value_codes, packing.pack_values(sealed.value_codes, bits).astype("<u4")),
        (layout.ranges, keys.offsets | keys.spans << 4),
        (layout.key_scales, sealed.key_scales.astype("<f2")),
        (layout.value_scales, sealed.value_scales.astype("<f2")),
        (layout.exponents, exponents),
    ]
    for begin, part in parts:
        found = np.ascontiguousarray(part).view(np.uint8).reshape(len(page), -1)
        begin += subblock * found.shape[1]
        page[:, begin : begin + found.shape[1]] = found


def load(layout: SealedLayout, page: UInt8, subblock: int) -> SealedSubblock:
    """Read a subblock, 0 or 1, of ``page: uint8[kv_heads, layout.bytes]``."""

    def part(begin: int, size: int, dtype: str) -> npt.NDArray[Any]:
        begin += subblock * size
        return np.ascontiguousarray(page[:, begin : begin + size]).view(dtype)

    size, bits = layout.head_dim, layout.bits
    ranges = part(layout.ranges, layout.range_bytes, "u1")
    exponents = part(layout.exponents, layout.exponent_bytes, "u1").reshape(len(page), -1, 2)
    key_words = part(layout.key_codes, layout.key_code_bytes, "<u4")
    value_words = part(layout.value_codes, layout.value_code_bytes, "<u4")
    keys = KeyCodes(
        packing.unpack_keys(key_words, size, bits),
        ranges & np.uint8(15),
        ranges >> np.uint8(4),
        exponents[..., 0],
        exponents[..., 1],
    )
    key_scales = part(layout.key_scales, layout.scale_bytes, "<f2")
    value_scales = part(layout.value_scales, layout.scale_bytes, "<f2")
    value_codes = packing.unpack_values(value_words, size, bits)
    return SealedSubblock(keys, key_scales, value_codes, value_scales)
