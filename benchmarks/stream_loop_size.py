"""How much of the stream loop is run, and what is kept of it as it comes."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import TIME_UP

NAMES = ("Qwen2.5-Omni-7B", "Qwen2.5-Omni-3B", "MiniCPM-o-4.5")
LAYOUT_SETTINGS = ((700, 2048), (700, 3072), (2300, 4096), (700, 8192), (2300, 8192))
"""Tokens of a unit, and budget: what layouts are compared at, on the first model."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        names: models.
        units: tokens of a unit, by stream.
        target: tokens of stream.
        policies: through this loop.
        sealed: bits of one more OmniPick stream, of the first unit's length, that is sealed.
        compared: the model whose layouts are compared, at ``layouts``, units and budgets.
        varied: the model whose memory is watched over units of varied lengths, ``memory`` of them.
        alone: streams alone, without what is measured beside them.
        limit: seconds of each model after which nothing more is begun.
    """

    names: tuple[str, ...] = NAMES
    units: tuple[int, ...] = (700, 2300, 79)
    target: int = 32_768
    policies: tuple[str, ...] = ("no-slide", "fifo", "streaming-llm", "omnipick")
    sealed: int = 2
    compared: str = NAMES[0]
    layouts: tuple[tuple[int, int], ...] = LAYOUT_SETTINGS
    varied: str = "Qwen2.5-Omni-3B"
    memory: int = 500
    alone: bool = False
    limit: float = 510.0


QUICK = Size(
    ("Qwen2.5-Omni-3B",),
    units=(700, 79),
    target=8192,
    policies=("no-slide", "omnipick"),
    compared="Qwen2.5-Omni-3B",
    layouts=LAYOUT_SETTINGS[:1],
    memory=100,
    limit=105.0,
)
LONG = Size(units=(700,), target=65_536, policies=("no-slide", "omnipick"), alone=True)


@dataclass
class Findings:
    """Rows as they come, and what failed: one failure does not lose the rest.

    Attributes:
        limit: seconds after which nothing more is begun.
    """

    limit: float = float("inf")
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)

    def take(self, what: str, run: Callable[[], Any]) -> None:
        """Keep the row, or the rows, that something gives; tell if it fails."""
        if time.perf_counter() - self.start >= self.limit:
            self._fail(f"{what}: left out, the time of {self.limit:g} s is up", TIME_UP)
            return
        try:
            given = run()
        except Exception as error:  # Whatever it is, what else is measured is worth keeping.
            lines = str(error).strip().splitlines() or [""]
            self._fail(f"{what}: {type(error).__name__}: {lines[0]}")
            traceback.print_exc()
        else:
            self.rows += given if isinstance(given, list) else [given]
        seconds = time.perf_counter() - self.start
        print(f"{seconds:6.1f} s  {what}", file=sys.stderr, flush=True)

    def _fail(self, why: str, short: str | None = None) -> None:
        self.failed.append(why)
        self.rows.append({"part": "failed", "failed": short or why, "why": why})
