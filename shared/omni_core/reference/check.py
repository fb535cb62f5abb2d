"""A backend held against the float64 oracle: a short stream of text, with evictions and moves."""

from __future__ import annotations

import numpy as np

from omni_core.backend import Backend
from omni_core.cache import Cache
from omni_core.model_config import TextConfig
from omni_core.reference.backbone import ReferenceBackbone
from omni_core.units import Role, TokenBlock

PREFIX, UNIT, UNITS = 11, 33, 14
BUDGET = 224


def worst_difference(backend: Backend, text: TextConfig, oracle: ReferenceBackbone) -> float:
    """The largest relative difference of a token's logits from the oracle's.

    A stream of 473 tokens flows through a cache of 224 cells; what was evicted is masked in the
    oracle. A number that is not finite counts as infinitely far.

    Args:
        backend: with a checkpoint's weights; its arena is allocated anew.
        text: the checkpoint's shapes.
        oracle: of the same checkpoint.
    """
    cache = Cache(
        backend,
        text,
        budget=BUDGET,
        retention="streaming-llm",
        layout="page",
        prefix=PREFIX,
        unit=UNIT,
        answer=1,
        chunk=UNIT,
        on_plan=lambda plan, logits: None,
    )
    draw = np.random.default_rng(20)
    ids = draw.integers(0, text.vocab, PREFIX + UNITS * UNIT)
    found, seen = [], []

    def step(block: TokenBlock) -> None:
        found.append(cache.step(block, logits=range(len(block)))[0])
        alive = cache.ledger.view().order
        for order in range(cache.ledger.next_order - len(block), cache.ledger.next_order):
            seen.append(alive[alive <= order])

    with np.errstate(all="ignore"):
        prefix = TokenBlock.text(ids[:PREFIX].tolist(), 0, Role.PREFIX)
        step(prefix)
        cache.unit = 0
        for start in range(PREFIX, ids.size, UNIT):
            cache.make_room(UNIT)
            step(TokenBlock.text(ids[start : start + UNIT].tolist(), start, Role.PROMPT))
            cache.close_unit(cache.decide())
    mask = np.zeros((ids.size, ids.size), np.bool_)
    for row, visible in enumerate(seen):
        mask[row, visible] = True
    positions = np.tile(np.arange(ids.size, dtype=np.int32), (3, 1))
    expected = oracle.logits(ids.astype(np.int32), positions, mask)
    gap = np.linalg.norm(np.concatenate(found) - expected, axis=-1)
    worst = float(np.max(gap / np.linalg.norm(expected, axis=-1)))
    return worst if np.isfinite(worst) else np.inf
