"""A line that is being typed."""

from __future__ import annotations

import unicodedata

from omnilive.screen.decoding import Key

_LONGEST = 2000
_JOINER = "\u200d"


class Editor:
    """The line's text, changed by keys at its end."""

    def __init__(self, text: str = "") -> None:
        self.text = text[:_LONGEST]

    def press(self, key: Key) -> bool | None:
        """Take a key: True once the line is complete, False when it is given up, else None."""
        if key.name == "enter":
            return bool(self.text.strip())
        if key.name == "escape" or (key.name == "end" and not self.text):
            return False
        if key.name in ("text", "paste"):
            self.text = (self.text + " ".join(key.text.splitlines()))[:_LONGEST]
        elif key.name == "backspace":
            self.text = _shorter(self.text)
        elif key.name == "word":
            kept = self.text.rstrip()
            self.text = kept[: len(kept) - len(kept.split(" ")[-1])]
        elif key.name == "clear":
            self.text = ""
        return None


def _shorter(text: str) -> str:
    """Without its last character, and the marks and joined characters that make it up."""
    end = len(text) - 1
    while end > 0 and (_joins(text[end]) or text[end - 1] == _JOINER):
        end -= 1
    return text[: max(0, end)]


def _joins(character: str) -> bool:
    return (
        unicodedata.combining(character) > 0
        or character == _JOINER
        or "\ufe00" <= character <= "\ufe0f"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )
