"""The tables that people read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omnilive.evaluation.claims import Claim
from omnilive.evaluation.marks import RECALL, lag_name
from omnilive.evaluation.rows import Row
from streamworld.scoring import LAGS

Lines = list[list[str]]


def by_kind(rows: Sequence[Row]) -> Lines:
    """Accuracy in percent, over all with its interval and by kind; the last line counts."""
    kinds = list(rows[0]["kinds"])
    head = ["policy", "budget", "cells", "all", "95 %", *kinds]
    lines = [
        [
            *_setting(row),
            _percent(row["right"], row["questions"]),
            f"{100 * row['low']:.1f}-{100 * row['high']:.1f}",
            *(_percent(*row["kinds"][kind]) for kind in kinds),
        ]
        for row in rows
    ]
    counts = [str(rows[0]["kinds"][kind][1]) for kind in kinds]
    return [head, *lines, ["questions", "", "", str(rows[0]["questions"]), "", *counts]]


def by_lag(rows: Sequence[Row]) -> Lines:
    """Accuracy of what is recalled from one moment, by units since then; the last line counts."""
    lags = [lag for lag in map(lag_name, range(len(LAGS))) if _recalled(rows[0], lag)[1]]
    lines = [[*_setting(row), *(_percent(*_recalled(row, lag)) for lag in lags)] for row in rows]
    counts = [str(_recalled(rows[0], lag)[1]) for lag in lags]
    return [["policy", "budget", "cells", *lags], *lines, ["questions", "", "", *counts]]


def by_cost(rows: Sequence[Row]) -> Lines:
    """What was really used, and how fast it went."""
    head = ["policy", "budget", "cells", "used", "MB", "units/s"]
    return [
        head,
        *(
            [
                *_setting(row),
                f"{row['cells']}",
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['units_per_second']:.0f}",
            ]
            for row in rows
        ),
    ]


def of_claims(claims: Sequence[Claim]) -> Lines:
    """What was claimed, and what became of it."""
    lines = [
        [
            {True: "holds", False: "FAILS", None: "unchecked"}[claim.holds],
            claim.name,
            "" if claim.value is None else f"{claim.value:.1f}",
            f"{claim.comparison} {claim.bound:g}",
        ]
        for claim in claims
    ]
    return [["", "claim", "value", "bound"], *lines]


def text(lines: Lines) -> str:
    """In columns, the first two flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rest = lines
    rule = ["-" * width for width in widths]
    return "".join(f"{_line(line, widths)}\n" for line in (head, rule, *rest))


def markdown(lines: Lines) -> str:
    """As a Markdown table."""
    head, *rest = lines
    rule = ["---"] * 2 + ["--:"] * (len(head) - 2)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rest))


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_cells(line, widths)).rstrip()


def _cells(line: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for place, (cell, width) in enumerate(zip(line, widths, strict=True)):
        yield cell.ljust(width) if place < 2 else cell.rjust(width)


def _setting(row: Row) -> list[str]:
    words = {"aggregation": ", aggregated", "layers": ", by layer"}
    name = row["policy"] + "".join(word for key, word in words.items() if key in row)
    return [name, row["share"], f"{row['budget']}"]


def _percent(right: int, count: int) -> str:
    return f"{100 * right / count:.1f}" if count else "-"


def _recalled(row: Row, lag: str) -> tuple[int, int]:
    found = [row["lags"].get(kind, {}).get(lag, (0, 0)) for kind in RECALL]
    return sum(count[0] for count in found), sum(count[1] for count in found)
