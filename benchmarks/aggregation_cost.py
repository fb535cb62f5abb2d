"""What aggregation costs beside the prefill of the unit that it shrinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_stream import CHUNK, unit_block
from benchmarks.traces import PREFIX
from omni_core.aggregation import Aggregation
from omni_core.backend import Backend
from omni_core.cache import Cache
from omni_core.frontend.base import UnitTokens, VisionInput
from omni_core.model_config import TextConfig
from omni_core.units import Modality, Role, TokenBlock

BOUND = 0.03
"""Of the unit's prefill, at most."""
SCENES = ("changes", "half changes", "stays")
BUDGET = 4096
_ALIKE = 3
"""Tokens of a frame that show the same, on average."""


class DeviceClock(Clock):
    """Adds the work that aggregation leaves to the device to its span."""

    def span(self, name: str, *, device: bool = False, **about: Any) -> Any:
        """As :class:`Clock`'s."""
        return super().span(name, device=device or name == "aggregate", **about)


def cost(
    backend: Backend,
    text: TextConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    *,
    units: int = 12,
    name: str,
) -> Iterator[dict[str, Any]]:
    """A row for each length of a unit, in tokens, and each scene.

    Shares are of the prefill of the same unit with all its tokens. Medians over ``units`` after as
    many that are not counted.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for tokens in sizes:
        whole = _follow(backend, text, device, dtype, tokens, units, "changes", None, wait)
        prefill = median(spent["prefill"] for spent, _ in whole)
        for scene in SCENES:
            rule = Aggregation()
            spent = _follow(backend, text, device, dtype, tokens, units, scene, rule, wait)
            each = median(found["aggregate"] for found, _ in spent)
            yield {
                "part": "cost",
                "shape": name,
                "tokens": tokens,
                "scene": scene,
                "entered": median(left for _, left in spent),
                "aggregate_ms": round(each, 4),
                "prefill_ms": round(prefill, 4),
                "prefill_after_ms": round(median(found["prefill"] for found, _ in spent), 4),
                "share": round(each / prefill, 5),
            }


def _follow(
    backend: Backend,
    text: TextConfig,
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    units: int,
    scene: str,
    rule: Aggregation | None,
    wait: Callable[[], None],
) -> list[tuple[dict[str, float], int]]:
    """Milliseconds by part of each counted unit, and its vision tokens that entered."""
    clock = DeviceClock(wait)
    cache = Cache(
        backend,
        text,
        budget=BUDGET,
        retention="fifo",
        layout="page",
        prefix=PREFIX,
        unit=max(tokens, 64),
        answer=8,
        chunk=CHUNK,
        aggregation=rule,
        tracer=clock,
        on_plan=lambda plan, logits: None,
    )
    cache.open(TokenBlock.text([0] * PREFIX, 0, Role.PREFIX))
    draw = torch.Generator().manual_seed(tokens)
    found, position = [], PREFIX
    rows = _picture(draw, tokens, text.hidden)
    for unit in range(2 * units):
        fresh = _picture(draw, tokens, text.hidden)
        keep = {"changes": 0, "half changes": tokens // 2, "stays": tokens}[scene]
        # What stays is seen anew, with a little noise.
        rows = torch.cat([rows[:keep], fresh[keep:]])
        noise = 0.1 * torch.randn(rows.shape, generator=draw)
        given = (rows + noise)[None].to(device, dtype)
        block = unit_block(tokens, position)
        seen = int(np.count_nonzero(block.modality == Modality.VISION))
        picture = VisionInput(np.zeros((0, 0), np.float32), (1, 2, 2 * seen))
        clock.take()
        with cache.whole():
            cache.make_room(len(block))
            counts = None
            if (aggregator := cache.aggregator) is not None:
                part = cache.aggregated(aggregator, UnitTokens(block, (picture,)), given)
                block, given, counts = part.block, part.embeddings, part.counts
            cache.open_frame(position, block)
            cache.step(block, embeddings=given, counts=counts, logits=[len(block) - 1])
            gone = cache.decide()
        if aggregator is not None:
            aggregator.settle()
        cache.close_unit(gone)
        position += tokens
        if unit >= units:
            left = int(np.count_nonzero(block.modality == Modality.VISION))
            found.append((clock.take(), left))
    return found


def _picture(draw: torch.Generator, tokens: int, hidden: int) -> torch.Tensor:
    """Embeddings ``[tokens, hidden]`` of a picture in which some things repeat."""
    things = torch.randn(max(1, tokens // _ALIKE), hidden, generator=draw)
    return things[torch.randint(len(things), (tokens,), generator=draw)]
