"""Sealed pages: keys and values of 2, 3 or 4 bits, as both twins store and read them."""

from omni_core.quantization.codec import CODECS, DEFAULT, Codec, codec
from omni_core.quantization.sealed_layout import SealedLayout
from omni_core.quantization.sealing import (
    LayerTables,
    decode_keys,
    decode_values,
    digest,
    seal,
)
from omni_core.quantization.subblock import SealedSubblock, load, store

__all__ = [
    "CODECS",
    "DEFAULT",
    "Codec",
    "LayerTables",
    "SealedLayout",
    "SealedSubblock",
    "codec",
    "decode_keys",
    "decode_values",
    "digest",
    "load",
    "seal",
    "store",
]
