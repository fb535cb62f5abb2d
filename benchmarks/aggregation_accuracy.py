"""Right answers on the stream world, with and without aggregation, at equal budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from omni_core.aggregation import Aggregation
from omnilive.evaluation import exam, scenes
from omnilive.evaluation import settings as compared
from omnilive.evaluation.rows import row
from omnilive.evaluation.running import measure
from omnilive.evaluation.world import check_model, extent
from omnilive.models import Prepared
from omnilive.sinks import choose_policy
from streamworld import banks

PAPER = Aggregation(least=0)
"""Nothing enters of a picture that stays, as in the paper."""


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Attributes:
        seeds, streams, units, questions: as ``omnilive eval streamworld`` has them.
        batch: streams in step where they can be.
        budgets: shares of the stream.
        policies: beside all kept.
    """

    seeds: int = 3
    streams: int = 16
    units: int = 64
    questions: int = 24
    batch: int = 8
    budgets: tuple[str, ...] = ("1/8", "1/16")
    policies: tuple[str, ...] = ("omnipick", "fifo")


QUICK = Size(seeds=1, streams=2, units=32, questions=12, budgets=("1/4",))


def rows(prepared: Prepared, size: Size, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row a setting: policies and all kept, uniform, aggregated, and aggregated as in the paper.

    Raises:
        OmniError: a model that does not know the world.
    """
    check_model(prepared)
    exams = [
        exam.draw(seed, size.streams, size.units, size.questions)
        for seed in range(1, size.seeds + 1)
    ]
    room = extent(prepared, size.units, max(one.longest for one in exams))
    folder = prepared.checkpoint.path
    rules = [choose_policy(name, None, folder)[0] for name in ("no-slide", *size.policies)]
    plan = [
        setting
        for aggregation in (None, Aggregation(), PAPER)
        for setting in compared.settings(
            rules, size.budgets, room, prepared.config.text, prepared.element, None, aggregation
        )
    ]
    outcomes = measure(
        plan,
        exams,
        scenes.load(banks.SHIPPED, exam.SPLIT),
        cache(prepared.load),
        batch=size.batch,
        layout="page",
        note=note,
    )
    streams = size.seeds * size.streams
    return [
        {
            "part": "accuracy",
            "tokens": named(setting.aggregation),
            **row(setting, size.units, streams, outcome.marks, outcome.sittings),
        }
        for setting, outcome in zip(plan, outcomes, strict=True)
    ]


def named(aggregation: Aggregation | None) -> str:
    """Which tokens enter, in a word or two."""
    if aggregation is None:
        return "all"
    return "aggregated" if aggregation.least else "as in the paper"


def pairs(found: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each policy and budget with all tokens, beside itself aggregated."""
    key = ("policy", "share")
    aggregated = {
        tuple(one[k] for k in key): one for one in found if one["tokens"] == named(Aggregation())
    }
    for one in found:
        if one["tokens"] == named(None):
            yield one, aggregated[tuple(one[k] for k in key)]
