"""What the rows of the Metal benchmark add up to, and the bounds that they are to keep."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Any

from benchmarks.harness import LEVEL, Claim
from benchmarks.live_cells import K
from benchmarks.metal_shapes import BOUNDS

Row = dict[str, Any]
FROM = 8 * K
"""Live cells from which on a decode step is to be no slower than MLX's fused attention."""


def note_floors(rows: Sequence[Row]) -> None:
    """Put what reading alone takes, and TFLOP/s, into rows of attention."""
    ceiling = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), nan)
    for row in rows:
        if "ours_ms" not in row or "flops" not in row:
            continue
        floor = row["bytes"] / ceiling / 1e6
        # Prefill may be ruled by arithmetic: this is what its caches take to be read once.
        row["floor_ms"] = round(floor, 6)
        row["read_share"] = round(floor / taken_ms(row), 4)
        row["ours_tflop_per_s"] = round(row["flops"] / taken_ms(row) / 1e9, 4)


def taken_ms(row: Row) -> float:
    """Milliseconds of ours: the GPU's, or those on the wall where the GPU's are not known."""
    return float(row.get("ours_gpu_ms", row["ours_ms"]))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All bounds on what was run; NaN, which holds nothing, where it failed."""
    ran = [row for row in rows if "skipped" not in row]
    found = [Claim("cases that failed", sum("failed" in row for row in ran), 0)]
    for dtype, bound in BOUNDS.items():
        here = [
            row["ours_error"] for row in ran if row.get("dtype") == dtype if "ours_error" in row
        ]
        if here:
            worst = max(error if isfinite(error) else inf for error in here)
            found.append(Claim(f"{dtype}: largest error of a head", worst, bound))
    for row in ran:
        if row["part"] == "decode" and row["live"] >= FROM:
            about = f"{row['shape']}, {row['dtype']}, decode at {row['live']:,}: MLX's "
            # What the host needs to hand launches over is a model's to hide, and shown beside it.
            key = "gpu_ratio" if "gpu_ratio" in row else "ratio"
            about += "GPU time over ours" if key == "gpu_ratio" else "time over ours"
            found.append(Claim(about, row.get(key, nan), 1.0, least=True))
    for row in ran:
        if row["part"] == "memory":
            about = f"{row.get('units', 0)} units of varied lengths: memory"
            growth, kept = row.get("growth", nan), row.get("kept_over_limit", nan)
            found.append(Claim(f"{about} in use, last over first fifth", growth, LEVEL))
            found.append(Claim(f"{about} kept for reuse, most over its limit", kept, LEVEL))
    return found
