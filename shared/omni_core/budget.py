"""How large the cache may be: reading ``--budget``, its default, and the arena it takes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from omni_core.backend import PAGE, ArenaLayout
from omni_core.errors import BudgetError
from omni_core.frames import QUESTION, most_frames
from omni_core.model_config import TextConfig

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMG]I?)?B)?", re.IGNORECASE)
_DEFAULT_CELLS = 8192
_PAGE_CLASSES = 8
_OLD_CLASSES = 4


@dataclass(frozen=True)
class Budget:
    """A budget as it was asked for: a number of cells, or bytes of keys and values."""

    cells: int | None = None
    bytes: int | None = None

    def resolve(self, text: TextConfig, element: int) -> int:
        """The budget in cells for a model at ``element`` bytes a number."""
        if self.cells is not None:
            return self.cells
        return (self.bytes or 0) // cell_bytes(text, element)


def parse_budget(text: str) -> Budget:
    """Read ``8192`` (cells) or ``2GB``, ``512MiB`` (bytes).

    Raises:
        BudgetError: neither.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BudgetError(f"budget {text!r} is neither cells (8192) nor bytes (2GB, 512MiB)")
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
) -> ArenaLayout:
    """The arena: the budget, the largest unit, the longest turn, and a page or two a class.

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

    Raises:
        BudgetError: the prefix and one unit do not fit, or the machine is too small.
    """
    largest = max(unit, QUESTION + answer)
    least = -(-(prefix + largest) * 8 // 7)
    if low_watermark(budget) < prefix + largest:
        raise BudgetError(
            f"a budget of {budget} cells is too small: 7/8 of it must hold the prefix "
            f"({prefix}) and either the largest unit ({unit}) or a question with its answer "
            f"({QUESTION + answer}); give at least --budget {least}"
        )
    if text.layers % groups:
        raise BudgetError(f"{text.layers} layers do not divide into {groups} layer groups")
    cells = -(-budget // PAGE) + -(-unit // PAGE) + -(-(QUESTION + answer) // PAGE)
    slack = class_slack(groups, most_frames(text.max_positions, frame, budget))
    pages = groups * (cells + cells // 16) + 2 * slack
    layout = ArenaLayout(
        pages, groups, text.layers // groups, text.kv_heads, text.head_dim, streams
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
