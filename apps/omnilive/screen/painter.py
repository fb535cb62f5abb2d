"""From sheets to what a terminal is sent: the rows that have changed, and nothing else."""

from __future__ import annotations

from itertools import groupby

from rich.color import ColorSystem
from rich.style import Style

from omnilive.screen.lines import BLANKS, Look, Piece, Sheet
from omnilive.terminal import printable

_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}
_PLAIN = str.maketrans("\u203a♪●─│┬┴├▌…", ">~*-|+++_.")
# Terminals that know it show all of an update at once; the others pass over it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_SHOW, _HIDE = "\x1b[?25h", "\x1b[?25l"


class Painter:
    """Remembers what was drawn, for a terminal of some look.

    Rewriting the screen at each refresh, as a live display does, is ten kilobytes a time; a level
    that moves is a hundred bytes.
    """

    def __init__(self, look: Look, encoding: str = "utf-8") -> None:
        self._look, self._encoding = look, encoding
        self._rows: dict[int, tuple[Piece, ...]] = {}
        self._size = (0, 0)
        self._cursor: tuple[int, int] | None = None

    def paint(self, sheet: Sheet, fresh: bool = False) -> bytes:
        """What turns the last sheet into this one; ``fresh`` begins with a blank screen."""
        drawn = []
        if fresh or self._size != (sheet.width, sheet.height):
            self._rows, self._cursor = {}, None
            drawn.append(f"{_HIDE}\x1b[0m\x1b[2J")
        self._size = (sheet.width, sheet.height)
        for row, group in groupby(sheet.pieces, key=lambda piece: piece.row):
            pieces = tuple(group)
            if self._rows.get(row) != pieces:
                self._rows[row] = pieces
                drawn += map(self._piece, pieces)
        if not drawn and sheet.cursor == self._cursor:
            return b""
        self._cursor = sheet.cursor
        drawn.append(_HIDE if sheet.cursor is None else _at(*sheet.cursor) + _SHOW)
        return (_BEGIN + "".join(drawn) + _END).encode(self._encoding, "replace")

    def _piece(self, piece: Piece) -> str:
        # Each begins at its own column: a terminal that takes a character for wider or narrower
        # than it is must not shift what stands beside it.
        words = [_at(piece.row, piece.column)]
        for text, style, _ in piece.line:
            words.append(self._styled(printable(text).translate(BLANKS), style))
        return "".join(words)

    def _styled(self, text: str, style: Style | None) -> str:
        if not self._look.unicode:
            text = text.translate(_PLAIN)
        if style is None or not style:
            return text
        colours = self._look.colours
        if colours is None:
            return style.without_color.render(text, color_system=ColorSystem.STANDARD)
        return style.render(text, color_system=_SYSTEMS[colours])


def _at(row: int, column: int) -> str:
    return f"\x1b[{row + 1};{column + 1}H"
