"""The bounds that sealed attention is to keep."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

from benchmarks.harness import Claim
from benchmarks.live_cells import SHAPES, K

Row = dict[str, Any]
_OVER_16_BITS = {8 * K: 0.95, 64 * K: 1.8, 128 * K: 2.2}
"""Of the first shape at 2 bits, by cells."""
_OTHERS = (64 * K, 128 * K)
"""Cells at which all others are to be no slower than 16 bits."""


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All bounds on what was run; NaN, which holds nothing, where it failed."""
    ran = [row for row in rows if "skipped" not in row]
    errors = [row["error"] for row in ran if row.get("error") is not None]
    found = [
        Claim("cases that failed", sum("failed" in row for row in ran), 0),
        Claim("sealed: largest error of a head", max(errors, default=nan), 1e-2),
    ]
    for row in ran:
        best = row.get("shape") == SHAPES[0].name and row.get("bits") == 2
        bounded = _OVER_16_BITS if best else _OTHERS
        if row["part"] != "decode" or row["live"] not in bounded:
            continue
        bound = _OVER_16_BITS[row["live"]] if best else 1.0
        about = f"{row['shape']}, decode at {row['live']:,}, {row['bits']} bits"
        found.append(Claim(f"{about}: 16 bits over sealed", row.get("ratio", nan), bound, True))
        over = row.get("over_decoded", nan)
        found.append(Claim(f"{about}: decoded first over sealed", over, 1.0, True))
    return found
