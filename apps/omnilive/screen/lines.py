"""Lines of a screen: styled pieces of text of an exact width in terminal cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from omnilive.terminal import printable

Line = tuple[Segment, ...]
"""One line of a region."""
BLANKS = {ord("\t"): " ", ord("\n"): " "}
_LEAST = 2


@dataclass(frozen=True)
class Look:
    """What a terminal can show.

    Attributes:
        colours: ``truecolor``, ``256``, ``standard`` (16) or None.
        unicode: False where only ASCII can be written.
    """

    colours: str | None = "truecolor"
    unicode: bool = True


@dataclass(frozen=True)
class Piece:
    """A line at a place: row and column from 0, width in cells."""

    row: int
    column: int
    width: int
    line: Line


@dataclass(frozen=True)
class Sheet:
    """A whole screen: pieces by row, then by column; they cover each row without gaps.

    ``cursor`` is the row and column where something is typed.
    """

    width: int
    height: int
    pieces: tuple[Piece, ...]
    cursor: tuple[int, int] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        row = 0
        for piece in self.pieces:
            if piece.row != row:
                yield Segment.line()
                row = piece.row
            yield from piece.line
        yield Segment.line()


@lru_cache(maxsize=256)
def style(words: str) -> Style:
    """A style by rich's words for it."""
    return Style.parse(words)


def part(text: str, words: str = "") -> Segment:
    """A piece of a line, made harmless; line ends and tabs become blanks."""
    return Segment(clean(text).translate(BLANKS), style(words))


def clean(text: str) -> str:
    """Text without what would steer a terminal; line ends stay."""
    return printable(text).replace("\t", " ")


def measure(parts: Iterable[Segment]) -> int:
    """Cells that the parts take."""
    return sum(cell_len(item.text) for item in parts)


def fit(parts: Sequence[Segment], width: int) -> Line:
    """The parts in exactly ``width`` cells: cut with an ellipsis, or filled up with blanks."""
    used = measure(parts)
    if used < width:
        return (*parts, Segment(" " * (width - used), style("")))
    if used == width:
        return tuple(parts)
    room, kept = width - 1, []
    for item in parts:
        size = cell_len(item.text)
        if size >= room:
            kept.append(Segment(set_cell_size(item.text, max(0, room)) + "…", item.style))
            break
        kept.append(item)
        room -= size
    return tuple(kept) if width > 0 else ()


def tail(text: str, width: int) -> str:
    """The text's end in at most ``width`` cells, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return "…" + text


def ends(left: Sequence[Segment], right: Sequence[Segment], width: int) -> Line:
    """Two ends of a line with blanks between; the right one goes where both do not fit."""
    room = width - measure(right)
    if measure(left) >= room:
        return fit(left, width)
    return (*fit(left, room), *right)


def centred(parts: Sequence[Segment], width: int) -> Line:
    """The parts in the middle of ``width`` cells."""
    before = max(0, (width - measure(parts)) // 2)
    return fit((Segment(" " * before, style("")), *parts), width)


def blank(width: int) -> Line:
    """Blanks."""
    return (Segment(" " * width, style("")),)


def filled(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """The first ``height`` lines, with blank ones after them where there are fewer."""
    return [*lines[:height], *[blank(width)] * (height - len(lines))]


@lru_cache(maxsize=512)
def fold(text: str, width: int) -> tuple[str, ...]:
    """Text in lines of at most ``width`` cells (at least 2), broken at blanks where possible."""
    width = max(_LEAST, width)
    lines: list[str] = []
    for paragraph in clean(text).split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            *whole, line = chop_cells(word, width) or [""]
            lines += whole
        lines.append(line)
    return tuple(lines)
