"""Gauges: a bar, the level of a microphone, the cache with its page map."""

from __future__ import annotations

from rich.segment import Segment

from omni_core.backend import SUBBLOCK
from omni_core.explain import BARS, LETTERS, PLAIN_BARS, Stretch, page_map, stretches
from omnilive.screen.lines import Line, Look, ends, fit, fold, measure, part
from omnilive.screen.state import View

TIERS = {"P": "yellow", "S": "cyan", "T": "green", "O": "magenta", "X": "blue", "M": "green"}
"""Colours of a page map's tiers, by letter."""
_LINE, _PLAIN_LINE = ("━", "╸", "─"), ("=", "-", "-")
_QUIET, _LOUD, _CLIPPING = -60.0, -18.0, -6.0


def bar(share: float, width: int, words: str, look: Look) -> Line:
    """``share`` of ``width`` cells filled, to half a cell."""
    on, half, off = _LINE if look.unicode else _PLAIN_LINE
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    done = on * (halves // 2) + half * (halves % 2)
    return (part(done, words), part(off * (width - len(done)), "bright_black"))


def meter(level: float, peak: float, width: int, look: Look) -> Line:
    """A level in decibels of full scale, from -60 to 0, with a mark at the highest of late."""

    def share(decibels: float) -> float:
        return min(1.0, max(0.0, 1 - decibels / _QUIET))

    loud, clipping = (round(share(edge) * width) for edge in (_LOUD, _CLIPPING))
    full, top = round(share(level) * width), round(share(peak) * width) - 1
    on, mark, off = _LINE if look.unicode else _PLAIN_LINE
    parts: list[Segment] = []
    for at in range(width):
        words = "green" if at < loud else "yellow" if at < clipping else "red"
        if at < full:
            parts.append(part(on, words))
        elif at == top:
            parts.append(part(mark, words))
        else:
            parts.append(part(off, "bright_black"))
    return tuple(Segment.simplify(parts))


def cache(view: View, width: int, look: Look) -> list[Line]:
    """Two lines: cells and bytes in figures, and as a bar."""
    if not view.kv:
        return [fit([part("cache", "bold"), part("  empty", "bright_black")], width)]
    cells, budget = view.kv["cells"], view.kv["budget"]
    words = "cyan" if cells <= budget else "red"
    figures = [part("cache ", "bold"), part(f"{cells}"), part(f"/{budget} cells", "bright_black")]
    size = [part(sized(view.kv["bytes"]), "bright_black")]
    sealed = [part(f", {view.kv.get('sealed_cells', 0)} sealed", "bright_black")]
    if "bits" in view.kv and measure([*figures, *sealed, *size]) < width:
        figures += sealed
    return [
        ends(figures, size, width),
        bar(cells / budget, width, words, look),
    ]


def pages(view: View, width: int, lines: int, look: Look) -> tuple[int, list[Line]]:
    """The page map of the first layer group in at most ``lines`` lines, a colour a tier.

    Returns:
        Cells that a mark stands for, and the lines.
    """
    if not view.maps or view.layout is None or lines < 1:
        return SUBBLOCK, []
    bars = BARS if look.unicode else PLAIN_BARS
    parts = stretches(view.maps[0], view.layout)
    each, fill = 1, view.maps[0].fill.size
    rows = _rows(parts, bars, each, width)
    while len(rows) > lines and each * 2 <= fill:
        each *= 2
        rows = _rows(parts, bars, each, width)
    if len(rows) > lines:
        # As many position frames as that come only with very long streams.
        rows = [*rows[: lines - 1], [*rows[lines - 1], part("…")]]
    return each * SUBBLOCK, [fit(row, width) for row in rows]


def legend(view: View, cells: int, width: int, look: Look) -> list[Line]:
    """What the letters and marks of the page map mean."""
    if not view.maps or view.layout is None:
        return []
    found = {item.letter for item in stretches(view.maps[0], view.layout)}
    letters = {letter.upper() for letter in found}
    bars = BARS if look.unicode else PLAIN_BARS
    known = ", ".join(f"{letter} {LETTERS[letter]}" for letter in LETTERS if letter in letters)
    sealed = "" if found == letters else ", small letters are sealed"
    text = f"N: frame, {known}{sealed}; a mark is {cells} cells, {bars[1]} to {bars[-1]} full"
    return [fit([part(line, "bright_black")], width) for line in fold(text, width)]


def sized(count: float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _rows(parts: list[Stretch], bars: str, each: int, width: int) -> list[list[Segment]]:
    """The map's words in lines; one that does not fit goes on in the next line."""
    rows: list[list[Segment]] = [[]]
    frame = None
    for item in parts:
        text = page_map([item], bars, each)
        if item.frame == frame:
            text = text.split(":", 1)[1]
        if rows[-1]:
            text = " " + text
        frame = item.frame
        while text:
            room = width - measure(rows[-1])
            rows[-1].append(part(text[:room], TIERS[item.letter.upper()]))
            text = text[room:]
            if text:
                rows.append([])
    return rows
