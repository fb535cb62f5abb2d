"""Timed questions from a JSON file, with their true answers where it gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_core.errors import OmniError
from omnilive.options import Ask


def read_questions(file: Path) -> tuple[Ask, ...]:
    """Read a list of questions, or an object whose ``questions`` is one.

    Each is an object with ``question``, its time as ``seconds`` or as ``time_stamp`` (``HH:MM:SS``,
    the form of StreamingBench), and, if known, ``answer``.

    Raises:
        OmniError: no such file, or an entry that is no question; names the entry.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OmniError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise OmniError(f"{file}: is no JSON: {error}") from None
    entries = data.get("questions") if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise OmniError(f"{file}: holds no list of questions")
    return tuple(_question(file, number, entry) for number, entry in enumerate(entries, 1))


def _question(file: Path, number: int, entry: Any) -> Ask:
    try:
        truth = entry.get("answer")
        return Ask(_seconds(entry), str(entry["question"]), None if truth is None else str(truth))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OmniError(
            f"{file}: entry {number} is no question with `question` and `seconds` or `time_stamp` "
            f"({error})"
        ) from None


def _seconds(entry: dict[str, Any]) -> float:
    if "seconds" in entry:
        seconds = float(entry["seconds"])
    else:
        seconds = 0.0
        for part in str(entry["time_stamp"]).split(":"):
            seconds = 60 * seconds + float(part)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds} s is no time of a stream")
    return seconds
