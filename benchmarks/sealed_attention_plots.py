"""The plot of sealed decode: time over cells by bits, beside 16-bit pages, dense and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import pyplot
from benchmarks.live_cells import K

_BITS = {2: "#b03a2e", 3: "#d98032", 4: "#d4b106"}
_PAGES, _DENSE, _FLOOR = "#2e7d4f", "#3b6ea5", "#444444"
Row = dict[str, Any]


def draw(rows: Sequence[Row], file: Path) -> None:
    """Microseconds a layer, a panel a shape; nothing where no decode was timed."""
    timed = [row for row in rows if row["part"] == "decode" and "ours_ms" in row]
    plots = pyplot() if timed else None
    if plots is None:
        return
    ceiling = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), np.nan)
    shapes = list(dict.fromkeys(row["shape"] for row in timed))
    figure, panels = plots.subplots(1, len(shapes), figsize=(4.4 * len(shapes), 3.8), squeeze=False)
    for panel, shape in zip(panels.flat, shapes, strict=True):
        here = sorted((row for row in timed if row["shape"] == shape), key=lambda row: row["live"])
        for bits, colour in _BITS.items():
            own = [row for row in here if row["bits"] == bits]
            cells = [row["live"] for row in own]
            panel.plot(cells, [row["ours_ms"] * 1e3 for row in own], "o-", color=colour,
                       label=f"sealed, {bits} bits", markersize=4)  # fmt: skip
        two = [row for row in here if row["bits"] == min(row["bits"] for row in here)]
        cells = [row["live"] for row in two]
        lines = {
            "16-bit pages": (_PAGES, "s-", [pages_ms(row) for row in two]),
            "dense, best": (_DENSE, "^-", [row.get("dense_ms", np.nan) for row in two]),
            "reading alone": (_FLOOR, "--", [row["bytes"] / ceiling / 1e6 for row in two]),
        }
        for name, (colour, style, times) in lines.items():
            panel.plot(cells, np.array(times) * 1e3, style, color=colour, label=name, markersize=4)
        panel.set(xscale="log", yscale="log", title=shape, xlabel="live cells")
        panel.set_xticks(cells, [f"{n // K}K" for n in cells])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("µs a layer, one token")
    panels[0, 0].legend(loc="lower right", fontsize=7)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    plots.close(figure)
    print(f"drew {file}")


def pages_ms(row: Row) -> float:
    """What the kernel for 16-bit pages took for the same cells, NaN where it was left out."""
    return float(row.get("peers_ms", {}).get("16-bit pages", np.nan))
