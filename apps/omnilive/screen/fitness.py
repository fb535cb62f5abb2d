"""Whether a screen can be shown here, and what the terminal can show."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnilive.screen.lines import Look

_COLUMNS, _LINES = 20, 4


def unfit() -> str | None:
    """Why there can be no screen, in a line; None if there can be one."""
    if os.name != "posix" or find_spec("termios") is None:
        return "the screen needs a POSIX terminal; Windows is not supported"
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        try:
            if stream is None or not os.isatty(stream.fileno()):
                return f"{name} is no terminal"
        except (OSError, ValueError):
            return f"{name} is no terminal"
    terminal = os.environ.get("TERM", "dumb")
    if terminal in ("dumb", "unknown", ""):
        return f"the terminal cannot place text (TERM={terminal})"
    if find_spec("rich") is None:
        return "the screen needs rich: pip install -e '.[live]' in the checkout"
    size = os.get_terminal_size(sys.stdout.fileno())
    if 0 < size.columns < _COLUMNS or 0 < size.lines < _LINES:
        return (
            f"the terminal has {size.columns} columns and {size.lines} lines; the screen needs "
            f"{_COLUMNS} and {_LINES}"
        )
    return None


def look() -> Look:
    """What the terminal of stdout can show; NO_COLOR is respected."""
    from rich.console import Console

    from omnilive.screen.lines import Look

    console = Console(file=sys.stdout)
    colours = None if console.no_color else console.color_system
    return Look(colours, "utf" in (sys.stdout.encoding or "").lower())
