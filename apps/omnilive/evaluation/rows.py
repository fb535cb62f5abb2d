"""A setting's results as plain numbers: a row of the JSON file, of the tables and of the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from omni_core.aggregation import Counts
from omnilive.evaluation.marks import Marks
from omnilive.evaluation.settings import Setting
from omnilive.evaluation.sitting import Sitting
from streamworld.scoring import interval

Row = dict[str, Any]


def row(setting: Setting, units: int, streams: int, marks: Marks, sat: Sequence[Sitting]) -> Row:
    """What came of a setting.

    Counts are ``[right answers, questions]``; shares go from 0 to 1, their intervals are Wilson's
    at 95 %.

    Args:
        setting: policy and budget.
        units: of each stream.
        streams: of all seeds together.
        marks: of all questions.
        sat: its ways through the streams.
    """
    right, questions = marks.count()
    low, high = interval(right, questions)
    seconds = sum(one.seconds for one in sat)
    return {
        "policy": setting.policy.name,
        "parameters": {
            name: value
            for name, value in asdict(setting.policy).items()  # type: ignore[call-overload]
            if name not in ("name", "scored")
        },
        "share": setting.share,
        "budget": setting.budget,
        **setting.cache,
        **_aggregated(setting, sat),
        **({"layers": setting.layers.state()} if setting.layers else {}),
        "units": units,
        "streams": streams,
        **_counts(marks),
        "accuracy": round(right / questions, 5),
        "low": round(low, 5),
        "high": round(high, 5),
        "topics": {name: list(count) for name, count in marks.by_topic().items()},
        "lags": {
            kind: {lag: list(count) for lag, count in lags.items()}
            for kind, lags in marks.by_lag().items()
        },
        "seeds": [{"seed": seed, **_counts(part)} for seed, part in marks.by_seed().items()],
        "cells": max(one.cells for one in sat),
        "bytes": max(one.bytes for one in sat),
        "units_per_second": round(sum(one.units for one in sat) / max(seconds, 1e-9), 2),
    }


def count_of(row: Row, kind: str | None, topic: str | None = None) -> tuple[int, int]:
    """Right answers and questions of a kind, or of a topic of it, or of all.

    ``row`` may also be one of the seeds of a row, which have no topics.
    """
    if kind is None:
        return row["right"], row["questions"]
    found = row["topics"].get(f"{kind} {topic}") if topic else row["kinds"].get(kind)
    return (found[0], found[1]) if found else (0, 0)


def _aggregated(setting: Setting, sat: Sequence[Sitting]) -> Row:
    """By what vision tokens were aggregated, and how many of all streams there were and entered."""
    if setting.aggregation is None:
        return {}
    counts = sum((one.aggregated for one in sat), Counts())
    return {"aggregation": setting.aggregation.state(), "aggregated": asdict(counts)}


def _counts(marks: Marks) -> dict[str, Any]:
    right, questions = marks.count()
    kinds = {name: list(count) for name, count in marks.by_kind().items()}
    return {"questions": questions, "right": right, "kinds": kinds}
