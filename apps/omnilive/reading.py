"""Reading command-line words: each reader's message says what the right form is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from omni_core.budget import parse_budget
from omni_core.errors import OmniError
from omni_core.layer_budgets import Blend
from omnilive.options import Ask, parse_ask

# More than any machine holds, or any stream lasts: what lies above is a slip of the hand.
_MOST_CELLS = 10**18
_MOST = 10**9
_SHOWN = 40


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the message of what could not be read."""

    def reader(text: str) -> Any:
        try:
            # What is not text in the terminal's encoding arrives as halves of characters.
            text.encode()
        except UnicodeEncodeError:
            raise argparse.ArgumentTypeError(
                f"{_short(text)} is not text in the terminal's encoding; set LC_ALL to a UTF-8 "
                "locale, as C.UTF-8"
            ) from None
        try:
            return read(text)
        except (ValueError, ArithmeticError, OmniError) as error:
            message = str(error).replace(repr(text), _short(text))
            raise argparse.ArgumentTypeError(message) from None

    return reader


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _read_budget(text: str) -> str:
    try:
        asked = parse_budget(text)
        most = max(asked.cells or 0, asked.bytes or 0)
    except (OverflowError, ValueError):
        most = _MOST_CELLS + 1
    if most > _MOST_CELLS:
        raise ValueError(f"budget {text!r} is more than any machine holds")
    return text


def _read_part(text: str) -> str:
    """A budget that may also be a share of the stream."""
    if "/" not in text:
        return _read_budget(text)
    try:
        part = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        part = Fraction(0)
    if not 0 < part <= 1:
        raise ValueError(f"budget {text!r} is no share of the stream; write one as 1/8")
    return text.strip()


def _read_ask(text: str) -> Ask:
    timed = parse_ask(text)
    if timed.time > _MOST:
        raise ValueError(f"{text!r} asks later than any stream lasts, which is {_MOST} s at most")
    return timed


def _number(low: float, what: str, kind: type, high: float = _MOST) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"{text!r} is not {what}")
        return number

    return _typed(read)


def _read_blend(text: str) -> tuple[float, float]:
    """Two weights of layer budgets."""
    found = text.split(",")
    try:
        structural, dynamic = map(float, found)
    except ValueError:
        raise ValueError(f"{text!r} is not two weights; write S,E, as in 0.775,0.025") from None
    Blend(structural, dynamic)
    return structural, dynamic


ask = _typed(_read_ask)
blend = _typed(_read_blend)
budget = _typed(_read_budget)
part = _typed(_read_part)
count = _number(1, f"a whole number from 1 to {_MOST}", int)
seed = _number(0, f"a whole number from 0 to {2**64 - 1}", int, 2**64 - 1)
likeness = _number(0.001, "a similarity from 0.001 to 1", float, 1.0)
share = _number(0.001, "a share from 0.001 to 1", float, 1.0)
temperature = _number(0, f"a number from 0 to {_MOST}", float)
seconds = _number(0.001, f"a number of seconds above 0, at most {_MOST}", float)
text = _typed(str)
