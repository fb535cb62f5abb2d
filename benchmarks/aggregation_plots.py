"""What aggregation keeps, as pictures: a clip's patches before and after, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aggregation_clips import Second
from benchmarks.harness import pyplot

SHOWN = 12
"""Seconds of a clip that are drawn."""
_BARS = {"all": "#3b6ea5", "aggregated": "#b03a2e", "as in the paper": "#aaaaaa"}


def patches(path: Path, title: str, seconds: Sequence[Second]) -> Path | None:
    """Frames as they came, and below what of them entered; the file, or None without matplotlib.

    What was left out is grey; tokens that were merged are one area with a line around it.
    """
    plots = pyplot()
    if plots is None:
        return None
    drawn = seconds[:SHOWN]
    figure, axes = plots.subplots(
        2, len(drawn), figsize=(1.15 * len(drawn), 2.9), squeeze=False, layout="constrained"
    )
    for column, second in enumerate(drawn):
        axes[0][column].imshow(second.frame)
        axes[0][column].set_title(f"{column} s", fontsize=8)
        axes[1][column].imshow(kept(second))
        _outline(axes[1][column], second)
        axes[1][column].set_xlabel(f"{second.entered} of {second.group.size}", fontsize=8)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0][0].set_ylabel("seen", fontsize=9)
    axes[1][0].set_ylabel("entered", fontsize=9)
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plots.close(figure)
    return path


def kept(second: Second) -> npt.NDArray[np.uint8]:
    """The frame with what was left out in light grey."""
    group = _in_pixels(second)
    grey = np.full_like(second.frame, 225)
    return np.where((group < 0)[:, :, None], grey, second.frame).astype(np.uint8)


def accuracy(path: Path, rows: Sequence[dict[str, Any]]) -> Path | None:
    """Right answers by policy and budget, a bar for which tokens enter."""
    plots = pyplot()
    if plots is None:
        return None
    places = list(dict.fromkeys((row["policy"], row["share"]) for row in rows))
    figure, axis = plots.subplots(figsize=(1.6 * len(places) + 1.6, 3.4), layout="constrained")
    wide = 0.8 / len(_BARS)
    for number, (tokens, colour) in enumerate(_BARS.items()):
        found = {(row["policy"], row["share"]): row for row in rows if row["tokens"] == tokens}
        height = [100 * found[place]["accuracy"] for place in places]
        low, high = (
            [abs(100 * found[place][edge] - top) for place, top in zip(places, height, strict=True)]
            for edge in ("low", "high")
        )
        at = np.arange(len(places)) + (number - 1) * wide
        bars = {"color": colour, "yerr": [low, high], "label": tokens, "ecolor": "#444444"}
        axis.bar(at, height, wide, **bars)
    axis.set_xticks(range(len(places)), [f"{policy}\n{share}" for policy, share in places])
    axis.set_ylabel("right answers in percent")
    axis.set_ylim(0, 105)
    legend = {"fontsize": 8, "ncols": len(_BARS), "title": "vision tokens that enter"}
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), **legend)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plots.close(figure)
    return path


def _in_pixels(second: Second) -> npt.NDArray[np.int32]:
    """The group of each pixel."""
    rows, columns = second.shape
    height, width = second.frame.shape[:2]
    down, across = np.arange(height) * rows // height, np.arange(width) * columns // width
    found: npt.NDArray[np.int32] = second.group.reshape(rows, columns)[down[:, None], across]
    return found


def _outline(axis: Any, second: Second) -> None:
    """Lines where one group ends and another begins."""
    group = np.pad(second.group.reshape(second.shape), 1, constant_values=-1)
    height, width = second.frame.shape[:2]
    tall, wide = height / second.shape[0], width / second.shape[1]
    style = {"color": "#b03a2e", "linewidth": 0.9}
    for row, column in zip(*np.nonzero(group[:, 1:] != group[:, :-1]), strict=True):
        x, y = column * wide - 0.5, (row - 1) * tall - 0.5
        axis.plot([x, x], [y, y + tall], **style)
    for row, column in zip(*np.nonzero(group[1:] != group[:-1]), strict=True):
        x, y = (column - 1) * wide - 0.5, row * tall - 0.5
        axis.plot([x, x + wide], [y, y], **style)
    axis.set_xlim(-0.5, width - 0.5)
    axis.set_ylim(height - 0.5, -0.5)
