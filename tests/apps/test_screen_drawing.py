"""What the screen draws, at many sizes, for terminals of many kinds."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rich", reason="pip install -e '.[live]' in the checkout")

from rich.cells import cell_len
from rich.console import Console

from omni_core.ledger import Ledger
from omni_core.paging import layout
from omni_core.paging.table import PageMap
from omni_core.units import Tier
from omnilive.screen.explaining import Onlooker
from omnilive.screen.layout import render
from omnilive.screen.lines import Look, Sheet, fit, fold, measure, part, tail
from omnilive.screen.painter import Painter
from omnilive.screen.picture import SHADES, picture, shrunk
from omnilive.screen.senses import Senses, loudness, senses_of
from omnilive.screen.state import ALERT, SPOKEN, TYPED, View

SIZES = [(80, 24), (120, 40), (60, 16), (56, 20), (40, 12), (24, 6), (300, 90), (1, 1), (80, 3)]
STEERING = "\x1b[31m\x07\x9b\r\x7f\u202e\udcff\n\t"
WIDE = "世界 👩\u200d🔬 ❤\ufe0f e\u0301 🇩🇪 "
KV = {"cells": 468, "pages": 9, "span": 640, "bytes": 3_500_000, "budget": 512}


def view(**fields: Any) -> View:
    made = View(title="embedded on mlx, omnipick")
    made.take({"event": "unit", "t": 8.0, "kv": KV, "lag_ms": 1200.0})
    made.take({"event": "evict", "t": 8.0, "tokens": {"vision": 41, "audio": 82}, "cells": 411})
    made.ask(TYPED, 8.0, "What do you see now?")
    answer = {"event": "answer", "t": 8.0, "text": " blue star", "ttft_ms": 104.0}
    made.take(answer)
    made.ask(SPOKEN, 9.0, "(spoken)")
    made.take(answer | {"text": " 6", "truth": "8", "latency_ms": 300.0})
    made.ask(ALERT, 10.0, "a dog appears")
    made.take({"event": "token", "t": 10.0, "text": " a brown"})
    frame = np.zeros((90, 160, 3), np.uint8)
    frame[:, 80:] = 255
    made.sense(
        Senses(frame, -20.0, "front camera", "on", "desk microphone", "on", 3, 8000, 1.2), 0.1
    )
    places = layout("page")
    kind = int(places.kinds(np.array([Tier.SINK], np.int8), np.zeros(1, np.int8))[0])
    numbers = np.arange(6)
    made.maps = (
        PageMap(
            numbers, np.full(6, kind, np.int32), numbers.astype(np.int32) // 4, np.full((6, 2), 20)
        ),
    )
    made.layout = places
    made.kept, made.dropped = {"recent": (96, 150, 63)}, {"not recent": (320, 500, 0)}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def rows(sheet: Sheet) -> list[str]:
    drawn = [
        "".join(item.text for piece in pieces for item in piece.line)
        for _, pieces in groupby(sheet.pieces, key=lambda piece: piece.row)
    ]
    assert len(drawn) == sheet.height
    return drawn


def text(sheet: Sheet) -> str:
    return "\n".join(rows(sheet))


@pytest.mark.parametrize(
    "look", [Look(), Look("256"), Look("standard"), Look(None), Look(None, False)]
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"explaining": True},
        {"typed": "what is " + WIDE * 20},
        {"senses": None, "kv": {}, "maps": ()},
    ],
)
def test_every_row_is_as_wide_as_the_terminal(
    size: tuple[int, int], look: Look, fields: dict[str, Any]
) -> None:
    sheet = render(view(**fields), *size, look)
    assert {cell_len(row) for row in rows(sheet)} == {size[0]}
    for _, pieces in groupby(sheet.pieces, key=lambda piece: piece.row):
        column = 0
        for piece in pieces:
            assert (piece.column, piece.width) == (column, measure(piece.line))
            column += piece.width
    if fields.get("typed"):
        assert sheet.cursor is not None
        assert sheet.cursor[0] == size[1] - 1 and 0 <= sheet.cursor[1] < size[0]
    else:
        assert sheet.cursor is None


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
def test_all_regions_are_there(size: tuple[int, int]) -> None:
    shown = text(render(view(), *size))
    for words in (
        "omnilive", "answering", "What do you see now?", "blue star", "♪", "a dog appears",
        "a brown▌", "(true: 8)", "front camera", "desk m", "▀", "468/512", "0:S", "300 ms",
        "1.2 s", "3 frames, 0.5 s", "evicted 123 tokens; 411 stay", "Enter", "quit",
    ):  # fmt: skip
        assert words in shown, words
    assert rows(render(view(), *size))[-1].strip().startswith("Enter")
    # The newest is at the bottom.
    assert shown.index("What do you see now?") < shown.index("a dog appears")


def test_latency_is_the_last_and_the_median() -> None:
    made = view()
    assert made.latency == (300.0, 202.0)
    assert "300 ms (median 202)" in text(render(made, 80, 24))


def test_explanation() -> None:
    shown = text(render(view(explaining=True), 80, 24))
    for words in ("What stays, and why", "recent", "96     150      63", "not recent", "S sink"):
        assert words in shown
    assert "What do you see" not in shown and "conversation" in shown


@pytest.mark.parametrize("look", [Look(), Look(None, False)])
@pytest.mark.parametrize("size", SIZES)
def test_sealed_pages_have_small_letters(size: tuple[int, int], look: Look) -> None:
    sealed = {"bits": 2, "sealed_cells": 160, "sealed_pages": 4}
    made = view(kv=KV | sealed)
    made.maps = (replace(made.maps[0], first_sealed=2),)
    for made.explaining in (False, True):
        assert {cell_len(row) for row in rows(render(made, *size, look))} == {size[0]}
    shown = text(render(made, 120, 40, look))
    assert "4 pages, 160 cells sealed to 2 bits" in shown and "small letters are sealed" in shown
    assert re.search(r"0:S\S{4} s\S{4} 1:s\S{4}", shown)
    assert "S sink" in shown and "s sink" not in shown
    made.explaining = False
    assert "468/512 cells, 160 sealed" in text(render(made, 120, 40, look))
    assert "468/512 cells" in text(render(made, 60, 16, look))
    assert "sealed" not in text(render(view(explaining=True), 120, 40, look))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"camera_state": "off"}, ["camera off", "camera on"]),
        ({"camera_state": "lost"}, ["camera lost, trying again"]),
        ({"camera_state": "none", "camera": ""}, ["no camera"]),
        ({"camera_state": "on", "frame": None}, ["waiting for a picture"]),
        ({"camera_state": "strange"}, ["camera strange"]),
        ({"microphone_state": "muted"}, ["hears muted", "unmute"]),
        ({"microphone_state": "lost"}, ["hears lost, trying again"]),
        ({"microphone_state": "silent"}, ["only silence"]),
        ({"microphone_state": "none", "microphone": ""}, ["hears none"]),
    ],
)
def test_states_are_in_words(state: dict[str, Any], words: list[str]) -> None:
    fields = {
        "frame": np.zeros((4, 4, 3), np.uint8),
        "camera_state": "on",
        "microphone_state": "on",
    }
    made = view(senses=Senses(**(fields | {"camera": "c", "microphone": "m"} | state)))
    shown = text(render(made, 80, 24))
    for word in words:
        assert word in shown


def test_nothing_steers_the_terminal() -> None:
    made = View(title=STEERING)
    made.ask(TYPED, 1.0, f"what {STEERING}?")
    made.take({"event": "token", "t": 1.0, "text": f"a {STEERING} b"})
    made.take({"event": "warning", "t": 1.0, "message": STEERING})
    made.typed = f"x{STEERING}y"
    made.sense(Senses(None, -20.0, f"c{STEERING}", "lost", f"m{STEERING}", "on", 0, 0, 0.0), 0.1)
    made.kept = {STEERING: (1, 2, 3)}
    for made.explaining in (False, True):
        for look in (Look(), Look(None, False)):
            sheet = render(made, 80, 24, look)
            assert {cell_len(row) for row in rows(sheet)} == {80}
            sent = Painter(look).paint(sheet).decode()
            ours = r"\x1b\[(\d+;\d+H|[\d;]*m|2J|\?(25|2026)[hl])"
            left = re.sub(ours, "", sent)
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", left)


@given(st.text(max_size=80), st.integers(2, 40))
def test_folding_keeps_the_words_and_the_width(words: str, width: int) -> None:
    lines = fold(words, width)
    assert all(cell_len(line) <= width for line in lines)
    squeezed = re.sub(r"\s|\ufffd", "", "".join(lines))
    assert squeezed == re.sub(
        r"\s|\ufffd",
        "",
        fold(words, 10_000)[0] if "\n" not in words else "".join(fold(words, 10_000)),
    )


@given(st.text(max_size=40), st.integers(0, 30))
def test_fitting_is_exact(words: str, width: int) -> None:
    assert measure(fit([part(words), part("end", "bold")], width)) == width
    shown = part(words).text
    assert cell_len(tail(shown, width)) <= max(1, width)


def test_wide_characters_take_two_cells() -> None:
    made = View()
    made.ask(TYPED, 1.0, "世界" * 30)
    shown = rows(render(made, 80, 24))
    assert sum(row.count("世") for row in shown) == 30
    assert all(cell_len(re.split("[│├]", row)[0]) == 47 for row in shown if "世" in row)


def painted(sent: str, grid: dict[tuple[int, int], str]) -> None:
    """A terminal in a few lines: places and characters, no more."""
    if "\x1b[2J" in sent:
        grid.clear()
    row = column = 0
    for match in re.finditer(r"\x1b\[(\d+);(\d+)H|\x1b\[[?\d;]*[a-zA-Z]|.", sent, re.DOTALL):
        if match[1]:
            row, column = int(match[1]) - 1, int(match[2]) - 1
        elif not match[0].startswith("\x1b"):
            grid[row, column] = match[0]
            column += cell_len(match[0])


def test_what_has_changed_is_sent_and_nothing_else() -> None:
    painter, grid = Painter(Look()), {}
    made = view()

    def step(fresh: bool = False, size: tuple[int, int] = (80, 24)) -> int:
        sheet = render(made, *size)
        sent = painter.paint(sheet, fresh)
        painted(sent.decode(), grid)
        for row, line in enumerate(rows(sheet)):
            assert (
                "".join(grid[row, column] for column in range(size[0]) if (row, column) in grid)
                == line
            )
        return len(sent)

    whole = step()
    assert step() == 0
    made.peak = made.level = -50.0
    assert 0 < step() < 500
    made.take({"event": "token", "t": 10.0, "text": " dog in the garden"})
    assert 0 < step() < 500
    made.typed = "why"
    step()
    made.typed = None
    step()
    assert step(fresh=True) > whole / 2
    assert step(size=(120, 40)) > whole
    assert step(size=(60, 16)) > 0


def test_rich_prints_a_sheet() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, record=True, force_terminal=True)
    sheet = render(view(), 80, 24)
    console.print(sheet, end="")
    assert console.export_text(styles=False).splitlines() == rows(sheet)


def test_a_picture_has_two_pixels_a_cell() -> None:
    frame = np.zeros((40, 40, 3), np.uint8)
    frame[:20] = (255, 0, 0)
    lines = picture(frame, 20, 3, Look())
    assert [measure(line) for line in lines] == [20] * 3
    middle = [item for item in lines[1] if "▀" in item.text]
    assert [item.text for item in middle] == ["▀" * 6]
    style = middle[0].style
    assert style is not None and style.color is not None and style.bgcolor is not None
    # Three rows of cells are six of pixels, of which the upper three are red.
    assert style.color.triplet == (252, 0, 0) and style.bgcolor.triplet == (0, 0, 0)


@pytest.mark.parametrize("shape", [(1, 1), (1080, 1920), (3, 500), (500, 3), (0, 0)])
@pytest.mark.parametrize("look", [Look(), Look("256"), Look(None)])
def test_pictures_of_any_shape(shape: tuple[int, int], look: Look) -> None:
    frame = np.full((*shape, 3), 200, np.uint8)
    for size in ((30, 10), (1, 1), (5, 40)):
        lines = picture(frame, *size, look)
        assert [measure(line) for line in lines] == [size[0]] * size[1]


def test_shades_where_there_is_no_colour() -> None:
    frame = np.zeros((20, 20, 3), np.uint8)
    frame[:, 10:] = 255
    lines = picture(frame, 10, 5, Look(None, False))
    assert {"".join(item.text for item in line) for line in lines} == {
        SHADES[0] * 5 + SHADES[-1] * 5
    }


def test_shrinking_takes_means() -> None:
    frame = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    expected = frame.reshape(2, 2, 2, 2, 3).mean((1, 3)).astype(int)
    assert abs(shrunk(frame, 2, 2) - expected).max() <= 1
    assert (shrunk(frame, 8, 8)[::2, ::2] == frame).all()


def test_the_256_colours() -> None:
    frame = np.array([[[255, 0, 0], [128, 128, 128]]], np.uint8).repeat(2, 0)
    (line,) = picture(frame, 2, 1, Look("256"))
    colours = [item.style.color.number for item in line if item.style and item.style.color]
    assert colours == [196, 244]


def test_levels() -> None:
    assert loudness(np.zeros(0, np.float32)) == loudness(np.zeros(9, np.float32)) == -120.0
    assert loudness(np.full(16, 0.1, np.float32)) == pytest.approx(-20.0, abs=0.01)
    made = View()
    made.sense(Senses(level_db=-10.0), 0.1)
    made.sense(Senses(level_db=-50.0), 0.1)
    assert (made.level, made.peak) == (-50.0, -12.0)


def test_a_unit_is_what_a_clip_shows() -> None:
    from omni_core import UnitMedia

    frame = np.zeros((2, 2, 3), np.uint8)
    sound = np.full(16, 0.1, np.float32)
    assert senses_of(UnitMedia(0.0, 1.0), "clip").camera_state == "none"
    made = senses_of(UnitMedia(0.0, 1.0, (frame,), sound), "clip")
    assert (made.camera_state, made.microphone_state, made.frame is frame) == ("on", "on", True)
    # A clip's drops and lag come with the events.
    seen = View(lag=3.0, dropped_frames=2)
    seen.sense(made, 1.0)
    assert (seen.lag, seen.dropped_frames) == (3.0, 2)


def test_a_recent_warning_stays_in_the_log() -> None:
    made = View()
    made.take({"event": "warning", "t": 5.0, "message": "the microphone is gone"})
    for time in range(6, 40):
        made.take({"event": "evict", "t": float(time), "tokens": {"text": 9}, "cells": 1})
    assert "the microphone is gone" in text(render(made, 80, 24))
    made.time = 66.0
    assert "the microphone is gone" not in text(render(made, 80, 24))


def test_everything_kept_is_bounded() -> None:
    made = View()
    for time in range(1000):
        made.take(
            {"event": "answer", "t": float(time), "question": "q", "text": "a", "ttft_ms": 1.0}
        )
        made.take({"event": "warning", "t": float(time), "message": "w"})
    assert (len(made.turns), len(made.log), len(made.latencies)) == (200, 100, 99)
    assert not made.answering


def test_an_onlooker_counts_what_goes_and_passes_on() -> None:
    told: list[tuple[object, ...]] = []
    seen: list[str] = []

    class Other:
        mass = True

        def stepped(self, *_: object) -> None:
            seen.append("stepped")

        def evicting(self, *_: object) -> None:
            seen.append("evicting")

        def closed(self, *_: object) -> None:
            seen.append("closed")

    ledger = Ledger(1)
    onlooker = Onlooker(lambda *what: told.append(what), layout("page"), Other())
    assert onlooker.mass and not Onlooker(lambda *_: None, layout("page")).mass
    view = ledger.view()
    none = np.zeros(0, np.bool_)
    onlooker.stepped(view, 0, None)
    onlooker.evicting(view, none, {"not recent": none})
    closed = type("Closed", (), {"view": view, "kept": {"recent": none}, "maps": ()})()
    onlooker.closed(closed)
    assert seen == ["stepped", "evicting", "closed"]
    assert told[0][2:] == ({"recent": (0, 0, 0)}, {"not recent": (0, 0, 0)})
