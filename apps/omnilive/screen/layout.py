"""Where the regions of the screen lie, for any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from omnilive.screen.lines import Line, Look, Piece, Sheet, blank, fit, measure, part
from omnilive.screen.regions import (
    QUIET,
    conversation,
    devices,
    entry,
    explanation,
    footer,
    header,
    log,
    memory,
    numbers,
    sight,
)
from omnilive.screen.state import View

_LEAST = 20
_TWO_COLUMNS = 56
_TINY = 8
_TALL = 30


def render(view: View, width: int, height: int, look: Look | None = None) -> Sheet:
    """The whole screen, ``height`` lines of ``width`` cells, something rich can print."""
    look = look or Look()
    height = max(1, height)
    if width < _LEAST:
        return _cut(render(view, _LEAST, height, look), max(1, width))
    rows: list[Sequence[Line]] = []
    above: list[Sequence[Line]] = [[header(view, width)]] if height >= _TINY else []
    below: list[Sequence[Line]] = []
    if height >= _TINY:
        below = [[numbers(view, width)], *_alone(log(view, width, _log_lines(height)))]
    cursor = None
    last = footer(view, width)
    if view.typed is not None:
        last, column = entry(view.typed, width)
        cursor = (height - 1, column)
    below.append([last])
    room = height - len(above) - len(below)
    if width >= _TWO_COLUMNS and room >= _TINY:
        rows = [*above, *_columns(view, width, room, look), *below]
    else:
        rows = [*above, *_stacked(view, width, room, look), *below]
    return Sheet(width, height, _placed(rows), cursor)


def _columns(view: View, width: int, height: int, look: Look) -> list[Sequence[Line]]:
    """The conversation on the left, the senses and the cache on the right, in a frame."""
    right = min(48, max(20, width * 3 // 8))
    left = width - right - 3
    body = height - 2
    maps = 1 if body < 12 else 2 if body < 20 else 4
    airy = body >= 20
    pictured = body - 2 - 1 - 2 - maps - airy
    if pictured < 2:
        pictured, maps = max(0, body - 5), 0
    seen = [*sight(view, right, pictured, look), *[blank(right)] * airy]
    seen += devices(view, right, look)
    side = [(part("│ ", QUIET), *line, part(" ")) for line in seen]
    side.append((part("├" + "─" * (right + 2), QUIET),))
    kept = memory(view, right, 2 + maps, look)
    side += [(part("│ ", QUIET), *line, part(" ")) for line in kept]
    talk = (
        explanation(view, left, body, look) if view.explaining else conversation(view, left, body)
    )
    rows: list[Sequence[Line]] = [[_rule(left, right, "┬")]]
    rows += [[here, there] for here, there in zip(talk, side, strict=True)]
    return [*rows, [_rule(left, right, "┴")]]


def _stacked(view: View, width: int, height: int, look: Look) -> list[Sequence[Line]]:
    """One column for a narrow or low terminal: no picture, and no map."""
    small = []
    if height >= _TINY:
        small = [*devices(view, width, look), *memory(view, width, 2, look)]
        small.append((part("─" * width, QUIET),))
    room = height - len(small)
    if view.explaining:
        return _alone([*small, *explanation(view, width, room, look)])
    return _alone([*small, *conversation(view, width, room)])


def _rule(left: int, right: int, joint: str) -> Line:
    return fit([part("─" * left + joint + "─" * (right + 2), QUIET)], left + right + 3)


def _cut(sheet: Sheet, width: int) -> Sheet:
    by_row = groupby(sheet.pieces, key=lambda piece: piece.row)
    rows = [[fit([item for piece in row for item in piece.line], width)] for _, row in by_row]
    row, column = sheet.cursor or (0, 0)
    cursor = sheet.cursor and (row, min(column, width - 1))
    return Sheet(width, sheet.height, _placed(rows), cursor)


def _log_lines(height: int) -> int:
    return 1 if height < 20 else 2 if height < _TALL else 4


def _alone(lines: Sequence[Line]) -> list[Sequence[Line]]:
    return [[line] for line in lines]


def _placed(rows: Sequence[Sequence[Line]]) -> tuple[Piece, ...]:
    pieces = []
    for row, lines in enumerate(rows):
        column = 0
        for line in lines:
            size = measure(line)
            pieces.append(Piece(row, column, size, line))
            column += size
    return tuple(pieces)
