"""What stayed, what went and why, and where it lies: a run explained in fixed columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from omni_core.aggregation.unit import Counts
from omni_core.backend import SUBBLOCK
from omni_core.ledger import Ledger, LedgerView
from omni_core.paging.layout import Layout
from omni_core.paging.table import PageMap
from omni_core.retention.base import Bool, Policy, Reasons
from omni_core.units import Int64, Modality, Tier
from omni_core.watcher import ClosedUnit, Mass

BARS = "·▁▂▃▄▅▆▇█"
"""Marks of a subblock, from none of its cells alive to all."""
PLAIN_BARS = ".12345678"
"""The same for a terminal that has no others."""
LETTERS = {
    "P": "pinned",
    "S": "sink",
    "T": "transient",
    "O": "open turn",
    "X": "may go at any time",
    "M": "tiers mixed",
}
"""Tiers by the letter that begins their pages in a map."""
_TIERS = {
    Tier.PINNED: "P",
    Tier.SINK: "S",
    Tier.TRANSIENT: "T",
    Tier.OPEN: "O",
    Tier.SCORED: "X",
}
_ORDER = (Modality.VISION, Modality.AUDIO, Modality.TEXT)
_COLUMN, _NARROW = 12, 7
_COUNTS = ("seen", "shown", "merged", "invalid")
"""Vision tokens, and those that did not enter; see :class:`~omni_core.aggregation.Counts`."""
_ABOUT_AGGREGATED = (
    "Of the vision tokens seen, those that their places have shown already and those that are no",
    "numbers did not enter, and those merged entered as one with others.",
)

_ABOUT_GROUPS = (
    "Layer groups hold different tokens: what was kept is held by one at least, what was dropped",
    "by none any more. Cells are their mean; then follow those of each, and each one's page map.",
)


@dataclass(frozen=True)
class Stretch:
    """Pages of one position frame and one tier, by page id: live cells ``int64[m]`` a subblock.

    The letter is the tier's, a small one where the pages are sealed.
    """

    frame: int
    letter: str
    fill: Int64


def stretches(pages: PageMap, layout: Layout) -> list[Stretch]:
    """A layer group's pages by position frame, then by tier."""
    tiers = np.asarray(list(Tier), np.int8)
    kinds = layout.kinds(tiers, np.zeros(tiers.size, np.int8))
    apart = np.unique(kinds).size > 1
    found = []
    for frame in np.unique(pages.frames).tolist():
        for tier in Tier if apart else (Tier.PINNED,):
            letter = _TIERS[tier] if apart else "M"
            own = (pages.frames == frame) & (pages.kinds // 8 == tier)
            for here, mark in ((own & ~pages.sealed, letter), (own & pages.sealed, letter.lower())):
                if here.any():
                    found.append(Stretch(frame, mark, pages.fill[here].reshape(-1)))
    return found


def page_map(parts: Sequence[Stretch], bars: str = BARS, each: int = 1) -> str:
    """Stretches as text: ``0:P██▃· 1:S█▂ T████▅·``, a mark for ``each`` subblocks.

    Each frame begins with its number, each tier with its letter.
    """
    words = []
    frame = None
    for part in parts:
        words.append(
            (f"{part.frame}:" if part.frame != frame else "")
            + part.letter
            + _marks(part, bars, each)
        )
        frame = part.frame
    return " ".join(words)


def compact_map(
    pages: PageMap, layout: Layout, bars: str = BARS, *, width: int = 80, lines: int = 8
) -> tuple[str, list[str]]:
    """A map for a terminal: the legend and lines of at most ``width`` characters.

    Where it would take more than about ``lines`` lines, a mark stands for several subblocks.
    """
    parts = stretches(pages, layout)
    each = 1
    while len(page_map(parts, bars, each)) > width * lines and each * 2 <= pages.fill.size:
        each *= 2
    text = page_map(parts, bars, each)
    used = [f"{letter} {LETTERS[letter]}" for letter in LETTERS if letter in text.upper()]
    if pages.sealed.any():
        used.append("small letters are sealed")
    cells = SUBBLOCK * each
    legend = f"N: frame, {', '.join(used)}; a mark is {cells} cells, {bars[1]} to {bars[-1]} full"
    return legend, [text[at : at + width] for at in range(0, len(text), width)]


class Explainer:
    """Writes a line for each unit: what arrived, what was kept and dropped and why, and the map."""

    mass = False

    def __init__(
        self,
        write: Callable[[str], object],
        policy: Policy,
        layout: Layout,
        title: str,
        *,
        aggregated: bool = False,
        by_group: bool = False,
    ) -> None:
        """Begin with the legend.

        Args:
            write: takes text, line ends included.
            policy, layout: the session's.
            title: what is explained, in a line.
            aggregated: whether the session aggregates vision tokens, which is then told as well.
            by_group: whether its layer groups hold different tokens; the cells of each are told.
        """
        self._write, self._layout, self._aggregated = write, layout, aggregated
        self._by_group = by_group
        empty = Ledger(1).view()
        self._kept = tuple(policy.why_kept(empty))
        self._why_dropped = tuple(policy.why_dropped(empty, np.zeros(0, np.bool_)))
        self._dropped = self._none()
        tiers = ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items())
        legend = [
            title,
            f"retention {policy.name}, layout {layout.name}",
            "",
            "A line follows each unit, and each question with its answer; what was dropped went",
            "since the line before. Counts are vision/audio/text tokens, delimiters being text;",
            "a dash is none. Span counts the pages from the first to the last used.",
            *(_ABOUT_AGGREGATED if aggregated else ()),
            *(_ABOUT_GROUPS if by_group else ()),
            "Page map: a position frame begins with its number, the pages of a tier in it, by id,",
            f"with a letter ({tiers}),",
            "a small one where they are sealed,",
            f"and each mark is a subblock of {SUBBLOCK} cells, {BARS[0]} none alive, "
            f"{BARS[1]} to {BARS[-1]} up to all.",
            "",
        ]
        write("".join(f"# {line}".rstrip() + "\n" for line in [*legend, *self._heads()]))

    def stepped(self, view: LedgerView, unit: int, mass: Mass | None) -> None:
        """Steps need no explanation."""

    def evicting(self, view: LedgerView, gone: Bool, why: Reasons) -> None:
        """Count what goes, until the line is written."""
        for word, mask in why.items():
            self._dropped[word] += _count(view, mask)

    def closed(self, closed: ClosedUnit) -> None:
        """Write the line."""
        usage = closed.usage
        maps = " / ".join(page_map(stretches(pages, self._layout)) for pages in closed.maps)
        kept = {word: _count(closed.view, mask) for word, mask in closed.kept.items()}
        parts = [
            f"{closed.unit:6} {closed.time:9.2f} {_shown(closed.arrived):>{_COLUMN}}",
            *([_told(closed.aggregated)] if self._aggregated else []),
            _columns(self._kept, kept),
            _columns(self._why_dropped, self._dropped),
            f"{usage.cells:7} {usage.pages:6} {usage.span:6}",
            *(["/".join(str(pages.fill.sum()) for pages in closed.maps)] if self._by_group else []),
            maps,
        ]
        self._write("  " + " | ".join(parts) + "\n")
        self._dropped = self._none()

    def _none(self) -> dict[str, Int64]:
        return {word: np.zeros(len(Modality), np.int64) for word in self._why_dropped}

    def _heads(self) -> Iterator[str]:
        kept, dropped = (
            " ".join(f"{word:>{_width(word)}}" for word in words)
            for words in (self._kept, self._why_dropped)
        )
        first, last = f"{'unit':>6} {'time':>9} {'arrived':>{_COLUMN}}", "  cells  pages   span"
        kept_head, dropped_head = f"{'kept:':<{len(kept)}}", f"{'dropped:':<{len(dropped)}}"
        above, below = [" " * len(first)], [first]
        if self._aggregated:
            columns = " ".join(f"{word:>{_NARROW}}" for word in _COUNTS)
            above.append(f"{'vision:':<{len(columns)}}")
            below.append(columns)
        yield " | ".join([*above, kept_head, dropped_head, " " * len(last), ""])
        ends = ["cells of each", "page maps"] if self._by_group else ["page map"]
        yield " | ".join([*below, f"{kept:<{len(kept_head)}}", f"{dropped:<8}", last, *ends])


def _columns(words: Sequence[str], counts: dict[str, Int64]) -> str:
    columns = " ".join(f"{_shown(counts[word]):>{_width(word)}}" for word in words)
    return f"{columns:<8}"


def _told(counts: Counts | None) -> str:
    """Vision tokens before and after; of a question, none."""
    found = asdict(counts or Counts())
    return " ".join(f"{found[word] or '-':>{_NARROW}}" for word in _COUNTS)


def _width(word: str) -> int:
    return max(_COLUMN, len(word))


def _count(view: LedgerView, mask: Bool) -> Int64:
    return np.bincount(view.modality[mask], minlength=len(Modality)).astype(np.int64)


def _shown(counts: Int64) -> str:
    return "/".join(str(counts[kind]) for kind in _ORDER) if counts.any() else "-"


def _marks(part: Stretch, bars: str, each: int) -> str:
    starts = np.arange(0, part.fill.size, each)
    live = np.add.reduceat(part.fill, starts)
    room = np.diff(np.append(starts, part.fill.size)) * SUBBLOCK
    levels = -(-live * (len(bars) - 1) // room)
    return "".join(bars[level] for level in levels.tolist())
