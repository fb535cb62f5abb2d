"""Reading fields of a JSON object by type: what is missing or cannot be is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import Repr
from typing import Any

from omni_core.errors import CheckpointError

MOST = 2**31 - 1
"""The largest whole number that a field may hold unless told otherwise."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(frozen=True)
class Fields:
    """A JSON object of a checkpoint. JSON's null counts as missing.

    Attributes:
        where: file and section, as errors name them: ``config.json: text_config``.
        values: the object.
    """

    where: str
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether the field is stated."""
        return self.values.get(name) is not None

    def whole(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        """A whole number from ``least`` to ``most``.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        value = self._value(name, default)
        if not _is_whole(value, least, most):
            raise self.wrong(name, value, _whole(least, most))
        return int(value)

    def wholes(self, name: str, *, least: int = 1, most: int = MOST) -> tuple[int, ...]:
        """A list of whole numbers, each from ``least`` to ``most``.

        Raises:
            CheckpointError: missing, or something else.
        """
        values = self._value(name, None)
        if not isinstance(values, list) or not all(_is_whole(n, least, most) for n in values):
            raise self.wrong(name, values, f"a list, in it each {_whole(least, most)}")
        return tuple(values)

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        least: float = 0.0,
        most: float = math.inf,
    ) -> float:
        """A finite number above 0, from ``least`` to ``most``.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        value = self._value(name, default)
        if not is_number(value) or value <= 0 or not least <= value <= most:
            raise self.wrong(name, value, _range(least, most))
        return float(value)

    def numbers(
        self, name: str, default: tuple[float, ...], *, positive: bool = False
    ) -> tuple[float, ...]:
        """As many finite numbers as the default has, all above 0 where ``positive``.

        Raises:
            CheckpointError: something else.
        """
        values = self._value(name, list(default))
        if (
            not isinstance(values, list)
            or len(values) != len(default)
            or not all(is_number(n) and (n > 0 or not positive) for n in values)
        ):
            kind = "numbers above 0" if positive else "finite numbers"
            raise self.wrong(name, values, f"a list of {len(default)} {kind}")
        return tuple(float(n) for n in values)

    def flag(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            CheckpointError: something else.
        """
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def section(self, name: str, *, optional: bool = False) -> Fields:
        """An object; an empty one where it is missing and ``optional``.

        Raises:
            CheckpointError: missing, or something else.
        """
        value = self._value(name, {} if optional else None)
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Fields(f"{self.where}: {name}", value)

    def only(self, name: str, supported: Any) -> None:
        """Refuse any value but one, where the field is stated.

        Raises:
            CheckpointError: another value.
        """
        value = self._value(name, supported)
        if isinstance(value, bool) != isinstance(supported, bool) or value != supported:
            raise self.wrong(name, value, f"{shown(supported)}, all that is supported")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(
                f"{self.where}: `{name}` is missing; it has no safe default: use the file that was "
                "released with the weights"
            )
        return default

    def wrong(self, name: str, value: Any, expected: str) -> CheckpointError:
        """The error of a field that holds something else than ``expected``."""
        return CheckpointError(
            f"{self.where}: `{name}` is {shown(value)}, expected {expected}: use the file that was "
            "released with the weights"
        )


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def shown(value: Any) -> str:
    """A found value as an error shows it: on one line, shortened, nothing that a terminal obeys."""
    return _SHORT.repr(value)


def plain(name: str) -> str:
    """A name out of a file as an error shows it: as it is, or escaped where it would not print."""
    return name if name.isprintable() else ascii(name)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(least: int, most: int) -> str:
    if most < MOST:
        return f"a whole number from {least} to {most}"
    return f"a whole number above {least - 1}" if least else "a whole number, 0 or above"


def _range(least: float, most: float) -> str:
    above = f"of at least {least:g}" if least else "above 0"
    return f"a finite number {above}" + ("" if math.isinf(most) else f" and at most {most:g}")
