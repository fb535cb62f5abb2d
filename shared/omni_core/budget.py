"""How large the cache may be: reading ``--budget``, its default, and the arena it takes."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from omni_core.backend import PAGE, ArenaLayout
from omni_core.errors import BudgetError
from omni_core.frames import QUESTION, frame_length, most_frames
from omni_core.model_config import TextConfig
from omni_core.sealing import WAITING, WINDOW, Sealing

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMG]I?)?B)?", re.IGNORECASE)
_DEFAULT_CELLS = 8192
_PAGE_CLASSES = 8
_OLD_CLASSES = 4
_TIERS = 2
"""Classes of a position frame in 16 bits, at most, under one policy."""
_SEALED_CLASSES = 6
"""Classes of a position frame in sealed pages: as many for each modality."""


@dataclass(frozen=True)
class Budget:
    """A budget as it was asked for: a number of cells, or bytes of keys and values."""

    cells: int | None = None
    bytes: int | None = None

    def resolve(self, text: TextConfig, element: int) -> int:
        """The budget in cells for a model at ``element`` bytes a number, nothing sealed."""
        if self.cells is not None:
            return self.cells
        return (self.bytes or 0) // cell_bytes(text, element)

    def resolve_sealed(self, plan: Callable[[int], ArenaLayout], least: int, element: int) -> int:
        """The budget in cells where some are sealed: as many as both pools have room for.

        Args:
            plan: the arena for a budget in cells, see :func:`plan_arena`; of one stream.
            least: the smallest budget that can be planned for, see :func:`least_budget`.
            element: bytes of a number of 16 bits.

        Raises:
            BudgetError: not even the smallest budget fits these bytes.
        """
        if self.cells is not None:
            return self.cells
        room = self.bytes or 0
        smallest = plan(least)
        needed = smallest.bytes(element)
        if needed > room:
            plain = replace(smallest, sealed_pages=0).bytes(element)
            raise BudgetError(
                f"a budget of {room / 1e6:.1f} MB is too small: a cache of {least} cells, the "
                f"fewest that can be, takes {needed / 1e6:.1f} MB, {plain / 1e6:.1f} MB of them "
                "what stays in 16 bits; give more, a budget in cells, or --seal all, which keeps "
                "least in 16 bits"
            )
        most = least + room
        return (
            bisect_right(range(least, most), room, key=lambda cells: plan(cells).bytes(element))
            + least
            - 1
        )


def parse_budget(text: str) -> Budget:
    """Read ``8192`` (cells) or ``2GB``, ``512MiB`` (bytes).

    Raises:
        BudgetError: neither.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BudgetError(
            f"budget {text!r} is neither cells (8192) nor bytes (2GB, 512MiB); expected a number, "
            "for bytes with B, KB, MB, GB, KiB, MiB or GiB"
        )
    number, unit = match.groups()
    if "b" not in text.lower():
        if "." in number:
            raise BudgetError(f"budget {text!r}: cells come whole; for bytes write a unit, as 2GB")
        return Budget(cells=int(number))
    return Budget(bytes=int(float(number) * _UNITS[(unit or "").upper()]))


def cell_bytes(text: TextConfig, element: int) -> int:
    """Bytes of one token's keys and values over all layers."""
    return 2 * text.layers * text.kv_heads * text.head_dim * element


