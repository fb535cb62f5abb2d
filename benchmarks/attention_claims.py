"""What the rows of the attention benchmark add up to, and the bounds that they are to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

from benchmarks.harness import Claim
from benchmarks.live_cells import K

Row = dict[str, Any]
HISTORY = 32 * K
"""Cells of the history that a cache without a budget would hold."""
PAPERS = 12.72
"""The best figure of a kernel in OmniTide's paper."""
BUDGETS = tuple(n * K for n in (1, 2, 3, 4, 8))
OTHERS = ("FlexAttention", "FlashInfer")
"""Peers that are no dense kernels."""
_SHAPES = ("Qwen2.5-Omni-7B", "Qwen2.5-Omni-3B", "MiniCPM-o-4.5")
_DECODE = {
    3 * K: (1.3, 1.4, 1.15),
    32 * K: (1.1, 1.1, 1.04),
    64 * K: (1.0, 1.0, 1.0),
    128 * K: (1.0, 1.0, 1.0),
}
_PREFILL = {79: 1.0, 700: 1.0, 2300: 0.88}
_OVER_HISTORY = {
    1: dict(zip(_SHAPES, (3.4, 2.6, 4.3), strict=True)),
    700: dict.fromkeys(_SHAPES, 8.8),
}


def note_shares(rows: Sequence[Row]) -> None:
    """Put the share of the card's read bandwidth into rows of decode."""
    ceiling = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), nan)
    for row in rows:
        if row["part"] == "decode" and "ours_ms" in row:
            row["read_share"] = round(row["bytes"] / row["ours_ms"] / 1e6 / ceiling, 4)


def over_history(rows: Sequence[Row]) -> list[Row]:
    """The best dense kernel over the whole history against ours with a budget."""
    found: list[Row] = []
    timed = [row for row in rows if row["part"] in ("decode", "prefill")]
    for row in timed:
        if row["live"] != HISTORY or "dense_ms" not in row:
            continue
        for other in timed:
            same = all(other[key] == row[key] for key in ("part", "shape", "new"))
            if not same or other["live"] not in BUDGETS or "ours_ms" not in other:
                continue
            found.append(
                {
                    "part": "over history",
                    "shape": row["shape"],
                    "new": row["new"],
                    "live": other["live"],
                    "history": HISTORY,
                    "dense_ms": row["dense_ms"],
                    "ours_ms": other["ours_ms"],
                    "ratio": row["dense_ms"] / other["ours_ms"],
                }
            )
    return sorted(found, key=lambda row: (row["new"], _SHAPES.index(row["shape"]), row["live"]))


def passed(rows: Sequence[Row]) -> list[str]:
    """Up to which budget the paper's best figure is passed."""
    lines = []
    ratios = [row for row in rows if row["part"] == "over history"]
    for shape, new in dict.fromkeys((row["shape"], row["new"]) for row in ratios):
        here = [row for row in ratios if (row["shape"], row["new"]) == (shape, new)]
        above = [row["live"] for row in here if row["ratio"] >= PAPERS]
        best = max(here, key=lambda row: row["ratio"])
        said = f"passed up to {max(above):,} live cells" if above else "not passed"
        lines.append(
            f"{shape}, {new:,} new over a history of {HISTORY:,}: {PAPERS} x {said}; "
            f"most: {best['ratio']:.1f} x with {best['live']:,}"
        )
    return lines


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All bounds on what was run, shares noted; NaN, which holds nothing, where it failed."""
    ran = [row for row in rows if "skipped" not in row]
    found = [
        Claim("cases that failed", sum("failed" in row for row in ran), 0),
        Claim("ours: largest error of a head", _largest(ran, "error"), 1e-2),
    ]
    found += _decode(ran)
    for row in ran:
        if row["part"] == "prefill" and row["live"] in (3 * K, 8 * K, HISTORY):
            about = f"{row['shape']}, prefill of {row['new']:,} on {row['live']:,}: dense over ours"
            found.append(Claim(about, row.get("ratio", nan), _PREFILL[row["new"]], least=True))
    for row in ran:
        if row["part"] == "holes" and row["kind"] == "pages" and row["holes"] == 0.5:
            about = f"{row['live']:,} cells, half of the pages dead: time a cell over full"
            found.append(Claim(about, row.get("over_full", nan), 1.1))
            found.append(Claim(about, row.get("over_full", nan), 0.9, least=True))
    for row in ran:
        bounds = _OVER_HISTORY.get(row.get("new", 0), {})
        if row["part"] == "over history" and row["live"] == 3 * K and row["shape"] in bounds:
            what = "decode" if row["new"] == 1 else f"prefill of {row['new']:,}"
            about = f"{row['shape']}, {what}: dense on {HISTORY:,} over ours on {3 * K:,}"
            found.append(Claim(about, row["ratio"], bounds[row["shape"]], least=True))
    return found


def _decode(ran: Sequence[Row]) -> Iterator[Claim]:
    for row in ran:
        if row["part"] != "decode" or row["live"] not in _DECODE:
            continue
        bound = _DECODE[row["live"]][_SHAPES.index(row["shape"])]
        about = f"{row['shape']}, decode at {row['live']:,}"
        yield Claim(f"{about}: dense over ours", row.get("ratio", nan), bound, least=True)
        if row["shape"] == _SHAPES[0] and row["live"] == max(_DECODE):
            reached = row.get("read_share", nan)
            yield Claim(f"{about}: share of read bandwidth", reached, 0.91, least=True)
            reached = row.get("read_ms", nan) / row.get("ours_ms", nan)
            yield Claim(
                f"{about}: plain read, layer by layer, over ours", reached, 0.91, least=True
            )


def _largest(rows: Sequence[Row], key: str) -> float:
    return max((row[key] for row in rows if key in row), default=nan)
