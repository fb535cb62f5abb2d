"""A stream of units of one length through the cache's loop, and what is kept of its times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.stream_loop_clock import Clock
from benchmarks.traces import PREFIX, at, edge, span
from omni_core.backend import Backend
from omni_core.cache import Cache
from omni_core.model_config import TextConfig
from omni_core.paging import Layout
from omni_core.retention import Policy
from omni_core.sealing import Sealing
from omni_core.units import EMBEDDED, Modality, Role, TokenBlock

SPOKEN = 10
"""Tokens that are spoken where a stream speaks."""
BIN = 2048
"""Tokens of stream over which latencies are put together."""
CHUNK = 8192
"""Most tokens in one forward pass: a unit goes in as one."""
CORE = ("step", "retain", "plan")
"""Parts that the core takes; the backend takes prefill, decode and move."""
PARTS = ("prefill", "decode", "move", *CORE)


def unit_block(tokens: int, position: int) -> TokenBlock:
    """A unit of so many tokens, its four delimiters among them: vision, then audio.

    Positions follow each other on all three axes alike.
    """
    heard = min(50, tokens // 8)
    seen = tokens - heard - 4
    image, whole = (edge(sense, Role.DELIMITER) for sense in (Modality.VISION, Modality.AUDIO))
    vision, audio = span(Modality.VISION, seen), span(Modality.AUDIO, heard)
    audio = replace(audio, rows=audio.rows + np.int32(seen))
    block = TokenBlock.join([whole, image, vision, image, audio, whole])
    return at(block, position + np.arange(len(block)))


def embedded_rows(block: TokenBlock) -> int:
    """Rows of embeddings that a block needs."""
    return int(np.count_nonzero(block.tokens == EMBEDDED))


class LoopStream:
    """A stream in a cache of its own: units are read, words are said.

    Attributes:
        cache: of the stream.
        position: where the next token goes, which is how many there have been.
    """

    def __init__(
        self,
        backend: Backend,
        text: TextConfig,
        policy: str | Policy,
        layout: str | Layout,
        budget: int,
        largest: int,
        clock: Clock,
        frame: int | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """Allocate the arena and read a system prompt."""
        self._clock, self.position = clock, PREFIX
        self.cache = Cache(
            backend,
            text,
            budget=budget,
            retention=policy,
            layout=layout,
            prefix=PREFIX,
            unit=largest,
            answer=SPOKEN,
            chunk=CHUNK,
            frame=frame,
            sealing=sealing,
            tracer=clock,
            on_plan=lambda plan, logits: None,
        )
        self.cache.open(TokenBlock.text([0] * PREFIX, 0, Role.PREFIX))

    def read(self, tokens: int, embeddings: Any) -> npt.NDArray[np.float32]:
        """Take a unit in; logits ``float32[vocab]`` of its last token."""
        block = unit_block(tokens, self.position)
        with self.cache.whole():
            self._open(tokens, block)
            logits = self._step(block, embeddings)
            with self._clock.span("plan"):
                gone = self.cache.decide()
        self.position += tokens
        with self._clock.span("plan"):
            self.cache.close_unit(gone)
        return logits

    def say(self, logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
        """Draw and read ``count`` tokens, the likeliest; logits after the last."""
        self._clock.speaking = True
        try:
            with self.cache.whole():
                self._open(count, None)
                for place in range(count):
                    with self._clock.span("decode"):
                        token = int(logits.argmax())
                    block = TokenBlock.text([token], self.position + place, Role.GENERATED)
                    block = replace(block, offset=np.full(1, place, np.int32))
                    logits = self._step(block, None)
                with self._clock.span("plan"):
                    gone = self.cache.decide()
            self.position += count
            with self._clock.span("plan"):
                self.cache.close_unit(gone)
        finally:
            self._clock.speaking = False
        return logits

    def rehearse(self, tokens: int, embeddings: Any) -> None:
        """Read a unit and say a word without a trace, thrice.

        Kernels are compiled and graphs captured at the first times that a shape occurs.
        """
        for _ in range(3):
            with self.cache.whole(keep=False):
                block = unit_block(tokens, self.position)
                self._open(tokens + 1, block)
                self._step(block, embeddings)
                self._step(TokenBlock.text([0], self.position + tokens, Role.GENERATED), None)

    def _open(self, tokens: int, unit: TokenBlock | None) -> None:
        with self._clock.span("plan"):
            self.cache.make_room(tokens)
            self.cache.open_frame(self.position, unit)

    def _step(self, block: TokenBlock, embeddings: Any) -> npt.NDArray[np.float32]:
        with self._clock.span("step"):
            return self.cache.step(block, embeddings=embeddings, logits=[len(block) - 1])[0, 0]


@dataclass
class Series:
    """The times of a stream, a unit each.

    Attributes:
        at: tokens of stream before the unit.
        listening, speaking: milliseconds by part of reading the unit, and of saying something
            after it; empty where nothing was said.
    """

    at: list[int] = field(default_factory=list)
    listening: list[dict[str, float]] = field(default_factory=list)
    speaking: list[dict[str, float]] = field(default_factory=list)

    def add(self, at: int, listening: dict[str, float], speaking: dict[str, float]) -> None:
        """Keep a unit's times."""
        self.at.append(at)
        self.listening.append(listening)
        self.speaking.append(speaking)

    def row(self, target: int) -> dict[str, Any]:
        """For JSON, over the units that began before ``target`` tokens of stream.

        Milliseconds are medians over stretches of :data:`BIN` tokens, by where a unit began; the
        ``last`` ones are over the last two stretches.
        """
        count = sum(at < target for at in self.at)
        heard, said = self.listening[:count], self.speaking[:count]
        stretch = [at // BIN for at in self.at[:count]]
        edges = sorted(set(stretch))
        last = [i for i, at in enumerate(self.at[:count]) if at >= target - 2 * BIN]
        spoke = [i for i in range(count) if said[i]]
        totals = {
            part: sum(each.get(part, 0.0) for each in (*heard, *said)) / 1e3 for part in PARTS
        }
        return {
            "target": target,
            "units": count,
            "at": [(edge + 1) * BIN for edge in edges],
            "listen_ms": [
                _middle(heard, (i for i in range(count) if stretch[i] == edge)) for edge in edges
            ],
            "speak_ms": [_middle(said, (i for i in spoke if stretch[i] == edge)) for edge in edges],
            "last_listen_ms": _middle(heard, last),
            "last_speak_ms": _middle(said, (i for i in last if said[i])),
            "slowest_ms": round(max(sum(each.values()) for each in heard), 4),
            "seconds": {part: round(total, 6) for part, total in totals.items()},
            "session_s": round(sum(totals.values()), 6),
            "listening_s": round(sum(sum(each.values()) for each in heard) / 1e3, 6),
        }


def _middle(times: Sequence[dict[str, float]], which: Iterable[int]) -> float | None:
    values = [sum(times[i].values()) for i in which]
    return round(median(values), 4) if values else None
