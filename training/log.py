"""The training log: one JSON object a line, on disk and on the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Log:
    """Appends to ``folder/log.jsonl``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "log.jsonl"
        self._start = time.monotonic()

    def write(self, event: str, **values: Any) -> None:
        """One line with the seconds since the start."""
        line = {"event": event, "t": round(time.monotonic() - self._start, 1)} | rounded(values)
        text = json.dumps(line)
        print(text, flush=True)
        with self._file.open("a") as file:
            file.write(text + "\n")


def rounded(value: Any) -> Any:
    """Floats to four digits after the point, all through lists and dictionaries."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def read(folder: Path) -> list[dict[str, Any]]:
    """All lines of a folder's log."""
    file = folder / "log.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]
