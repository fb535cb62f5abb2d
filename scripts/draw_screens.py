"""Write docs/figures/screen-*: the live screen of the demo clip's run, as text and as pictures.

Usage: ``python scripts/draw_screens.py [FOLDER]``. The shipped model follows the shipped clip.
Needs Pillow, and matplotlib for its font.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from omni_core import Session
from omni_core.paging import layout
from omni_core.paging.layout import Layout
from omni_core.paging.table import PageMap
from omnilive import load, open_clip
from omnilive.live import DEMO
from omnilive.output import Event
from omnilive.question_files import read_questions
from omnilive.screen.explaining import Onlooker
from omnilive.screen.layout import render
from omnilive.screen.lines import Sheet
from omnilive.screen.senses import senses_of
from omnilive.screen.state import TYPED, Counts, View

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
BUDGET = 512
THEME = TerminalTheme(
    (24, 26, 31),
    (215, 218, 224),
    [
        (24, 26, 31),
        (224, 108, 117),
        (126, 190, 120),
        (222, 184, 104),
        (97, 160, 235),
        (190, 130, 220),
        (90, 186, 198),
        (171, 178, 191),
    ],
    [
        (106, 113, 128),
        (235, 130, 138),
        (152, 210, 146),
        (235, 203, 139),
        (130, 180, 245),
        (205, 150, 232),
        (120, 205, 215),
        (236, 239, 244),
    ],
)


@dataclass(frozen=True)
class Shot:
    """A picture: its name, the second of the stream after which it is taken, and its size."""

    name: str
    time: float
    width: int
    height: int
    explaining: bool = False
    typed: str | None = None


SHOTS = (
    Shot("screen-80x24", 22, 80, 24),
    Shot("screen-120x40", 30, 120, 40, typed="How many beeps have there been?"),
    Shot("screen-explain", 26, 80, 24, explaining=True),
)


def main() -> None:
    """Follow the clip, and draw at the shots' times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FIGURES)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model = load()
    view = View(title=f"{model.name} on {model.backend.name}, omnipick")

    def told(
        maps: tuple[PageMap, ...], places: Layout, kept: dict[str, Counts], gone: dict[str, Counts]
    ) -> None:
        view.maps, view.layout, view.kept, view.dropped = maps, places, kept, gone

    def show(event: Event) -> None:
        view.take(event)

    asks = list(read_questions(DEMO.with_suffix(".json")))
    watcher = Onlooker(told, layout("page"))
    session = Session(model, budget=BUDGET, on_event=show, watcher=watcher)
    for unit in open_clip(DEMO, model):
        session.append(unit)
        view.sense(senses_of(unit, DEMO.name), 1.0)
        while asks and asks[0].time <= unit.stop:
            view.ask(TYPED, unit.stop, asks[0].question)
            session.ask(asks.pop(0).question)
        for shot in SHOTS:
            if unit.start < shot.time <= unit.stop:
                view.explaining, view.typed = shot.explaining, shot.typed
                write(folder / shot.name, render(view, shot.width, shot.height))


def write(path: Path, sheet: Sheet) -> None:
    """A sheet as ``path.txt`` and ``path.png``."""
    rows = groupby(sheet.pieces, key=lambda piece: piece.row)
    text = ("".join(part.text for piece in row for part in piece.line) for _, row in rows)
    lines = [line.rstrip() for line in text]
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Drawing(sheet).image.save(path.with_suffix(".png"), optimize=True)


class Drawing:
    """A sheet as a picture, a cell being 12 by 24 pixels. Blocks and lines fill their cells."""

    cell = (12, 24)
    margin = 12

    def __init__(self, sheet: Sheet) -> None:
        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        names = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")
        self._fonts = [ImageFont.truetype(fonts / name, 20) for name in names]
        size = (sheet.width * self.cell[0], sheet.height * self.cell[1])
        size = (size[0] + 2 * self.margin, size[1] + 2 * self.margin)
        self.image = Image.new("RGB", size, tuple(THEME.background_color))
        self._draw = ImageDraw.Draw(self.image)
        for piece in sheet.pieces:
            column = piece.column
            for text, style, _ in piece.line:
                for character in text:
                    self._character(piece.row, column, character, style or Style())
                    column += 1
        if sheet.cursor is not None:
            self._fill(*sheet.cursor, (0, 0, 1, 1), _rgb(None, True))

    def _character(self, row: int, column: int, character: str, style: Style) -> None:
        ink = _rgb(style.color, True)
        if style.bgcolor is not None:
            self._fill(row, column, (0, 0, 1, 1), _rgb(style.bgcolor, False))
        boxes = _boxes(character)
        for box in boxes:
            self._fill(row, column, box, ink)
        if not boxes and character != " ":
            at = (self.margin + column * self.cell[0], self.margin + row * self.cell[1] - 1)
            self._draw.text(at, character, ink, self._fonts[bool(style.bold)])

    def _fill(
        self, row: int, column: int, box: tuple[float, ...], ink: tuple[int, int, int]
    ) -> None:
        wide, tall = self.cell
        left, top = self.margin + column * wide, self.margin + row * tall
        x0, y0, x1, y1 = box
        corners = (left + x0 * wide, top + y0 * tall, left + x1 * wide - 1, top + y1 * tall - 1)
        self._draw.rectangle(tuple(map(round, corners)), fill=ink)


def _boxes(character: str) -> list[tuple[float, ...]]:
    """What a block or line character covers of its cell: left, top, right and bottom."""
    if character == "▀":
        return [(0, 0, 1, 1 / 2)]
    if "▁" <= character <= "█":
        return [(0, 1 - (ord(character) - ord("▁") + 1) / 8, 1, 1)]
    if "▉" <= character <= "▏":
        return [(0, 0, 1 - (ord(character) - ord("▉") + 1) / 8, 1)]
    across, down = (0, 11 / 24, 1, 13 / 24), (5 / 12, 0, 7 / 12, 1)
    upper, lower = (5 / 12, 0, 7 / 12, 1 / 2), (5 / 12, 1 / 2, 7 / 12, 1)
    right = (5 / 12, 11 / 24, 1, 13 / 24)
    heavy = (0, 10 / 24, 1, 14 / 24)
    lines: dict[str, list[tuple[float, ...]]] = {
        "─": [across],
        "━": [heavy],
        "╸": [(0, 10 / 24, 1 / 2, 14 / 24)],
        "│": [down],
        "┬": [across, lower],
        "┴": [across, upper],
        "├": [down, right],
    }
    return lines.get(character, [])


def _rgb(color: Color | None, ink: bool) -> tuple[int, int, int]:
    known = color or Color.default()
    red, green, blue = known.get_truecolor(THEME, foreground=ink)
    return red, green, blue


if __name__ == "__main__":
    main()
