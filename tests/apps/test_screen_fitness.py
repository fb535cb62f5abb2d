"""Where no screen can be shown, the reason is one line, and rich is not needed to say it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

UNFIT = """
import os, sys
{before}
for stream in (sys.stdin, sys.stdout):
    assert stream is not None
os.isatty = lambda _: True
os.get_terminal_size = lambda _: os.terminal_size({size})
from omnilive.screen.fitness import unfit
print(unfit())
"""


@pytest.mark.parametrize(
    ("before", "size", "reason"),
    [
        ("", (80, 24), "None"),
        (
            "sys.modules['rich'] = None",
            (80, 24),
            "the screen needs rich: pip install -e '.[live]' in the checkout",
        ),
        ("", (19, 24), "the terminal has 19 columns and 24 lines; the screen needs 20 and 4"),
        ("", (0, 0), "None"),
        (
            "os.name = 'nt'; import pathlib",
            (80, 24),
            "the screen needs a POSIX terminal; Windows is not supported",
        ),
        (
            "sys.modules['rich'] = None; os.environ.pop('TERM')",
            (80, 24),
            "the terminal cannot place text (TERM=dumb)",
        ),
    ],
)
def test_why_not(before: str, size: tuple[int, int], reason: str) -> None:
    pytest.importorskip("rich", reason="pip install -e '.[live]' in the checkout")
    done = subprocess.run(
        [sys.executable, "-c", UNFIT.format(before=before, size=size)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"},
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", f"{reason}\n")
