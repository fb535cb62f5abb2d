"""The system's own programs that speak."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from omnilive.speech import SpeechError

CHOICE = "OMNILIVE_VOICE"
"""Environment variable that names another program, with its options, as ``espeak-ng -v de``."""


@dataclass(frozen=True)
class Program:
    """How a sentence is spoken: by a program of its own, which ends when it was said.

    Attributes:
        command: the program and its options.
        piped: the sentence goes to its standard input, else it becomes the last argument.
        hush: what silences it, where ending the program does not.
    """

    command: tuple[str, ...]
    piped: bool = True
    hush: tuple[str, ...] | None = None

    def example(self) -> str:
        """A line for a shell that says hello."""
        if self.piped:
            return f"echo hello | {shlex.join(self.command)}"
        return f"{shlex.join(self.command)} hello"


# What each is told so that it speaks a text that it does not take for options.
_OPTIONS = {
    "say": ("-f", "-"),
    "espeak-ng": ("--stdin",),
    "espeak": ("--stdin",),
    "spd-say": ("--wait", "--"),
}


def find_program() -> Program:
    """The program that ``OMNILIVE_VOICE`` names, else the first of this system's that is there.

    A program that is not known here has to read the text from its standard input.

    Raises:
        SpeechError: there is none.
    """
    chosen = os.environ.get(CHOICE, "")
    try:
        words = shlex.split(chosen)
    except ValueError as error:
        raise SpeechError(
            f"{CHOICE} is {chosen!r}, which is no command ({error}): close its quotes"
        ) from None
    if words:
        if shutil.which(words[0]) is None:
            raise SpeechError(f"{CHOICE} names {words[0]!r}, which is no program that is here")
        return _program(words)
    names = ("say",) if sys.platform == "darwin" else ("espeak-ng", "espeak", "spd-say")
    for name in names:
        if shutil.which(name) is not None:
            return _program([name])
    raise SpeechError(
        f"no program that speaks was found ({', '.join(names)}): install espeak-ng (Debian, "
        f"Ubuntu: apt install espeak-ng), or name another in {CHOICE}"
    )


def _program(words: list[str]) -> Program:
    name = Path(words[0]).name
    command = (*words, *_OPTIONS.get(name, ()))
    if name == "spd-say":
        # It hands the text to a service, which speaks on when the program has gone.
        return Program(command, piped=False, hush=(words[0], "--stop"))
    return Program(command)
