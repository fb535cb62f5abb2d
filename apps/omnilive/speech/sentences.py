"""Whole sentences out of text that comes in pieces."""

from __future__ import annotations

import re

from omnilive.terminal import printable

LONGEST = 240
"""Characters after which a sentence that does not end is broken off at a space."""

# An end shows by what follows it: a space, or the point may be that of 3.5; CJK writes none.
_WESTERN = r"""[.!?…]+["'”’»)\]]*(?=\s)"""  # noqa: RUF001
_EASTERN = r"[。！？]+[”’」』）]*(?=[^。！？”’」』）])"  # noqa: RUF001
_END = re.compile(rf"{_WESTERN}|{_EASTERN}|\n")
_SPACE = re.compile(r"\s")
_DOUBLE = re.compile(r"\[(?=\[)")


class Sentences:
    """Collects pieces of text and gives each sentence as soon as it is complete."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, text: str) -> list[str]:
        """The sentences that this piece completes, ready to be spoken."""
        self._text += text
        whole: list[str] = []
        while (end := _end(self._text)) is not None:
            whole.append(self._text[:end])
            self._text = self._text[end:]
        return _spoken(whole)

    def finish(self) -> list[str]:
        """What is left, if anything."""
        left, self._text = self._text, ""
        return _spoken([left])


def _end(text: str) -> int | None:
    found = _END.search(text)
    if found is not None and found.end() <= LONGEST:
        return found.end()
    if len(text) <= LONGEST:
        return None
    spaces = [space.end() for space in _SPACE.finditer(text, 0, LONGEST)]
    return spaces[-1] if spaces else LONGEST


def _spoken(sentences: list[str]) -> list[str]:
    """In one line each, without what steers a terminal or a voice; those without a word are left.

    Voices of macOS and eSpeak take what stands in double brackets for commands and phonemes.
    """
    lines = (
        " ".join(_DOUBLE.sub("[ ", printable(sentence).replace("\ufffd", " ")).split())
        for sentence in sentences
    )
    return [line for line in lines if any(char.isalnum() for char in line)]
