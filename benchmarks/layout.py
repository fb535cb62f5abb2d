"""What placement costs: every retention policy on every layout, without a model.

``python benchmarks/layout.py [--quick]`` runs streams of the shapes of three models through the
real session with a backend that computes nothing, and checks how full pages are, how long the span
is beside a flat cache, how much is copied, and how long deciding and planning take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Claim, Report, as_process, out_folder
from benchmarks.harness import table as text_table
from benchmarks.layout_plots import draw_bars, draw_extents
from benchmarks.layout_runs import (
    FRAME,
    Run,
    Stream,
    alternate,
    ledger_bytes,
    policies,
    run,
)
from benchmarks.traces import PREFIX, SHAPES, RecordedTrace, Shape, Trace
from omni_core.backend import PAGE
from omni_core.errors import OmniError
from omni_core.paging import EagerLayout, Layout, NativeLayout, PageLayout
from omni_core.retention import OmniPick, Policy

BUDGETS = {8192: (1.08, 1.11), 4096: (1.13, 1.19), 2048: (1.19, 1.27)}
"""Cells, and the most pages over the fewest possible: on average, at worst."""
CHECKPOINT = 32_768
TRIMMED = PageLayout(worth=PAGE, spare=0.0, trim=True)
"""For kernels that walk the whole span: copies whatever shortens it."""
LAYOUTS: dict[str, Layout] = {
    "page": PageLayout(),
    "page, trimmed": TRIMMED,
    "native": NativeLayout(),
    "eager": EagerLayout(),
}
FLAT = ("native", "eager")
"""Layouts of a flat cache, which knows no position frames: they run without, to their advantage."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    shapes: tuple[Shape, ...] = SHAPES
    sweep: tuple[Shape, ...] = (SHAPES[2], SHAPES[4], SHAPES[7])
    placed: int = 2400
    swept: int = 600
    scored: int = 400
    scored_budgets: tuple[int, ...] = (8192, 4096, 2048)
    late: int = 28_800
    early: int = 600
    timed: int = 400

    @staticmethod
    def small() -> Size:
        """For ``--quick``."""
        few = (SHAPES[2], SHAPES[4], SHAPES[7])
        return Size(few, few[:1], 300, 90, 110, (4096,), 1500, 600, 150)


