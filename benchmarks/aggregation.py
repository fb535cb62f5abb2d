"""How many vision tokens enter, what that costs, and what it does to the answers.

``python benchmarks/aggregation.py [--quick] [--source CLIP]…`` follows clips with the embedded
model and draws what of their pictures enters, counts what is left out of scenes that stay and that
change, asks the stream world's questions with and without aggregation at equal budgets, and, on an
NVIDIA card, times aggregation beside the prefill of a 7B model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import aggregation_accuracy as accuracy
from benchmarks import aggregation_clips as clips
from benchmarks import aggregation_plots as plots
from benchmarks.harness import Claim, Report, as_process, out_folder, table
from benchmarks.nvidia import lacking
from omni_core.aggregation import Aggregation
from omni_core.errors import OmniError
from omnilive import reading
from omnilive.clip import probe
from omnilive.live import DEMO
from omnilive.models import prepare

PACKAGES = ("numpy", "torch", "mlx")
SECONDS = 60
"""Most seconds of a clip."""
STILL, STAYS, CHANGES, LOST = 0.1, 0.8, 0.2, 0.0
"""Bounds: the share of a picture that stays that enters at most; of a scene that stays, the share
that is left out at least, and of one that changes at most; points of accuracy."""
UNITS = (79, 700, 2300)
"""Tokens of the units whose cost is measured."""
CLAIMED = 700
"""Tokens of a unit from which its bound is held: below, a few launches are most of the cost."""


def claims(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """What is held against the rows."""
    for row in rows:
        if row["part"] == "clip" and "held still" in row["clip"]:
            after = sum(row["by_second"][1:]) / (row["seen"] * (1 - 1 / row["seconds"]))
            yield Claim("of a picture that stays, the share that enters", after, STILL)
        if row["part"] == "world":
            for kind, they, bound in (("stays", "stay", STAYS), ("changes", "change", CHANGES)):
                share = row[f"shown_{kind}"] / row[f"seen_{kind}"]
                name = f"of scenes in seconds in which they {they}, the share left out"
                yield Claim(name, share, bound, least=kind == "stays")
        if row["part"] == "cost" and row["tokens"] >= CLAIMED:
            from benchmarks.aggregation_cost import BOUND

            name = f"aggregation of {row['tokens']} tokens, scene {row['scene']}: share of prefill"
            yield Claim(name, row["share"], BOUND)
    asked = [row for row in rows if row["part"] == "accuracy"]
    for plain, merged in accuracy.pairs(asked):
        if plain["policy"] == "omnipick":
            gained = 100 * (merged["accuracy"] - plain["accuracy"])
            name = f"omnipick at {plain['share']}, aggregated: points of accuracy over omnipick"
            yield Claim(name, gained, LOST, least=True)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was found."""
    lines = [
        [row["clip"], f"{row['seconds']} s"]
        + [f"{row[name]}" for name in ("seen", "shown", "merged", "entered")]
        + [f"{100 * row['share']:.1f}"]
        for row in rows
        if row["part"] == "clip"
    ]
    print(table(["clip", "", "seen", "left out", "merged", "entered", "%"], lines))
    for row in rows:
        if row["part"] == "world":
            print(
                f"\nstream world, {row['streams']} streams of {row['units']} s: of scenes that "
                f"stay {row['entered_stays']} of {row['seen_stays']} tokens entered, of scenes "
                f"that change {row['entered_changes']} of {row['seen_changes']}"
            )
    asked = [row for row in rows if row["part"] == "accuracy"]
    if asked:
        _show_accuracy(asked)
    timed = [row for row in rows if row["part"] == "cost"]
    if timed:
        names = ("entered", "aggregate_ms", "prefill_ms", "prefill_after_ms")
        lines = [
            [f"{row['shape']}, {row['tokens']}", row["scene"]]
            + [f"{row[name]:.3f}" for name in names]
            + [f"{100 * row['share']:.2f}"]
            for row in timed
        ]
        head = ["tokens", "scene", "entered", "ms", "prefill ms", "after, ms", "%"]
        print("\n" + table(head, lines))


def _show_accuracy(rows: Sequence[dict[str, Any]]) -> None:
    kinds = list(rows[0]["kinds"])
    lines = [
        [
            f"{row['policy']} {row['share']}",
            row["tokens"],
            f"{row['cells']}",
            f"{100 * row['aggregated']['entered'] / row['aggregated']['seen']:.0f}"
            if "aggregated" in row
            else "100",
            f"{100 * row['accuracy']:.1f}",
            *(f"{100 * right / max(count, 1):.0f}" for right, count in row["kinds"].values()),
        ]
        for row in rows
    ]
    print("\n" + table(["policy", "vision tokens", "cells", "in %", "right %", *kinds], lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="under two minutes on two cores")
    parser.add_argument(
        "--source", type=Path, action="append", default=[], metavar="CLIP", help="more clips"
    )
    parser.add_argument("--streams", type=reading.count, metavar="N", help="of each seed")
    parser.add_argument("--backend", choices=("cuda", "mlx"), default="cuda")
    parser.add_argument("--device", default="auto", help="where the embedded model runs")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file and the plots")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except OmniError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    note = partial(print, file=sys.stderr, flush=True)
    for source in options.source:
        # Before anything is loaded, or takes long.
        probe(source)
    prepared = prepare(backend=options.backend, device=options.device)
    model = prepared.load()
    rule, rows = Aggregation(), []
    drawn: dict[str, list[clips.Second]] = {}
    seconds = 12 if options.quick else SECONDS
    for name, found in clips.clips(model, [DEMO, *options.source], seconds, rule):
        drawn[name] = found
        rows.append(clips.row(name, found))
        note(f"{name}: {rows[-1]['entered']} of {rows[-1]['seen']} tokens entered")
    rows.append(clips.world(model, 2 if options.quick else 8, 32, rule))
    size = accuracy.QUICK if options.quick else accuracy.Size()
    if options.streams:
        size = replace(size, streams=options.streams)
    rows += accuracy.rows(prepared, size, note)
    missing = lacking()
    if missing is None:
        rows += _cost(options.quick)
    else:
        note(f"the cost beside a 7B model is not measured: {missing}")
    on_card = missing is None and options.device != "cpu"
    report = Report(
        "aggregation",
        rows,
        list(claims(rows)),
        quick=options.quick,
        packages=PACKAGES,
        device=model.backend.device if on_card else "",
        seed=1,
        changed=bool(options.source or options.streams),
    )
    show(rows)
    print(f"\nwrote {report.write(options.out)}")
    folder = report.figures(options.out)
    for number, (name, found) in enumerate(drawn.items()):
        title = f"{name}: vision tokens that enter"
        plots.patches(folder / f"aggregation-patches-{number}.png", title, found)
    asked = [row for row in rows if row["part"] == "accuracy"]
    plots.accuracy(folder / "aggregation-accuracy.png", asked)
    return report.finish()


def _cost(quick: bool) -> list[dict[str, Any]]:
    import torch

    from benchmarks.aggregation_cost import cost
    from benchmarks.stream_loop_models import QWEN_7B, backend_of, random_backbone

    device, dtype, text = torch.device("cuda"), torch.bfloat16, QWEN_7B.text
    backbone = random_backbone(text, device, dtype)
    backend = backend_of(text, backbone, device, dtype)
    sizes = UNITS[1:2] if quick else UNITS
    return list(cost(backend, text, device, dtype, sizes, name=QWEN_7B.name))


if __name__ == "__main__":
    sys.exit(as_process(main))
