"""Memory of the whole MLX twin over many units of varied lengths, by MLX's own count."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_stream import LoopStream, embedded_rows, unit_block
from omni_core.backend import Backend
from omni_core.model_config import TextConfig

SHORTEST = 20


def memory_over_units(
    backend: Backend, text: TextConfig, units: int, longest: int = 1000, budget: int = 3072
) -> dict[str, Any]:
    """Bytes in use, and most that are kept for reuse, over units and a few words after each.

    Args:
        backend: of the model.
        text: its backbone.
        units: how many.
        longest: tokens of a unit; the shortest has :data:`SHORTEST`.
        budget: cells.
    """
    stream = LoopStream(backend, text, "omnipick", "page", budget, longest, Clock())
    pool = mx.random.normal((1, longest, text.hidden)).astype(mx.bfloat16)
    mx.eval(pool)
    draw, fifth = np.random.default_rng(7), max(1, units // 5)
    # Each fifth has the same lengths in another order, so that what grows is not a longer unit.
    lengths = draw.integers(SHORTEST, longest + 1, fifth)
    ordered = np.concatenate([draw.permutation(lengths) for _ in range(-(-units // fifth))])
    held: list[int] = []
    kept: list[int] = []
    for tokens in ordered[:units].tolist():
        logits = stream.read(tokens, pool[:, : embedded_rows(unit_block(tokens, 0))])
        stream.say(logits, int(draw.integers(1, 6)))
        mx.synchronize()
        # An array that is let go is kept whole, beyond the limit too, until the next allocation.
        one = mx.zeros(1)
        mx.eval(one)
        report = backend.memory()
        del one
        held.append(report.measured)
        kept.append(report.cached)
    early, late = max(held[:fifth]), max(held[-fifth:])
    limit = mx.set_cache_limit(0)
    mx.set_cache_limit(limit)
    return {
        "units": units,
        "tokens": stream.position,
        "early_bytes": early,
        "last_bytes": late,
        "accounted_bytes": report.accounted,
        "growth": round(late / early, 6),
        "kept_bytes": max(kept),
        "kept_over_limit": round(max(kept) / limit, 6),
    }
