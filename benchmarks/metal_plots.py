"""The plot of the Metal benchmark: decode over live cells beside MLX's own and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import pyplot

_OURS, _DENSE, _FLOOR = "#b03a2e", "#3b6ea5", "#444444"
Row = dict[str, Any]


def draw(rows: Sequence[Row], file: Path) -> None:
    """Time of a step's attention, a panel a shape; nothing where no decode was timed."""
    timed = [row for row in rows if row["part"] == "decode" and "ours_ms" in row]
    plots = pyplot() if timed else None
    if plots is None:
        return
    dtype = timed[0]["dtype"]
    timed = [row for row in timed if row["dtype"] == dtype]
    shapes = list(dict.fromkeys(row["shape"] for row in timed))
    figure, panels = plots.subplots(1, len(shapes), figsize=(4.4 * len(shapes), 3.8), squeeze=False)
    for panel, shape in zip(panels.flat, shapes, strict=True):
        here = sorted((row for row in timed if row["shape"] == shape), key=lambda row: row["live"])
        cells = [row["live"] for row in here]
        # The GPU's own time, or that on the wall where not all have it.
        way = "gpu_ms" if all("gpu_ratio" in row for row in here) else "ms"
        # A large case may have had room for some of its layers.
        lines = {
            "live pages": (_OURS, "o-", [_layer(row, f"ours_{way}") for row in here]),
            "MLX's, contiguous": (_DENSE, "s-", [_layer(row, f"dense_{way}") for row in here]),
            "reading alone": (_FLOOR, "--", [_layer(row, "floor_ms") for row in here]),
        }
        for name, (colour, style, times) in lines.items():
            if not np.isnan(times).all():
                panel.plot(cells, times, style, color=colour, label=name, markersize=4)
        panel.set(xscale="log", yscale="log", title=shape, xlabel="live cells")
        panel.set_xticks(cells, [f"{n // 1024}K" if n >= 1024 else f"{n}" for n in cells])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel(f"µs a layer, one token, {dtype}")
    panels[0, 0].legend(loc="upper left", fontsize=8)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    plots.close(figure)
    print(f"drew {file}")


def _layer(row: Row, key: str) -> float:
    return float(row.get(key, np.nan)) * 1e3 / float(row["layers"])
