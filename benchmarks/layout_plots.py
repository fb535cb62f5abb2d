"""Plots of the layout benchmark, after OmniTide's figures 8 and 12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import pyplot
from benchmarks.layout_runs import Run
from omni_core.backend import PAGE

_USED, _HOLE, _SPAN, _PEAK = "#3b6ea5", "#e3b27a", "#444444", "#b03a2e"


def draw_extents(runs: Sequence[Run], path: Path) -> None:
    """Physical extent, occupied cells and holes over the units: one panel a layout (figure 8)."""
    plots = pyplot()
    if plots is None:
        return
    figure, panels = plots.subplots(1, len(runs), figsize=(4 * len(runs), 3.4), sharey=True)
    for panel, run in zip(np.atleast_1d(panels), runs, strict=True):
        units = np.arange(1, run.cells.size + 1)
        panel.fill_between(units, run.cells, color=_USED, label="occupied cells", linewidth=0)
        panel.fill_between(
            units, run.cells, run.span * PAGE, color=_HOLE, label="holes", linewidth=0
        )
        panel.plot(units, run.span * PAGE, color=_SPAN, label="physical extent", linewidth=1.2)
        panel.set_title(f"{run.layout}: {run.moved[-1]:,} cells moved", fontsize=10)
        panel.set_xlabel("unit")
        panel.set_xlim(1, units[-1])
        panel.set_ylim(0, None)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("cells")
    first.legend(loc="lower right", fontsize=8)
    figure.suptitle(
        f"{runs[0].trace}, {runs[0].policy}, budget {runs[0].budget:,} cells", fontsize=11
    )
    _save(plots, figure, path)


def draw_bars(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Useful cells and waste of the span at the checkpoint, peak span as a line (figure 12)."""
    plots = pyplot()
    if plots is None:
        return
    streams = list(dict.fromkeys((row["stream"], row["high"]) for row in rows))
    columns = min(3, len(streams))
    lines = -(-len(streams) // columns)
    figure, panels = plots.subplots(
        lines, columns, figsize=(4.6 * columns, 3.3 * lines), squeeze=False
    )
    for panel in panels.flat[len(streams) :]:
        panel.set_axis_off()
    for panel, (stream, high) in zip(panels.flat, streams, strict=False):
        here = [row for row in rows if (row["stream"], row["high"]) == (stream, high)]
        _bars(panel, here)
        panel.set_title(f"{stream}, {high:,} cells", fontsize=10)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="upper right", ncol=3, fontsize=8)
    for line in panels:
        line[0].set_ylabel("cells at 32,768 tokens")
    _save(plots, figure, path)


def _bars(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    at = np.arange(len(rows))
    useful = np.asarray([row["cells"] for row in rows])
    span = np.asarray([row["span"] for row in rows]) * PAGE
    panel.bar(at, useful, color=_USED, label="useful cells")
    panel.bar(at, span - useful, bottom=useful, color=_HOLE, label="waste of the span")
    peak = np.asarray([row["peak_span"] for row in rows]) * PAGE
    panel.plot(at, peak, color=_PEAK, marker="o", markersize=3, linewidth=1, label="peak span")
    for x, y, ratio in zip(at, span, span / useful, strict=True):
        panel.text(x, y, f"{ratio:.2f}", ha="center", va="bottom", fontsize=7)
    names = [f"{row['policy']}\n{row['layout']}" for row in rows]
    panel.set_xticks(at, names, fontsize=6.5, rotation=60)
    panel.set_ylim(0, peak.max() * 1.12)


def _save(plots: Any, figure: Any, path: Path) -> None:
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plots.close(figure)
    print(f"drew {path}")
