"""Arrays of the kernels' dtypes in NumPy: numbers of bfloat16 stand as their bits in uint16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

_NAN = {"float32": 0x7FC12345, "float16": 0x7E55, "bfloat16": 0x7FD5}


@dataclass(frozen=True)
class Sparse:
    """An input too large to be held: zeros but for some pieces.

    Attributes:
        shape: as a whole.
        pieces: by the number of the first element, row by row.
    """

    shape: tuple[int, ...]
    pieces: Mapping[int, AnyArray]


def holder(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype for it."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def bits(x: AnyArray) -> npt.NDArray[np.unsignedinteger]:
    """The bits of each number."""
    return x.view(f"u{x.itemsize}")


def stored(x: npt.ArrayLike, dtype: str) -> AnyArray:
    """Numbers as that dtype holds them, rounded to nearest, ties to even."""
    x = np.asarray(x)
    if dtype != "bfloat16":
        return x.astype(dtype)
    wide = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def read(x: AnyArray, dtype: str) -> npt.NDArray[np.float64]:
    """The numbers of an array of that dtype."""
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # A signalling NaN becomes a quiet one.
        return x.astype(np.float64)


def nan(shape: tuple[int, ...], dtype: str) -> AnyArray:
    """Not-a-numbers of a bit pattern of their own: what was not written still has it."""
    pattern = np.full(shape, _NAN[dtype], f"u{holder(dtype).itemsize}")
    return pattern.view(holder(dtype))


def untouched(x: AnyArray, dtype: str) -> npt.NDArray[np.bool_]:
    """Where :func:`nan` still stands."""
    found: npt.NDArray[np.bool_] = bits(x) == _NAN[dtype]
    return found
