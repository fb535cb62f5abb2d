"""What both codecs make of a subblock's keys, and how it is read: an offset, a span and codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.quantization import mxfp4

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeyCodes:
    """A subblock of rotated, normalised keys: ``offset[d] + span[d] * level[code[cell, d]]``.

    Attributes:
        codes: ``uint8[kv_heads, 32, D]``.
        offsets, spans: MXFP4 codes ``uint8[kv_heads, D]``.
        offset_exponents, span_exponents: ``uint8[kv_heads, blocks]``.
    """

    codes: UInt8
    offsets: UInt8
    spans: UInt8
    offset_exponents: UInt8
    span_exponents: UInt8

    def ranges(self) -> tuple[Float32, Float32]:
        """Offset and span ``float32[kv_heads, D]`` as they are read."""
        offset = mxfp4.decode(self.offsets, self.offset_exponents)
        return offset, mxfp4.decode(self.spans, self.span_exponents)

    def decode(self, levels: Float32) -> Float32:
        """The keys ``float32[kv_heads, 32, D]``, still rotated and of norm about 1."""
        offset, span = self.ranges()
        return offset[:, None] + span[:, None] * levels[self.codes]


def extent(x: Float32, live: Bool) -> tuple[Float32, Float32]:
    """Least and largest ``float32[kv_heads, D]`` of ``x[kv_heads, cells, D]`` over live cells.

    ``live[kv_heads, cells]``; both are 0 in a head without any, so that a cell that is not live,
    whatever it holds, draws no range towards it.
    """
    some: Bool = np.any(live, axis=1, keepdims=True)
    least = np.where(live[..., None], x, np.inf).min(axis=1)
    most = np.where(live[..., None], x, -np.inf).max(axis=1)
    return np.where(some, least, 0).astype(np.float32), np.where(some, most, 0).astype(np.float32)


def relative(x: Float32, span: Float32) -> Float32:
    """``x[kv_heads, cells, D] / span[kv_heads, D]``, and 0 where a span is 0."""
    wide = span[:, None]
    return np.divide(x, wide, out=np.zeros_like(x), where=wide > 0)
