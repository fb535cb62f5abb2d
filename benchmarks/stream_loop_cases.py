"""The streams that are run: through this loop under each policy, and through transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_models import ModelShape
from benchmarks.stream_loop_peer import PeerStream, embedded
from benchmarks.stream_loop_stream import (
    SPOKEN,
    LoopStream,
    Series,
    embedded_rows,
    unit_block,
)
from benchmarks.traces import PREFIX
from omni_core.sealing import Sealing
from omni_core.units import Role, TokenBlock
from omni_cuda.backend import TorchBackend

POLICIES = ("no-slide", "fifo", "streaming-llm", "omnipick")


@dataclass(frozen=True)
class Case:
    """One stream.

    Attributes:
        shape: the model.
        unit: tokens of a unit.
        every: something is said after each so manyth unit.
        target: tokens of stream.
        live: budget in cells of the policies that drop something.
    """

    shape: ModelShape
    unit: int
    every: int
    target: int
    live: int

    def about(self, path: str, policy: str, budget: int | None) -> dict[str, Any]:
        """What a row says of its stream."""
        return {
            "part": "stream",
            "model": self.shape.name,
            "path": path,
            "policy": policy,
            "unit": self.unit,
            "budget": budget,
            "spoken": SPOKEN,
            "every": self.every,
        }

    def budget(self, policy: str) -> int:
        """Cells: all of the stream for who keeps it."""
        if policy == "no-slide":
            return (self.target + 2 * (self.unit + SPOKEN)) * 8 // 7
        return self.live

    def speaks(self, index: int) -> bool:
        """Whether something is said after a unit; after the first, too."""
        return index % self.every == 0


def cases(shape: ModelShape, units: Sequence[int], target: int) -> list[Case]:
    """The streams of a model.

    After short units something is said now and then, or all would be speech. Long ones need a
    larger budget, 7/8 of which has to hold a prefix and a unit.
    """
    return [
        Case(shape, unit, 10 if unit < 200 else 1, target, 4096 if unit > 2000 else 3072)
        for unit in units
    ]


def targets(target: int) -> tuple[int, ...]:
    """Lengths at which a stream's totals are told: 32K, and beyond where it goes on."""
    return (target,) if target <= 32_768 else (32_768, target)


def run_loop(
    backend: TorchBackend, case: Case, policy: str, wait: Callable[[], None], bits: int = 16
) -> list[dict[str, Any]]:
    """A stream through the cache's loop: a row for each of :func:`targets`.

    Of fewer ``bits`` than 16, what is no longer new is sealed.
    """
    clock = Clock(wait)
    budget = case.budget(policy)
    sealing = Sealing(bits) if bits < 16 else None
    stream = LoopStream(
        backend, case.shape.text, policy, "page", budget, case.unit, clock, sealing=sealing
    )
    rows = _Rows(backend, case)
    stream.rehearse(case.unit, rows.draw())
    clock.take()
    series, index, most = Series(), 0, 0
    while stream.position < case.target:
        at, given = stream.position, rows.draw()
        logits = stream.read(case.unit, given)
        listening = clock.take()
        if case.speaks(index):
            stream.say(logits, SPOKEN)
        series.add(at, listening, clock.take())
        most, index = max(most, stream.cache.usage()["cells"]), index + 1
    name = policy if sealing is None else f"{policy}, {bits} bits"
    about = case.about("ours", name, budget) | {
        "cells": len(stream.cache.ledger),
        "most_cells": most,
        "moved_cells": stream.cache.tables.moved_cells,
    }
    return [about | series.row(target) for target in targets(case.target)]


def run_peer(
    peer: Any, case: Case, device: torch.device, wait: Callable[[], None]
) -> list[dict[str, Any]]:
    """The same stream through transformers, where all stays."""
    clock = Clock(wait)
    generator = torch.Generator(device).manual_seed(1)
    block = unit_block(case.unit, 0)
    table, hidden = peer.get_input_embeddings(), case.shape.text.hidden
    shape = (1, embedded_rows(block), hidden)
    series, index = Series(), 0
    for rehearsal in (True, False):
        stream, position = PeerStream(peer, clock), PREFIX
        prefix = TokenBlock.text([0] * PREFIX, 0, Role.PREFIX)
        stream.read(embedded(table, prefix, torch.empty(1, 0, hidden, device=device)))
        clock.take()
        while position < (PREFIX + 1 if rehearsal else case.target):
            given = torch.randn(shape, generator=generator, device=device, dtype=peer.dtype)
            x = embedded(table, block, given)
            logits = stream.read(x)
            listening, at = clock.take(), position
            position += case.unit
            if case.speaks(index):
                stream.say(logits, SPOKEN)
                position += SPOKEN
            speaking = clock.take()
            if not rehearsal:
                series.add(at, listening, speaking)
                index += 1
    about = case.about("transformers", "no-slide", None) | {
        "cells": position,
        "most_cells": position,
        "moved_cells": 0,
    }
    return [about | series.row(target) for target in targets(case.target)]


class _Rows:
    """Fresh random embeddings, unit by unit."""

    def __init__(self, backend: TorchBackend, case: Case) -> None:
        weight = backend.backbone.lm_head.weight
        self._generator = torch.Generator(weight.device).manual_seed(1)
        self._like = weight
        self._shape = (1, embedded_rows(unit_block(case.unit, 0)), case.shape.text.hidden)

    def draw(self) -> torch.Tensor:
        like = self._like
        return torch.randn(
            self._shape, generator=self._generator, device=like.device, dtype=like.dtype
        )
