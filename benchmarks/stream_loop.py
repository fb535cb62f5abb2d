"""The whole stream loop on an NVIDIA card: how long units take, early and late, and why.

``python benchmarks/stream_loop.py [--quick | --long]`` builds text backbones with random weights
at the shapes of three models and streams units of 79, 700 and 2,300 tokens through them: with all
kept, by transformers and by this loop, and under three policies that drop something. Each model
leaves a file of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.harness import BESIDE, INTERRUPTED, LACKS, Report, as_process, out_folder, table
from benchmarks.nvidia import lacking
from benchmarks.stream_loop_plots import draw
from benchmarks.stream_loop_size import LONG, NAMES, QUICK, Findings, Size

PACKAGES = ("numpy", "torch", "triton", "transformers")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the streams."""
    head = ["model", "path, policy", "unit", "to", "unit ms", "words ms", "session s", "core %"]
    lines = []
    for row in rows:
        if row["part"] == "stream":
            spent = row["seconds"]
            core = sum(spent[part] for part in ("retain", "plan", "move", "step"))
            lines.append(
                [
                    row["model"],
                    f"{row['path']}, {row['policy']}",
                    f"{row['unit']}",
                    f"{row['target'] // 1024}K",
                    f"{row['last_listen_ms']:.2f}",
                    "-" if row["last_speak_ms"] is None else f"{row['last_speak_ms']:.2f}",
                    f"{row['session_s']:.2f}",
                    f"{100 * core / row['session_s']:.2f}",
                ]
            )
    print(table(head, lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true", help="under two minutes: one model, to 8K")
    much.add_argument("--long", action="store_true", help="sessions to 64K alone")
    parser.add_argument("--model", choices=NAMES, action="append", help="alone; may be given again")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON files and the plots")
    options = parser.parse_args(arguments)
    if missing := lacking("transformers"):
        print(missing, file=sys.stderr)
        return LACKS
    size = QUICK if options.quick else LONG if options.long else Size()
    names = [name for name in NAMES if name in (options.model or size.names)]
    took = "two" if options.quick else "nine"
    print(f"{', '.join(names)}; takes up to {took} minutes each", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    for name in names:
        report = _measure(replace(size, names=(name,)), options)
        print(f"\nwrote {report.write(options.out)}")
        codes.append(report.finish())
        rows += report.rows
        if report.interrupted:
            break
    if not options.long:
        # The figures of the documentation are of several runs, and drawn with its page.
        draw(rows, options.out or BESIDE)
    return max(codes)


def _measure(size: Size, options: argparse.Namespace) -> Report:
    """One model, shown; what failed is said."""
    from benchmarks.stream_loop_claims import claims
    from benchmarks.stream_loop_runs import measure

    found = Findings(size.limit)
    try:
        found.take("all", lambda: measure(size, found))
    except KeyboardInterrupt:
        print("interrupted: what ran is reported", file=sys.stderr)
        found.rows.append({"part": "failed", "failed": INTERRUPTED})
    show(found.rows)
    for failure in found.failed:
        print(f"FAILED  {failure}")
    return Report(
        "stream-loop-long" if options.long else "stream-loop",
        found.rows,
        claims(found.rows, options.quick),
        options.quick,
        PACKAGES,
        next((row["name"] for row in found.rows if row["part"] == "device"), ""),
        part=size.names[0],
    )


if __name__ == "__main__":
    sys.exit(as_process(main))
