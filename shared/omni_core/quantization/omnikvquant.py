"""The codec ``omnikvquant``: ranges from least to largest, levels of a Gaussian.

Source: Yoo et al., "OmniKVQuant: KV Cache Quantization for Omni-LLMs", section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.quantization import codebooks, mxfp4
from omni_core.quantization.key_codes import KeyCodes, extent, relative
from omni_core.quantization.key_feedback import Feedback

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_LEAST_SPAN = np.float32(1e-12)


@dataclass(frozen=True)
class OmniKVQuant:
    """The paper's codec, to the constant; implements :class:`~omni_core.quantization.codec.Codec`.

    3 and 4 bits take the Lloyd-Max levels of as many, as 2 bits do.
    """

    bits: int
    name: str = "omnikvquant"

    @property
    def key_levels(self) -> Float32:
        """From 0 to 1, so that a key's offset is its channel's least."""
        return codebooks.in_unit_range(self.bits)[0]

    @property
    def value_levels(self) -> Float32:
        """Lloyd-Max levels of a Gaussian."""
        return codebooks.lloyd_max(self.bits)

    @property
    def value_bounds(self) -> Float32:
        """Half way between the levels."""
        return codebooks.middles(self.value_levels)

    def encode_keys(self, x: Float32, live: Bool, feedback: Feedback | None) -> KeyCodes:
        """Codes of ``x[kv_heads, 32, D]``; the paper has no feedback, so none is used."""
        least, most = extent(x, live)
        wide = np.maximum(most - least, _LEAST_SPAN)
        exponents = mxfp4.exponents(least), mxfp4.exponents(wide)
        offsets, spans = mxfp4.encode(least, exponents[0]), mxfp4.encode(wide, exponents[1])
        offset, span = mxfp4.decode(offsets, exponents[0]), mxfp4.decode(spans, exponents[1])
        bounds = codebooks.in_unit_range(self.bits)[1]
        codes = np.searchsorted(bounds, relative(x - offset[:, None], span), side="right")
        return KeyCodes(codes.astype(np.uint8), offsets, spans, *exponents)
