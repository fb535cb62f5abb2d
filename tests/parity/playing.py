"""Running sequences through a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.parity.oracle import Float32, Tokens
from tests.parity.planner import Planner


def play(
    backend: Any,
    planner: Planner,
    tokens: Tokens,
    lengths: Sequence[int],
    embeddings: Any = None,
    after: Callable[[Planner], None] = lambda planner: None,
) -> Float32:
    """Logits ``[T, vocab]`` of all tokens, in steps of ``lengths``, each followed by ``after``."""
    assert sum(lengths) == tokens.ids.size
    out, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        plan = planner.step(tokens.ids[None, part], tokens.rows[part], tokens.positions[:, part])
        out.append(backend.forward(plan, embeddings)[0])
        after(planner)
        start += length
    return np.concatenate(out)
