"""Where everything lies in a sealed page: 64 cells of one key/value head of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.quantization import mxfp4
from omni_core.quantization.hadamard import block_size
from omni_core.quantization.packing import key_words, value_words

_ALIGNED = 16
_SUBBLOCKS = PAGE // SUBBLOCK
_WORD = 4


@dataclass(frozen=True)
class SealedLayout:
    """Offsets and sizes in bytes, little-endian throughout.

    A page of a layer is ``kv_heads`` stretches of :attr:`bytes`, one head after another. Each part
    of a stretch holds the first subblock's bytes, then the second's. Parts begin at multiples of 16
    bytes, and so do both subblocks' codes, ranges and scales. At 128 channels and 2 bits a stretch
    has 4,624 bytes and no padding.

    | part | a subblock | what |
    |---|---|---|
    | key_codes | ``uint32[key_words]`` | :func:`omni_core.quantization.packing.pack_keys` |
    | value_codes | ``uint32[value_words]`` | :func:`omni_core.quantization.packing.pack_values` |
    | ranges | ``uint8[D]`` | MXFP4 codes of a channel: offset in the low half, span in the high |
    | key_scales | ``float16[32]`` | the key's norm |
    | value_scales | ``float16[32]`` | the value's norm over that of its levels |
    | exponents | ``uint8[blocks, 2]`` | of 32 channels each: the offsets', the spans' |

    Attributes:
        head_dim: channels, a multiple of 16.
        bits: of a code: 2, 3 or 4.

    Raises:
        OmniError: another ``head_dim`` or number of bits.
    """

    head_dim: int
    bits: int

    def __post_init__(self) -> None:
        block_size(self.head_dim)
        key_words(self.head_dim, self.bits)

    @property
    def key_code_bytes(self) -> int:
        """Of a subblock."""
        return _WORD * key_words(self.head_dim, self.bits)

    @property
    def value_code_bytes(self) -> int:
        """Of a subblock."""
        return _WORD * value_words(self.head_dim, self.bits)

    @property
    def range_bytes(self) -> int:
        """Of a subblock."""
        return self.head_dim

    @property
    def scale_bytes(self) -> int:
        """Of a subblock's keys, or values."""
        return 2 * SUBBLOCK

    @property
    def exponent_bytes(self) -> int:
        """Of a subblock."""
        return 2 * mxfp4.blocks(self.head_dim)

    @property
    def key_codes(self) -> int:
        """Where they begin."""
        return 0

    @property
    def value_codes(self) -> int:
        """Where they begin."""
        return _SUBBLOCKS * self.key_code_bytes

    @property
    def ranges(self) -> int:
        """Where they begin."""
        return self.value_codes + _SUBBLOCKS * self.value_code_bytes

    @property
    def key_scales(self) -> int:
        """Where they begin."""
        return self.ranges + _SUBBLOCKS * self.range_bytes

    @property
    def value_scales(self) -> int:
        """Where they begin."""
        return self.key_scales + _SUBBLOCKS * self.scale_bytes

    @property
    def exponents(self) -> int:
        """Where they begin."""
        return self.value_scales + _SUBBLOCKS * self.scale_bytes

    @property
    def bytes(self) -> int:
        """Of a page and a head: a multiple of 16."""
        used = self.exponents + _SUBBLOCKS * self.exponent_bytes
        return -(-used // _ALIGNED) * _ALIGNED

    @property
    def key_bits(self) -> float:
        """Bits that an element of a key takes, all told but padding."""
        used = self.key_code_bytes + self.range_bytes + self.scale_bytes + self.exponent_bytes
        return 8 * used / (SUBBLOCK * self.head_dim)

    @property
    def value_bits(self) -> float:
        """Bits that an element of a value takes, all told but padding."""
        return 8 * (self.value_code_bytes + self.scale_bytes) / (SUBBLOCK * self.head_dim)

    @property
    def share(self) -> float:
        """Bytes of a sealed page for each of a page of 16 bits, padding included."""
        return self.bytes / (2 * 2 * PAGE * self.head_dim)
