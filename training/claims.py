"""What the checkpoint claims of itself: floors that ``omnilive eval streamworld`` holds it to."""

from __future__ import annotations

import math
from typing import Any

from streamworld.scoring import interval

UNITS = (64, 256)
"""Lengths of streams that floors are claimed for."""
CLAIMED = (
    *("now", "before", "first", "when", "after", "did", "until", "outside"),
    "count beep",
)
"""Kinds, or kinds and topics; *nth* and counting words and shapes fall short."""

Tests = dict[int, dict[str, list[float]]]


def plain_tests(lines: list[dict[str, Any]]) -> Tests:
    """Shares and counts by name of a log's last tests, by length: square frames, full caches."""
    return {
        line["units"]: line["right"]
        for line in lines
        if line["event"] == "test" and line["size"] == [112, 112] and line["recent"] is None
    }


def claims(tests: Tests) -> dict[str, Any]:
    """``claims.json``: of what was tested, the lower end of the 95 % interval, in whole percent."""
    found = []
    for units in UNITS:
        for name in CLAIMED:
            if name not in tests.get(units, {}):
                continue
            kind, _, topic = name.partition(" ")
            share, count = tests[units][name]
            floor = math.floor(100 * interval(share * count, int(count))[0]) / 100
            found.append({"units": units, "kind": kind, "topic": topic or None, "floor": floor})
    return {"streamworld": found}
