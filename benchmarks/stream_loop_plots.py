"""Plots of the stream loop: a unit's latency along the stream, and what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import pyplot
from benchmarks.stream_loop_stream import PARTS

_LINES = {
    "transformers, no-slide": "#b03a2e",
    "ours, no-slide": "#e08e45",
    "ours, fifo": "#8a8a8a",
    "ours, streaming-llm": "#7d5ba6",
    "ours, omnipick": "#3b6ea5",
}
_COLOURS = {
    "encode": "#c7a252",
    "prefill": "#3b6ea5",
    "decode": "#e08e45",
    "move": "#b03a2e",
    "step": "#777777",
    "retain": "#2e8b57",
    "plan": "#7d5ba6",
}


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write ``stream-loop-latency.png`` and ``-split.png``; nothing where no stream was run."""
    streams = [row for row in rows if row["part"] == "stream"]
    plots = pyplot() if streams else None
    if plots is None:
        return
    encodes = {(row["model"], row["unit"]): row["ms"] for row in rows if row["part"] == "encode"}
    _save(plots, _latency(plots, streams), folder / "stream-loop-latency.png")
    _save(plots, _split(plots, streams, encodes), folder / "stream-loop-split.png")


def _latency(plots: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """Milliseconds of a unit without words, a panel a model and unit length."""
    figure, panels, at = _grid(plots, rows)
    for (model, unit), panel in at.items():
        for row in rows:
            if (row["model"], row["unit"]) == (model, unit):
                line = _line(row)
                x = [place / 1024 for place in row["at"]]
                panel.plot(x, row["listen_ms"], color=_LINES[line], label=line, linewidth=1.6)
        panel.set_ylim(0, None)
        panel.set_title(f"{model}, units of {unit:,}", fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("thousand tokens of stream")
    for row_of in panels:
        row_of[0].set_ylabel("ms a unit")
    panels[0][0].legend(fontsize=7)
    return figure


def _split(
    plots: Any, rows: Sequence[dict[str, Any]], encodes: dict[tuple[str, int], float]
) -> Any:
    """Milliseconds a unit over the whole stream, by part; encoders where they were measured."""
    figure, panels, at = _grid(plots, rows)
    for (model, unit), panel in at.items():
        here = [row for row in rows if (row["model"], row["unit"]) == (model, unit)]
        bottom = [0.0] * len(here)
        names = [_line(row).replace(", ", "\n") for row in here]
        for part in ("encode", *PARTS):
            if part == "encode":
                values = [encodes.get((model, unit), 0.0)] * len(here)
            else:
                values = [row["seconds"][part] * 1e3 / row["units"] for row in here]
            panel.bar(names, values, bottom=bottom, color=_COLOURS[part], label=part, width=0.7)
            bottom = [low + value for low, value in zip(bottom, values, strict=True)]
        panel.tick_params(axis="x", labelsize=6)
        panel.set_title(f"{model}, units of {unit:,}", fontsize=9)
    for row_of in panels:
        row_of[0].set_ylabel("ms a unit, mean")
    panels[0][0].legend(fontsize=7)
    return figure


def _line(row: dict[str, Any]) -> str:
    return f"{row['path']}, {row['policy']}"


def _grid(plots: Any, rows: Sequence[dict[str, Any]]) -> tuple[Any, Any, Any]:
    models = list(dict.fromkeys(row["model"] for row in rows))
    units = sorted({row["unit"] for row in rows})
    figure, panels = plots.subplots(
        len(models),
        len(units),
        figsize=(4.2 * len(units), 2.9 * len(models)),
        squeeze=False,
    )
    at = {
        (model, unit): panels[i][j]
        for i, model in enumerate(models)
        for j, unit in enumerate(units)
    }
    return figure, panels, at


def _save(plots: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plots.close(figure)
    print(f"drew {path}")
