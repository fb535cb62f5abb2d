"""Share of right answers by what is asked and by how long ago it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from streamworld import asking
from streamworld.scoring import LAGS
from training.bank import DeviceBank
from training.batch import Plan, make
from training.model import Model


@torch.no_grad()
def measure(model: Model, bank: DeviceBank, plan: Plan, seeds: Sequence[int]) -> dict[str, Any]:
    """Accuracy over batches of ``plan``: overall, by kind, by kind and topic, and by kind and lag.

    Each entry is ``[share, count]``. Answers are right where every token, the end among them, is
    the likeliest after the right ones before it: just where greedy decoding gives that answer.
    """
    device = model.labels.sounds.device
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    spread: list[float] = []
    for seed in seeds:
        made = make(plan, seed)
        outcome = model.read(made.to(device), bank, learn=False, probe=True)
        spread = [float(value) for value in outcome.spread or ()]
        right = outcome.right.cpu().numpy()
        for stream, slot in np.argwhere(made.asked):
            ask, lag = made.ask[stream, slot], made.lag[stream, slot]
            spoken = ("spoken",) if made.heard[stream, slot] else ()
            for name in (*_names(int(ask), int(lag)), *spoken):
                tally[name][0] += int(right[stream, slot])
                tally[name][1] += 1
    shares = {name: [hits / count, count] for name, (hits, count) in sorted(tally.items())}
    told = {"units": plan.units, "size": list(plan.size), "recent": plan.recent}
    return {**told, "split": plan.split, "logit_std": spread, "right": shares}


def _names(ask: int, lag: int) -> tuple[str, ...]:
    kind, topic = asking.ASKS[ask].kind, asking.ASKS[ask].topic
    names = ("all", kind, f"{kind} {topic}")
    if lag < 0:
        return names
    bucket = LAGS[int(np.searchsorted(LAGS, lag, side="right")) - 1]
    return (*names, f"{kind} lag>={bucket}")


def test_plans(rows: int, questions: int) -> list[Plan]:
    """What the final table is made of: streams of 16, 64, 128 and 256 units of the test split.

    Then of 64 units with frames of 4:3 and of 16:9, and with old units thinned to delimiters.
    """
    base = Plan(64, max(1, rows // 64), questions, "test", spoken=0.1, long=0.5)
    plain = [
        replace(base, units=units, streams=max(1, rows // units)) for units in (16, 64, 128, 256)
    ]
    shaped = [replace(base, size=size) for size in ((84, 112), (84, 140))]
    return [*plain, *shaped, replace(base, recent=4)]
