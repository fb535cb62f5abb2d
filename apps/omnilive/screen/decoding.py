"""What a terminal sends, as keys."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from omnilive.terminal import printable

_ESCAPE = "\x1b"
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b[^\[O\x1b]", re.DOTALL)
_BEGUN = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?")
_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x17": "word",
    "\x04": "end",
}
_OTHERS = {*_CONTROLS, _ESCAPE}
_LARGEST_PASTE = 1 << 16


@dataclass(frozen=True)
class Key:
    """A key: ``enter``, ``escape``, ``backspace``, ``clear``, ``word``, ``end``, or text.

    ``text`` and ``paste`` carry what was typed or pasted, without control characters.
    """

    name: str
    text: str = ""


class Decoder:
    """Bytes in, in pieces of any size, keys out. Sequences of other keys are passed over."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._characters = codecs.getincrementaldecoder(encoding)("replace")
        self._buffer = ""
        self._pasting = False

    @property
    def waiting(self) -> bool:
        """Whether what came last may be the Esc key or the beginning of another one."""
        return bool(self._buffer) and not self._pasting

    def feed(self, data: bytes) -> list[Key]:
        """Take bytes in and give the keys that are complete."""
        self._buffer += self._characters.decode(data)
        return list(self._keys())

    def flush(self) -> list[Key]:
        """Nothing followed: a single Esc was the key of that name."""
        if not self.waiting:
            return []
        buffer, self._buffer = self._buffer, ""
        return [Key("escape")] if buffer == _ESCAPE else []

    def _keys(self) -> Iterator[Key]:
        while self._buffer:
            if self._pasting:
                text, found, rest = self._buffer.partition(_PASTED)
                if not found and len(self._buffer) < _LARGEST_PASTE:
                    return
                # Of a paste without an end the first part is enough.
                self._buffer, self._pasting = rest, False
                yield Key("paste", _harmless(text[:_LARGEST_PASTE]))
            elif self._buffer[0] == _ESCAPE:
                if self._buffer.startswith(_PASTE):
                    self._buffer, self._pasting = self._buffer[len(_PASTE) :], True
                elif self._buffer.startswith(_ESCAPE * 2):
                    self._buffer = self._buffer[1:]
                    yield Key("escape")
                elif _BEGUN.fullmatch(self._buffer):
                    return
                else:
                    yield from self._sequence()
            else:
                yield from self._plain()

    def _sequence(self) -> Iterator[Key]:
        match = _SEQUENCE.match(self._buffer)
        end = match.end() if match else 1
        sequence, self._buffer = self._buffer[:end], self._buffer[end:]
        if sequence == _ESCAPE + "\x7f":
            yield Key("word")

    def _plain(self) -> Iterator[Key]:
        character = self._buffer[0]
        if character in _CONTROLS:
            self._buffer = self._buffer[1:]
            yield Key(_CONTROLS[character])
            return
        end = 1
        while end < len(self._buffer) and self._buffer[end] not in _OTHERS:
            end += 1
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        text = _harmless(text.replace("\t", " "))
        if text:
            yield Key("text", text)


def _harmless(text: str) -> str:
    """Without what would steer a terminal, such as other control keys."""
    return "".join(c for c in text if printable(c) == c)