def machine_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_budget(text: TextConfig, element: int, memory: int) -> int:
    """Cells for ``memory`` bytes: an eighth of it, at most 8,192 and the trained range."""
    cells = min(_DEFAULT_CELLS, text.max_positions, memory // 8 // cell_bytes(text, element))
    return max(PAGE, cells // PAGE * PAGE)


def low_watermark(high: int) -> int:
    """Where eviction stops: 7/8 of the budget, the ratio of MiniCPM-o's 4000/3500 window."""
    return high * 7 // 8


def least_budget(prefix: int, unit: int, answer: int) -> int:
    """The smallest budget: 7/8 of it must hold the prefix, and the largest unit or turn."""
    return -(-(prefix + max(unit, QUESTION + answer)) * 8 // 7)


def plan_arena(
    text: TextConfig,
    *,
    budget: int,
    prefix: int,
    unit: int,
    answer: int,
    element: int,
    memory: int | None = None,
    groups: int = 1,
    streams: int = 1,
    frame: int | None = None,
    sealing: Sealing | None = None,
) -> ArenaLayout:
    """The arena: the budget, the largest unit, the longest turn, and a page or two a class.

    Where the cache is sealed, 16-bit pages hold the prefix, the recent window (the largest unit at
    least), what waits to fill a subblock, and the largest unit or the longest turn that may come
    next; sealed pages hold the budget.

    Args:
        text: the model's shapes.
        budget: cells alive at a unit's end.
        prefix: cells of the system prompt.
        unit: cells of the largest unit.
        answer: tokens of the longest answer.
        element: bytes of one key or value number.
        memory: bytes that the machine has, or None not to ask.
        groups: layer groups; must divide the layers.
        streams: streams that share a layout.
        frame: positions of a position frame, None for the default: pages of each frame are apart.
        sealing: None for a cache of 16 bits.

    Raises:
        BudgetError: the prefix and one unit do not fit, or the machine is too small.
        OmniError: the model's ``head_dim`` cannot be sealed.
    """
    largest = max(unit, QUESTION + answer)
    if low_watermark(budget) < prefix + largest:
        raise BudgetError(
            f"a budget of {budget} cells is too small: 7/8 of it must hold the prefix "
            f"({prefix}) and either the largest unit ({unit}) or a question with its answer "
            f"({QUESTION + answer}); give at least --budget {least_budget(prefix, unit, answer)}"
        )
    if text.layers % groups:
        raise BudgetError(f"{text.layers} layers do not divide into {groups} layer groups")
    frames = most_frames(text.max_positions, frame, budget)
    if sealing is None:
        cells = _pages(budget) + _pages(unit) + _pages(QUESTION + answer)
        pages = groups * (cells + cells // 16) + 2 * class_slack(groups, frames)
        sealed_pages, bits, codec = 0, 16, ""
    else:
        held, coming = sealing.held(prefix, largest), max(unit, 2 * QUESTION + answer)
        pages = groups * (_pages(held) + _pages(WAITING) + _pages(coming))
        pages += _partial(text, groups, frame) + sealed_reserve(groups)
        cells = _pages(budget)
        # A closed frame may leave each class a page of which a half is in no one's reach.
        sealed_pages = groups * (cells + cells // 16 + _SEALED_CLASSES * frames)
        bits, codec = sealing.bits, sealing.codec
    layout = ArenaLayout(
        pages,
        groups,
        text.layers // groups,
        text.kv_heads,
        text.head_dim,
        streams,
        sealed_pages,
        bits,
        codec,
    )
    needed = layout.bytes(element)
    if memory is not None and needed > memory:
        raise BudgetError(
            f"a budget of {budget} cells takes {needed / 1e9:.1f} GB of cache, but this machine "
            f"has {memory / 1e9:.1f} GB; lower --budget"
        )
    return layout


def class_slack(groups: int, frames: int) -> int:
    """Pages that may be partly filled because each page class has its own."""
    return groups * (_PAGE_CLASSES + _OLD_CLASSES * (frames - 1))


def sealed_reserve(groups: int) -> int:
    """Pages that new tokens may open beyond their number, where a cache is sealed."""
    return groups * (_TIERS + 1)


def _partial(text: TextConfig, groups: int, frame: int | None) -> int:
    """Pages that may be partly filled where a cache is sealed.

    What stays in 16 bits is the newest, and so of few position frames.
    """
    length = frame_length(text.max_positions, frame)
    frames = min(text.max_positions // length, WINDOW // min(length, PAGE)) + 2
    return groups * _TIERS * frames


def _pages(cells: int) -> int:
    return -(-cells // PAGE)
