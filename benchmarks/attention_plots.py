"""Plots of the attention benchmark: decode over live cells, prefill, budgets, holes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention_claims import PAPERS
from benchmarks.harness import pyplot

_OURS, _DENSE, _FLOOR, _FLEX, _INFER = "#b03a2e", "#3b6ea5", "#444444", "#e3b27a", "#5f8f5f"
_COLOURS = ("#b03a2e", "#3b6ea5", "#5f8f5f")
Row = dict[str, Any]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """All plots that the rows have figures for."""
    plots = pyplot()
    if plots is None:
        return
    timed = [row for row in rows if "ours_ms" in row]
    parts = {
        part: [row for row in timed if row["part"] == part]
        for part in ("decode", "prefill", "over history", "holes")
    }
    floor = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), None)
    if parts["decode"]:
        _decode(plots, parts["decode"], floor, folder / "attention-decode.png")
    if parts["prefill"]:
        _prefill(plots, parts["prefill"], folder / "attention-prefill.png")
    if parts["over history"]:
        _budgets(plots, parts["over history"], folder / "attention-budgets.png")
    if parts["holes"]:
        _holes(plots, parts["holes"], folder / "attention-holes.png")


def _decode(plots: Any, rows: Sequence[Row], floor: float | None, path: Path) -> None:
    """Time of a step against live cells, a panel a shape, with what reading alone takes."""
    shapes = _names(rows, "shape")
    figure, panels = plots.subplots(1, len(shapes), figsize=(4.4 * len(shapes), 3.8), squeeze=False)
    for panel, shape in zip(panels.flat, shapes, strict=True):
        here = sorted((row for row in rows if row["shape"] == shape), key=lambda row: row["live"])
        lines = {
            "live pages": (_OURS, "o-", [row["ours_ms"] for row in here]),
            "best dense, contiguous": (_DENSE, "s-", [row.get("dense_ms", np.nan) for row in here]),
            "FlashInfer": (_INFER, "^-", [_peer(row, "FlashInfer") for row in here]),
        }
        cells = [row["live"] for row in here]
        for name, (colour, style, times) in lines.items():
            if not np.isnan(times).all():
                panel.plot(cells, times, style, color=colour, label=name, markersize=4)
        if floor is not None:
            least = [row["bytes"] / floor / 1e6 for row in here]
            label = f"reading at {floor / 1000:.2f} TB/s"
            panel.plot(cells, least, "--", color=_FLOOR, label=label, linewidth=1)
        panel.set(xscale="log", yscale="log", title=shape, xlabel="live cells")
        panel.set_xticks(cells, [f"{n // 1024}K" for n in cells])
        panel.minorticks_off()
        low, high = panel.get_ylim()
        ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if low <= t <= high]
        panel.set_yticks(ticks, [f"{t:g}" for t in ticks])
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("ms a token, attention of all layers")
    panels[0, 0].legend(loc="upper left", fontsize=8)
    _save(plots, figure, path)


def _prefill(plots: Any, rows: Sequence[Row], path: Path) -> None:
    """TFLOP/s, a panel a shape: bars for each number of new tokens and live cells."""
    shapes = _names(rows, "shape")
    most = max(sum(row["shape"] == shape for row in rows) for shape in shapes)
    figure, panels = plots.subplots(
        len(shapes), 1, figsize=(max(6.0, 1.0 * most), 2.9 * len(shapes)), squeeze=False
    )
    for panel, shape in zip(panels.flat, shapes, strict=True):
        here = [row for row in rows if row["shape"] == shape]
        speeds = {
            "live pages": (_OURS, [row["ours_ms"] for row in here]),
            "best dense, contiguous": (_DENSE, [row.get("dense_ms", np.nan) for row in here]),
            "FlexAttention": (_FLEX, [_peer(row, "FlexAttention") for row in here]),
            "FlashInfer": (_INFER, [_peer(row, "FlashInfer") for row in here]),
        }
        at = np.arange(len(here))
        kept = {name: one for name, one in speeds.items() if not np.isnan(one[1]).all()}
        width = 0.8 / len(kept)
        for number, (name, (colour, times)) in enumerate(kept.items()):
            tflops = [row["flops"] / ms / 1e9 for row, ms in zip(here, times, strict=True)]
            place = at + (number - (len(kept) - 1) / 2) * width
            panel.bar(place, tflops, width, color=colour, label=name)
        panel.set_xticks(at, [f"{row['new']:,}\non {row['live'] // 1024}K" for row in here])
        panel.tick_params(axis="x", labelsize=8)
        panel.set_title(shape, fontsize=10, loc="left")
        panel.set_ylabel("TFLOP/s")
        panel.grid(axis="y", alpha=0.3)
        panel.set_axisbelow(True)
    panels[-1, 0].set_xlabel("new tokens, on live cells")
    # The first shape is the one that all peers run.
    handles, labels = panels[0, 0].get_legend_handles_labels()
    panels[0, 0].legend(
        handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(labels), fontsize=8
    )
    _save(plots, figure, path)


def _budgets(plots: Any, rows: Sequence[Row], path: Path) -> None:
    """Times faster than the best dense kernel on the whole history, where budgets were varied."""
    kinds = [
        new
        for new in _names(rows, "new")
        if len({row["live"] for row in rows if row["new"] == new}) > 2
    ]
    if not kinds:
        return
    figure, panels = plots.subplots(1, len(kinds), figsize=(5 * len(kinds), 3.6), squeeze=False)
    for panel, new in zip(panels.flat, kinds, strict=True):
        here = [row for row in rows if row["new"] == new]
        budgets = sorted({row["live"] for row in here})
        for colour, shape in zip(_COLOURS, _names(here, "shape"), strict=False):
            line = sorted((row for row in here if row["shape"] == shape), key=lambda r: r["live"])
            ratios = [row["ratio"] for row in line]
            panel.plot([row["live"] for row in line], ratios, "o-", color=colour, label=shape)
        panel.axhline(PAPERS, color=_FLOOR, linestyle="--", linewidth=1)
        panel.text(budgets[-1], PAPERS, f"{PAPERS}", ha="right", va="top", fontsize=8)
        what = "decode" if new == 1 else f"prefill of {new:,}"
        panel.set(xscale="log", xlabel="live cells", title=f"{what}, history {_size(here)}")
        panel.set_xticks(budgets, [f"{n // 1024}K" for n in budgets])
        panel.minorticks_off()
        panel.set_ylim(0, 1.05 * max(PAPERS, *(row["ratio"] for row in here)))
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("times faster than dense on all")
    panels[0, -1].legend(loc="upper right", fontsize=8)
    _save(plots, figure, path)


def _holes(plots: Any, rows: Sequence[Row], path: Path) -> None:
    """Time a live cell over that in full pages, a panel a number of cells."""
    sizes = sorted(set(_names(rows, "live")))
    figure, panels = plots.subplots(
        1, len(sizes), figsize=(3.6 * len(sizes), 3.4), sharey=True, squeeze=False
    )
    for panel, live in zip(panels.flat, sizes, strict=True):
        here = [row for row in rows if row["live"] == live]
        for colour, kind in zip(_COLOURS, _names(here, "kind"), strict=False):
            line = sorted((row for row in here if row["kind"] == kind), key=lambda r: r["holes"])
            shares = [0.0, *(100 * row["holes"] for row in line)]
            panel.plot(shares, [1.0, *(row["over_full"] for row in line)], "o-", color=colour,
                       label=f"by {kind}")  # fmt: skip
        panel.set(xlabel="% of the arena dead", title=f"{live // 1024}K live cells")
        panel.grid(alpha=0.3)
        panel.set_ylim(0, None)
    panels[0, 0].set_ylabel("time a cell, over full pages")
    panels[0, 0].legend(loc="upper left", fontsize=8)
    _save(plots, figure, path)


def _names(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _peer(row: Row, name: str) -> float:
    return float(row["peers_ms"].get(name, np.nan))


def _size(rows: Sequence[Row]) -> str:
    return f"{rows[0]['history'] // 1024}K"


def _save(plots: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plots.close(figure)
    print(f"drew {path}")
