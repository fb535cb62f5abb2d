"""The codecs by name: what a sealed page's codes mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.quantization.fitted import Fitted
from omni_core.quantization.key_codes import KeyCodes
from omni_core.quantization.key_feedback import Feedback
from omni_core.quantization.omnikvquant import OmniKVQuant
from omni_core.quantization.packing import planes

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class Codec(Protocol):
    """How rotated, normalised numbers become codes; the format around them is the same for all."""

    @property
    def bits(self) -> int:
        """Bits of a code: 2, 3 or 4."""
        ...

    @property
    def name(self) -> str:
        """Its name in :data:`CODECS`."""
        ...

    @property
    def key_levels(self) -> Float32:
        """What each code of a key says, in spans above the offset: ``float32[2**bits]``."""
        ...

    @property
    def value_levels(self) -> Float32:
        """What each code of a value says, before its cell's scale: ``float32[2**bits]``."""
        ...

    @property
    def value_bounds(self) -> Float32:
        """Between the levels, ``float32[2**bits - 1]``, of coordinates of variance 1."""
        ...

    def encode_keys(self, x: Float32, live: Bool, feedback: Feedback | None) -> KeyCodes:
        """Offsets, spans and codes of a subblock.

        Args:
            x: ``float32[kv_heads, 32, D]``, keys of norm 1, rotated by Hadamard.
            live: ``bool[kv_heads, 32]``, the cells that the ranges are to fit.
            feedback: see :mod:`omni_core.quantization.key_feedback`.
        """
        ...


CODECS: dict[str, Callable[[int], Codec]] = {"fitted": Fitted, "omnikvquant": OmniKVQuant}
DEFAULT = "fitted"


def codec(name: str = DEFAULT, bits: int = 2) -> Codec:
    """A codec by name.

    Raises:
        OmniError: no codec has that name, or codes cannot have so many bits.
    """
    planes(bits)
    if name not in CODECS:
        raise OmniError(f"there is no codec {name!r}; choose one of {', '.join(CODECS)}")
    return CODECS[name](bits)
