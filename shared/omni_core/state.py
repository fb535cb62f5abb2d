"""Reading state that was saved as JSON: what cannot be is a ValueError, never another value."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_MOST = 2**62
_Number = TypeVar("_Number", bound=np.signedinteger | np.floating)


def expect(holds: bool, what: str) -> None:
    """Refuse state of which something does not hold.

    Raises:
        ValueError: naming what was expected.
    """
    if not holds:
        raise ValueError(f"expected {what}")


def whole(value: Any, least: int = 0, most: int = _MOST) -> int:
    """A whole number.

    Raises:
        ValueError: something else, or out of range.
    """
    expect(type(value) is int and least <= value <= most, f"a whole number of at least {least}")
    return int(value)


def number(value: Any) -> float:
    """A finite number of at least 0.

    Raises:
        ValueError: something else.
    """
    expect(type(value) in (int, float) and 0 <= value < float("inf"), "a number of at least 0")
    return float(value)


def text(value: Any) -> str:
    """A text.

    Raises:
        ValueError: something else.
    """
    expect(type(value) is str, "a text")
    return str(value)


def flag(value: Any) -> bool:
    """True or false.

    Raises:
        ValueError: something else.
    """
    expect(type(value) is bool, "true or false")
    return bool(value)


def listed(
    values: Any, dtype: type[_Number], size: int | None, least: int = 0
) -> npt.NDArray[_Number]:
    """A list of ``size`` numbers as an array; of any size where that is None.

    Raises:
        ValueError: something else, or numbers that the dtype cannot hold.
    """
    kind = int if issubclass(dtype, np.signedinteger) else float
    expect(type(values) is list and size in (None, len(values)), f"a list of {size} numbers")
    expect(all(type(value) is kind for value in values), f"a list of {kind.__name__}")
    found = np.asarray(values, np.int64 if kind is int else np.float64)
    made = found.astype(dtype)
    expect(bool((made == found).all()), f"numbers that fit {dtype.__name__}")
    expect(bool((found >= least).all()), f"numbers of at least {least}")
    return made