@dataclass
class Findings:
    """Rows and claims as they come."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def add(self, part: str, found: Run, **more: Any) -> Run:
        """Keep a run as a row."""
        self.rows.append(found.row(part) | more)
        return found


def fitting(shapes: Sequence[Shape], budget: int) -> Iterator[Shape]:
    """Shapes whose largest unit a budget holds beside the prefix."""
    return (shape for shape in shapes if shape.largest + PREFIX <= budget * 7 // 8)


def played(trace: Trace, policy: Policy, label: str, budget: int) -> Run:
    """A stream on a layout of :data:`LAYOUTS`."""
    frame = None if label in FLAT else FRAME
    return run(trace, policy, LAYOUTS[label], budget, frame=frame, label=label)


def full_pages(size: Size, found: Findings) -> None:
    """OmniPick: how full pages are by placement alone, and what selective migration adds."""
    for budget, (average, worst) in BUDGETS.items():
        still: list[Run] = []
        moved: list[Run] = []
        for shape in fitting(size.shapes, budget):
            for runs, layout in ((still, PageLayout(worth=0)), (moved, PageLayout())):
                label = "page, no moves" if runs is still else "page"
                trace = Trace(shape, size.placed)
                one = run(trace, OmniPick(), layout, budget, label=label)
                runs.append(found.add("full pages", one))
        copied = max(int(one.moved[-1]) for one in still)
        about = f"{budget:,} cells, OmniPick"
        found.claims += [
            Claim(f"{about}, no moves: pages on average", max(r.average for r in still), average),
            Claim(f"{about}, no moves: pages at worst", max(r.worst for r in still), worst),
            Claim(f"{about}, no moves: cells moved", copied, 0),
        ]
        if budget == max(BUDGETS):
            # Smaller budgets hold fewer sinks of each frame, and frames share no page: there is
            # less than a page to be won.
            most = max(r.average for r in moved)
            found.claims.append(Claim(f"{about}, migration: pages on average", most, 1.05))


def any_token(size: Size, found: Findings) -> None:
    """H2O and eviction by lot: tokens may go anywhere, and migration keeps up for little."""
    known = policies()
    for name in ("h2o", "random"):
        averages: list[float] = []
        shares: list[float] = []
        small: list[int] = []
        for budget in size.scored_budgets:
            for shape in fitting(size.shapes, budget):
                runs = {
                    label: played(Trace(shape, size.scored), known[name], label, budget)
                    for label in ("page", "eager")
                }
                for one in runs.values():
                    found.add("any token", one)
                # A unit that replaces more of the cache than this leaves little to keep together.
                if shape.largest <= budget // 4:
                    small.append(len(averages))
                averages.append(runs["page"].average)
                shares.append(runs["page"].moved[-1] / runs["eager"].moved[-1])
        about = f"{name}, units up to a quarter of the budget"
        found.claims += [
            Claim(f"{about}: pages on average", max(averages[i] for i in small), 1.15),
            Claim(f"{about}: bytes moved over eager's", max(shares[i] for i in small), 0.10),
            Claim(f"{name}, mean of all streams: pages", sum(averages) / len(averages), 1.15),
        ]


def span_at_checkpoint(size: Size, found: Findings) -> list[dict[str, Any]]:
    """The span beside that of a flat cache without frames, at 32,768 tokens (figure 12)."""
    known = policies()
    reductions: list[float] = []
    bars: list[dict[str, Any]] = []
    for budget in (4096, 2048):
        for shape in fitting(size.shapes, budget):
            units = CHECKPOINT // (min(shape.vision) + shape.audio) + 2
            for name in ("streaming-llm", "omnipick", "h2o"):
                spans = {}
                for label in ("native", "page", "page, trimmed"):
                    one = played(Trace(shape, units), known[name], label, budget)
                    at = one.at_tokens(CHECKPOINT)
                    spans[label] = one.span[at]
                    row = {
                        "cells": int(one.cells[at]),
                        "pages": int(one.pages[at]),
                        "span": int(one.span[at]),
                    }
                    found.add("span at 32,768 tokens", one, **row)
                    bars.append(found.rows[-1])
                reductions.append(float(1 - spans["page, trimmed"] / spans["native"]))
    found.claims += [
        Claim("span at 32K, trimmed, under native's: best", max(reductions), 0.267, least=True),
        Claim("span at 32K, trimmed, under native's: least", min(reductions), 0.0, least=True),
    ]
    return bars


def time_to_plan(size: Size, found: Findings) -> None:
    """Deciding and planning: how long a unit takes, early and late in the stream."""
    worst = 0.0
    for shape in fitting(size.shapes, max(BUDGETS)):
        trace = Trace(shape, size.early + 3 * size.timed, every=1 << 30)
        one = found.add("time", run(trace, OmniPick(), PageLayout(), max(BUDGETS)))
        # Another process can only add time: the best of three stretches of the stream counts.
        stretches = np.split(one.milliseconds[-3 * size.timed :], 3)
        best = min(float(np.median(part)) for part in stretches)
        found.rows[-1]["plan_ms_best"] = round(best, 4)
        worst = max(worst, best / shape.seconds)
    about = f"deciding and planning, {max(BUDGETS):,} live cells"
    found.claims.append(Claim(f"{about}: ms a second of stream, slowest", worst, 1.0))
    old, new = (
        Stream(
            Trace(SHAPES[0], units + size.timed, every=1 << 30),
            OmniPick(),
            PageLayout(),
            max(BUDGETS),
        )
        for units in (size.late, size.early)
    )
    for stream, units in ((old, size.late), (new, size.early)):
        for _ in range(units):
            stream.advance()
    pairs = list(alternate(old, new, size.timed))
    late, early = (median(column) for column in zip(*pairs, strict=True))
    grown = ledger_bytes(old.session) / ledger_bytes(new.session)
    where = f"unit {size.late:,} over unit {size.early:,}"
    found.rows.append({"part": "flat", "late_ms": round(late, 4), "early_ms": round(early, 4)})
    found.claims += [
        Claim(f"{where}: time", late / early, 1.2),
        Claim(f"{where}: time", late / early, 0.8, least=True),
        Claim(f"{where}: bytes of the ledger", grown, 1.0),
    ]


def sweep(size: Size, found: Findings, recorded: Sequence[Path]) -> None:
    """Every policy on every layout."""
    traces = [Trace(shape, size.swept) for shape in size.sweep]
    traces += [RecordedTrace(folder) for folder in recorded]
    for trace in traces:
        budget = 4096 if not isinstance(trace, RecordedTrace) else trace.budget
        for policy in policies().values():
            for label in LAYOUTS:
                found.add("sweep", played(trace, policy, label, budget))


def extents() -> list[Run]:
    """Sixty units of MiniCPM-o-4.5 under pressure, by layout (figure 8)."""
    return [
        played(Trace(SHAPES[1], 60, every=1 << 30), OmniPick(), label, 4096)
        for label in ("native", "eager", "page", "page, trimmed")
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows of the sweep."""
    head = ["stream", "policy, layout", "cells", "pages", "span", "peak", "waste", "MB moved", "ms"]
    lines = [
        [
            row["stream"],
            f"{row['policy']}, {row['layout']}" + (f" ({row['ended']})" if row["ended"] else ""),
            f"{row['cells']:,}",
            f"{row['pages']}",
            f"{row['span']}",
            f"{row['peak_span']}",
            f"{row['waste_cells']}",
            f"{row['bytes_moved'] / 1e6:,.0f}",
            f"{row['plan_ms_median']:.2f}",
        ]
        for row in rows
        if row["part"] == "sweep"
    ]
    print(text_table(head, lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="under a minute, on fewer streams")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file and the plots")
    parser.add_argument(
        "--recorded",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="also sweep a recording of `omnilive live --record`; may be given again",
    )
    options = parser.parse_args(arguments)
    took = "under a minute" if options.quick else "half an hour or more"
    print(f"every policy through every layout; takes {took}", file=sys.stderr, flush=True)
    size, found = Size.small() if options.quick else Size(), Findings()
    try:
        sweep(size, found, options.recorded)
    except OmniError as error:
        print(error, file=sys.stderr)
        return 2
    full_pages(size, found)
    any_token(size, found)
    bars = span_at_checkpoint(size, found)
    time_to_plan(size, found)
    drawn = extents()
    show(found.rows)
    changed = bool(options.recorded)
    report = Report("layout", found.rows, found.claims, options.quick, changed=changed)
    print(f"\nwrote {report.write(options.out)}")
    kept = report.figures(options.out)
    draw_extents(drawn, kept / "layout-extent.png")
    largest = {shape.name for shape in (SHAPES[1], SHAPES[4], SHAPES[7], SHAPES[8])}
    draw_bars([row for row in bars if row["stream"] in largest] or bars, kept / "layout-span.png")
    return report.finish()


if __name__ == "__main__":
    sys.exit(as_process(main))
