"""Accuracy against budget, a line a policy, from the document that a run leaves."""

from __future__ import annotations

import io
from typing import Any

from omnilive.evaluation.rows import Row, count_of
from omnilive.evaluation.settings import UNBOUND

_COLOURS = {
    "omnipick": "#b03a2e",
    "fifo": "#3b6ea5",
    "streaming-llm": "#2e7d4f",
    "token-basic": "#8a6d1f",
    "h2o": "#7b4fa3",
}
_MARKERS = {
    "omnipick": "o",
    "fifo": "s",
    "streaming-llm": "^",
    "token-basic": "D",
    "h2o": "v",
}
_KEPT, _GRID = "#555555", "#dddddd"
_PANELS = ((None, "all questions"), ("before", "what was before"), ("first", "what was first"))
_APART = 6.0
"""Points between two labels at least."""
_ASIDE, _ROOM = 0.09, 4.5
"""Octaves between the lines' points, which would cover each other, and what labels need."""


def draw(document: dict[str, Any]) -> bytes:
    """The plot as a PNG: all questions, and two kinds that show why.

    Bars go from the lowest to the highest seed; the dashed line is the model with all kept.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: list[Row] = document["rows"]
    panels = [panel for panel in _PANELS if panel[0] is None or count_of(rows[0], panel[0])[1]]
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(3.3 * len(panels) + 0.4, 3.7),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (kind, title) in zip(axes[0], panels, strict=True):
        _panel(axis, rows, kind)
        axis.set_title(title, fontsize=11)
    axes[0][0].set_ylabel("right answers in percent", fontsize=10.5)
    figure.supxlabel("budget, as a share of the stream's cells", fontsize=10.5)
    figure.suptitle(
        f"{document['model']} model, {document['units']} s of stream, "
        f"{rows[0]['questions']:,} questions over {len(document['seeds'])} seeds",
        fontsize=11,
    )
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=150)
    pyplot.close(figure)
    return made.getvalue()


def _panel(axis: Any, rows: list[Row], kind: str | None) -> None:
    bounded = [row for row in rows if row["policy"] != UNBOUND]
    whole = next((row for row in rows if row["policy"] == UNBOUND), None)
    ticks = {row["budget"]: row["share"] for row in sorted(bounded or rows, key=_budget)}
    first, last = min(ticks), max(ticks)
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.minorticks_off()
    axis.set_xlim(first / 1.3, last * _ROOM)
    axis.set_ylim(0, 104)
    axis.grid(axis="y", color=_GRID, linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    ends = []
    if whole:
        height = _share(whole, kind)
        axis.plot([first / 1.3, last * 1.1], [height] * 2, "--", color=_KEPT, linewidth=1.2)
        ends.append((height, "all kept", _KEPT))
    policies = list(dict.fromkeys(row["policy"] for row in bounded))
    for number, policy in enumerate(policies):
        line = sorted((row for row in bounded if row["policy"] == policy), key=_budget)
        aside = 2 ** (_ASIDE * (number - (len(policies) - 1) / 2))
        x = [row["budget"] * aside for row in line]
        y = [_share(row, kind) for row in line]
        colour = _COLOURS.get(policy, _KEPT)
        style = {"color": colour, "marker": _MARKERS.get(policy, "x"), "capsize": 2.5}
        axis.errorbar(x, y, yerr=_over_seeds(line, kind), linewidth=1.6, markersize=4.5, **style)
        ends.append((y[-1], policy, colour))
    _label(axis, last * 1.2, ends)


def _budget(row: Row) -> int:
    return int(row["budget"])


def _share(row: Row, kind: str | None) -> float:
    right, count = count_of(row, kind)
    return 100 * right / count


def _over_seeds(line: list[Row], kind: str | None) -> tuple[list[float], list[float]]:
    """How far below and above each row's share its seeds lie."""
    low, high = [], []
    for row in line:
        counts = [count_of(seed, kind) for seed in row["seeds"]]
        shares = [100 * right / count for right, count in counts if count]
        low.append(max(0.0, _share(row, kind) - min(shares)))
        high.append(max(0.0, max(shares) - _share(row, kind)))
    return low, high


def _label(axis: Any, x: float, ends: list[tuple[float, str, str]]) -> None:
    """Name lines at their right ends, pushed apart where they would cover each other."""
    place = float("inf")
    ordered = sorted(ends, reverse=True)
    lowest = [_APART * number for number in reversed(range(len(ordered)))]
    for (height, name, colour), least in zip(ordered, lowest, strict=True):
        place = max(least, min(height, place - _APART))
        axis.text(x, place, name, color=colour, va="center", fontsize=10)
