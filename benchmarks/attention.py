"""Attention over live pages against the best dense kernels, on an NVIDIA GPU.

``python benchmarks/attention.py [--quick]`` measures decode and prefill in the shapes of three
models, on caches scattered over an arena, beside PyTorch's SDPA on a contiguous copy of the same
cells and over a whole history, FlexAttention, and FlashInfer where it is installed; then what holes
cost. All that is timed is checked against a float32 reference first.
"""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.attention_claims import OTHERS, claims, note_shares, over_history, passed
from benchmarks.attention_plots import draw
from benchmarks.harness import (
    INTERRUPTED,
    LACKS,
    ROOT,
    Report,
    as_process,
    out_folder,
    results_of,
    seed,
    table,
)
from benchmarks.nvidia import lacking

PACKAGES = ("numpy", "torch", "triton", "flashinfer-python")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="under two minutes, one shape")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file and the plots")
    parser.add_argument("--seed", type=seed, help="of all that is drawn; left out, a new one")
    parser.add_argument(
        "--draw",
        type=results_of("attention"),
        metavar="FILE",
        help="only draw what a JSON file of this tells",
    )
    options = parser.parse_args(arguments)
    if options.draw is not None:
        draw(options.draw["rows"], options.out or ROOT / "docs" / "figures")
        return 0
    if missing := lacking():
        told = "an Apple Silicon Mac has benchmarks/metal.py, with pip install -e '.[mlx]'"
        print(f"{missing}; {told}", file=sys.stderr)
        return LACKS
    import torch

    from benchmarks.attention_runs import Runs, Size

    gpu = torch.cuda.get_device_name()
    took = "two minutes" if options.quick else "eight minutes"
    print(f"attention on {gpu}; takes up to {took}", file=sys.stderr, flush=True)
    drawn = secrets.randbits(31) if options.seed is None else options.seed
    runs = Runs(drawn, torch.device("cuda", torch.cuda.current_device()))
    # Each capture of a graph collects garbage: what is loaded by now is none.
    gc.freeze()
    try:
        runs.all(Size.small() if options.quick else Size())
    except KeyboardInterrupt:
        print("interrupted: what ran is reported", file=sys.stderr)
        runs.rows.append({"part": "run", "failed": INTERRUPTED})
    gc.unfreeze()
    rows = runs.rows + over_history(runs.rows)
    note_shares(rows)
    show(rows)
    report = Report("attention", rows, claims(rows), options.quick, PACKAGES, gpu, drawn)
    print(f"\nwrote {report.write(options.out)}")
    draw(rows, report.figures(options.out))
    return report.finish()


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was measured."""
    head = ["", "shape", "new", "live", "ours ms", "dense ms", "ratio", "of reading"]
    head += ["TFLOP/s", "dense kernel", "others"]
    lines = [
        [
            row["part"],
            row["shape"],
            f"{row['new']:,}",
            f"{row['live']:,}",
            *(f"{row[key]:.3f}" if key in row else "" for key in ("ours_ms", "dense_ms", "ratio")),
            f"{row['read_share']:.0%}" if "read_share" in row else "",
            f"{row['ours_tflop_per_s']:.0f}" if "ours_tflop_per_s" in row else "",
            row.get("dense", ""),
            ", ".join(
                f"{name} {row['peers_ms'][name]:.3f}"
                for name in OTHERS
                if name in row.get("peers_ms", {})
            ),
        ]
        for row in rows
        if row["part"] in ("decode", "prefill", "over history")
    ]
    print(table(head, lines))
    print()
    head = ["holes", "kind", "live", "pages", "ns a cell", "over full"]
    lines = [
        [
            f"{row['holes']:.0%}",
            row["kind"],
            f"{row['live']:,}",
            f"{row['pages']:,}",
            f"{row['ns_per_cell']:.1f}",
            f"{row['over_full']:.3f}",
        ]
        for row in rows
        if "over_full" in row
    ]
    print(table(head, lines))
    print("\n" + "\n".join(passed(rows)))


if __name__ == "__main__":
    sys.exit(as_process(main))
